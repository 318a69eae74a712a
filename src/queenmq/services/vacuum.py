"""Vacuums the two small, hot tables often, so that pops never wade through dead rows.

Every push and pop rewrites rows there; autovacuum checks only once a minute. One server at a time does it.
"""

from __future__ import annotations

from queenmq.clock import SYSTEM, Clock
from queenmq.config import DatabaseSettings
from queenmq.services.service import Service
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

_LOCK = 0x5175_6565_6E_56  # "QueenV"
_VACUUM = {"partition_consumers": "vacuum_partition_consumers", "partition_lookup": "vacuum_partition_lookup"}


class Vacuum(Service):
    name = "vacuum"

    def __init__(self, database: Database, settings: DatabaseSettings, clock: Clock = SYSTEM) -> None:
        super().__init__(settings.vacuum_interval_ms, clock)
        self._database = database
        self._seen: dict[str, int] = {}

    async def work(self) -> None:
        async with self._database.connection() as connection:
            if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK):
                return
            try:
                for table, vacuum in _VACUUM.items():
                    changes = await connection.fetchval(statement("table_changes"), table)
                    if changes != self._seen.get(table):
                        await connection.execute(statement(vacuum))
                        self._seen[table] = changes
            finally:
                await connection.execute("SELECT pg_advisory_unlock($1)", _LOCK)
