"""Reads what servers tell each other from the database, too: a word that was lost or wrong does no harm for long."""

from __future__ import annotations

from queenmq.cluster.node import Node
from queenmq.config import Settings
from queenmq.engine.engine import Engine
from queenmq.services.service import Service
from queenmq.storage.database import Database
from queenmq.storage.statements import statement


class SharedStateRefresh(Service):
    name = "shared state"

    def __init__(self, database: Database, engine: Engine, settings: Settings) -> None:
        super().__init__(settings.cache_refresh_interval_ms)
        self._database = database
        self._engine = engine
        self._node: Node = engine.node

    async def work(self) -> None:
        await self._engine.maintenance.refresh()
        await self._epochs()
        await self._options()

    async def _epochs(self) -> None:
        started = self._node.now
        rows = await self._database.fetch(statement("server_epochs"), self._node.server_id)
        self._node.state.epochs_refreshed({row["id"]: row["epoch"] for row in rows}, started)

    async def _options(self) -> None:
        node, started = self._node, self._node.now
        horizon: int = await self._database.fetchval(statement("newest_version"))
        rows = await self._engine.queue_settings.read(None)
        node.act(node.state.configs_refreshed(rows, horizon, started, node.now))
