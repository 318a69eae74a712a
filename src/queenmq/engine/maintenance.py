"""The maintenance switches: kept in the database, followed by every server at once."""

from __future__ import annotations

from queenmq.cluster.maintenance import Switch
from queenmq.cluster.node import Node
from queenmq.errors import InMaintenance
from queenmq.storage.database import Database
from queenmq.storage.statements import statement


class Maintenance:
    def __init__(self, database: Database, node: Node) -> None:
        self._database = database
        self._node = node

    @property
    def is_known(self) -> bool:
        """False until the database was reached for the first time."""
        return self._node.is_open

    def is_on(self, switch: Switch) -> bool:
        return self._node.state.tiers.maintenance.is_on(switch)

    def require_pushes(self) -> None:
        """Raises InMaintenance while pushes are switched off."""
        if self.is_on(Switch.PUSH):
            raise InMaintenance

    async def move(self, switch: Switch, on: bool) -> None:
        """When this returns, the switch is stored, this server follows it, and the others have been told."""
        version: int = await self._database.fetchval(statement("set_maintenance"), switch.value, on)
        self._node.maintenance_set(switch, on, version)

    async def refresh(self) -> None:
        """Follow the database, whatever was told."""
        started = self._node.now
        rows = await self._database.fetch(statement("maintenance"))
        stored = {row["switch"]: row for row in rows}
        for switch in Switch:
            row = stored.get(switch.value)
            on, version = (row["is_on"], row["version"]) if row else (False, 0)
            events = self._node.state.maintenance_refreshed(switch, on, version, started, self._node.now)
            self._node.act(events)
