"""Merges requests of one kind into few database calls, and deals the results back.

Requests that share a call never share a fate: a call that fails for a reason of its content is repeated in halves until
only the guilty request fails. A call runs in its own task, so a caller who goes away never interrupts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from queenmq.errors import DatabaseUnavailable, InternalError, Overloaded, QueenError, UnavailableError
from queenmq.storage.database import TryAgain

log = logging.getLogger(__name__)

Request = TypeVar("Request")
Result = TypeVar("Result")

_TRIES = 6
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.25


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Request, Result]):
    request: Request
    weight: int
    answer: asyncio.Future[Result]


class Batcher(Generic[Request, Result]):
    """`run` gets a list of requests and returns their results in the same order.

    `orphaned` is told of every result whose caller has gone. `admission` makes, for each call, the test that
    a request must pass to join it; those that fail wait for a later call. With `repeat_for_s`, a call that found
    the database unavailable is repeated for that long: only for what may be done twice.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[list[Request]], Awaitable[list[Result]]],
        *,
        max_weight: int,
        max_in_flight: int,
        max_pending: int,
        orphaned: Callable[[Result], None] | None = None,
        admission: Callable[[], Callable[[Request], bool]] | None = None,
        repeat_for_s: float = 0.0,
    ) -> None:
        self.name = name
        self.calls = 0
        self.requests = 0
        self._run = run
        self._max_weight = max_weight
        self._max_in_flight = max_in_flight
        self._max_pending = max_pending
        self._orphaned = orphaned
        self._admission = admission
        self._repeat_for_s = repeat_for_s
        self._waiting: deque[_Waiting[Request, Result]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._scheduled = False

    @property
    def pending(self) -> int:
        return len(self._waiting)

    async def submit(self, request: Request, weight: int = 1) -> Result:
        """Have `request` done with the next call. Raises Overloaded if too much waits already."""
        if len(self._waiting) >= self._max_pending:
            raise Overloaded(f"too many {self.name} requests are waiting for the database")
        loop = asyncio.get_running_loop()
        waiting: _Waiting[Request, Result] = _Waiting(request, weight, loop.create_future())
        self._waiting.append(waiting)
        if not self._scheduled and len(self._running) < self._max_in_flight:
            self._scheduled = True
            # Not at once: what arrives in the same turn of the loop goes along.
            loop.call_soon(self._dispatch)
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            self._abandon(waiting)
            raise

    def _abandon(self, waiting: _Waiting[Request, Result]) -> None:
        answer = waiting.answer
        if answer.cancelled() or not answer.done():
            answer.cancel()
        elif answer.exception() is None and self._orphaned is not None:
            # The result came in the same moment in which the caller went.
            self._orphaned(answer.result())

    async def close(self) -> None:
        """Wait until everything that was submitted is answered."""
        while self._waiting or self._running:
            self._dispatch()
            await asyncio.wait(self._running)

    def _dispatch(self) -> None:
        self._scheduled = False
        while self._waiting and len(self._running) < self._max_in_flight:
            batch = self._take()
            if batch:
                task = asyncio.get_running_loop().create_task(self._execute(batch))
                self._running.add(task)
                task.add_done_callback(self._finished)

    def _take(self) -> list[_Waiting[Request, Result]]:
        admit = self._admission() if self._admission is not None else None
        batch: list[_Waiting[Request, Result]] = []
        later: list[_Waiting[Request, Result]] = []
        weight = 0
        while self._waiting and (not batch or weight + self._waiting[0].weight <= self._max_weight):
            waiting = self._waiting.popleft()
            if waiting.answer.cancelled():
                continue
            if admit is None or admit(waiting.request):
                batch.append(waiting)
                weight += waiting.weight
            else:
                later.append(waiting)
        self._waiting.extendleft(reversed(later))
        return batch

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._dispatch()

    async def _execute(self, batch: list[_Waiting[Request, Result]]) -> None:
        try:
            results = await self._run_patiently([waiting.request for waiting in batch])
        except UnavailableError as error:
            self._fail(batch, error)
        except Exception as error:
            await self._isolate(batch, error)
        else:
            for waiting, result in zip(batch, results, strict=True):
                self._deal(waiting, result)

    async def _run_patiently(self, requests: list[Request]) -> list[Result]:
        self.calls += 1
        self.requests += len(requests)
        deadline = asyncio.get_running_loop().time() + self._repeat_for_s
        pause = _FIRST_PAUSE_S
        tries = 1
        while True:
            try:
                return await self._run(requests)
            except DatabaseUnavailable as error:
                tries += 1
                in_time = asyncio.get_running_loop().time() < deadline
                if not in_time and not (isinstance(error, TryAgain) and tries <= _TRIES):
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _isolate(self, batch: list[_Waiting[Request, Result]], error: Exception) -> None:
        if len(batch) == 1:
            self._fail(batch, error)
            return
        middle = len(batch) // 2
        await self._execute(batch[:middle])
        await self._execute(batch[middle:])

    def _fail(self, batch: list[_Waiting[Request, Result]], error: Exception) -> None:
        if not isinstance(error, QueenError):
            log.error("%s failed", self.name, exc_info=error)
            error = InternalError()
        for waiting in batch:
            if not waiting.answer.done():
                waiting.answer.set_exception(error)

    def _deal(self, waiting: _Waiting[Request, Result], result: Result) -> None:
        if not waiting.answer.done():
            waiting.answer.set_result(result)
        elif self._orphaned is not None:
            self._orphaned(result)
