"""The sweeps of long polls that name a partition: what no wake-up told of is found by asking, at growing intervals.

There may be thousands of such places in a queue (one long poll a customer, chat or device), so those that differ only
in their partition are a family, and one call asks for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic

from queenmq.engine.waiter import Family, Group, Result
from queenmq.errors import QueenError

log = logging.getLogger(__name__)


class SafetyNet(Generic[Result]):
    def __init__(
        self,
        ready: Callable[[str, Hashable, list[str]], Awaitable[list[str]]],
        start_check: Callable[[Group[Result]], None],
        limit_s: float,
    ) -> None:
        """`ready` says which partitions of a queue are worth a look by a group. A call that takes longer than `limit_s`
        is given up."""
        self._ready = ready
        self._start_check = start_check
        self._limit_s = limit_s

    def sweep_later(self, family: Family[Result]) -> None:
        loop = asyncio.get_running_loop()
        family.timer = loop.call_later(family.backoff.interval_s, self.start_sweep, family)

    def start_sweep(self, family: Family[Result]) -> None:
        if family.sweep is not None:
            family.again = True
            return
        if family.timer is not None:
            family.timer.cancel()
        family.again = False
        family.sweep = asyncio.get_running_loop().create_task(self._sweep(family))

    async def _sweep(self, family: Family[Result]) -> None:
        """Ask once for all places of a family, and look where something is that no wake-up told of."""
        idle = [partition for partition, group in family.places.items() if group.check is None and group.waiters]
        try:
            async with asyncio.timeout(self._limit_s):
                ready = await self._ready(family.queue, family.group, idle) if idle else []
            (family.backoff.reset if ready else family.backoff.found_nothing)()
            for partition in ready:
                if partition in family.places:
                    self._start_check(family.places[partition])
        except (QueenError, TimeoutError) as error:
            log.debug("a sweep for long polls of %s failed: %s", family.queue, error)
            family.backoff.found_nothing()
        finally:
            family.sweep = None
            if family.places:
                (self.start_sweep if family.again else self.sweep_later)(family)
