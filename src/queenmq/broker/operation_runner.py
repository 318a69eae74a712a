"""Runs operations for the broker: deferred pushes, and stepped operations in tasks of their own.

Stepped operations go behind pushes that wait. After each commit it applies what has changed to this server: long polls
are woken, caches and counters updated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Literal

from queenmq.broker.activity import Activity
from queenmq.broker.caches import Caches
from queenmq.broker.load import LoadWatch
from queenmq.broker.wake_ups import Wake, by_queue
from queenmq.clock import Clock
from queenmq.config import OperationSettings
from queenmq.errors import Conflict, HttpError
from queenmq.operations.pushes import DeferredPushes
from queenmq.operations.queue import OperationQueue
from queenmq.operations.steps import Begun, Claimed, Step, StepKind, StepParameters, SteppedOperations
from queenmq.storage.database import Database
from queenmq.storage.failures import after_commit

log = logging.getLogger(__name__)

_POLL_S = 0.05
# No longer than this does the next step wait for pushes, so that what frees space is not put off for ever.
_BEHIND_PUSHES_S = 5.0


@dataclass(frozen=True, slots=True)
class OperationProgress:
    """How far a stepped operation is: finished without an operation, or the operation that goes on with it."""

    done: int
    total: int | None = None
    operation_id: str | None = None
    status: Literal["completed", "running", "queued"] = "completed"
    unit: str = ""


class OperationRunner:
    def __init__(
        self,
        database: Database,
        caches: Caches,
        settings: OperationSettings,
        clock: Clock,
        *,
        load: LoadWatch,
        activity: Activity,
        readable: Wake,
        server_id: str,
    ) -> None:
        self._caches = caches
        self._settings = settings
        self._clock = clock
        self._load = load
        self._activity = activity
        self._readable = readable
        self._queue = OperationQueue(database)
        self._running: dict[str, asyncio.Task[None]] = {}  # stepped operations, by claim
        self._more_pushes = False  # the last claim found some
        self._taken_up_at = clock.monotonic()
        self.pushes = DeferredPushes(database, server_id)
        self.steps = SteppedOperations(database, server_id, settings)

    # Deferred pushes

    @property
    def may_have_pushes(self) -> bool:
        return self.pushes.interrupted or self._load.may_have_operations

    async def run_pushes(self, partitions: int, length: int) -> int:
        """Run the oldest pushes of up to so many partitions, up to `length` of each. Returns how many were claimed."""
        pushes = self.pushes
        try:
            if pushes.interrupted:
                await pushes.release()
            claimed = await pushes.claim(partitions, length)
            self._more_pushes = claimed is not None
            if claimed is None:
                return 0
            async for stored in pushes.run(claimed):
                for queue, names in by_queue(stored).items():
                    self._readable(queue, names)
        except BaseException:
            # What is claimed must not wait until its claim times out.
            pushes.interrupted = True
            raise
        return len(claimed.rows)

    # Stepped operations

    async def begin(self, kind: StepKind, queue: str, parameters: StepParameters) -> OperationProgress | None:
        """Run an operation to its end, or as far as the time for an answer allows. None if there is no such queue."""
        deadline = self._deadline()
        begun = await self.steps.begin(kind, queue, parameters, claim=self._may_go_on())
        if begun is None:
            return None
        self._touch(queue)
        return await self._progress(begun, deadline)

    async def delete_queue(self, queue: str) -> tuple[bool, OperationProgress]:
        """Delete a queue; False if there was none. After it the name is free, and nothing of the queue is reachable."""
        deadline = self._deadline()
        deleted = await self.steps.delete_queue(queue, claim=self._may_go_on())
        self._caches.delete_queue(queue, deleted.version)
        return deleted.existed, await self._progress(deleted.begun, deadline)

    async def retain(self, limit: int, idle_days: int) -> None:
        """Run retention to its end, unless it runs or waits already, and find what is left of deleted queues."""
        if await self.steps.adopt_remains():
            self._load.note_queued(1)
        claimed = await self.steps.begin_retention(limit, idle_days)
        if claimed is not None:
            await asyncio.wait((self._start(claimed),))

    @property
    def running(self) -> int:
        """How many stepped operations run here."""
        return len(self._running)

    @property
    def may_have_steps(self) -> bool:
        return self.steps.interrupted or self._load.may_have_operations

    @property
    def pushes_wait(self) -> bool:
        """Whether more pushes wait than this server has just run."""
        return self._more_pushes and self.may_have_pushes

    @property
    def steps_may_go(self) -> bool:
        """Whether stepped operations may be taken up: no push waits, or they have waited long enough for pushes."""
        return not self.pushes_wait or self._clock.monotonic() >= self._taken_up_at + _BEHIND_PUSHES_S

    async def take_up(self) -> None:
        """Run stepped operations that wait or that a dead server has left, as many as this server may run at once."""
        self._taken_up_at = self._clock.monotonic()
        while self._has_room():
            claimed = await self.steps.claim_next()
            if claimed is None:
                return
            self._start(claimed)

    def _has_room(self) -> bool:
        return self.running < self._settings.max_concurrent

    def _may_go_on(self) -> bool:
        """Whether what is begun in a request goes on at once."""
        return self._has_room() and not self.pushes_wait

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._settings.wait_ms / 1000

    async def _progress(self, begun: Begun, deadline: float) -> OperationProgress:
        """How far the operation is when it is finished or the time for an answer is over. It goes on by itself."""
        if begun.operation_id is None:
            return OperationProgress(begun.done)
        if begun.claimed is None:
            self._load.note_queued(1)
        else:
            timeout_s = max(0.0, deadline - self._clock.monotonic())
            with contextlib.suppress(TimeoutError):
                async with self._clock.timeout(timeout_s):
                    await asyncio.wait((self._start(begun.claimed),))
        while True:
            with after_commit():
                found = await self._queue.find(begun.operation_id)
            if found is None:
                raise Conflict(f"operation {begun.operation_id} was stopped, and there is no record of it any more")
            if found.status in ("failed", "cancelled"):
                raise Conflict(f"operation {begun.operation_id} was stopped: {found.error}")
            if found.status == "completed":
                return OperationProgress(found.done)
            if self._clock.monotonic() >= deadline:
                status: Literal["running", "queued"] = "running" if found.status == "processing" else "queued"
                return OperationProgress(found.done, found.total, begun.operation_id, status, found.unit)
            await self._clock.sleep(_POLL_S)

    def _start(self, claimed: Claimed) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._run(claimed), name=f"operation {claimed.operation_id}")
        self._running[claimed.claim] = task
        task.add_done_callback(lambda _: self._ended(claimed))
        return task

    def _ended(self, claimed: Claimed) -> None:
        self._running.pop(claimed.claim, None)
        self.steps.end(claimed)

    async def _run(self, claimed: Claimed) -> None:
        """Step by step to the end, or until a step fails, or the operation is cancelled or taken by another server."""
        try:
            await self._let_pushes_go()
            while step := await self.steps.step(claimed):
                self._apply(step)
                if step.finished:
                    return
                await self._let_pushes_go()
        except Exception:
            self.steps.interrupted = True
            log.exception("operation %s was interrupted and will be resumed", claimed.operation_id)

    async def _let_pushes_go(self) -> None:
        until = self._clock.monotonic() + _BEHIND_PUSHES_S
        while self.pushes_wait and self._clock.monotonic() < until:
            await self._clock.sleep(_POLL_S)

    def _apply(self, step: Step) -> None:
        if step.retained:
            self._activity.of(step.retained_in).retained += step.retained
        if step.dropped:
            self._caches.delete_partitions(step.dropped)
        if step.queue is not None and step.kind not in ("retention", "delete_queue"):
            self._touch(step.queue)

    def _touch(self, queue: str) -> None:
        self._activity.touched.add(queue)
        self._readable(queue)

    async def close(self) -> None:
        """Stop in the middle, and leave the rest to another server or a later start."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            with contextlib.suppress(HttpError):
                await self.steps.release()
