"""What a history says about messages, leases and groups, arranged for the rules. One pass over the operations."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from queenmq.verify.history import (
    Ack,
    Acked,
    AckStatus,
    Cancel,
    Cancelled,
    Dead,
    Delivered,
    Drain,
    Fault,
    ListDead,
    Operation,
    Pop,
    Popped,
    Push,
    Pushed,
    Read,
    Renew,
    Renewed,
    Schedule,
    Seek,
    Stored,
    Transact,
)

Group: TypeAlias = tuple[str, str]  # queue, group
Partition: TypeAlias = tuple[str, str]  # queue, partition
Copy: TypeAlias = tuple[str, str, str]  # queue, partition, id: where a message is stored at most once
Finding: TypeAlias = tuple[str, tuple[int, ...]]  # what happened, and the operations that show it
Tally: TypeAlias = Callable[[int], None]
FOREVER = float("inf")
# Faults that end PostgreSQL. What a pop commits is not waited for on disk, so leases of the last moment are forgotten:
# their messages come again, and their acknowledgements are refused.
_CRASHES = frozenset({"restart", "failover", "full-disk"})
_FORGOTTEN_S = 1.0


@dataclass(slots=True, kw_only=True)
class Sent:
    """All pushes of an id to a partition, taken together."""

    begun: float = FOREVER
    """When the first of them was invoked: it is not stored before."""
    first: int = -1
    known: float = FOREVER
    """When the first answer came that says it is stored or will be, in its place."""
    known_by: int = -1
    buffered_by: str | None = None
    """The server that answered so, if it put it into its journal."""
    servers: set[str] = field(default_factory=set)
    possible: int = 0
    """How many of them may have taken place."""
    stored: list[int] = field(default_factory=list)
    """Those that were answered with `stored`; one at most is right."""
    duplicates: list[int] = field(default_factory=list)


class Delivery(NamedTuple):
    op: int
    begun: float
    ended: float
    lease: str
    message: Delivered


@dataclass(slots=True, kw_only=True)
class Lease:
    op: int
    id: str
    group: Group
    begun: float
    ended: float
    seconds: float
    messages: list[Delivered]
    partitions: dict[str, str]
    """Of each message."""
    released: float = FOREVER
    """When the first request was sent that may have ended it."""
    renewals: list[tuple[float, float, float]] = field(default_factory=list)
    """Begun, ended, seconds, of those that the server took."""

    def held_until(self) -> float:
        """It certainly lives until then: time is counted from the request, which was before the server's own count."""
        end = self.begun + self.seconds
        for begun, ended, seconds in self.renewals:
            if ended < end:
                end = max(end, begun + seconds)
        return min(end, self.released)


class Said(NamedTuple):
    """An acknowledgement of one message."""

    op: int
    begun: float
    ended: float
    lease: Lease
    id: str
    status: AckStatus
    taken: bool | None
    """None if nobody knows."""
    dead: bool = False

    @property
    def is_finish(self) -> bool:
        """Whether it certainly finished the message."""
        return self.taken is True and (self.status in ("completed", "dlq") or self.dead)

    @property
    def may_finish(self) -> bool:
        """A failure may be the last one that a message is allowed."""
        return self.taken is not False and self.status != "retry"


@dataclass(slots=True)
class Timer:
    """A message that is to be stored later."""

    op: int
    due: float
    """Not before: time is counted from the request, which was before the server's own count."""
    is_certain: bool
    """Whether it was answered with `ok`."""
    cancelled: int = -1
    """The operation that has certainly cancelled it."""
    may_be_cancelled: bool = False


class Torn(NamedTuple):
    """A transaction whose outcome nobody knows."""

    op: int
    copies: list[Copy]
    acks: list[tuple[Lease, str]]


