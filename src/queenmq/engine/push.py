"""Push: messages of many requests become one call of `queen.push`."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from queenmq.cluster.maintenance import Switch
from queenmq.core.message import Message
from queenmq.core.vegas import Vegas
from queenmq.engine.encryption import PayloadEncryption
from queenmq.engine.maintenance import Maintenance
from queenmq.engine.places import Places
from queenmq.engine.sidecar import Lane, Policy
from queenmq.engine.wake_ups import Wake, by_queue
from queenmq.errors import DatabaseUnavailable, InternalError
from queenmq.overload.push_buffer import PushBuffer
from queenmq.storage.database import Database, EncryptionRequired, TryAgain
from queenmq.storage.statements import statement

Status = Literal["queued", "duplicate", "failed", "buffered"]
# A push may be repeated safely (same ids), so a short outage is waited out; the longer, if there is no journal.
_REPEAT_FOR_S = 10.0
_REPEAT_BEFORE_JOURNAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Deferral:
    """A push that is kept durably and stored later: ask for its operation."""

    operation_id: str
    position: int  # operations before it
    wait_s: float | None  # None: nobody can say
    reason: str


@dataclass(slots=True)
class Outcome:
    """What became of one message. A duplicate has the id of the message that was there first."""

    status: Status
    message_id: str
    partition_id: str
    deferral: Deferral | None = None


@dataclass(slots=True)
class PushCall:
    """The merged messages as the parallel arrays that `queen.push` wants."""

    queues: list[str] = field(default_factory=list)
    partitions: list[str] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    repeats: dict[int, int] = field(default_factory=dict)  # input position -> place of its first occurrence
    place: list[int] = field(default_factory=list)  # input position -> place in the arrays, -1 for a repeat

    @classmethod
    def merge(cls, messages: list[Message]) -> PushCall:
        """Sort by target, keeping the order within each, and set repeated transaction ids aside."""
        call = cls(place=[-1] * len(messages))
        lanes: dict[tuple[str, str], list[int]] = {}
        first: dict[tuple[str, str, str], int] = {}
        repeated: dict[int, int] = {}
        for position, message in enumerate(messages):
            known = first.setdefault((message.queue, message.partition, message.transaction_id), position)
            if known != position:
                repeated[position] = known
                continue
            lanes.setdefault((message.queue, message.partition), []).append(position)
        for number, ((queue, partition), positions) in enumerate(lanes.items(), start=1):
            call.queues.append(queue)
            call.partitions.append(partition)
            call.target.extend([number] * len(positions))
            call.rank.extend(range(1, len(positions) + 1))
            for position in positions:
                call.place[position] = len(call.messages)
                call.messages.append(messages[position])
        call.repeats = {position: call.place[known] for position, known in repeated.items()}
        return call

    def arguments(self, encryption: PayloadEncryption, known: list[str] | None = None) -> tuple[object, ...]:
        """`known` are the ids of the targets' partitions, as far as the caller knows."""
        sealed = [encryption.seal(m.queue, m.payload) for m in self.messages]
        return (
            self.queues,
            self.partitions,
            known,
            self.target,
            self.rank,
            [m.id for m in self.messages],
            [m.transaction_id for m in self.messages],
            [m.trace_id for m in self.messages],
            [payload for payload, _ in sealed],
            [is_encrypted for _, is_encrypted in sealed],
            [m.producer for m in self.messages],
        )

    def outcomes(
        self, partition_ids: list[object], duplicates: dict[int, str], refused: frozenset[int]
    ) -> list[Outcome]:
        """One outcome per input message, in input order."""
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


def _repeat(first: Outcome) -> Outcome:
    if first.status == "failed":
        return first
    return Outcome("duplicate", first.message_id, first.partition_id)


class Pusher:
    """Without a buffer, pushes are refused while the database is away or switched off for maintenance."""

    def __init__(
        self,
        database: Database,
        encryption: PayloadEncryption,
        places: Places,
        maintenance: Maintenance,
        policy: Policy,
        concurrency: Vegas | None,
        pushed: Wake,
        buffer: PushBuffer | None = None,
        wait_behind_s: float = 0.0,
    ) -> None:
        self._database = database
        self._encryption = encryption
        self._places = places
        self._maintenance = maintenance
        self._pushed = pushed
        self._buffer = buffer
        self._wait_behind_s = wait_behind_s
        self.lane: Lane[list[Message], list[Outcome]] = Lane(
            "push",
            self.store,
            policy,
            concurrency=concurrency,
            repeat_for_s=_REPEAT_FOR_S if buffer is None else _REPEAT_BEFORE_JOURNAL_S,
        )

    async def push(self, messages: list[Message]) -> list[Outcome]:
        """Store `messages`; the outcomes are in their order. When this returns, they are committed or journalled."""
        if not messages:
            return []
        buffer = self._buffer
        if buffer is None:
            self._maintenance.require_pushes()
            return await self._submit(messages)
        while True:
            if not (self._database.is_open and self._maintenance.is_known):
                return await self._journal(buffer, messages, "database_unavailable")
            if self._maintenance.is_on(Switch.PUSH):
                return await self._journal(buffer, messages, "maintenance")
            if not buffer.holds(messages):
                break
            if not await buffer.wait_behind(messages, self._wait_behind_s):
                return await self._journal(buffer, messages, "maintaining_order")
        try:
            return await self._submit(messages)
        except TryAgain:
            raise
        except DatabaseUnavailable:
            return await self._journal(buffer, messages, "database_unavailable")

    async def _submit(self, messages: list[Message]) -> list[Outcome]:
        return await self.lane.submit(messages, messages[0].queue, len(messages))

    async def _journal(self, buffer: PushBuffer, messages: list[Message], reason: str) -> list[Outcome]:
        self._encryption.require_key({message.queue for message in messages})
        held, ahead = await buffer.put(messages)
        deferral = Deferral(held.operation_id, ahead, None, reason)
        return [Outcome("buffered", message.id, "", deferral) for message in messages]

    async def store(self, requests: list[list[Message]]) -> list[list[Outcome]]:
        """Store the messages of several requests with one call, each partition's in their order."""
        call = PushCall.merge([message for request in requests for message in request])
        try:
            outcomes = await self._store(call)
        except EncryptionRequired as refusal:
            await self._places.demand_encryption(refusal.detail)
            outcomes = await self._store(call)
        for queue, partitions in by_queue(zip(call.queues, call.partitions, strict=True)).items():
            self._pushed(queue, partitions)
        dealt = iter(outcomes)
        return [list(islice(dealt, len(request))) for request in requests]

    async def _store(self, call: PushCall) -> list[Outcome]:
        known = await self._places.find(call.queues, call.partitions)
        try:
            row = await self._database.fetchrow(statement("push"), *call.arguments(self._encryption, known))
        except InternalError:
            self._places.doubt(call.queues, call.partitions)
            raise
        if row is None:
            raise AssertionError("queen.push returned no row")
        self._places.learn(call.queues, call.partitions, known, row["partition_ids"])
        places = [index - 1 for index in row["duplicate_index"] or ()]
        duplicates = dict(zip(places, map(str, row["duplicate_id"] or ()), strict=True))
        refused = frozenset(index - 1 for index in row["refused"] or ())
        return call.outcomes(row["partition_ids"], duplicates, refused)
