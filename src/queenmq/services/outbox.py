"""Pushes what applications have sent in their own transactions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from queenmq.broker.outbox import Outbox
from queenmq.clock import SYSTEM, Clock
from queenmq.config import OutboxSettings
from queenmq.services.service import Service

# Not every commit is announced: after one was found, the service checks again at short intervals.
_CHECK_AGAIN_S: Final = 0.01
_CHECK_FOR_S: Final = 1.0


class OutboxPush(Service):
    """Every server is notified when something was sent; one at a time pushes it."""

    name = "outbox"

    def __init__(self, outbox: Outbox, settings: OutboxSettings, clock: Clock = SYSTEM) -> None:
        super().__init__(settings.interval_ms, clock)
        self._outbox = outbox
        self._sent = asyncio.Event()

    def notice(self, _payload: str) -> None:
        """Something was sent."""
        self._sent.set()

    async def _wait(self) -> None:
        await self._until_sent(self._interval_s)

    async def _until_sent(self, longest_s: float) -> None:
        with suppress(TimeoutError):
            async with self._clock.timeout(longest_s):
                await self._sent.wait()

    async def work(self) -> None:
        until = self._clock.monotonic() + (_CHECK_FOR_S if self._sent.is_set() else 0.0)
        while True:
            self._sent.clear()
            if await self._outbox.push_next():
                until = self._clock.monotonic() + _CHECK_FOR_S
            elif self._clock.monotonic() >= until:
                return
            else:
                await self._until_sent(_CHECK_AGAIN_S)
