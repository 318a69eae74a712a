"""The one shape of a background service: a named loop that works, pauses, and survives a failing turn."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from queenmq.clock import SYSTEM, Clock
from queenmq.errors import UnavailableError

log = logging.getLogger(__name__)

_CANCEL_AGAIN_S = 2.0


class Service(ABC):
    name = "service"

    def __init__(self, interval_ms: int, clock: Clock = SYSTEM) -> None:
        self._interval_s = interval_ms / 1000
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._held_up = False
        self._complaint = ""
        self.late_s = 0.0  # how late the event loop has begun this turn; `LoadMonitor` reports that of its own turns

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
        while not self._task.done():
            # Again and again: whatever it waits for may turn one cancellation into an error of its own.
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=_CANCEL_AGAIN_S)
        self._task = None

    async def _wait(self) -> None:
        """Until the next turn."""
        await self._clock.sleep(self._interval_s)

    async def _loop(self) -> None:
        while True:
            due = self._clock.monotonic() + self._interval_s
            await self._wait()
            self.late_s = max(0.0, self._clock.monotonic() - due)
            try:
                await self.work()
                self._held_up, self._complaint = False, ""
            except UnavailableError as error:
                # An outage may last for hours: each service logs it once.
                log.log(logging.DEBUG if self._held_up else logging.WARNING, "%s: %s", self.name, error)
                self._held_up = True
            except Exception as error:
                # A turn may come several times a second and fail the same way each time.
                again = repr(error) == self._complaint
                self._complaint = repr(error)
                log.log(logging.DEBUG if again else logging.ERROR, "%s failed, it goes on", self.name, exc_info=error)
