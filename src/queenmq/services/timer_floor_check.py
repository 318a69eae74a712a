"""Searches once a minute for timers that the floor of timers hides, which should find none.

While somebody holds the horizon, that reads all that were pushed meanwhile. So it pauses for fifty times what it took.
"""

from __future__ import annotations

from typing import Final

from queenmq.broker.timer_floor import TimerFloor
from queenmq.clock import SYSTEM, Clock
from queenmq.services.service import Service

_EVERY_MS: Final = 60_000
_PAUSE_BY_DURATION: Final = 50


class TimerFloorCheck(Service):
    name = "timer floor check"

    def __init__(self, floor: TimerFloor, clock: Clock = SYSTEM) -> None:
        super().__init__(_EVERY_MS, clock)
        self._floor = floor
        self._check_at = 0.0

    async def work(self) -> None:
        began = self._clock.monotonic()
        if began < self._check_at:
            return
        try:
            await self._floor.check()
        finally:
            now = self._clock.monotonic()
            self._check_at = now + _PAUSE_BY_DURATION * (now - began)
