"""Removes values and locks that are past their time."""

from __future__ import annotations

from typing import Final

from queenmq.broker.keys import Keys
from queenmq.clock import SYSTEM, Clock
from queenmq.services.service import Service

INTERVAL_MS: Final = 10_000
_MOST_STEPS: Final = 20


class Expiry(Service):
    name = "expiry"

    def __init__(self, keys: Keys, clock: Clock = SYSTEM) -> None:
        super().__init__(INTERVAL_MS, clock)
        self._keys = keys

    async def work(self) -> None:
        for _ in range(_MOST_STEPS):
            if not await self._keys.forget_expired():
                break
