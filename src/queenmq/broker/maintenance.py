"""Maintenance: the switches are kept in the database and followed by every server at once."""

from __future__ import annotations

from queenmq.broker.caches import Caches
from queenmq.clock import Clock
from queenmq.core.maintenance import Switch
from queenmq.errors import DatabaseUnavailable, InMaintenance
from queenmq.storage.database import Database
from queenmq.storage.statements import statement


class Maintenance:
    def __init__(self, database: Database, caches: Caches, clock: Clock) -> None:
        self._database = database
        self._caches = caches
        self._clock = clock
        self.switches = caches.switches

    def is_on(self, switch: Switch) -> bool:
        """Raises DatabaseUnavailable until the switches have been read for the first time."""
        if not self.switches.were_read:
            raise DatabaseUnavailable
        return self.switches.is_on(switch)

    def require_pushes(self) -> None:
        """Raises InMaintenance while pushes are switched off, DatabaseUnavailable while that is not known."""
        if not self.switches.pushes_allowed:
            raise InMaintenance if self.switches.were_read else DatabaseUnavailable

    async def set(self, switch: Switch, on: bool) -> None:
        """When this returns, the switch is stored, this server follows it, and the others have been notified."""
        version: int = await self._database.fetchval(statement("set_maintenance"), switch.value, on)
        self._caches.set_maintenance(switch, on, version)

    async def refresh(self) -> bool:
        """Follow the database, whatever other servers said. True if a switch has moved."""
        started = self._clock.monotonic()
        rows = await self._database.fetch(statement("maintenance"))
        stored = {row["switch"]: row for row in rows}
        moved = False
        for switch in Switch:
            row = stored.get(switch.value)
            on, version = (row["is_on"], row["version"]) if row else (False, 0)
            moved |= self.switches.refreshed(switch, on, version, started, self._clock.monotonic())
        self.switches.all_read()
        return moved
