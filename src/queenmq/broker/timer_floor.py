"""Where the search for due timers begins.

PostgreSQL keeps the timers that were pushed as long as somebody holds the horizon, and would walk over all of them each
time. The floor is in the database, for all servers; what it may be is the rule of queen.move_timer_floor.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Final

from queenmq.clock import Clock
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

# Fewer are walked over rather than that the floor is moved.
_MANY: Final = 500
_PAUSE_S: Final = 0.1
_LONG_PAUSE_S: Final = 0.5


class TimerFloor:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._found = 0  # timers that this server has found since the floor was behind them
        self._latest: datetime | None = None  # when the last of them was due
        self._floor: datetime | None = None
        self._move_at = 0.0

    def found(self, count: int, latest: datetime) -> None:
        """This server has found `count` timers that are due, the last of them since `latest`."""
        self._found += count
        self._latest = latest

    async def tend(self) -> None:
        """Move the floor behind what was found, if that is enough to be worth it, and not too often."""
        now = self._clock.monotonic()
        if self._found < _MANY or self._latest is None or now < self._move_at:
            return
        # It takes two calls at least, and more while a transaction that has changed timers stays open.
        self._move_at = now + _LONG_PAUSE_S
        floor: datetime | None = await self._database.fetchval(statement("move_timer_floor"))
        if floor is None:
            return
        if floor != self._floor:
            self._move_at = now + _PAUSE_S
        self._floor = floor
        if floor > self._latest:
            self._found = 0

    async def check(self) -> None:
        """Lower the floor if a timer lies before it, which should not be."""
        moment = await self._database.fetchval(statement("hidden_timer"))
        if moment is not None:
            log.warning("a timer that was due at %s lay below the floor: the search begins there again", moment)
            await self._database.fetch(statement("lower_timer_floor"), moment)
