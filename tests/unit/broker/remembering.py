"""The caches of a broker as the receiver of what other servers say, without the rest of a broker."""

from __future__ import annotations

from collections.abc import Collection

from queenmq.broker.caches import CacheBounds, Caches
from queenmq.clock import Clock
from queenmq.cluster.port import Alone


class Remembering(Caches):
    def __init__(self, bounds: CacheBounds, clock: Clock) -> None:
        super().__init__(bounds, clock, Alone())

    def receive_readable(self, queue: str, partitions: Collection[str] | None) -> None:
        """Nobody waits."""

    def requests(self) -> tuple[int, int]:
        return 0, 0
