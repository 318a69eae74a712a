"""Long polls that wait, indexed by what they wait for, so that a wake-up costs what it wakes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from queenmq.clock import Timer
from queenmq.cluster.port import Cluster
from queenmq.core.group_backoff import BackoffSettings, GroupBackoff

LimitKind = Literal["rate", "leases", "keys"]
ANY_QUEUE = ""  # cannot be a queue's name: waiters over several queues


class WaitKey(NamedTuple):
    """What a long poll waits for. Polls with equal keys can be served by each other's probes."""

    queue: str
    partition: str | None  # None: any
    group: Hashable


class Found(Protocol):
    """What a probe brings: truthy with messages; else perhaps when to probe again."""

    @property
    def ready_in_s(self) -> float | None: ...

    @property
    def limit(self) -> LimitKind | None:
        """Which limit allows nothing until then; None: no limit does."""
        ...

    @property
    def limit_key(self) -> str | None:
        """The key whose limit that is, if it is one of a key."""
        ...

    def __bool__(self) -> bool: ...


class KnownKeys(Protocol):
    """What is known of the keys of queues and their limits (`fairness`)."""

    @property
    def rules(self) -> Mapping[str, object]: ...
    def key_of(self, queue: str, partition: str) -> str | None: ...
    def freed(self, queue: str, partition: str, group: str) -> None: ...
    def holds(self, queue: str, group: Hashable, partitions: Collection[str]) -> bool: ...


Result = TypeVar("Result", bound=Found)


@dataclass(slots=True, eq=False)
class Waiter(Generic[Result]):
    probe: Callable[[], Awaitable[Result]]
    answer: asyncio.Future[Result | None]
    discard: Callable[[Result], None]  # for what was found when it waits no more
    probing: bool = False
    overdue: bool = False


@dataclass(slots=True, eq=False)
class KeyWaiters(Generic[Result]):
    """The waiters of one key."""

    key: WaitKey
    backoff: GroupBackoff
    siblings: PartitionWaiters[Result] | None
    _: KW_ONLY
    waiters: OrderedDict[int, Waiter[Result]] = field(default_factory=OrderedDict)
    members: int = 0  # parked and probing
    activity: int = 0
    hint: int = 0  # partitions that became readable since the last probe
    woken_at: float | None = None  # by the first wake-up that was not followed by a probe yet
    check: asyncio.Task[None] | None = None
    check_ends_by: float = 0.0
    timer: Timer | None = None
    timer_at: float = 0.0  # when it is due, while there is one
    limit: LimitKind | None = None  # what allowed nothing when it was probed last
    limit_key: str | None = None  # and of which key
    limited_until: float = 0.0


@dataclass(slots=True, eq=False)
class PartitionWaiters(Generic[Result]):
    """The waiters of one queue and consumer group that name a partition. They share a safety net (`safety_net`)."""

    queue: str
    group: Hashable
    backoff: GroupBackoff
    _: KW_ONLY
    partitions: dict[str, KeyWaiters[Result]] = field(default_factory=dict)
    # Those that a limit keeps waiting, by the key whose limit that is; the one that was probed longest ago first.
    limited: dict[str | None, dict[str, KeyWaiters[Result]]] = field(default_factory=dict)
    activity: int = 0
    sweep: asyncio.Task[None] | None = None
    again: bool = False  # sweep once more when this one has ended
    timer: Timer | None = None


def activity_of(group: KeyWaiters[Result]) -> int:
    """Grows whenever something may have become readable for the group."""
    return group.activity + (0 if group.siblings is None else group.siblings.activity)


def longest_waiting(group: KeyWaiters[Result], count: int) -> list[Waiter[Result]]:
    chosen: list[Waiter[Result]] = []
    for waiter in group.waiters.values():
        if len(chosen) == count:
            break
        if not waiter.answer.done() and not waiter.probing:
            chosen.append(waiter)
    return chosen


def resolve(waiter: Waiter[Result], found: Result | None) -> None:
    if not waiter.answer.done():
        waiter.answer.set_result(found)


