"""Runs the operation queue, and removes what was finished long ago."""

from __future__ import annotations

import asyncio

from queenmq.config import Settings
from queenmq.engine.load import LoadWatch
from queenmq.engine.operations import Operations
from queenmq.errors import DatabaseUnavailable
from queenmq.services.service import Service
from queenmq.storage.database import Database

_CLEAN_EVERY_S = 60.0
_CLEAN_STEP = 1000


class OperationWorker(Service):
    name = "operation worker"

    def __init__(self, database: Database, operations: Operations, load: LoadWatch, settings: Settings) -> None:
        super().__init__(settings.operation_interval_ms)
        self._database = database
        self._operations = operations
        self._load = load
        self._settings = settings
        self._interrupted = True  # by the end of an earlier process of the same name, perhaps
        self._clean_due = 0.0

    async def work(self) -> None:
        if not self._database.is_open:
            return
        try:
            await self._drain()
            await self._clean()
        except DatabaseUnavailable:
            self._interrupted = True

    async def _drain(self) -> None:
        if not (self._interrupted or self._load.may_have_operations):
            return
        if self._interrupted:
            await self._operations.release()
            self._interrupted = False
        settings = self._settings
        while await self._operations.run(settings.operation_partitions, settings.operation_run):
            pass

    async def _clean(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._clean_due:
            return
        self._clean_due = now + _CLEAN_EVERY_S
        settings = self._settings
        while (
            await self._operations.forget(settings.operation_keep_s, settings.operation_keep_failed_s, _CLEAN_STEP)
            == _CLEAN_STEP
        ):
            pass
