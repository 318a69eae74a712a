"""Reads from the database what servers also send each other, so that a lost or wrong message does no harm for long."""

from __future__ import annotations

from queenmq.broker.broker import Broker
from queenmq.cluster.node import Node
from queenmq.config import Settings
from queenmq.services.service import Service
from queenmq.storage.database import Database
from queenmq.storage.statements import statement


class SharedStateRefresh(Service):
    name = "shared state"

    def __init__(self, database: Database, broker: Broker, settings: Settings) -> None:
        super().__init__(settings.cache.refresh_interval_ms)
        self._database = database
        self._broker = broker
        self._node: Node = broker.node

    async def work(self) -> None:
        await self._broker.refresh()
        await self._epochs()

    async def _epochs(self) -> None:
        started = self._node.now
        rows = await self._database.fetch(statement("server_epochs"), self._node.server_id)
        self._node.state.epochs_refreshed({row["id"]: row["epoch"] for row in rows}, started)
