"""The one place that reads the time of this process.

Everything that waits or expires in memory gets a `Clock`, so tests can move time by hand. What is
durable (leases, delays, retention) is measured in database time and never comes through here.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go backwards; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, UTC."""
        ...


class SystemClock:
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


def process_cpu_s() -> float:
    """CPU seconds that this process has used in all its threads."""
    return time.process_time()


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
