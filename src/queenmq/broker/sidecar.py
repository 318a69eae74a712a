"""The sidecar: the one path between requests and the database.

Each kind of operation has a `Lane`. What waits in it is merged into one call, as much as there is and as soon as it
makes sense: at once while nothing runs, else when enough has gathered or the oldest request has been held long
enough. Requests that share a call never share a fate: a call that fails for a reason of its content is repeated in
halves until only the guilty request fails, and what needs a row that another transaction holds steps aside
(`lock_wait`). Calls run in tasks of their own, so a caller who goes away never interrupts one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from queenmq.broker.fair_queue import FairQueue
from queenmq.broker.lock_patience import is_impatient
from queenmq.broker.lock_wait import LockWait
from queenmq.broker.locked_rows import Row
from queenmq.broker.waiting_for_rows import Ticket
from queenmq.core.histogram import COUNTS, Histogram
from queenmq.core.vegas import Vegas
from queenmq.errors import DatabaseUnavailable, InternalError, Overloaded, QueenError, UnavailableError
from queenmq.storage.failures import RowLocked, TryAgain

log = logging.getLogger(__name__)

Request = TypeVar("Request")
Result = TypeVar("Result")

_TRIES = 6
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.25
# Waiting for company pays only while it is short against the call itself.
_HOLD_SHARE = 0.2
_AVERAGE_WEIGHT = 0.1
# For so long requests queue up behind those that have waited for a row which is free again. Then they are not told from
# others any more, or a partition that is always busy would never go back to the usual way.
_CATCH_UP_S = 1.0


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
    ticket: Ticket | None = None  # once it had to wait for a locked row


class Lane(Generic[Request, Result]):
    """One kind of operation. `run` gets a list of requests and returns their results in the same order.

    `orphaned` is told of every result whose caller has gone. `admission` makes, for each call, the test that a request
    must pass to join it; those that fail wait for a later call. With `repeat_for_s`, a call that found the database
    unavailable is repeated for that long: only for what may be done twice. With `locks`, whoever needs a locked row
    waits there and not in a call; `rows` says which rows a request needs. With `when_locked` instead, nobody waits:
    that is the result of a request which alone finds something locked.
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
        locks: LockWait | None = None,
        rows: Callable[[Request], frozenset[Row]] = lambda _request: frozenset(),
        when_locked: Callable[[Request], Result] | None = None,
    ) -> None:
        self.name = name
        self.calls = 0
        self.requests = 0
        self.items = 0
        self.seconds = 0.0
        self._merged: Counter[int] = Counter()  # calls, by the number of their requests
        self._waited_s = 0.0
        self._taken_at = 0.0
        self._run = run
        self._policy = policy
        self._concurrency = concurrency
        self._orphaned = orphaned
        self._admission = admission
        self._repeat_for_s = repeat_for_s
        self._locks = locks
        self._rows = rows
        self._when_locked = when_locked
        self._freed: list[_Waiting[Request, Result]] = []  # have waited for rows that are free now, in order
        self._catching_up: Counter[Row] = Counter()  # how many of these, and of those that run, need a row
        self._caught_up_by = 0.0
        self._catch_up: asyncio.Task[None] | None = None
        self._trying: set[asyncio.Task[None]] = set()
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
    def merged(self) -> Histogram:
        """How many requests calls have merged."""
        histogram = Histogram(COUNTS)
        for requests, calls in self._merged.items():
            histogram.add(requests, calls)
        return histogram

    @property
    def in_flight(self) -> int:
        return len(self._running)

    @property
    def outstanding(self) -> int:
        """Requests that are not answered: waiting for their call, and in one."""
        return len(self._waiting) + self._busy

    def statistics(self) -> dict[str, float]:
        """Calls, requests, items, seconds spent, waiting now, in flight now."""
        return {
            "calls": self.calls,
            "requests": self.requests,
            "items": self.items,
            "seconds": self.seconds,
            "pending": self.pending,
            "in_flight": self.in_flight,
        }

    async def submit(self, request: Request, key: Hashable, weight: int = 1) -> Result:
        """Have `request` done with one of the next calls. Raises Overloaded if too much waits already.

        Requests of one `key` are taken in order; keys take turns.
        """
        if len(self._waiting) >= self._policy.max_pending:
            raise Overloaded(f"too many {self.name} requests are waiting for a database connection (ECONNREFUSED)")
        loop = asyncio.get_running_loop()
        waiting: _Waiting[Request, Result] = _Waiting(request, weight, loop.create_future(), loop.time())
        if not self._steps_aside(waiting):
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
        if waiting.ticket is not None and self._locks is not None:
            self._locks.leave(waiting.ticket)
        if answer.cancelled() or not answer.done():
            answer.cancel()
        elif answer.exception() is None and self._orphaned is not None:
            # The result came in the same moment in which the caller went.
            self._orphaned(answer.result())

    async def close(self) -> None:
        """Wait until everything that was submitted is answered."""
        while self._waiting or self._running or self._catch_up is not None or self._trying:
            self._dispatch()
            running = self._running | self._trying | ({self._catch_up} if self._catch_up is not None else set())
            if running:
                await asyncio.wait(running)

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
        while True:
            taken = self._waiting.take(self._policy.max_requests, self._policy.max_weight, lambda w: w.weight, admit)
            if not taken:
                return []
            self._taken_at = asyncio.get_running_loop().time()
            self._waited_s = self._taken_at - min(waiting.since for waiting in taken)
            # What they need may have been found locked while they waited here.
            ready = [waiting for waiting in taken if not (waiting.answer.cancelled() or self._steps_aside(waiting))]
            if ready:
                return ready

    def _finished(self, requests: int, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._busy -= requests
        if self._waiting:
            # Its place is free: whoever waits need not be held for company any longer.
            self._at(0.0)

    async def _execute(self, batch: list[_Waiting[Request, Result]], *, has_waited: bool = False) -> None:
        """Have a call made for them and answer each. `has_waited`: all of them have waited for rows."""
        is_doubted = False
        while batch:
            try:
                with nullcontext() if self._locks is None else self._locks.impatient(has_waited=has_waited):
                    results = await self._run_measured(batch)
            except RowLocked as error:
                left = await self._sidestep(batch, error, is_doubted)
                is_doubted = len(left) == len(batch)
                batch = left
            except DatabaseUnavailable as error:
                self._fail(batch, error)
                return
            except Exception as error:
                await self._isolate(batch, error)
                return
            else:
                self._deal_all(batch, results)
                return

    # Locked rows

    def _steps_aside(self, waiting: _Waiting[Request, Result]) -> bool:
        """Whether it waits now: for a locked row, or behind those who have waited for one."""
        locks = self._locks
        if locks is None or not (locks.known or self._catching_up):
            return False
        rows = self._rows(waiting.request)
        locked = locks.locked(rows)
        if locked:
            self._park(waiting, rows, locked)
            return True
        if rows.isdisjoint(self._catching_up) or waiting.since > self._caught_up_by:
            return False
        self._follow(waiting, rows)
        return True

    def _park(self, waiting: _Waiting[Request, Result], rows: frozenset[Row], locked: set[Row] | None) -> None:
        """Have it wait for these rows; with None, for something that the probe does not see."""
        if self._locks is None or waiting.answer.done():
            return
        if waiting.ticket is None:
            waiting.ticket = Ticket(rows, waiting.since, partial(self._go_on, waiting), partial(self._fail, [waiting]))
        try:
            if locked is None:
                self._locks.suspect(waiting.ticket)
            else:
                self._locks.park(waiting.ticket, locked)
        except UnavailableError as error:
            self._fail([waiting], error)

    def _go_on(self, waiting: _Waiting[Request, Result]) -> None:
        """What it waited for is free."""
        if waiting.ticket is not None and waiting.ticket.trying is not None:
            task = asyncio.get_running_loop().create_task(self._try_alone(waiting, waiting.ticket))
            self._trying.add(task)
            task.add_done_callback(self._trying.discard)
            return
        self._caught_up_by = asyncio.get_running_loop().time() + _CATCH_UP_S
        self._follow(waiting, self._rows(waiting.request))

    def _follow(self, waiting: _Waiting[Request, Result], rows: frozenset[Row]) -> None:
        self._catching_up.update(rows)
        self._freed.append(waiting)
        # One that has ended and whose callback has not run yet will not take this one any more.
        if self._catch_up is None or self._catch_up.done():
            self._catch_up = asyncio.get_running_loop().create_task(self._run_freed())
            self._catch_up.add_done_callback(self._caught_up)

    def _caught_up(self, task: asyncio.Task[None]) -> None:
        if self._catch_up is task:
            self._catch_up = None

    async def _run_freed(self) -> None:
        """The calls of those who have waited, one after the other so that nobody overtakes."""
        while self._freed:
            batch = self._take_freed()
            await self._execute(batch, has_waited=True)
            self._forget_rows(batch)

    def _take_freed(self) -> list[_Waiting[Request, Result]]:
        freed, self._freed = self._freed, []
        admit = self._admission() if self._admission is not None else lambda _request: True
        policy = self._policy
        batch: list[_Waiting[Request, Result]] = []
        weight = 0
        for place, waiting in enumerate(freed):
            full = len(batch) >= policy.max_requests or (batch and weight + waiting.weight > policy.max_weight)
            if full:
                self._freed += freed[place:]
                break
            rows = self._rows(waiting.request)
            locked = set() if self._locks is None else self._locks.locked(rows)
            if waiting.answer.done():
                self._forget_rows([waiting])
            elif locked:
                self._forget_rows([waiting])
                self._park(waiting, rows, locked)
            elif not admit(waiting.request):
                self._freed.append(waiting)
            else:
                batch.append(waiting)
                weight += waiting.weight
        return batch

    def _forget_rows(self, batch: list[_Waiting[Request, Result]]) -> None:
        for waiting in batch:
            for row in self._rows(waiting.request):
                self._catching_up[row] -= 1
                if not self._catching_up[row]:
                    del self._catching_up[row]

    async def _try_alone(self, waiting: _Waiting[Request, Result], ticket: Ticket) -> None:
        if self._locks is not None:
            async with self._locks.alone(ticket):
                if not waiting.answer.done():
                    await self._execute([waiting])

    async def _sidestep(
        self, batch: list[_Waiting[Request, Result]], error: RowLocked, is_doubted: bool
    ) -> list[_Waiting[Request, Result]]:
        """Have those wait who need a locked row. Returns the others, who are to be tried again at once.

        `is_doubted`: the last time nothing was found, either.
        """
        locks = self._locks
        if locks is None:
            await self._do_without(batch, error)
            return []
        needs = [self._rows(waiting.request) for waiting in batch]
        first = batch[0].ticket
        tried = None if first is None else first.trying
        try:
            locked = await locks.find(frozenset().union(*needs), tried)
        except UnavailableError as failure:
            self._fail(batch, failure)
            return []
        if locked is None:
            await self._execute_patiently(batch)
            return []
        left = []
        for waiting, rows in zip(batch, needs, strict=True):
            if rows.isdisjoint(locked):
                left.append(waiting)
            else:
                self._park(waiting, rows, locked & rows)
        if len(left) < len(batch) or not (is_doubted or tried is not None):
            return left
        # It is locked, and no probe sees it: who needs it is found by halving.
        if len(batch) == 1:
            self._park(batch[0], needs[0], None)
        else:
            await self._isolate(batch, error)
        return []

    async def _do_without(self, batch: list[_Waiting[Request, Result]], error: RowLocked) -> None:
        if self._when_locked is None:
            self._fail(batch, error)
        elif len(batch) == 1:
            self._deal(batch[0], self._when_locked(batch[0].request))
        else:
            await self._isolate(batch, error)

    async def _execute_patiently(self, batch: list[_Waiting[Request, Result]]) -> None:
        """A whole table is locked, and nobody can go on: wait for it in the call."""
        try:
            results = await self._run_measured(batch)
        except DatabaseUnavailable as error:
            self._fail(batch, error)
        except Exception as error:
            await self._isolate(batch, error)
        else:
            self._deal_all(batch, results)

    # Calls

    async def _run_measured(self, batch: list[_Waiting[Request, Result]]) -> list[Result]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        results = await self._run_patiently([waiting.request for waiting in batch])
        now = loop.time()
        weight = sum(waiting.weight for waiting in batch)
        self.calls += 1
        self.requests += len(batch)
        self._merged[len(batch)] += 1
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
                if isinstance(error, RowLocked) and (self._when_locked is not None or is_impatient()):
                    raise
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

    def _deal_all(self, batch: list[_Waiting[Request, Result]], results: list[Result]) -> None:
        for waiting, result in zip(batch, results, strict=True):
            self._deal(waiting, result)

    def _deal(self, waiting: _Waiting[Request, Result], result: Result) -> None:
        if not waiting.answer.done():
            waiting.answer.set_result(result)
        elif self._orphaned is not None:
            self._orphaned(result)
