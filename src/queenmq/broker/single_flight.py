"""One load for all who want the same thing at the same time.

A load that fails fails for all that wait for it, and the next request tries again. It is not cancelled when some
of them go away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from queenmq.errors import ServerStopping

Value = TypeVar("Value")


class SingleFlight(Generic[Value]):
    def __init__(self) -> None:
        self._flights: dict[Hashable, asyncio.Task[Value]] = {}
        self.loads = 0
        self.shared = 0

    def __len__(self) -> int:
        return len(self._flights)

    async def load(self, key: Hashable, loader: Callable[[], Awaitable[Value]]) -> Value:
        """What `loader` returns or raises, called once for all callers of the same time."""
        flight = self._flights.get(key)
        if flight is None:
            self.loads += 1
            flight = self._flights[key] = asyncio.get_running_loop().create_task(self._fly(key, loader))
            flight.add_done_callback(_look_at)
        else:
            self.shared += 1
        try:
            return await asyncio.shield(flight)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if flight.cancelled() and task is not None and not task.cancelling():
                raise ServerStopping from None
            raise

    def close(self) -> None:
        """Give up every load; those who wait get ServerStopping."""
        for flight in self._flights.values():
            flight.cancel()

    async def _fly(self, key: Hashable, loader: Callable[[], Awaitable[Value]]) -> Value:
        try:
            return await loader()
        finally:
            self._flights.pop(key, None)


def _look_at(flight: asyncio.Task[Value]) -> None:
    """So that the error of a load whose callers have all gone is not reported as unseen."""
    if not flight.cancelled():
        flight.exception()