class Seeks:
    """The seeks of a group, in the order of their beginnings. What overlaps one belongs to no epoch.

    One with an unknown outcome begins no epoch. It may move each partition once, at any time after its beginning.
    """

    def __init__(self) -> None:
        self._begun: list[float] = []
        self._ended: list[float] = []
        self._unknown: list[float] = []

    def add(self, begun: float, ended: float) -> None:
        self._begun.append(begun)
        self._ended.append(max([ended, *self._ended[-1:]]))

    def add_unknown(self, begun: float) -> None:
        self._unknown.append(begun)

    def unknown_before(self, ended: float) -> int:
        """How many with an unknown outcome may have moved a partition by then."""
        return bisect_left(self._unknown, ended)

    def epoch(self, begun: float, ended: float) -> int | None:
        before = bisect_left(self._ended, begun)
        return before if bisect_left(self._begun, ended) == before else None


class Facts:
    def __init__(self, operations: Sequence[Operation], faults: Sequence[Fault] = ()) -> None:
        self.sent: dict[Partition, dict[str, Sent]] = defaultdict(lambda: defaultdict(Sent))
        self.requests: list[tuple[int, list[Copy]]] = []
        self.deliveries: dict[Group, list[Delivery]] = defaultdict(list)
        self.leases: dict[str, Lease] = {}
        self.said: dict[Group, list[Said]] = defaultdict(list)
        self.seeks: dict[Group, Seeks] = defaultdict(Seeks)
        self.stored: dict[Partition, tuple[int, list[Delivered]]] = {}
        self.drained: dict[Group, int] = {}
        self.dead: dict[Group, tuple[int, int, set[str]]] = {}
        self.torn: list[Torn] = []
        self._crashes = [(fault.at - _FORGOTTEN_S, fault.ended) for fault in faults if fault.name in _CRASHES]
        self.given_twice: list[tuple[Lease, int]] = []
        self.timers: dict[Copy, Timer] = {}
        self._timer_of: dict[tuple[str, str], Timer] = {}
        # Leases first: an acknowledgement may have been invoked before the answer of its pop was recorded.
        for one in operations:
            if isinstance(one.request, Pop):
                self._popped(one, one.request)
        for one in operations:
            match one.request:
                case Push():
                    self._pushed(one, one.request, _statuses(one, one.request))
                case Ack():
                    self._acked(one, one.request)
                case Renew():
                    self._renewed(one, one.request)
                case Transact():
                    self._transacted(one, one.request)
                case Seek(queue=queue, group=group) if one.outcome != "fail":
                    self._sought(one, (queue, group))
                case Schedule():
                    self._scheduled(one, one.request)
                case Cancel(queue=queue, id=name) if one.outcome != "fail":
                    self._cancelled(one, self._timer_of.get((queue, name)))
                case Read(queue=queue, partition=partition) if isinstance(one.answer, Stored):
                    self.stored[queue, partition] = (one.op, one.answer.messages)
                case Drain(queue=queue, group=group) if one.outcome == "ok":
                    self.drained[queue, group] = one.op
                case ListDead(queue=queue, group=group, retry_limit=limit) if isinstance(one.answer, Dead):
                    self.dead[queue, group] = (one.op, limit, set(one.answer.ids))

    def _popped(self, one: Operation, pop: Pop) -> None:
        if not isinstance(one.answer, Popped):
            return
        group = (pop.queue, pop.group)
        for message in one.answer.messages:
            self.deliveries[group].append(Delivery(one.op, one.begun, one.ended, one.answer.lease, message))
        if one.answer.lease in self.leases:
            self.given_twice.append((self.leases[one.answer.lease], one.op))
        elif one.answer.lease:
            self.leases[one.answer.lease] = Lease(
                op=one.op,
                id=one.answer.lease,
                group=group,
                begun=one.begun,
                ended=one.ended,
                seconds=pop.lease_s,
                messages=one.answer.messages,
                partitions={message.id: message.partition for message in one.answer.messages},
            )

    def _pushed(self, one: Operation, push: Push, statuses: Sequence[str]) -> list[Copy]:
        copies = [(push.queue, push.partition, name) for name in push.ids]
        self.requests.append((one.op, copies))
        for copy, status in zip(copies, statuses, strict=True):
            sent = self.sent[copy[:2]][copy[2]]
            if one.begun < sent.begun:
                sent.begun, sent.first = one.begun, one.op
            sent.possible += status != "refused"
            sent.servers.add(push.server)
            if status in ("stored", "duplicate", "accepted", "buffered") and one.ended < sent.known:
                sent.known, sent.known_by = one.ended, one.op
                sent.buffered_by = push.server if status == "buffered" else None
            if status == "stored":
                sent.stored.append(one.op)
            elif status == "duplicate":
                sent.duplicates.append(one.op)
        return copies

    def _acked(self, one: Operation, ack: Ack) -> None:
        lease = self.leases.get(ack.lease)
        if lease is None:
            return
        if one.outcome != "fail":
            lease.released = min(lease.released, one.begun)
        answer = one.answer if isinstance(one.answer, Acked) else None
        for index, name in enumerate(ack.ids):
            taken = answer.taken[index] if answer else False if one.outcome == "fail" else None
            dead = bool(answer and answer.dead and answer.dead[index])
            self.said[lease.group].append(Said(one.op, one.begun, one.ended, lease, name, ack.status, taken, dead))

    def _renewed(self, one: Operation, renew: Renew) -> None:
        lease = self.leases.get(renew.lease)
        if lease is not None and isinstance(one.answer, Renewed) and one.answer.taken:
            lease.renewals.append((one.begun, one.ended, renew.seconds))

    def _transacted(self, one: Operation, transaction: Transact) -> None:
        word = {"ok": "stored", "fail": "refused", "info": "unknown"}[one.outcome]
        copies = [copy for push in transaction.pushes for copy in self._pushed(one, push, [word] * len(push.ids))]
        acks = []
        taken = {"ok": True, "fail": False, "info": None}[one.outcome]
        for ack in transaction.acks:
            lease = self.leases.get(ack.lease)
            if lease is None:
                continue
            if one.outcome != "fail":
                lease.released = min(lease.released, one.begun)
            for name in ack.ids:
                self.said[lease.group].append(Said(one.op, one.begun, one.ended, lease, name, ack.status, taken))
                acks.append((lease, name))
        if one.outcome == "info":
            self.torn.append(Torn(one.op, copies, acks))

    def _scheduled(self, one: Operation, timer: Schedule) -> None:
        copy = (timer.queue, timer.partition, timer.id)
        sent = self.sent[copy[:2]][timer.id]
        sent.begun, sent.first, sent.possible = one.begun, one.op, int(one.outcome != "fail")
        made = Timer(one.op, one.begun + timer.seconds, one.outcome == "ok")
        self.timers[copy] = self._timer_of[timer.queue, timer.id] = made

    def _cancelled(self, one: Operation, timer: Timer | None) -> None:
        if timer is None:
            return
        if isinstance(one.answer, Cancelled) and one.answer.taken:
            timer.cancelled = one.op
        timer.may_be_cancelled |= not isinstance(one.answer, Cancelled) or one.answer.taken

    def _sought(self, one: Operation, group: Group) -> None:
        over = FOREVER
        if one.outcome == "ok":
            over = one.ended
            self.seeks[group].add(one.begun, one.ended)
        else:
            self.seeks[group].add_unknown(one.begun)
        for lease in self.leases.values():
            if lease.group == group and lease.begun < over:
                lease.released = min(lease.released, max(lease.ended, one.begun))

    def may_be_forgotten(self, lease: Lease) -> bool:
        """Whether PostgreSQL may have ended before the lease was on disk."""
        return any(begun < lease.ended and lease.begun < ended for begun, ended in self._crashes)

    def observations(self) -> Iterator[tuple[int, str, Delivered]]:
        """Every message that was seen, with the operation that saw it and its queue."""
        for (queue, _), (op, messages) in self.stored.items():
            for message in messages:
                yield op, queue, message
        for (queue, _), deliveries in self.deliveries.items():
            for delivery in deliveries:
                yield delivery.op, queue, delivery.message


def _statuses(
    one: Operation, push: Push
) -> Sequence[Literal["stored", "duplicate", "accepted", "buffered", "refused", "unknown"]]:
    if isinstance(one.answer, Pushed) and one.outcome == "ok":
        return one.answer.statuses
    return ["refused" if one.outcome == "fail" else "unknown"] * len(push.ids)
