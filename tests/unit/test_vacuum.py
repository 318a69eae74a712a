"""How often the hot tables are vacuumed, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from queenmq.clock import ManualClock
from queenmq.config import DatabaseSettings
from queenmq.services.vacuum import Vacuum
from queenmq.storage.database import Database

INTERVAL_S = 15.0


class Scene:
    """A database in which every row changes all the time, and a VACUUM takes `vacuum_s`."""

    def __init__(self, vacuum_s: float) -> None:
        self.clock = ManualClock()
        self.vacuum_s = vacuum_s
        self.vacuums = 0
        self._changes = 0
        settings = DatabaseSettings(vacuum_interval_ms=int(INTERVAL_S * 1000))
        self.service = Vacuum(cast("Database", self), settings, self.clock)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        yield self

    async def fetchval(self, query: str, table: str, lately_s: float) -> int:
        self._changes += 1
        return self._changes

    async def execute(self, query: str) -> None:
        assert "VACUUM" in query
        self.vacuums += 1
        self.clock.advance(self.vacuum_s)

    async def turns(self, number: int) -> None:
        for _ in range(number):
            self.clock.advance(INTERVAL_S)
            await self.service.work()


async def test_quick_ones_are_done_each_time() -> None:
    scene = Scene(vacuum_s=0.05)
    await scene.turns(10)
    assert scene.vacuums == 20, "two tables"


async def test_slow_ones_take_a_small_share_of_the_time() -> None:
    """While somebody holds the horizon, a VACUUM removes nothing and takes longer each time."""
    scene = Scene(vacuum_s=3.0)
    await scene.turns(100)
    assert 0 < scene.vacuums * scene.vacuum_s <= 2 * 100 * INTERVAL_S / 50 + 2 * scene.vacuum_s
