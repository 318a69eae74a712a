"""Long polls that wait for something to happen on a queue. A wake-up costs what it wakes.

Wake-ups are advice: a waiter looks again by itself, at growing intervals, because leases expire, delays ripen
and other servers push without telling.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from queenmq.errors import Overloaded

ANY_QUEUE = ""  # cannot be a queue's name


class Waiters:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._signals: dict[str, asyncio.Future[None]] = {}
        self._parked: Counter[str] = Counter()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def parked(self) -> dict[str, int]:
        """How many long polls wait, by queue."""
        return dict(self._parked)

    def enter(self, queue: str) -> None:
        """Count a long poll in. Raises Overloaded when the limit is reached."""
        if self._parked.total() >= self._limit:
            raise Overloaded("too many long polls are waiting")
        self._parked[queue] += 1

    def leave(self, queue: str) -> None:
        self._parked[queue] -= 1
        if self._parked[queue] == 0:
            del self._parked[queue]
            self._signals.pop(queue, None)

    def arm(self, queue: str) -> asyncio.Future[None]:
        """What the next wake-up resolves. Take it before looking, so that nothing is missed in between."""
        signal = self._signals.get(queue)
        if signal is None:
            signal = self._signals[queue] = asyncio.get_running_loop().create_future()
            if self._closed:
                signal.set_result(None)
        return signal

    async def wait(self, signal: asyncio.Future[None], timeout: float) -> bool:
        """Wait for `signal`; False if the time ran out."""
        done, _ = await asyncio.wait((signal,), timeout=timeout)
        return bool(done)

    def wake(self, queue: str) -> None:
        for name in (queue, ANY_QUEUE):
            signal = self._signals.pop(name, None)
            if signal is not None and not signal.done():
                signal.set_result(None)

    def close(self) -> None:
        """Wake everyone for the last time; long polls end."""
        self._closed = True
        for signal in self._signals.values():
            if not signal.done():
                signal.set_result(None)
