"""Keeps the figures of queues and groups, and the history of what was done, at a few seconds' age."""

from __future__ import annotations

from queenmq.broker.broker import Broker
from queenmq.config import Settings
from queenmq.services.service import Service


class StatisticsRefresh(Service):
    name = "statistics"

    def __init__(self, broker: Broker, settings: Settings) -> None:
        super().__init__(settings.statistics.interval_ms)
        self._broker = broker

    async def work(self) -> None:
        statistics = self._broker.statistics
        await statistics.store_activity(self._broker.long_polls.registry.parked())
        await statistics.refresh()
        await statistics.forget_activity()
