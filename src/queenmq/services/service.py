"""The one shape of a background service: a named loop that works, pauses, and survives a failing turn."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from queenmq.errors import UnavailableError

log = logging.getLogger(__name__)


class Service(ABC):
    name = "service"

    def __init__(self, interval_ms: int) -> None:
        self._interval_s = interval_ms / 1000
        self._task: asyncio.Task[None] | None = None
        self._held_up = False

    @abstractmethod
    async def work(self) -> None:
        """One turn."""

    def start(self) -> None:
        """Begin, unless the interval is 0: then the service is switched off."""
        if self._interval_s > 0:
            self._task = asyncio.get_running_loop().create_task(self._loop(), name=self.name)

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait((self._task,))
        self._task = None

    async def _loop(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.work()
                self._held_up = False
            except UnavailableError as error:
                # An outage may last for hours: one line of each service tells it.
                log.log(logging.DEBUG if self._held_up else logging.WARNING, "%s: %s", self.name, error)
                self._held_up = True
            except Exception:
                log.exception("%s failed, it goes on", self.name)
