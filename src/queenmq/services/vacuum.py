"""Vacuums the two small, hot tables often, so that pops never wade through dead rows.

Every push and pop rewrites rows there; autovacuum checks only once a minute. One of several servers does it at a time:
one that finds that another has just done it leaves it, and none waits for a vacuum that runs (SKIP_LOCKED).
While somebody holds the horizon it removes nothing and takes longer each time. So after one, of whichever server, there
is a pause of fifty times what it takes.
"""

from __future__ import annotations

from queenmq.clock import SYSTEM, Clock
from queenmq.config import DatabaseSettings
from queenmq.services.service import Service
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

_PAUSE_BY_DURATION = 50
_VACUUM = {"partition_consumers": "vacuum_partition_consumers", "partition_lookup": "vacuum_partition_lookup"}


class Vacuum(Service):
    name = "vacuum"

    def __init__(self, database: Database, settings: DatabaseSettings, clock: Clock = SYSTEM) -> None:
        super().__init__(settings.vacuum_interval_ms, clock)
        self._database = database
        self._lately_s = settings.vacuum_interval_ms / 2000
        self._seen: dict[str, int] = {}
        self._took_s = dict.fromkeys(_VACUUM, 0.0)

    async def work(self) -> None:
        async with self._database.connection() as connection:
            for table, vacuum in _VACUUM.items():
                lately_s = max(self._lately_s, _PAUSE_BY_DURATION * self._took_s[table])
                changes = await connection.fetchval(statement("table_changes"), table, lately_s)
                if changes is not None and changes != self._seen.get(table):
                    began = self._clock.monotonic()
                    await connection.execute(statement(vacuum))
                    self._seen[table] = changes
                    self._took_s[table] = self._clock.monotonic() - began
