"""Thresholds, times and bounds of the coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from queenmq.config import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorBounds:
    forward_threshold: float = 0.1
    smoothing: float = 0.3  # weight of the newest report in the average

    affinity_ttl_s: float = 300.0
    affinity_max: int = 10_000
    migrate_threshold: float = 0.7
    break_threshold: float = 0.9
    min_improvement: float = 0.15
    settle_s: float = 10.0  # what was moved stays for as long as its load takes to show in the averages
    queue_threshold: int = 10  # consumer groups

    circuit_failures: int = 3
    circuit_retry_s: float = 5.0
    circuit_longest_s: float = 300.0

    @classmethod
    def of(cls, settings: Settings) -> CoordinatorBounds:
        return cls(
            forward_threshold=settings.coordinator.forward_threshold,
            affinity_ttl_s=settings.coordinator.affinity_ttl_ms / 1000,
            affinity_max=settings.coordinator.affinity_max,
            migrate_threshold=settings.coordinator.affinity_migrate_threshold,
            break_threshold=settings.coordinator.affinity_break_threshold,
            min_improvement=settings.coordinator.affinity_migrate_min_improvement,
            queue_threshold=settings.coordinator.queue_affinity_threshold,
            circuit_failures=settings.coordinator.circuit_failures,
            circuit_retry_s=settings.coordinator.circuit_retry_ms / 1000,
        )
