"""The sweeps of long polls that name a partition: what no wake-up announced is found by asking, at growing intervals.

There may be thousands of them in a queue (one long poll a customer, chat or device), so one call asks for all that
differ only in their partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic

from queenmq.broker.waiters import KeyWaiters, PartitionWaiters, Result
from queenmq.clock import Clock
from queenmq.cluster.port import Cluster
from queenmq.errors import QueenError
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)


class SafetyNet(Generic[Result]):
    def __init__(
        self,
        ready: Callable[[str, Hashable, list[str]], Awaitable[list[str]]],
        start_check: Callable[[KeyWaiters[Result]], None],
        limit_s: float,
        clock: Clock,
    ) -> None:
        """`ready` says which partitions of a queue are worth a probe by a group. A call that takes longer than
        `limit_s` is given up."""
        self._ready = ready
        self._start_check = start_check
        self._limit_s = limit_s
        self._clock = clock

    def sweep_later(self, siblings: PartitionWaiters[Result]) -> None:
        siblings.timer = self._clock.call_later(siblings.backoff.interval_s, self.start_sweep, siblings)

    def start_sweep(self, siblings: PartitionWaiters[Result]) -> None:
        if siblings.sweep is not None:
            siblings.again = True
            return
        if siblings.timer is not None:
            siblings.timer.cancel()
        siblings.again = False
        siblings.sweep = asyncio.get_running_loop().create_task(self._sweep(siblings))

    async def _sweep(self, siblings: PartitionWaiters[Result]) -> None:
        """Ask once for all partitions, and probe where something is that no wake-up announced. Of those that a limit
        of leases keeps waiting, one probes for all, because the end of a lease may have got lost."""
        now = self._clock.monotonic()
        idle, limited = [], set()
        for partition, group in siblings.partitions.items():
            if group.check is None and group.waiters and (group.limit is None or group.limited_until <= now):
                idle.append(partition)
        for waiting in siblings.limited.values():
            partition, group = next(iter(waiting.items()))
            if group.limit != "rate" and group.limited_until > now:
                limited.add(partition)
        try:
            ready: list[str] = []
            if idle or limited:
                async with self._clock.timeout(self._limit_s):
                    ready = await self._ready(siblings.queue, siblings.group, [*idle, *limited])
            (siblings.backoff.found_nothing if limited.issuperset(ready) else siblings.backoff.reset)()
            for partition in ready:
                if partition in siblings.partitions:
                    self._start_check(siblings.partitions[partition])
        except (QueenError, TimeoutError) as error:
            log.debug("a sweep for long polls of %s failed: %s", siblings.queue, error)
            siblings.backoff.found_nothing()
        finally:
            siblings.sweep = None
            if siblings.partitions:
                (self.start_sweep if siblings.again else self.sweep_later)(siblings)


def partitions_ready(
    database: Database, cluster: Cluster
) -> Callable[[str, Hashable, list[str]], Awaitable[list[str]]]:
    """Asks the database which partitions of a queue a group could read now."""

    async def ready(queue: str, group: Hashable, partitions: list[str]) -> list[str]:
        rows = await database.fetch(statement("partitions_ready"), queue, group, partitions, repeatable=True)
        found: list[str] = [row["name"] for row in rows]
        if cluster.linked:
            for partition in found:
                cluster.found_free(queue, partition, str(group))
        return found

    return ready
