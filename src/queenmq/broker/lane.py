"""The lanes: the one path between requests and the database.

Each kind of operation has a `Lane`. What waits in it is merged into one call: at once while nothing runs, else when
enough has gathered or the oldest request has been held long enough. How many calls may run at once is learned from the
time that they take. Requests that share a call never share a fate: one that fails for its content is found by halves;
what needs a row that another transaction holds steps aside in a `locking_lane`. Callers who go interrupt no call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from functools import partial
from operator import attrgetter
from typing import Generic, TypeVar

from queenmq.broker.locked_rows import Row
from queenmq.broker.merging import Batch, Policy, Request, Result, Waiting
from queenmq.broker.waiting_for_rows import AGAIN_TIMEOUT, FIRST_TIMEOUT, NEXT_TIMEOUT
from queenmq.clock import SYSTEM, Clock, Timer
from queenmq.config import ConcurrencySettings
from queenmq.errors import DatabaseUnavailable, InternalError, Overloaded, QueenError, UnavailableError
from queenmq.retry import Attempts, Failure, Pauses
from queenmq.storage.failures import AnswerLost, RowLocked, TryAgain

log = logging.getLogger(__name__)

Item = TypeVar("Item")

TRIES = 6  # of a call that meets a deadlock or the like
PAUSES = Pauses(0.005, 0.25)
# Waiting for company pays only while it is short against the call itself.
_HOLD_SHARE = 0.2
_AVERAGE_WEIGHT = 0.1


class Lane(Generic[Request, Result]):
    """One kind of operation. `run` gets requests and the lock_timeout for their call, and returns the results in order.

    `orphaned` gets every result whose caller has gone. `admission` makes, for each call, the test that a request
    must pass to join it; those that fail wait for a later call. With `repeat_for_s`, a call that found the database
    unavailable is repeated for that long: only for what may be done twice. `when_locked` is the result of a request
    which alone finds something locked; without it, such a request fails. After a lost answer, neither an error
    nor a result that `refuses` says that nothing was kept.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[list[Request], str], Awaitable[list[Result]]],
        policy: Policy,
        *,
        concurrency: Vegas | None = None,
        orphaned: Callable[[Result], None] | None = None,
        admission: Callable[[], Callable[[Request], bool]] | None = None,
        repeat_for_s: float = 0.0,
        when_locked: Callable[[Request], Result] | None = None,
        refuses: Callable[[Result], bool] = lambda _result: False,
        clock: Clock = SYSTEM,
    ) -> None:
        self.name = name
        self.calls = self.requests = self.items = 0
        self.merged: Counter[int] = Counter()  # calls, by the number of their requests
        self.seconds = self._waited_s = self._taken_at = 0.0
        self._run = run
        self._policy = policy
        self._concurrency = concurrency
        self._orphaned = orphaned
        self._admission = admission
        self._taken_alone: set[Hashable] = set()  # those of such keys that a call runs for
        self._repeat_for_s = repeat_for_s
        self._when_locked = when_locked
        self._refuses = refuses
        self._clock = clock
        # While one of these is not empty, requests may have to step aside.
        self._locked: Mapping[Row, object] = {}
        self._catching_up: Counter[Row] = Counter()
        self._waiting: FairQueue[Waiting[Request, Result]] = FairQueue(attrgetter("weight"))
        self._running: set[asyncio.Task[None]] = set()
        self._busy = 0  # requests in the calls that run
        self._hold: Timer | None = None  # the next call begins when it ends
        self._is_due = False  # it begins in the next turn of the loop
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
        """Have `request` done with one of the next calls, those of one `key` in order. Raises Overloaded if too much
        waits already."""
        if len(self._waiting) >= self._policy.max_pending:
            raise Overloaded(f"too many {self.name} requests are waiting for a database connection (ECONNREFUSED)")
        answer = asyncio.get_running_loop().create_future()
        waiting: Waiting[Request, Result] = Waiting(request, weight, answer, self._clock.monotonic(), key=key)
        if not ((self._locked or self._catching_up) and self._steps_aside(waiting)):
            if not self._waiting:
                self._taken_at = waiting.since
            self._waiting.put(key, waiting)
            self._schedule()
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            self._abandon(waiting)
            raise

    def _abandon(self, waiting: Waiting[Request, Result]) -> None:
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
            self._dispatch_soon()
        elif self._hold is None and not self._is_due:
            held_s = min(self._policy.max_hold_s, self._usual_s * _HOLD_SHARE)
            self._hold = self._clock.call_later(held_s, self._dispatch)

    def _dispatch_soon(self) -> None:
        """Not at once: what arrives in the same turn of the loop goes along."""
        if self._hold is not None:
            self._hold.cancel()
        if not self._is_due:
            self._is_due, self._hold = True, None
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _limit(self) -> int:
        most = self._policy.max_concurrent
        return most if self._concurrency is None else min(most, self._concurrency.limit)

    def _dispatch(self) -> None:
        self._hold, self._is_due = None, False
        batch = self._take()
        if batch:
            task = asyncio.get_running_loop().create_task(self._execute(batch))
            self._running.add(task)
            self._busy += len(batch)
            alone = self._alone(batch)
            self._taken_alone.update(alone)
            task.add_done_callback(partial(self._finished, len(batch), alone))
        if self._waiting and (batch or not self._running):  # else they wait for a call that runs
            self._schedule()

    def _take(self) -> Batch[Request, Result]:
        admit = None
        if self._admission is not None:
            admitted = self._admission()
            admit = lambda waiting: admitted(waiting.request)  # noqa: E731
        elif self._taken_alone:
            admit = lambda waiting: waiting.key not in self._taken_alone  # noqa: E731
        while True:
            taken = self._waiting.take(self._policy.max_requests, self._policy.max_weight, admit)
            if not taken:
                return []
            self._taken_at = self._clock.monotonic()
            self._waited_s = self._taken_at - min(waiting.since for waiting in taken)
            taken = [waiting for waiting in taken if not waiting.answer.cancelled()]
            # What they need may have been found locked while they waited here.
            if self._locked or self._catching_up:
                taken = [waiting for waiting in taken if not self._steps_aside(waiting)]
            if taken:
                return taken

    def _alone(self, batch: Batch[Request, Result]) -> Collection[Hashable]:
        """The keys of them of which no other call may run meanwhile."""
        if not self._policy.one_at_a_time:
            return ()
        return {waiting.key for waiting in batch if waiting.key in self._policy.one_at_a_time}

    def _finished(self, requests: int, alone: Collection[Hashable], task: asyncio.Task[None]) -> None:
        self._taken_alone.difference_update(alone)
        self._running.discard(task)
        self._busy -= requests
        if self._waiting:
            self._dispatch_soon()  # there is room for a call: what waits need not be held any longer

    async def _execute(self, batch: Batch[Request, Result], *, has_waited: bool = False) -> None:
        """Have a call made for them and answer each. `has_waited`: all of them have waited for rows."""
        try:
            await self._make_call(batch, has_waited=has_waited)
        except BaseException as error:
            # Nobody has foreseen that. Nobody may wait for ever, or get the answer that nothing was kept.
            for waiting in batch:
                waiting.is_unknown = True
            self._fail(batch, error)
            if not isinstance(error, Exception):
                raise

    async def _make_call(self, batch: Batch[Request, Result], *, has_waited: bool) -> None:
        is_doubted = False
        while batch:
            lock_timeout = AGAIN_TIMEOUT if has_waited else NEXT_TIMEOUT if self._locked else FIRST_TIMEOUT
            try:
                results = await self._call(batch, lock_timeout)
            except RowLocked as error:
                left = await self._sidestep(batch, error, is_doubted)
                is_doubted = len(left) == len(batch)
                batch = left
                continue
            except DatabaseUnavailable as error:
                self._fail(batch, error)
            except Exception as error:
                await self._isolate(batch, error)
            else:
                self._deal(batch, results)
            return

    def _steps_aside(self, _waiting: Waiting[Request, Result]) -> bool:
        """Whether it waits now for a row."""
        return False

    async def _sidestep(
        self, batch: Batch[Request, Result], error: RowLocked, _is_doubted: bool
    ) -> Batch[Request, Result]:
        """Their call found something locked. Returns those who are to be tried again at once."""
        if self._when_locked is None:
            self._fail(batch, error)
        elif len(batch) == 1:
            self._deal(batch, [self._when_locked(batch[0].request)])
        else:
            await self._isolate(batch, error)
        return []

    async def _call(
        self, batch: Batch[Request, Result], lock_timeout: str, *, is_patient: bool = False
    ) -> list[Result]:
        """One call for all of them, repeated while that may help. With `is_patient`, also if it finds a row locked."""
        requests = [waiting.request for waiting in batch]
        started = self._clock.monotonic()
        attempts: Attempts | None = None
        while True:
            try:
                results = await self._run(requests, lock_timeout)
                break
            except QueenError as error:
                for waiting in batch:
                    waiting.is_unknown |= error.is_unknown
                if not isinstance(error, DatabaseUnavailable) or (isinstance(error, RowLocked) and not is_patient):
                    raise
                attempts = attempts or Attempts(self._is_worth_another, PAUSES, self._clock, began=started)
                await attempts.failed(error)
        now = self._clock.monotonic()
        weight = sum(waiting.weight for waiting in batch)
        self.calls += 1
        self.requests += len(batch)
        self.merged[len(batch)] += 1
        self.items += weight
        self.seconds += now - started
        self._usual_s += (now - started - self._usual_s) * _AVERAGE_WEIGHT
        if self._concurrency is not None:
            self._concurrency.record(now, round(now - started, 3), weight)  # less than 1 ms is no queueing
        return results

    def _is_worth_another(self, failure: Failure) -> bool:
        is_passing = isinstance(failure.error, TryAgain) and failure.attempts < TRIES
        return is_passing or failure.elapsed_s < self._repeat_for_s

    async def _isolate(self, batch: Batch[Request, Result], error: Exception) -> None:
        if len(batch) == 1:
            self._fail(batch, error)
            return
        middle = len(batch) // 2
        await self._execute(batch[:middle])
        await self._execute(batch[middle:])

    def _fail(self, batch: Batch[Request, Result], error: BaseException) -> None:
        if not isinstance(error, QueenError):
            log.error("%s failed", self.name, exc_info=error)
            error = InternalError()
        is_denial = isinstance(error, UnavailableError | InternalError)
        for waiting in batch:
            if not waiting.answer.done():
                waiting.answer.set_exception(AnswerLost() if is_denial and waiting.is_unknown else error)

    def _deal(self, batch: Batch[Request, Result], results: list[Result]) -> None:
        for waiting, result in tuple(zip(batch, results, strict=True)):
            if waiting.is_unknown and self._refuses(result):
                self._fail([waiting], AnswerLost())
            elif not waiting.answer.done():
                waiting.answer.set_result(result)
            elif self._orphaned is not None:
                self._orphaned(result)


