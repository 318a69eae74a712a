"""What rates let through in the mixed chaos: what each bucket has given, and whether it can have had that."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

RATED_S = 5.0  # the longest time in which messages are counted


class Bucket(NamedTuple):
    """Of a queue, or of a group of it, or of each key of either."""

    name: str
    queue: str
    group: str | None
    per_key: bool
    rate: int
    burst: int

    @property
    def limits(self) -> dict[str, Any]:
        """As a policy has them."""
        given: dict[str, Any] = {"rate": self.rate, "burst": self.burst}
        return {"perKey": given} if self.per_key else given


class Delivery(NamedTuple):
    """When messages were asked for and when they were there, and their number."""

    asked: float
    got: float
    messages: int


class Rates:
    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        self.deliveries: dict[tuple[Bucket, str], list[Delivery]] = defaultdict(list)

    def note(self, queue: str, group: str, partitions: Sequence[str], asked: float, got: float) -> None:
        """A message of each of the partitions was delivered."""
        for bucket in self._buckets:
            if bucket.queue == queue and bucket.group in (None, group):
                keys = Counter(name.partition(":")[0] if bucket.per_key else "" for name in partitions)
                for key, count in keys.items():
                    self.deliveries[bucket, key].append(Delivery(asked, got, count))

    def exceeded(self) -> list[str]:
        return [
            f"more than the {bucket.name} {key}: {found}"
            for (bucket, key), deliveries in self.deliveries.items()
            if (found := too_many(bucket, deliveries))
        ]


def too_many(bucket: Bucket, deliveries: list[Delivery]) -> str:
    """Where more came than the bucket can have had: what was asked for after a moment and there before another."""
    deliveries = sorted(deliveries, key=lambda delivery: delivery.got)
    there = [delivery.got for delivery in deliveries]
    for first in deliveries:
        count = 0
        for number in range(bisect_left(there, first.asked), len(deliveries)):
            last = deliveries[number]
            if last.asked < first.asked:
                continue
            count, lasted = count + last.messages, last.got - first.asked
            if count > bucket.burst + bucket.rate * lasted + 1:
                return f"{count} messages in {lasted:.3f} s"
            if lasted > RATED_S:
                break
    return ""
