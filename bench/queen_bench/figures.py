"""The arithmetic of results: percentiles, medians, the growth of a backlog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# A backlog counts as growing when it gains more than this share of what is pushed.
GROWING_SHARE: Final = 0.02


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that is not below `share` of all; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * share // 1) - 1)]


def median(values: Sequence[float]) -> float | None:
    """The middle one, or the mean of the two in the middle."""
    if not values:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The gradient of the straight line that fits the points best; 0 if there is none."""
    count = len(points)
    if count < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def per_core(*cpu_s: float | None) -> float | None:
    """Messages for each second of CPU, of parts in CPU seconds per 100,000 messages; None if one is not known."""
    known = [part for part in cpu_s if part is not None]
    total = sum(known)
    return 100_000 / total if total and len(known) == len(cpu_s) else None


def grows(backlog_per_s: float, pushed_per_s: float) -> bool:
    return backlog_per_s > GROWING_SHARE * pushed_per_s


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None
