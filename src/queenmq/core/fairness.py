"""Whose turn it is among the keys of a queue: each gets its share of the messages while it has some. No I/O.

Each key has a time of its own, which runs by what it gets, divided by its weight; the one that is furthest behind is
next. A key that comes back after a pause begins where the others are: what it did not use is not kept for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import Annotated

from msgspec import Meta, Struct

from queenmq.core.names import MAX_NAME
from queenmq.errors import InvalidRequest

MOST_WEIGHTS = 1000
_MOST_REMEMBERED = 100_000


class FairnessPolicy(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The key of a partition is what its name has before the `separator`, or all of it. A key with the weight 2 gets
    twice as much as one without a weight, while both have messages."""

    separator: Annotated[str, Meta(min_length=1, max_length=16)]
    weights: Annotated[dict[str, Annotated[float, Meta(ge=0.01, le=100)]], Meta(max_length=MOST_WEIGHTS)] = {}

    def check(self) -> None:
        """Raise InvalidRequest for weights of what cannot be a key."""
        for key in self.weights:
            if len(key) > MAX_NAME:
                raise InvalidRequest("fairness: a key is longer than names can be", "fairness.weights")
            if self.separator in key:
                raise InvalidRequest(f"fairness: {key!r} is no key, for it has the separator in it", "fairness.weights")
        if "\0" in self.separator:
            raise InvalidRequest("fairness: the separator must not have a null character", "fairness.separator")

    def key_of(self, partition: str) -> str:
        return partition.partition(self.separator)[0]


class Turns:
    """Of one queue and group."""

    def __init__(self, policy: FairnessPolicy) -> None:
        self._weights = policy.weights
        self._times: dict[str, float] = {}  # what each key has got, by its weight
        self._promised: dict[str, float] = {}  # of what is under way
        self._ready: set[str] = set()
        # The ready ones. An entry that is out of date is corrected when it comes up.
        self._heap: list[tuple[float, str]] = []
        self._now = 0.0

    @property
    def ready(self) -> Collection[str]:
        return self._ready

    def found(self, keys: Iterable[str]) -> None:
        """These keys have something ready, and no others."""
        ready = set(keys)
        for key in ready - self._ready:
            self._times[key] = max(self._times.get(key, 0.0), self._now)
        self._ready = ready
        if len(self._times) > _MOST_REMEMBERED:
            self._times = {key: self._times[key] for key in ready}
        self._heap = [(self._time(key), key) for key in ready]
        heapify(self._heap)

    def next(self, messages: int) -> str | None:
        """Who is next, for up to so many messages; None if nobody has to be preferred."""
        while len(self._ready) > 1 and self._heap:
            time, key = heappop(self._heap)
            if key not in self._ready:
                continue
            if time < self._time(key):
                heappush(self._heap, (self._time(key), key))
                continue
            self._now = max(self._now, self._times[key])
            self._promised[key] = self._promised.get(key, 0.0) + messages / self._weight(key)
            heappush(self._heap, (self._time(key), key))
            return key
        return None

    def kept(self, key: str, messages: int) -> None:
        """What was promised with `next` is settled; `got` says what became of it."""
        left = self._promised.pop(key, 0.0) - messages / self._weight(key)
        if left > 1e-9:
            self._promised[key] = left
        self._correct(key)

    def got(self, key: str, messages: int) -> None:
        self._times[key] = self._times.get(key, self._now) + messages / self._weight(key)
        self._correct(key)

    def exhausted(self, key: str) -> None:
        """It has nothing ready any more."""
        self._ready.discard(key)

    def _correct(self, key: str) -> None:
        if key in self._ready:
            heappush(self._heap, (self._time(key), key))
            if len(self._heap) > 4 * len(self._ready) + 64:
                self._heap = [(self._time(one), one) for one in self._ready]
                heapify(self._heap)

    def _time(self, key: str) -> float:
        return self._times.get(key, self._now) + self._promised.get(key, 0.0)

    def _weight(self, key: str) -> float:
        return self._weights.get(key, 1.0)
