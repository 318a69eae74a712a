"""What a history says about messages, leases and groups, arranged for the rules. One pass over the operations."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from queenmq.verify.history import (
    FOREVER,
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
from queenmq.verify.seeks import Seeks, Sought

Group: TypeAlias = tuple[str, str]  # queue, group
Partition: TypeAlias = tuple[str, str]  # queue, partition
Copy: TypeAlias = tuple[str, str, str]  # queue, partition, id: where a message is stored at most once
Finding: TypeAlias = tuple[str, tuple[int, ...]]  # what happened, and the operations that show it
Tally: TypeAlias = Callable[[int], None]
# Faults that end PostgreSQL. What a pop commits is not waited for on disk, so leases of the last moment are forgotten:
# their messages come again, and their acknowledgements are refused.
_KNOWN = frozenset({"stored", "duplicate", "accepted", "buffered"})
_CRASHES = frozenset({"restart", "failover", "full-disk"})
_FORGOTTEN_S = 1.0


class Sent(Struct, kw_only=True, gc=False):
    """All pushes of an id to a partition, taken together."""

    begun: float = FOREVER
    """When the first of them was invoked: it is not stored before."""
    first: int = -1
    known: float = FOREVER
    """When the first answer came that says it is stored or will be, in its place."""
    known_by: int = -1
    buffered_by: str | None = None
    """The server that answered so, if it put it into its journal."""
    server: str | None = None
    """Where the first one was sent to."""
    is_spread: bool = False
    """Whether others were sent to other servers."""
    possible: int = 0
    """How many of them may have taken place."""
    stored: tuple[int, ...] = ()
    """Those that were answered with `stored`; one at most is right."""
    duplicates: tuple[int, ...] = ()


class Delivery(Struct, frozen=True, gc=False):
    op: int
    begun: float
    ended: float
    lease: str
    message: Delivered


class Lease(Struct, kw_only=True, gc=False):
    op: int
    id: str
    group: Group
    begun: float
    ended: float
    seconds: float
    messages: list[Delivered]
    released: float = FOREVER
    """When the first request was sent that may have ended it."""
    renewals: tuple[tuple[float, float, float], ...] = ()
    """Begun, ended, seconds, of those that the server took."""

    def held_until(self) -> float:
        """It certainly lives until then: time is counted from the request, which was before the server's own count."""
        end = self.begun + self.seconds
        for begun, ended, seconds in self.renewals:
            if ended < end:
                end = max(end, begun + seconds)
        return min(end, self.released)


class Said(Struct, frozen=True, gc=False):
    """An acknowledgement of one message."""

    op: int
    begun: float
    ended: float
    lease: Lease
    id: str
    partition: str | None
    """None if it is no message of the lease."""
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


class Timer(Struct, gc=False):
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


