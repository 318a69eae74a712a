"""How often the hot tables are vacuumed, on a clock that the test moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from queenmq.clock import ManualClock
from queenmq.config import DatabaseSettings
from queenmq.services.vacuum import Vacuum
from queenmq.storage.database import Database

INTERVAL_S = 15.0


class Scene:
    """A database in which every row changes all the time, and a VACUUM takes `vacuum_s`; and servers that share it."""

    def __init__(self, vacuum_s: float, servers: int = 1) -> None:
        self.clock = ManualClock()
        self.vacuum_s = vacuum_s
        self.vacuums: Counter[str] = Counter()
        self._last: dict[str, float] = {}
        self._changes = 0
        settings = DatabaseSettings(vacuum_interval_ms=int(INTERVAL_S * 1000))
        self.services = [Vacuum(cast("Database", self), settings, self.clock) for _ in range(servers)]

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        yield self

    async def fetchval(self, query: str, table: str, lately_s: float) -> int | None:
        self._changes += 1
        return self._changes if self.clock.monotonic() - self._last.get(table, 0.0) > lately_s else None

    async def execute(self, query: str) -> None:
        table = query.strip().rpartition(".")[2]
        self.clock.advance(self.vacuum_s)
        self.vacuums[table] += 1
        self._last[table] = self.clock.monotonic()

    async def turns(self, number: int) -> None:
        for _ in range(number):
            self.clock.advance(INTERVAL_S)
            for service in self.services:
                await service.work()


async def test_quick_ones_are_done_each_time() -> None:
    scene = Scene(vacuum_s=0.05)
    await scene.turns(10)
    assert scene.vacuums == {"partition_consumers": 10, "partition_lookup": 10}


@pytest.mark.parametrize("servers", [1, 10])
async def test_slow_ones_take_a_small_share_of_the_time(servers: int) -> None:
    """While somebody holds the horizon, a VACUUM removes nothing and takes longer each time."""
    scene = Scene(vacuum_s=3.0, servers=servers)
    began = scene.clock.monotonic()
    await scene.turns(200)
    share = scene.vacuum_s / (scene.clock.monotonic() - began)
    # Each server has to find out once what it takes.
    assert all(count - servers > 0 and (count - servers) * share <= 1 / 50 for count in scene.vacuums.values())
