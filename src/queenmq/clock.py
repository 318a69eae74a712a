"""The one place that reads the time of this process.

Everything that waits or expires in memory gets a `Clock`, so tests can move time by hand. What is
durable (leases, delays, retention) is measured in database time and never comes through here.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final, Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go backwards; only differences mean anything. All processes of a machine see the same."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, UTC."""
        ...

    async def sleep(self, delay: float, /) -> None: ...

    def timeout(self, delay: float, /) -> AbstractAsyncContextManager[object]:
        """Ends what is done within it with TimeoutError when the time is over."""
        ...

    def call_later(self, delay: float, callback: Callable[..., object], /, *arguments: Any) -> Timer:
        """Call it in so many seconds, in the event loop that runs now."""
        ...


class SystemClock:
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    sleep = staticmethod(asyncio.sleep)
    timeout = staticmethod(asyncio.timeout)

    @staticmethod
    def call_later(delay: float, callback: Callable[..., object], /, *arguments: Any) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback, *arguments)


SYSTEM: Final = SystemClock()


def utc_now(clock: Clock = SYSTEM) -> datetime:
    return datetime.fromtimestamp(clock.wall(), UTC)


def process_cpu_s() -> float:
    """CPU seconds that this process has used in all its threads."""
    return time.process_time()


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._numbers = count()
        self._timers: list[tuple[float, int, _ManualTimer]] = []

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    async def sleep(self, delay: float, /) -> None:
        if delay <= 0:
            await asyncio.sleep(0)
            return
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        timer = self.call_later(delay, end)
        try:
            await over
        finally:
            timer.cancel()

    @asynccontextmanager
    async def timeout(self, delay: float, /) -> AsyncIterator[None]:
        async with asyncio.timeout(None) as real:
            timer = self.call_later(delay, real.reschedule, 0.0)
            try:
                yield
            finally:
                timer.cancel()

    def call_later(self, delay: float, callback: Callable[..., object], /, *arguments: Any) -> Timer:
        timer = _ManualTimer(lambda: callback(*arguments))
        heapq.heappush(self._timers, (self._now + delay, next(self._numbers), timer))
        return timer

    @property
    def next_s(self) -> float | None:
        """In how many seconds the next timer is due; None if there is none."""
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] - self._now if self._timers else None

    def advance(self, seconds: float) -> None:
        """Move the time, and call what becomes due, each at its moment. Tasks go on when the event loop runs them."""
        end = self._now + seconds
        while (next_s := self.next_s) is not None and self._now + next_s <= end:
            due, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, due)
            call, timer.call = timer.call, None
            if call is not None:
                call()
        self._now = end


class _ManualTimer:
    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None
