"""Takes up long operations that wait, or that a server left in the middle."""

from __future__ import annotations

from queenmq.config import Settings
from queenmq.engine.long_operations import LongOperations
from queenmq.errors import DatabaseUnavailable
from queenmq.services.service import Service
from queenmq.storage.database import Database


class LongOperationWorker(Service):
    name = "long operation worker"

    def __init__(self, database: Database, operations: LongOperations, settings: Settings) -> None:
        super().__init__(settings.operation_interval_ms)
        self._database = database
        self._operations = operations

    async def work(self) -> None:
        if self._database.is_open and self._operations.may_have_work:
            try:
                await self._operations.work()
            except DatabaseUnavailable:
                return
