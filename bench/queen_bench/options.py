"""What a run is asked to do, apart from the choice of scenarios and servers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options:
    seconds: float = 10.0
    connections: int = 64
    partitions: int = 1000
    payload: int = 230
    spread: bool = False
    rate: float = 10_000.0  # messages a second where producers are paced
    groups: int = 10
    partition_counts: tuple[int, ...] = (10, 1000, 10_000, 100_000)
    age_partitions: int = 10_000
    rounds: int = 100
    parked: int = 5000
    pending: int = 100_000  # timers
    idle_seconds: float = 5.0
    held_seconds: float = 20.0
    share: float = 0.25  # of the full rate of the shapes

    @property
    def warm_up_s(self) -> float:
        """Load before the measurement, for caches, plans and whatever adapts to load."""
        return min(self.seconds / 5, 2.0)
