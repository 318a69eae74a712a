"""How often a measure was how large. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

# Seconds, from half a millisecond to ten seconds: wide enough for a wake-up and for a queue that stands.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


class Histogram:
    """Counts by upper bounds, which belong to their bucket. What is above all of them is counted, too."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> Histogram:
        """Of numbers that are counted already: how often each was there."""
        histogram = cls(COUNTS)
        for number, times in counts.items():
            histogram.add(number, times)
        return histogram

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """For each bound, how many were not above it; infinity is the last."""
        return list(zip((*self.bounds, float("inf")), accumulate(self._counts), strict=True))
