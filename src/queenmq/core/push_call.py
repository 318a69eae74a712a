"""A push as one call of the database: many messages as parallel arrays, and what became of each of them. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct

from queenmq.core.message import Message

Value = TypeVar("Value")
Target = tuple[str, str]
"""Queue and partition."""
Status = Literal["queued", "duplicate", "failed", "buffered", "rejected"]


class Row(Protocol):
    """A row of the database."""

    def __getitem__(self, column: str, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Deferral:
    """A push that is kept durably and stored later: ask for its operation."""

    operation_id: str
    position: int  # operations before it
    wait_s: float | None  # None: unknown
    reason: str


class Outcome(Struct):
    """What became of one message. A duplicate has the id of the message that was there first."""

    status: Status
    message_id: str
    partition_id: str
    deferral: Deferral | None = None
    offset: int | None = None  # of what is stored


@dataclass(slots=True, kw_only=True)
class PushCall:
    """The merged messages as the parallel arrays that `queen.push` wants."""

    queues: list[str] = field(default_factory=list)
    partitions: list[str] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    repeats: dict[int, int] = field(default_factory=dict)  # input position -> place of its first occurrence
    place: list[int] = field(default_factory=list)  # input position -> place in the arrays, -1 for a repeat
    was_new: bool = False  # afterwards: every message was stored
    order: list[int] = field(default_factory=list)  # the reverse: place -> input position

    @property
    def targets(self) -> list[Target]:
        return list(zip(self.queues, self.partitions, strict=True))

    @classmethod
    def merge(cls, messages: list[Message]) -> PushCall:
        """Sort by target, keeping the order within each, and set repeated transaction ids aside."""
        call = cls(place=[-1] * len(messages))
        by_target: dict[tuple[str, str], dict[str, int]] = {}  # transaction id -> where it comes first
        repeated: dict[int, int] = {}
        for position, message in enumerate(messages):
            target = message.queue, message.partition
            first = by_target.get(target)
            if first is None:
                by_target[target] = {message.transaction_id: position}
            elif (known := first.setdefault(message.transaction_id, position)) != position:
                repeated[position] = known
        for number, ((queue, partition), first) in enumerate(by_target.items(), start=1):
            call.queues.append(queue)
            call.partitions.append(partition)
            call.target.extend([number] * len(first))
            call.rank.extend(range(1, len(first) + 1))
            call.order.extend(first.values())
        call.messages = [messages[position] for position in call.order]
        for place, position in enumerate(call.order):
            call.place[position] = place
        call.repeats = {position: call.place[known] for position, known in repeated.items()}
        return call

    def arguments(
        self, known: list[str] | None = None, sealed: list[tuple[bytes, bool]] | None = None
    ) -> tuple[object, ...]:
        """`known` are the ids of the targets' partitions, if the caller knows them all; `sealed` the payloads of
        `messages` as they are to be stored, each with whether it is encrypted. Without it, all are stored in clear.

        The driver takes its time for every element of an array, so those that say nothing are left out.
        """
        messages = self.messages
        return (
            self.queues,
            self.partitions,
            known,
            self.target,
            self.rank,
            [m.id for m in messages],
            [m.transaction_id for m in messages],
            _unless_all(None, [m.trace_id for m in messages]),
            [m.payload for m in messages] if sealed is None else [payload for payload, _ in sealed],
            None if sealed is None else _unless_all(False, [is_encrypted for _, is_encrypted in sealed]),
            _unless_all(None, [m.producer for m in messages]),
            _unless_all(None, [m.headers for m in messages]),
        )

    def outcomes_of(self, row: Row) -> list[Outcome]:
        """One outcome per input message, from what queen.push returned."""
        last_offsets = row["last_offsets"]
        if row["duplicate_index"] is None and row["refused"] is None and not self.repeats:
            ids = [str(partition_id) for partition_id in row["partition_ids"]]
            messages, targets, ranks = self.messages, self.target, self.rank
            return [
                Outcome(
                    "queued",
                    messages[place].id,
                    ids[targets[place] - 1],
                    None,
                    last_offsets[targets[place] - 1] + ranks[place],
                )
                for place in self.place
            ]
        places = [index - 1 for index in row["duplicate_index"] or ()]
        duplicates = dict(zip(places, map(str, row["duplicate_id"] or ()), strict=True))
        refused = frozenset(index - 1 for index in row["refused"] or ())
        found = self.outcomes(row["partition_ids"], duplicates, refused)
        offsets = dict(zip(places, row["duplicate_offset"] or (), strict=True))
        reached = list(last_offsets)
        for place, target in enumerate(self.target):
            if place not in offsets and place not in refused:
                reached[target - 1] += 1
                offsets[place] = reached[target - 1]
        for position, place in enumerate(self.place):
            found[position].offset = offsets.get(place if place >= 0 else self.repeats[position])
        return found

    def outcomes(
        self, partition_ids: list[object], duplicates: dict[int, str], refused: frozenset[int]
    ) -> list[Outcome]:
        """One outcome per input message, in input order, without offsets."""
        ids = [str(partition_id) for partition_id in partition_ids]
        stored = [
            self._outcome(place, message, ids[self.target[place] - 1], duplicates, refused)
            for place, message in enumerate(self.messages)
        ]
        return [
            stored[place] if place >= 0 else _repeat(stored[self.repeats[position]])
            for position, place in enumerate(self.place)
        ]

    @staticmethod
    def _outcome(
        place: int, message: Message, partition_id: str, duplicates: dict[int, str], refused: frozenset[int]
    ) -> Outcome:
        there = duplicates.get(place, message.id)
        if there != message.id:
            return Outcome("duplicate", there, partition_id)
        # Its own id, if it was there, means that an earlier try had been committed when its connection broke.
        return Outcome("failed" if place in refused else "queued", message.id, partition_id)


def _unless_all(usual: Value, values: list[Value]) -> list[Value] | None:
    return None if values.count(usual) == len(values) else values


def _repeat(first: Outcome) -> Outcome:
    if first.status == "failed" or first.deferral is not None:
        return first
    return Outcome("duplicate", first.message_id, first.partition_id)
