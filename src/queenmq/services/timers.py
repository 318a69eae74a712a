"""Pushes timers at their moment."""

from __future__ import annotations

from queenmq.broker.timers import Timers
from queenmq.clock import SYSTEM, Clock
from queenmq.config import TimerSettings
from queenmq.services.service import Service


class TimerPush(Service):
    """Every server asks for what is due; one at a time pushes it."""

    name = "timers"

    def __init__(self, timers: Timers, settings: TimerSettings, clock: Clock = SYSTEM) -> None:
        super().__init__(settings.interval_ms, clock)
        self._timers = timers

    async def work(self) -> None:
        while await self._timers.push_due():
            pass
