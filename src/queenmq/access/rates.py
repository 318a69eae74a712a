"""How much a token or a namespace may ask for. In memory, so each worker of each server counts for itself. No I/O.

A rate is a bucket that fills up within a second. A request that finds something in it goes on, also if it takes more
than there is: so a push of a thousand messages at a hundred a second is stored, and the next one waits ten seconds.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Final

from msgspec import Meta, Struct

from queenmq.clock import Clock
from queenmq.errors import Overloaded

_MOST_BUCKETS: Final = 10_000
_MOST: Final = 10**9
_NAMESPACE: Final = "."
_KINDS: Final = (
    *("requests", "messages", "long_polls"),
    *("namespace_requests", "namespace_messages", "namespace_long_polls"),
)

Bound = Annotated[int, Meta(ge=1, le=_MOST)]


class Limits(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """What a token may do at most, each if given: requests and pushed messages a second, long polls at a time."""

    requests_per_second: Bound | None = None
    messages_per_second: Bound | None = None
    long_polls: Bound | None = None


UNLIMITED: Final = Limits()
Share = tuple[int, int]
"""How many messages, and how many a second are allowed."""


class _Bucket(Struct):
    left: float
    filled_at: float


class Rates:
    """`refused` counts what was refused, by what was used up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By kind, so that pushes to made-up namespaces do not have the bucket of a token forgotten, and so refilled.
        self._buckets: defaultdict[str, OrderedDict[str, _Bucket]] = defaultdict(OrderedDict)
        self._polls: Counter[str] = Counter()
        self._namespace_polls: Counter[str] = Counter()
        self.refused = Counter(dict.fromkeys(_KINDS, 0))

    def take_request(self, who: str, limits: Limits) -> None:
        """A request of this caller. Raises Overloaded."""
        if limits.requests_per_second is not None:
            self._draw("requests", who, limits.requests_per_second, 1, "requests of this token")

    def take_messages(self, who: str, limits: Limits, messages: int) -> None:
        """This caller pushes so many messages. Raises Overloaded."""
        if limits.messages_per_second is not None and messages:
            self._draw("messages", who, limits.messages_per_second, messages, "messages pushed with this token")

    def take_namespaces(self, pushed: Mapping[str, Share]) -> None:
        """Messages are pushed to these namespaces. Raises Overloaded; then none has been counted."""
        for namespace, (_, per_second) in pushed.items():
            self._require("namespace_messages", namespace, per_second, f"messages for the namespace {namespace!r}")
        self.charge_namespaces(pushed)

    def charge_namespaces(self, pushed: Mapping[str, Share]) -> None:
        """Messages were pushed to these namespaces without being asked for now: what is pushed next has to wait for
        them, too."""
        for namespace, (messages, per_second) in pushed.items():
            self._bucket("namespace_messages", namespace, per_second).left -= messages

    def take_namespace_requests(self, per_second: Mapping[str, int]) -> None:
        """A request about queues of these namespaces, each with its limit. Raises Overloaded; then it has not been
        counted."""
        kind = "namespace_requests"
        found = [
            self._require(kind, namespace, most, f"requests about the namespace {namespace!r}")
            for namespace, most in per_second.items()
        ]
        for bucket in found:
            bucket.left -= 1

    @contextmanager
    def polling(self, who: str, limits: Limits) -> Iterator[None]:
        """A long poll of this caller, while it waits. Raises Overloaded."""
        if limits.long_polls is not None and self._polls[who] >= limits.long_polls:
            self.refused["long_polls"] += 1
            raise Overloaded(_text(f"this token has {limits.long_polls} long polls waiting, as many as it may have"))
        with _counted(self._polls, (who,)):
            yield

    @contextmanager
    def polling_namespaces(self, most: Mapping[str, int]) -> Iterator[None]:
        """A long poll for a queue of these namespaces, each with its limit, while it waits. Raises Overloaded."""
        for namespace, long_polls in most.items():
            if self._namespace_polls[namespace] >= long_polls:
                self.refused["namespace_long_polls"] += 1
                raise Overloaded(
                    _text(f"the namespace {namespace!r} has {long_polls} long polls waiting, as many as it may have")
                )
        with _counted(self._namespace_polls, most):
            yield

    def polls_of(self, namespace: str) -> int:
        """Long polls that wait for queues of a namespace that has a limit of them."""
        return self._namespace_polls.get(namespace, 0)

    def _draw(self, kind: str, who: str, per_second: int, amount: int, what: str) -> None:
        self._require(kind, who, per_second, what).left -= amount

    def _require(self, kind: str, who: str, per_second: int, what: str) -> _Bucket:
        bucket = self._bucket(kind, who, per_second)
        if bucket.left <= 0:
            self.refused[kind] += 1
            wait_s = max(1, math.ceil(-bucket.left / per_second))
            raise Overloaded(_text(f"too many {what}: at most {per_second} a second are allowed"), wait_s)
        return bucket

    def _bucket(self, kind: str, who: str, per_second: int) -> _Bucket:
        now, buckets = self._clock.monotonic(), self._buckets[kind]
        bucket = buckets.get(who)
        if bucket is None:
            bucket = buckets[who] = _Bucket(per_second, now)
            if len(buckets) > _MOST_BUCKETS:
                buckets.popitem(last=False)
            return bucket
        buckets.move_to_end(who)
        bucket.left = min(per_second, bucket.left + (now - bucket.filled_at) * per_second)
        bucket.filled_at = now
        return bucket


@contextmanager
def _counted(counts: Counter[str], names: Collection[str]) -> Iterator[None]:
    for name in names:
        counts[name] += 1
    try:
        yield
    finally:
        for name in names:
            counts[name] -= 1
            if not counts[name]:
                del counts[name]


def namespace_of(queue: str) -> str:
    """As a push gives it to a new queue: what is before the first dot."""
    return queue.partition(_NAMESPACE)[0]


def _text(reason: str) -> str:
    # Published consumers stay alive only if the text has both words.
    return f"{reason}, connection refused for now (ECONNREFUSED)"
