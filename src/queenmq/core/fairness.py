"""Whose turn it is among the keys of a queue: each gets its share of the messages while it has some. No I/O.

Each key has a time of its own, which runs by what it gets, divided by its weight; the one that is furthest behind is
next. A key that comes back after a pause begins where the others are: what it did not use is not kept for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Annotated

from msgspec import Meta, Struct

from queenmq.core.names import MAX_NAME
from queenmq.errors import InvalidRequest

MOST_WEIGHTS = 1000
MOST_WEIGHT_BYTES = 32_768
# A turn by age, so that a partition whose key nobody knows yet is not passed over for as long as others have messages.
_BY_AGE_EVERY = 16
_MOST_REMEMBERED = 100_000
# Nobody is preferred while all are even but for so much: a part of what was delivered since a key came, and no more
# than so many messages.
_EVEN_SHARE = 0.02
_MOST_UNEVEN = 32


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
        # The ready ones. An entry that is too low is corrected when it comes up.
        self._heap: list[tuple[float, str]] = []
        self._listed: dict[str, float] = {}  # the lowest entry of each
        # The time of the one that is furthest ahead, with what is promised to it, or was when it had something.
        self._front = 0.0
        self._delivered = 0  # messages since a key came
        self._open = 0  # messages under way that may be of any key
        self._heaviest = max([1.0, *policy.weights.values()])
        self._lightest = min([1.0, *policy.weights.values()])
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
            time = self._times.get(key)
            if time is None or time < self._now - _MOST_UNEVEN:
                self._delivered = 0
            self._times[key] = self._now if time is None else max(time, self._now)
        self._ready = ready
        held = {key: until for key, until in self._held.items() if key in ready and key not in self._full}
        self._held, self._full = held | dict(full), full.keys()
        self._releases = [(until, key) for key, until in self._held.items()]
        heapify(self._releases)
        if len(self._times) > _MOST_REMEMBERED:
            self._times = {key: self._times[key] for key in ready}
        self._front = max(map(self._time, ready), default=0.0)
        self._list()

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
        if self._turns % _BY_AGE_EVERY == 0 or len(self._ready) < 2:
            return None
        lowest = self._lowest()
        if lowest is not None:
            self._promise(lowest, messages)
        return lowest

    def again(self, key: str, messages: int) -> str | None:
        """The same for the one that was `next`, who is not furthest behind any more."""
        self._turns += 1
        if self._turns % _BY_AGE_EVERY == 0:
            return None
        self._promise(key, messages)
        return key

    def left_to_age(self, messages: int) -> bool:
        """Whether up to so many messages may be of the partition that has waited longest, because nobody would be far
        behind then. They are open until `closed`."""
        uneven = min(self._delivered * _EVEN_SHARE, _MOST_UNEVEN) / self._heaviest
        ahead = self._front + (self._open + messages) / self._lightest
        if len(self._ready) < 2 or self._held or (key := self._lowest()) is None or ahead - self._time(key) > uneven:
            return False
        self._now = max(self._now, self._times[key])
        self._open += messages
        return True

    def closed(self, messages: int) -> None:
        """What was left to age is settled; `got` says what became of it."""
        self._open -= messages

    def kept(self, key: str, messages: int) -> None:
        """What was promised with `next` is settled; `got` says what became of it."""
        left = self._promised.pop(key, 0.0) - messages / self._weight(key)
        if left > 1e-9:
            self._promised[key] = left
        self._correct(key)

    def got(self, key: str, messages: int) -> None:
        self._times[key] = time = self._times.get(key, self._now) + messages / self._weight(key)
        self._delivered += messages
        if time > self._front and key in self._ready:
            self._front = time

    def exhausted(self, key: str) -> None:
        """It has nothing ready any more."""
        self._ready.discard(key)

    def _promise(self, key: str, messages: int) -> None:
        self._now = max(self._now, self._times[key])
        self._promised[key] = self._promised.get(key, 0.0) + messages / self._weight(key)
        self._front = max(self._front, self._time(key))

    def _lowest(self) -> str | None:
        """Who is furthest behind."""
        while self._heap:
            listed, key = self._heap[0]
            if key not in self._ready or key in self._held:
                heappop(self._heap)
                self._listed.pop(key, None)
            elif listed < (time := self._time(key)):
                heapreplace(self._heap, (time, key))
                self._listed[key] = time
            else:
                return key
        return None

    def _list(self) -> None:
        self._listed = {key: self._time(key) for key in self._ready}
        self._heap = [(time, key) for key, time in self._listed.items()]
        heapify(self._heap)

    def _correct(self, key: str) -> None:
        if key in self._ready and (time := self._time(key)) < self._listed.get(key, inf):
            heappush(self._heap, (time, key))
            self._listed[key] = time
            if len(self._heap) > 4 * len(self._ready) + 64:
                self._list()

    def _time(self, key: str) -> float:
        return self._times.get(key, self._now) + self._promised.get(key, 0.0)

    def _weight(self, key: str) -> float:
        return self._weights.get(key, 1.0)