class WaiterRegistry(Generic[Result]):
    def __init__(
        self,
        backoff: Callable[[str], BackoffSettings],
        *,
        sweep_later: Callable[[PartitionWaiters[Result]], None],
        cluster: Cluster,
    ) -> None:
        """`backoff` has the settings of a queue. The cluster is notified of the first and last waiter of a queue."""
        self._backoff = backoff
        self._sweep_later = sweep_later
        self._cluster = cluster
        self._groups: dict[WaitKey, KeyWaiters[Result]] = {}
        self._by_queue: dict[str, dict[str | None, dict[WaitKey, KeyWaiters[Result]]]] = {}
        self._by_partition: dict[str, dict[Hashable, PartitionWaiters[Result]]] = {}
        self.total = 0

    def groups(self) -> Collection[KeyWaiters[Result]]:
        return self._groups.values()

    def by_partition(self, queue: str) -> Collection[PartitionWaiters[Result]]:
        return self._by_partition.get(queue, {}).values()

    def concerned(self, queue: str, partitions: Collection[str] | None) -> list[dict[WaitKey, KeyWaiters[Result]]]:
        """The groups that wait for one of these partitions or for any of `queue` (with None: for any only), and those
        over several queues."""
        here = self._by_queue.get(queue, {})
        if partitions is None or len(partitions) < len(here):
            found = [here[partition] for partition in (None, *(partitions or ())) if partition in here]
        else:
            found = [groups for partition, groups in here.items() if partition is None or partition in partitions]
        return found + list(self._by_queue.get(ANY_QUEUE, {}).values())

    def enter(self, key: WaitKey) -> KeyWaiters[Result]:
        group = self._groups.get(key)
        if group is None:
            group = KeyWaiters(key, GroupBackoff(partial(self._backoff, key.queue)), self._join_siblings(key))
            self._groups[key] = group
            if key.queue not in self._by_queue:
                self._cluster.consumer_came(key.queue)
            self._by_queue.setdefault(key.queue, {}).setdefault(key.partition, {})[key] = group
            if group.siblings is not None and key.partition is not None:
                group.siblings.partitions[key.partition] = group
        group.members += 1
        self.total += 1
        return group

    def _join_siblings(self, key: WaitKey) -> PartitionWaiters[Result] | None:
        if key.partition is None:
            return None
        by_partition = self._by_partition.setdefault(key.queue, {})
        siblings = by_partition.get(key.group)
        if siblings is None:
            backoff = GroupBackoff(partial(self._backoff, key.queue))
            siblings = by_partition[key.group] = PartitionWaiters(key.queue, key.group, backoff)
            self._sweep_later(siblings)
        return siblings

    def note_limit(self, group: KeyWaiters[Result], kind: LimitKind | None, key: str | None) -> None:
        """What allowed nothing to the last probe of a group; None if no limit did."""
        siblings, partition = group.siblings, group.key.partition
        if siblings is not None and partition is not None:
            if group.limit is not None:
                same = siblings.limited[group.limit_key]
                del same[partition]
                if not same:
                    del siblings.limited[group.limit_key]
            if kind is not None:
                siblings.limited.setdefault(key, {})[partition] = group
        group.limit, group.limit_key = kind, key

    def leave(self, group: KeyWaiters[Result]) -> None:
        self.total -= 1
        group.members -= 1
        if group.members:
            return
        self.note_limit(group, None, None)
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None
        key = group.key
        del self._groups[key]
        partitions = self._by_queue[key.queue]
        del partitions[key.partition][key]
        if not partitions[key.partition]:
            del partitions[key.partition]
        if not partitions:
            del self._by_queue[key.queue]
            self._cluster.consumer_went(key.queue)
        if group.siblings is not None and key.partition is not None:
            del group.siblings.partitions[key.partition]
            if not group.siblings.partitions:
                self._end_siblings(group.siblings)

    def _end_siblings(self, siblings: PartitionWaiters[Result]) -> None:
        if siblings.timer is not None:
            siblings.timer.cancel()
        del self._by_partition[siblings.queue][siblings.group]
        if not self._by_partition[siblings.queue]:
            del self._by_partition[siblings.queue]

    def parked(self) -> dict[str, int]:
        """Waiters by queue."""
        return {
            queue: sum(group.members for groups in partitions.values() for group in groups.values())
            for queue, partitions in self._by_queue.items()
            if queue
        }

    def average_interval_s(self) -> float:
        """How long keys wait until they are probed again without a wake-up."""
        intervals = [(group.siblings or group).backoff.interval_s for group in self._groups.values()]
        return sum(intervals) / len(intervals) if intervals else 0.0

    def statistics(self) -> dict[str, int]:
        groups = self._groups.values()
        return {
            "groups_tracked": len(groups),
            "groups_in_flight": sum(group.check is not None for group in groups),
            "groups_backed_off": sum((group.siblings or group).backoff.backed_off for group in groups),
            "waiters": self.total,
        }
