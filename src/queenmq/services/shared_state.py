"""Reads from the database what servers also send each other, so that a lost or wrong message does no harm for long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from queenmq.clock import SYSTEM, Clock
from queenmq.cluster.node import Node
from queenmq.config import CacheSettings
from queenmq.services.service import Service
from queenmq.storage.database import Database
from queenmq.storage.statements import statement


class SharedStateRefresh(Service):
    """`refresh` reads what the broker keeps of it."""

    name = "shared state"

    def __init__(
        self,
        database: Database,
        node: Node,
        refresh: Callable[[], Awaitable[None]],
        settings: CacheSettings,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(settings.refresh_interval_ms, clock)
        self._database = database
        self._node = node
        self._refresh = refresh

    async def work(self) -> None:
        await self._refresh()
        await self._epochs()

    async def _epochs(self) -> None:
        started = self._node.now
        rows = await self._database.fetch(statement("server_epochs"), self._node.server_id)
        self._node.state.epochs_refreshed({row["id"]: row["epoch"] for row in rows}, started)
