"""Keeps what this server knows of quotas, and of what is stored under them, at a few seconds' age."""

from __future__ import annotations

from typing import Final

from queenmq.access.quotas import REFRESH_S, Quotas
from queenmq.broker.statistics import Statistics
from queenmq.clock import SYSTEM, Clock
from queenmq.services.service import Service

INTERVAL_MS: Final = round(REFRESH_S * 1000)


class QuotaRefresh(Service):
    name = "quotas"

    def __init__(self, quotas: Quotas, statistics: Statistics, clock: Clock = SYSTEM) -> None:
        super().__init__(INTERVAL_MS, clock)
        self._quotas = quotas
        self._statistics = statistics

    async def work(self) -> None:
        if not self._quotas.is_due:
            return
        if self._quotas.any:
            await self._statistics.freshen()
        await self._quotas.refresh()
