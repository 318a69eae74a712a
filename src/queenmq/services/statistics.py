"""Keeps the figures of queues and groups, and the history of what was done, at a few seconds' age."""

from __future__ import annotations

from queenmq.config import Settings
from queenmq.engine.engine import Engine
from queenmq.services.service import Service


class StatisticsRefresh(Service):
    name = "statistics"

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(settings.stats_interval_ms)
        self._engine = engine

    async def work(self) -> None:
        statistics = self._engine.statistics
        await statistics.store_activity(self._engine.popper.waiting.registry.parked())
        await statistics.refresh()
        await statistics.forget_activity()