class Facts:
    def __init__(self, operations: Sequence[Operation], faults: Sequence[Fault] = ()) -> None:
        self.sent: dict[Partition, dict[str, Sent]] = defaultdict(lambda: defaultdict(Sent))
        self.requests: list[tuple[int, Push]] = []
        self.deliveries: dict[Group, list[Delivery]] = defaultdict(list)
        self.leases: dict[str, Lease] = {}
        self.said: dict[Group, list[Said]] = defaultdict(list)
        self.seeks: dict[Group, Seeks] = defaultdict(Seeks)
        self.stored: dict[Partition, tuple[int, list[Delivered]]] = {}
        self.drained: dict[Group, int] = {}
        self.dead: dict[Group, tuple[int, int, set[str]]] = {}
        self.torn: list[Torn] = []
        self._crashes = _united((fault.at - _FORGOTTEN_S, fault.ended) for fault in faults if fault.name in _CRASHES)
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
                    over = one.ended if one.outcome == "ok" else FOREVER
                    self.seeks[queue, group].add(Sought(one.begun, over, one.request))
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
        self._arrange_seeks()

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
            )

    def _pushed(self, one: Operation, push: Push, statuses: Sequence[str]) -> None:
        self.requests.append((one.op, push))
        messages = self.sent[push.queue, push.partition]
        for name, status in zip(push.ids, statuses, strict=True):
            sent = messages[name]
            if one.begun < sent.begun:
                sent.begun, sent.first = one.begun, one.op
            sent.possible += status != "refused"
            sent.is_spread |= sent.server not in (None, push.server)
            sent.server = push.server
            if status in _KNOWN and one.ended < sent.known:
                sent.known, sent.known_by = one.ended, one.op
                sent.buffered_by = push.server if status == "buffered" else None
            if status == "stored":
                sent.stored += (one.op,)
            elif status == "duplicate":
                sent.duplicates += (one.op,)

    def _acked(self, one: Operation, ack: Ack) -> None:
        lease = self.leases.get(ack.lease)
        if lease is None:
            return
        if one.outcome != "fail":
            lease.released = min(lease.released, one.begun)
        answer = one.answer if isinstance(one.answer, Acked) else None
        for index, (name, partition) in enumerate(_places(lease, ack.ids)):
            taken = answer.taken[index] if answer else False if one.outcome == "fail" else None
            dead = bool(answer and answer.dead and answer.dead[index])
            said = Said(one.op, one.begun, one.ended, lease, name, partition, ack.status, taken, dead)
            self.said[lease.group].append(said)

    def _renewed(self, one: Operation, renew: Renew) -> None:
        lease = self.leases.get(renew.lease)
        if lease is not None and isinstance(one.answer, Renewed) and one.answer.taken:
            lease.renewals += ((one.begun, one.ended, renew.seconds),)

    def _transacted(self, one: Operation, transaction: Transact) -> None:
        word = {"ok": "stored", "fail": "refused", "info": "unknown"}[one.outcome]
        for push in transaction.pushes:
            self._pushed(one, push, [word] * len(push.ids))
        acks = []
        taken = {"ok": True, "fail": False, "info": None}[one.outcome]
        for ack in transaction.acks:
            lease = self.leases.get(ack.lease)
            if lease is None:
                continue
            if one.outcome != "fail":
                lease.released = min(lease.released, one.begun)
            for name, partition in _places(lease, ack.ids):
                said = Said(one.op, one.begun, one.ended, lease, name, partition, ack.status, taken)
                self.said[lease.group].append(said)
                acks.append((lease, name))
        if one.outcome == "info":
            copies = [(push.queue, push.partition, name) for push in transaction.pushes for name in push.ids]
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

    def _arrange_seeks(self) -> None:
        """A seek may end every lease that was asked for before the seek was over."""
        moments = {
            (queue, one.request.partition, one.request.id)
            for (queue, _), seeks in self.seeks.items()
            for one in seeks.all
            if one.request.to == "moment"
        }
        seen = self.first_seen(moments)
        for seeks in self.seeks.values():
            seeks.arrange(lambda seek: seen.get((seek.queue, seek.partition, seek.id), FOREVER))
        for lease in self.leases.values():
            if lease.group in self.seeks:
                begun = self.seeks[lease.group].first_over_after(lease.begun)
                lease.released = min(lease.released, max(lease.ended, begun))

    def first_seen(self, copies: Collection[Copy]) -> dict[Copy, float]:
        """When each of these was first delivered to anybody."""
        found: dict[Copy, float] = {}
        if copies:
            for (queue, _), deliveries in self.deliveries.items():
                for one in deliveries:
                    copy = (queue, one.message.partition, one.message.id)
                    if copy in copies:
                        found[copy] = min(found.get(copy, FOREVER), one.ended)
        return found

    def may_be_forgotten(self, lease: Lease) -> bool:
        """Whether PostgreSQL may have ended before the lease was on disk."""
        index = bisect_right(self._crashes, lease.begun, key=lambda crash: crash[1])
        return index < len(self._crashes) and self._crashes[index][0] < lease.ended

    def observations(self) -> Iterator[tuple[int, str, Delivered]]:
        """Every message that was seen, with the operation that saw it and its queue."""
        for (queue, _), (op, messages) in self.stored.items():
            for message in messages:
                yield op, queue, message
        for (queue, _), deliveries in self.deliveries.items():
            for delivery in deliveries:
                yield delivery.op, queue, delivery.message


def _united(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """In their order, those that overlap as one."""
    found: list[tuple[float, float]] = []
    for begun, ended in sorted(spans):
        if found and begun < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((begun, ended))
    return found


def _places(lease: Lease, ids: Sequence[str]) -> list[tuple[str, str | None]]:
    """The partition of each message."""
    partitions = {message.id: message.partition for message in lease.messages}
    return [(name, partitions.get(name)) for name in ids]


def _statuses(
    one: Operation, push: Push
) -> Sequence[Literal["stored", "duplicate", "accepted", "buffered", "refused", "unknown"]]:
    if isinstance(one.answer, Pushed) and one.outcome == "ok":
        return one.answer.statuses
    return ["refused" if one.outcome == "fail" else "unknown"] * len(push.ids)
