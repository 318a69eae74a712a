"""Renews the statistics of PostgreSQL's planner when a table has grown far beyond them.

A queue that was drained leaves tables that are known to be empty. When it fills again, the planner still takes each of
them for one row and reads the whole of it for every message, until autovacuum comes by, once a minute at most.
"""

from __future__ import annotations

from typing import Final

from queenmq.clock import SYSTEM, Clock
from queenmq.services.service import Service
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

INTERVAL_MS: Final = 2_000


class Planning(Service):
    name = "planning"

    def __init__(self, database: Database, clock: Clock = SYSTEM) -> None:
        super().__init__(INTERVAL_MS, clock)
        self._database = database

    async def work(self) -> None:
        async with self._database.connection() as connection:
            for (table,) in await connection.fetch(statement("outgrown_tables")):
                await connection.execute(f"ANALYZE (SKIP_LOCKED) {table}")
