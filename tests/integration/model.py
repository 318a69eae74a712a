"""What one queue must do, in memory and without time: partitions, groups, leases, attempts and dead letters.

Nothing here is taken from the SQL. A lane is where one group stands in one partition. Finished offsets are a plain
set, a lease is what it delivered, and time is an event: a lease expires, a pause ends, a message ages.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby

INVALID_LEASE = "Invalid or expired lease"
NOT_FOUND = "Message not found"
QUEUE_MODE = "__QUEUE_MODE__"
LIMIT_S = 3600  # what every configured age limit is
AGEING = timedelta(seconds=2 * LIMIT_S)


@dataclass
class Options:
    retry_limit: int = 1
    dlq_after_max_retries: bool = False
    ttl: bool = False
    bury: bool = False  # deadLetterQueue
    poison: str = "block"  # or skip or park: what a partition does with a message that fails


NOBODY = "__QUEUE_MODE__"  # whose dead letters they are in a partition that no group reads


@dataclass
class Stored:
    offset: int
    id: str
    transaction: str
    at: datetime
    aged: bool = False


@dataclass
class Partition:
    name: str
    id: str
    messages: dict[int, Stored] = field(default_factory=dict)
    last: int = 0

    def find(self, transaction: str) -> Stored | None:
        return next((m for m in self.messages.values() if m.transaction == transaction), None)

    def aged_upto(self) -> int:
        """The last offset that is over an age limit, as is everything before it, stored or not any more."""
        return max(
            (m.offset for m in self.messages.values() if m.aged), default=min(self.messages, default=self.last + 1) - 1
        )


@dataclass
class Lease:
    id: str
    unfinished: set[int]
    live: bool = True


@dataclass
class Lane:
    partition: Partition
    group: str
    finished: set[int] = field(default_factory=set)
    lease: Lease | None = None
    failures: dict[int, int] = field(default_factory=dict)  # how often each unfinished message has failed
    paused: bool = False  # the retry delay after a failure
    skipped: dict[int, bool] = field(default_factory=dict)  # messages that wait by themselves; whether they are due
    parked: set[int] = field(default_factory=set)  # messages that everything behind them waits for

    def deliverable(self) -> list[int]:
        return [o for o in self.unread() if self.skipped.get(o, True) and o < min(self.parked, default=o + 1)]

    def unread(self) -> list[int]:
        return sorted(self.partition.messages.keys() - self.finished)

    def leased(self) -> bool:
        return self.lease is not None and self.lease.live

    def claimable(self) -> bool:
        return not self.leased() and not self.paused

    def start_over(self) -> None:
        self.lease, self.failures, self.paused = None, {}, False
        self.skipped, self.parked = {}, set()

    def finish(self, offsets: Iterable[int]) -> None:
        """What failed before counts no more, should it ever come back."""
        self.finished.update(offsets)
        self.failures = {offset: times for offset, times in self.failures.items() if offset not in self.finished}
        self.keep_back_no_more(self.finished)

    def keep_back_no_more(self, offsets: Container[int]) -> None:
        self.skipped = {offset: due for offset, due in self.skipped.items() if offset not in offsets}
        self.parked = {offset for offset in self.parked if offset not in offsets}

    def fail(self, offset: int) -> None:
        self.failures[offset] = self.times_failed(offset) + 1

    def times_failed(self, offset: int) -> int:
        return self.failures.get(offset, 0)

    @property
    def attempts(self) -> int:
        """How often the first unread message has failed."""
        return self.times_failed(self.unread()[0]) if self.unread() else 0

    def rest_if_drained(self) -> None:
        """A lane that has finished all there ever was owes nothing to the next message."""
        if self.lease is None and len(self.finished) >= self.partition.last:
            self.start_over()


@dataclass(frozen=True)
class Ask:
    """One pop."""

    partition: str | None
    group: str
    batch: int
    partitions: int
    auto_ack: bool

    @property
    def most_partitions(self) -> int:
        return 1 if self.partition else self.partitions


@dataclass(frozen=True)
class Item:
    """One acknowledgement. No group: only in a transaction."""

    partition: str
    transaction: str
    group: str | None
    lease: str | None
    status: str


@dataclass
class Verdict:
    problem: str | None = None
    released: bool = False
    dead_lettered: bool = False


@dataclass
class Subscription:
    since: datetime | None = None
    registered: bool = False


Delivery = tuple[str, int, int]  # partition name, offset, retry count
Letter = tuple[str, str, str]  # partition name, group, message id


class Queue:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.partitions: dict[str, Partition] = {}
        self.lanes: dict[tuple[str, str], Lane] = {}
        self.groups: dict[str, Subscription] = {}
        self.single: dict[tuple[str, str], datetime] = {}  # subscriptions through the partition form
        self.letters: dict[Letter, tuple[str, int]] = {}  # error text, retry count
        self.leases: list[str] = []  # every lease there ever was

    def copy(self) -> Queue:
        return copy.deepcopy(self)

    # Producing

    def create(self, name: str, partition_id: str) -> None:
        """A new partition: every registered group has a lane in it, at its beginning."""
        partition = self.partitions[name] = Partition(name, partition_id)
        for group, subscription in self.groups.items():
            if subscription.registered:
                self.lanes[name, group] = Lane(partition, group)

    def push(self, partition: str, transaction: str, message_id: str) -> tuple[str, str]:
        """Whether the message is new, and the id of the stored one."""
        into = self.partitions[partition]
        there = into.find(transaction)
        if there is not None:
            return "duplicate", there.id
        into.last += 1
        into.messages[into.last] = Stored(into.last, message_id, transaction, datetime.min)
        return "queued", message_id

    # Subscribing

    def known(self, ask: Ask) -> bool:
        if ask.partition:
            return (ask.partition, ask.group) in self.lanes
        return ask.group in self.groups and self.groups[ask.group].registered

    def subscribe(self, partition: str | None, group: str, since: datetime | None) -> None:
        if since is not None and partition is None:
            self.groups.setdefault(group, Subscription(since))
        elif since is not None and partition is not None and group not in self.groups:
            self.single.setdefault((partition, group), since)
        if partition is None:
            self.groups.setdefault(group, Subscription()).registered = True
        for name in self.partitions:
            if partition in (None, name) and (name, group) not in self.lanes:
                self._open(name, group)

    def _open(self, partition: str, group: str) -> None:
        whole = self.groups.get(group)
        since = self.single.get((partition, group), whole.since if whole else None)
        lane = self.lanes[partition, group] = Lane(self.partitions[partition], group)
        if since is not None:
            stored = lane.partition.messages.values()
            lane.finished = set(range(1, max((m.offset for m in stored if m.at < since), default=0) + 1))

    def delete_group(self, group: str, metadata: bool) -> int:
        gone = [key for key in self.lanes if key[1] == group]
        for key in gone:
            del self.lanes[key]
        if metadata:
            self.groups.pop(group, None)
            self.single = {key: since for key, since in self.single.items() if key[1] != group}
        elif group in self.groups:
            self.groups[group].registered = False
        return len(gone)

    # Consuming

    def scope(self, ask: Ask) -> list[Lane]:
        return [
            lane for (name, group), lane in self.lanes.items() if group == ask.group and ask.partition in (None, name)
        ]

    def popped(
        self,
        ask: Ask,
        lease_id: str,
        rows: Sequence[Delivery],
        positions: dict[tuple[str, str], int],
        served: Container[tuple[str, str]] = (),
    ) -> None:
        """Check what a pop delivered, and take it over. Which partitions it chose is up to it.

        It must have delivered the first unread messages of claimable lanes, and as many as it may. Only a lane from
        which the same call has served another one (`served`) may keep something.
        """
        left = ask.batch
        blocks = [(name, list(block)) for name, block in groupby(rows, key=lambda row: row[0])]
        assert len({name for name, _ in blocks}) == len(blocks) <= ask.most_partitions, "partitions of a pop"
        for name, block in blocks:
            lane = self.lanes[name, ask.group]
            assert ask.partition in (None, name)
            assert lane.claimable(), f"{name} was delivered to {ask.group} under a live lease or in a pause"
            self.visit(lane, positions.get((name, ask.group), 0))
            assert [offset for _, offset, _ in block] == lane.deliverable()[:left], "not the first unread messages"
            assert [r for _, _, r in block] == [lane.times_failed(o) for _, o, _ in block], "retry count"
            left -= len(block)
            self._claim(lane, lease_id, [offset for _, offset, _ in block], ask.auto_ack)
        if left > 0 and len(blocks) < ask.most_partitions:
            for lane in self.scope(ask):
                key = (lane.partition.name, lane.group)
                if lane.claimable() and key not in served:
                    self.visit(lane, positions.get(key, 0))
                    assert not lane.deliverable(), f"{lane.deliverable()} of {lane.partition.name} were held back"
        if rows and not ask.auto_ack:
            self.leases.append(lease_id)

    def visit(self, lane: Lane, position: int) -> None:
        """What a pop does to a lane before it reads from it, and to one in which it finds nothing."""
        if self.options.dlq_after_max_retries and lane.lease and lane.lease.unfinished:
            self._count_expiry(lane)
        if self.options.ttl:
            self._skip_aged(lane, position, "Message expired (ttl)")
        if not lane.deliverable():
            lane.lease = None
            self._rest_if_empty(lane)

    def _count_expiry(self, lane: Lane) -> None:
        """The first message that the lease left unfinished is the one that its consumer was at."""
        assert lane.lease is not None
        poison = min(lane.lease.unfinished)
        if lane.times_failed(poison) < self.options.retry_limit or self.options.poison == "park":
            self._keep_back(lane, poison)
            lane.fail(poison)
        else:
            self._bury(lane, poison, "Lease expired too often")
            lane.finish([poison])
        lane.lease = None

    def _keep_back(self, lane: Lane, offset: int) -> bool:
        """Of a message that fails now, before that is counted; whether its partition goes by a policy."""
        if self.options.poison == "skip":
            lane.skipped[offset] = False
        elif self.options.poison == "park" and lane.times_failed(offset) >= self.options.retry_limit:
            lane.parked.add(offset)
        else:
            return False
        return True

    def _skip_aged(self, lane: Lane, position: int, error: str) -> None:
        upto = lane.partition.aged_upto()
        if upto <= position:
            return
        for offset in set(range(1, upto + 1)) - lane.finished:
            if self.options.bury:
                self._bury(lane, offset, error)
            lane.finish([offset])
        lane.lease, lane.paused = None, False

    def _claim(self, lane: Lane, lease_id: str, offsets: list[int], auto_ack: bool) -> None:
        if not lane.skipped and not lane.parked:
            lane.finished.update(range(1, offsets[0]))  # what is not stored any more is passed
        lane.keep_back_no_more(offsets)
        if auto_ack:
            lane.lease, lane.paused = None, False
            lane.finish(offsets)
        else:
            lane.lease, lane.paused = Lease(lease_id, set(offsets)), False

    # Acknowledging

    def ack(self, items: Sequence[Item], required: Iterable[str] | None = None) -> list[Verdict]:
        """Judge every item by what was before the request, then apply lane by lane."""
        required = None if required is None else set(required)
        judged: list[tuple[tuple[str, str], Verdict]] = []
        accepted: dict[tuple[str, str], list[tuple[Item, Verdict, int]]] = {}
        for item in items:
            key = (item.partition, item.group or self._holder(item.partition, required or set()))
            stored = self.partitions[item.partition].find(item.transaction)
            verdict = Verdict(self._problem(item, key[1], stored, required))
            judged.append((key, verdict))
            lane = self.lanes.get(key)
            if verdict.problem is None and stored and lane and stored.offset not in lane.finished:
                accepted.setdefault(key, []).append((item, verdict, stored.offset))
        released = {
            key for key, effects in accepted.items() if self._apply(self.lanes[key], effects, required is not None)
        }
        for key, verdict in judged:
            verdict.released = key in released and verdict.problem is None
        return [verdict for _, verdict in judged]

    def _holder(self, partition: str, required: set[str]) -> str:
        """The group that a transaction without a group means: the one that holds one of its leases."""
        holders = [
            lane.group
            for lane in self.lanes.values()
            if lane.partition.name == partition and lane.lease and lane.leased() and lane.lease.id in required
        ]
        return holders[0] if len(holders) == 1 else QUEUE_MODE

    def _problem(self, item: Item, group: str, stored: Stored | None, required: set[str] | None) -> str | None:
        if stored is None:
            return NOT_FOUND
        lane = self.lanes.get((item.partition, group))
        allowed = {item.lease} if item.lease else required or set()
        held = lane.lease.id if lane and lane.lease and lane.leased() else None
        if allowed and held not in allowed:
            return INVALID_LEASE
        if lane is None or stored.offset in lane.finished:
            return None
        delivered = lane.lease is not None and stored.offset in lane.lease.unfinished
        if allowed and not delivered:
            return INVALID_LEASE
        hands_back = item.status == "retry" or (
            item.status == "failed" and not self._exhausted(lane, stored.offset, required)
        )
        if hands_back and not (held and delivered):
            return INVALID_LEASE
        return None

    def _exhausted(self, lane: Lane, offset: int, required: set[str] | None) -> bool:
        is_last = lane.times_failed(offset) >= self.options.retry_limit and self.options.poison != "park"
        return required is not None or is_last

    def _apply(self, lane: Lane, effects: list[tuple[Item, Verdict, int]], in_transaction: bool) -> bool:
        """Whether the lease is given up."""
        failed = {
            offset
            for item, _, offset in effects
            if item.status == "failed" and not self._exhausted(lane, offset, set() if in_transaction else None)
        }
        handed_back = bool(failed) or any(item.status == "retry" for item, _, _ in effects)
        for item, verdict, offset in effects:
            if item.status == "retry" or offset in failed:
                continue
            if item.status in ("failed", "dlq"):
                error = "Retries exhausted" if item.status == "failed" else "Dead-lettered by the consumer"
                self._bury(lane, offset, "Unknown error" if in_transaction else error)
                verdict.dead_lettered = True
            lane.finish([offset])
        ended = lane.lease is not None and lane.lease.unfinished <= lane.finished
        if lane.lease is not None:
            lane.lease.unfinished -= lane.finished
        if handed_back or ended:
            lane.lease = None
        for offset in failed:
            if not self._keep_back(lane, offset):
                lane.paused = True
            lane.fail(offset)
        lane.rest_if_drained()
        return handed_back or ended

    def _bury(self, lane: Lane, offset: int, error: str) -> None:
        message = lane.partition.messages.get(offset)
        if message is not None:
            self.letters[lane.partition.name, lane.group, message.id] = (error, lane.times_failed(offset))

    # Leases, time and seeking

    def holding(self, lease_id: str) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.lease and lane.lease.id == lease_id]

    def expire(self, lease_id: str) -> None:
        for lane in self.holding(lease_id):
            lane.lease.live = False

    def is_live(self, lease_id: str) -> bool:
        return any(lane.leased() for lane in self.holding(lease_id))

    def release(self, lease_id: str) -> None:
        for lane in self.holding(lease_id):
            lane.lease = None

    def end_pauses(self) -> None:
        for lane in self.lanes.values():
            lane.paused = False
            lane.skipped = dict.fromkeys(lane.skipped, True)

    def retry(self, partition: str, offset: int) -> int:
        """By hand: it is due now, and has never failed. Returns for how many groups."""
        lanes = [one for one in self.lanes_of(self.partitions[partition]) if offset in one.skipped.keys() | one.parked]
        for lane in lanes:
            lane.parked.discard(offset)
            lane.skipped[offset] = True
            lane.failures.pop(offset, None)
        return len(lanes)

    def seek(self, group: str, partition: str | None, at: datetime | None) -> int:
        moved = [
            lane for lane in self.lanes.values() if lane.group == group and partition in (None, lane.partition.name)
        ]
        for lane in moved:
            stored = lane.partition.messages.values()
            last = lane.partition.last if at is None else max((m.offset for m in stored if m.at <= at), default=0)
            lane.finished = set(range(1, last + 1))
            lane.start_over()
        return len(moved)

    # Getting old

    def age(self) -> None:
        for partition in self.partitions.values():
            for message in partition.messages.values():
                message.at, message.aged = message.at - AGEING, True

    def lanes_of(self, partition: Partition) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.partition is partition]

    def skip_free_lanes(self, partition: Partition, positions: dict[tuple[str, str], int], error: str) -> int:
        """Move the lanes without a live lease over what is too old. Returns up to where nobody needs anything."""
        upto = needed = partition.aged_upto()
        lanes = self.lanes_of(partition)
        for lane in lanes:
            position = positions[partition.name, lane.group]
            if lane.leased():
                needed = min(needed, position)
            else:
                self._skip_aged(lane, position, error)
        if not lanes and self.options.bury:
            nobody = Lane(partition, QUEUE_MODE)
            for offset in range(1, upto + 1):
                self._bury(nobody, offset, error)
        return needed

    def delete(self, partition: Partition, offsets: Collection[int]) -> None:
        """Retention takes messages away. A lease goes on without them, and ends if nothing is left of it."""
        for offset in offsets:
            del partition.messages[offset]
        for lane in self.lanes_of(partition):
            kept_back = bool(lane.skipped or lane.parked)
            lane.keep_back_no_more(offsets)
            if lane.lease is not None:
                lane.lease.unfinished.difference_update(offsets)
                if not lane.lease.unfinished:
                    lane.lease = None
                    self._rest_if_empty(lane)
            elif kept_back:
                self._rest_if_empty(lane)

    def _rest_if_empty(self, lane: Lane) -> None:
        if not lane.unread():
            lane.finished = set(range(1, lane.partition.last + 1))
            lane.rest_if_drained()