class FairQueue(Generic[Item]):
    """First in, first out within a key; one item of each key in turn between them."""

    def __init__(self, weigh: Callable[[Item], int]) -> None:
        self._weigh = weigh
        self._lines: OrderedDict[Hashable, deque[Item]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, key: Hashable, item: Item) -> None:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = deque()
        line.append(item)
        self._length += 1

    def take(self, count: int, weight: int, admit: Callable[[Item], bool] | None = None) -> list[Item]:
        """Up to `count` items of up to `weight` together, at least one if there is any that is admitted. A key whose
        next item is not admitted sits out, so its order is kept. The key after the last one is first the next time."""
        taken: list[Item] = []
        sitting_out: list[tuple[Hashable, deque[Item]]] = []
        while self._lines and len(taken) < count:
            key, line = next(iter(self._lines.items()))
            item = line[0]
            if taken and self._weigh(item) > weight:
                break
            if admit is not None and not admit(item):
                del self._lines[key]
                sitting_out.append((key, line))
                continue
            line.popleft()
            taken.append(item)
            weight -= self._weigh(item)
            if line:
                self._lines.move_to_end(key)
            else:
                del self._lines[key]
        for key, line in reversed(sitting_out):
            self._lines[key] = line
            self._lines.move_to_end(key, last=False)
        self._length -= len(taken)
        return taken


