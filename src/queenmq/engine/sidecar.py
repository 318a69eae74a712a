"""The sidecar: the one path between requests and the database.

Each kind of operation has a `Lane`. What waits in it is merged into one call, as much as there is and as soon as it
makes sense: at once while nothing runs, else when enough has gathered or the oldest request has been held long
enough. Requests that share a call never share a fate: a call that fails for a reason of its content is repeated in
halves until only the guilty request fails. Calls run in tasks of their own, so a caller who goes away never interrupts
one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from queenmq.core.fair_queue import FairQueue
from queenmq.core.histogram import COUNTS, Histogram
from queenmq.core.vegas import Vegas
from queenmq.errors import DatabaseUnavailable, InternalError, Overloaded, QueenError
from queenmq.storage.database import TryAgain

log = logging.getLogger(__name__)

Request = TypeVar("Request")
Result = TypeVar("Result")

_TRIES = 6
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.25
# Waiting for company pays only while it is short against the call itself.
_HOLD_SHARE = 0.2
_AVERAGE_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class Policy:
    """How a lane merges."""

    preferred: int  # waiting requests that are worth another call while one runs
    max_hold_s: float  # longest time that a request waits for company while a call runs; less if calls are quick
    max_requests: int
    max_weight: int  # most items (messages, acknowledgements) of one call; a single larger request goes alone
    max_concurrent: int
    max_pending: int


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Request, Result]):
    request: Request
    weight: int
    answer: asyncio.Future[Result]
    since: float


class Lane(Generic[Request, Result]):
    """One kind of operation. `run` gets a list of requests and returns their results in the same order.

    `orphaned` is told of every result whose caller has gone. `admission` makes, for each call, the test that a request
    must pass to join it; those that fail wait for a later call. With `repeat_for_s`, a call that found the database
    unavailable is repeated for that long: only for what may be done twice.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[list[Request]], Awaitable[list[Result]]],
        policy: Policy,
        *,
        concurrency: Vegas | None = None,
        orphaned: Callable[[Result], None] | None = None,
        admission: Callable[[], Callable[[Request], bool]] | None = None,
        repeat_for_s: float = 0.0,
    ) -> None:
        self.name = name
        self.calls = 0
        self.requests = 0
        self.items = 0
        self.seconds = 0.0
        self.merged = Histogram(COUNTS)
        self._waited_s = 0.0
        self._taken_at = 0.0
        self._run = run
        self._policy = policy
        self._concurrency = concurrency
        self._orphaned = orphaned
        self._admission = admission
        self._repeat_for_s = repeat_for_s
        self._waiting: FairQueue[_Waiting[Request, Result]] = FairQueue()
        self._running: set[asyncio.Task[None]] = set()
        self._busy = 0  # requests in the calls that run
        self._scheduled: asyncio.Handle | None = None
        self._usual_s = policy.max_hold_s / _HOLD_SHARE  # what a call takes, averaged

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def wait_s(self, now: float) -> float:
        """How long the last requests waited for their call, for how long none was taken while some wait, or how long
        the next one will wait for the calls before its own: whichever is longest."""
        if not self._waiting:
            return 0.0
        calls_before = len(self._waiting) // self._policy.max_requests
        return max(self._waited_s, now - self._taken_at, calls_before * self._usual_s / self._limit())

    @property
    def in_flight(self) -> int:
        return len(self._running)

    @property
    def outstanding(self) -> int:
        """Requests that are not answered: waiting for their call, and in one."""
        return len(self._waiting) + self._busy

    async def submit(self, request: Request, key: Hashable, weight: int = 1) -> Result:
        """Have `request` done with one of the next calls. Raises Overloaded if too much waits already.

        Requests of one `key` are taken in order; keys take turns.
        """
        if len(self._waiting) >= self._policy.max_pending:
            raise Overloaded(f"too many {self.name} requests are waiting for a database connection (ECONNREFUSED)")
        loop = asyncio.get_running_loop()
        waiting: _Waiting[Request, Result] = _Waiting(request, weight, loop.create_future(), loop.time())
        if not self._waiting:
            self._taken_at = waiting.since
        self._waiting.put(key, waiting)
        self._schedule()
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
            if self._running:
                await asyncio.wait(self._running)

    def _schedule(self) -> None:
        """Arrange for the next call: now, or when the hold is over."""
        running = len(self._running)
        if running >= self._limit():
            return
        if running == 0 or len(self._waiting) >= self._policy.preferred:
            # Not at once: what arrives in the same turn of the loop goes along.
            self._at(0.0)
        elif self._scheduled is None:
            self._at(min(self._policy.max_hold_s, self._usual_s * _HOLD_SHARE))

    def _at(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._scheduled is not None:
            if not isinstance(self._scheduled, asyncio.TimerHandle):
                return
            self._scheduled.cancel()
        self._scheduled = loop.call_later(delay_s, self._dispatch) if delay_s > 0 else loop.call_soon(self._dispatch)

    def _limit(self) -> int:
        most = self._policy.max_concurrent
        return most if self._concurrency is None else min(most, self._concurrency.limit)

    def _dispatch(self) -> None:
        self._scheduled = None
        batch = self._take()
        if batch:
            task = asyncio.get_running_loop().create_task(self._execute(batch))
            self._running.add(task)
            self._busy += len(batch)
            task.add_done_callback(partial(self._finished, len(batch)))
        if self._waiting:
            self._schedule()

    def _take(self) -> list[_Waiting[Request, Result]]:
        admit = None
        if self._admission is not None:
            admitted = self._admission()
            admit = lambda waiting: admitted(waiting.request)  # noqa: E731
        taken = self._waiting.take(self._policy.max_requests, self._policy.max_weight, lambda w: w.weight, admit)
        if taken:
            self._taken_at = asyncio.get_running_loop().time()
            self._waited_s = self._taken_at - min(waiting.since for waiting in taken)
        return [waiting for waiting in taken if not waiting.answer.cancelled()]

    def _finished(self, requests: int, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._busy -= requests
        if self._waiting:
            # Its place is free: whoever waits need not be held for company any longer.
            self._at(0.0)

    async def _execute(self, batch: list[_Waiting[Request, Result]]) -> None:
        try:
            results = await self._run_measured(batch)
        except DatabaseUnavailable as error:
            self._fail(batch, error)
        except Exception as error:
            await self._isolate(batch, error)
        else:
            for waiting, result in zip(batch, results, strict=True):
                self._deal(waiting, result)

    async def _run_measured(self, batch: list[_Waiting[Request, Result]]) -> list[Result]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        results = await self._run_patiently([waiting.request for waiting in batch])
        now = loop.time()
        weight = sum(waiting.weight for waiting in batch)
        self.calls += 1
        self.requests += len(batch)
        self.merged.add(len(batch))
        self.items += weight
        self.seconds += now - started
        self._usual_s += (now - started - self._usual_s) * _AVERAGE_WEIGHT
        if self._concurrency is not None:
            self._concurrency.record(now, now - started, weight)
        return results

    async def _run_patiently(self, requests: list[Request]) -> list[Result]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._repeat_for_s
        pause, tries = _FIRST_PAUSE_S, 1
        while True:
            try:
                return await self._run(requests)
            except DatabaseUnavailable as error:
                tries += 1
                if loop.time() >= deadline and not (isinstance(error, TryAgain) and tries <= _TRIES):
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


class Sidecar:
    """All lanes of one worker, for statistics and for closing them together."""

    def __init__(self, *lanes: Lane[Any, Any]) -> None:
        self.lanes = lanes

    async def close(self) -> None:
        for lane in self.lanes:
            await lane.close()

    def statistics(self) -> dict[str, dict[str, float]]:
        """Per operation: calls, requests, items, seconds spent, waiting now, in flight now."""
        return {
            lane.name: {
                "calls": lane.calls,
                "requests": lane.requests,
                "items": lane.items,
                "seconds": lane.seconds,
                "pending": lane.pending,
                "in_flight": lane.in_flight,
            }
            for lane in self.lanes
        }
