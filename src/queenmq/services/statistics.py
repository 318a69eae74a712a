"""Keeps the figures of queues and groups, and the history of what was done, at a few seconds' age."""

from __future__ import annotations

from queenmq.broker.pop import Delivered
from queenmq.broker.statistics import Statistics
from queenmq.broker.waiters import WaiterRegistry
from queenmq.clock import SYSTEM, Clock
from queenmq.config import StatisticsSettings
from queenmq.services.service import Service


class StatisticsRefresh(Service):
    name = "statistics"

    def __init__(
        self,
        statistics: Statistics,
        waiters: WaiterRegistry[Delivered],
        settings: StatisticsSettings,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(settings.interval_ms, clock)
        self._statistics = statistics
        self._waiters = waiters

    async def work(self) -> None:
        await self._statistics.store_activity(self._waiters.parked())
        await self._statistics.store_readers()
        await self._statistics.refresh()
        await self._statistics.forget_activity()
