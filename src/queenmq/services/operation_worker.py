"""The worker of the operation queue: runs what waits in it, and deletes what finished long ago."""

from __future__ import annotations

from queenmq.broker.operation_runner import OperationRunner
from queenmq.clock import Clock
from queenmq.config import OperationSettings
from queenmq.errors import DatabaseUnavailable
from queenmq.operations.queue import OperationQueue
from queenmq.services.service import Service
from queenmq.storage.database import Database

_CLEAN_EVERY_S = 60.0
_CLEAN_STEP = 1000
# For so long pushes are run before the other jobs have their turn.
_PUSHES_FOR_S = 0.2


class OperationWorker(Service):
    name = "operation worker"

    def __init__(
        self,
        database: Database,
        runner: OperationRunner,
        queue: OperationQueue,
        clock: Clock,
        settings: OperationSettings,
    ) -> None:
        super().__init__(settings.interval_ms, clock)
        self._database = database
        self._runner = runner
        self._queue = queue
        self._settings = settings
        self._more = False
        self._clean_due = 0.0

    async def work(self) -> None:
        while await self._turn():
            pass

    async def _turn(self) -> bool:
        """Each job once; one that fails does not keep the others from being done. Returns whether pushes are left."""
        if not self._database.is_open:
            return False
        self._more = False
        failed: Exception | None = None
        for job in (self._run_pushes, self._take_up, self._clean):
            try:
                await job()
            except DatabaseUnavailable:
                continue
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed
        return self._more

    async def _take_up(self) -> None:
        if self._runner.may_have_steps and self._runner.steps_may_go:
            await self._runner.take_up()

    async def _run_pushes(self) -> None:
        if not self._runner.may_have_pushes:
            return
        pause_at = self._clock.monotonic() + _PUSHES_FOR_S
        while await self._runner.run_pushes(self._settings.partitions, self._settings.run):
            if self._clock.monotonic() >= pause_at:
                self._more = True
                return

    async def _clean(self) -> None:
        now = self._clock.monotonic()
        if now < self._clean_due:
            return
        self._clean_due = now + _CLEAN_EVERY_S
        await self._queue.fold_size_changes()
        keep = self._settings.keep_s, self._settings.keep_failed_s
        while await self._queue.forget(*keep, _CLEAN_STEP) == _CLEAN_STEP:
            pass
