"""Whose turn it is among the keys of a queue: each gets its share of the messages while it has some. No I/O.

Each key has a time of its own, which runs by what it gets, divided by its weight; the one that is furthest behind is
next. A key that comes back after a pause begins where the others are: what it did not use is not kept for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Annotated

from msgspec import Meta, Struct

from queenmq.core.names import MAX_NAME
from queenmq.errors import InvalidRequest

MOST_WEIGHTS = 1000
MOST_WEIGHT_BYTES = 32_768
# A turn by age, so that a partition whose key nobody knows yet is not passed over for as long as others have messages.
_BY_AGE_EVERY = 16
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
        if sum(len(key.encode()) for key in self.weights) > MOST_WEIGHT_BYTES:
            most = f"the keys of weights are longer than {MOST_WEIGHT_BYTES} bytes together"
            raise InvalidRequest(f"fairness: {most}: leave those out that have the weight 1", "fairness.weights")
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
        self._held: dict[str, float] = {}  # keys that a limit allows nothing, and until when
        self._full: Collection[str] = ()  # of these, those of which `found` has said so
        self._releases: list[tuple[float, str]] = []  # those that are held, the next one first
        self._now = 0.0
        self._turns = 0

    @property
    def ready(self) -> Collection[str]:
        return self._ready

    def found(self, keys: Iterable[str], full: Mapping[str, float] | None = None) -> None:
        """These keys have something ready, and no others; and limits allow nothing to those that are `full`, before the
        time that each has."""
        ready, full = set(keys), full or {}
        for key in ready - self._ready:
            self._times[key] = max(self._times.get(key, 0.0), self._now)
        self._ready = ready
        held = {key: until for key, until in self._held.items() if key in ready and key not in self._full}
        self._held, self._full = held | dict(full), full.keys()
        self._releases = [(until, key) for key, until in self._held.items()]
        heapify(self._releases)
        if len(self._times) > _MOST_REMEMBERED:
            self._times = {key: self._times[key] for key in ready}
        self._heap = [(self._time(key), key) for key in ready]
        heapify(self._heap)

    def hold(self, key: str, until: float) -> None:
        """A limit allows it nothing before that time: it has no turns."""
        if key in self._ready:
            self._held[key] = until = max(until, self._held.get(key, 0.0))
            heappush(self._releases, (until, key))

    def release(self, key: str) -> None:
        if self._held.pop(key, None) is not None:
            self._correct(key)

    def is_held(self, key: str, now: float) -> bool:
        return self._held.get(key, 0.0) > now

    def next(self, messages: int, now: float = 0.0) -> str | None:
        """Who is next, for up to so many messages; None if nobody has to be preferred, or if the oldest is next,
        of any key."""
        while self._releases and self._releases[0][0] <= now:
            until, key = heappop(self._releases)
            if self._held.get(key) == until:
                self.release(key)
        self._turns += 1
        if self._turns % _BY_AGE_EVERY == 0:
            return None
        while len(self._ready) > 1 and self._heap:
            time, key = heappop(self._heap)
            if key not in self._ready or key in self._held:
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