class Vegas:
    """How many calls may run at once: the idea of TCP Vegas, on the time that calls take.

    The fastest call seen lately shows what the database needs when it is not crowded. The slower calls are than that,
    the more of them only queue inside it; the limit grows while few do and shrinks when many do.
    """

    def __init__(self, settings: ConcurrencySettings, initial: int = 2) -> None:
        self._settings = settings
        self.limit = min(max(initial, settings.min_limit), settings.max_limit)
        self._stretches: deque[float] = deque(maxlen=settings.rtt_window_samples)
        self._fastest: dict[int, tuple[float, float]] = {}  # size class -> (seconds, when seen)
        self._updated = 0.0

    def record(self, now: float, seconds: float, weight: int) -> None:
        """Learn from a finished call that carried `weight` items. Calls are compared with calls of their size."""
        size = weight.bit_length()
        best = self._fastest.get(size)
        if best is None or seconds <= best[0] or now - best[1] > self._settings.rtt_min_window_s:
            best = self._fastest[size] = (seconds, now)
        self._stretches.append(seconds / best[0] if best[0] > 0 else 1.0)
        if now - self._updated >= self._settings.update_interval_ms / 1000:
            self._updated = now
            self._adjust()

    def _adjust(self) -> None:
        stretch = sum(self._stretches) / len(self._stretches)
        queueing = self.limit * (1 - 1 / max(stretch, 1.0))
        if queueing < self._settings.alpha:
            self.limit = min(self.limit + 1, self._settings.max_limit)
        elif queueing > self._settings.beta:
            self.limit = max(self.limit - 1, self._settings.min_limit)
