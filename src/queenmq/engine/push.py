"""Push: messages of many requests become one call of `queen.push`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

import asyncpg

from queenmq.cluster.maintenance import Switch
from queenmq.core.message import Message
from queenmq.core.vegas import Vegas
from queenmq.engine.activity import Activity
from queenmq.engine.encryption import PayloadEncryption
from queenmq.engine.load import LoadWatch
from queenmq.engine.maintenance import Maintenance
from queenmq.engine.places import Places
from queenmq.engine.sidecar import Lane, Policy
from queenmq.engine.wake_ups import Wake, by_queue
from queenmq.errors import DatabaseUnavailable, InternalError, Overloaded
from queenmq.overload.load_manager import Choice
from queenmq.overload.push_buffer import PushBuffer
from queenmq.storage.database import Database, EncryptionRequired, TryAgain
from queenmq.storage.statements import statement

Status = Literal["queued", "duplicate", "failed", "buffered", "rejected"]
Mode = Literal["auto", "queue"]
DEFERRALS = ("system_busy", "maintaining_order", "maintenance", "database_unavailable")
# A push may be repeated safely (same ids), so a short outage is waited out; the longer, if there is no journal.
_REPEAT_FOR_S = 10.0
_REPEAT_BEFORE_JOURNAL_S = 1.0
# Queueing pays only if it merges more than the lane that is too slow.
_MOST_QUEUED_TOGETHER = 500


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
    was_new: bool = False  # afterwards: every message was stored
    order: list[int] = field(default_factory=list)  # the reverse: place -> input position

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
            call.order.extend(positions)
            for position in positions:
                call.place[position] = len(call.messages)
                call.messages.append(messages[position])
        call.repeats = {position: call.place[known] for position, known in repeated.items()}
        return call

    def arguments(self, encryption: PayloadEncryption, known: list[str] | None = None) -> tuple[object, ...]:
        """`known` are the ids of the targets' partitions, as far as the caller knows."""
        return self.arguments_sealed([encryption.seal(m.queue, m.payload) for m in self.messages], known)

    def arguments_sealed(self, sealed: list[tuple[bytes, bool]], known: list[str] | None = None) -> tuple[object, ...]:
        """The same with the payloads as they are to be stored, and whether they are encrypted."""
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

    def outcomes_of(self, row: asyncpg.Record) -> list[Outcome]:
        """One outcome per input message, from what queen.push returned."""
        places = [index - 1 for index in row["duplicate_index"] or ()]
        duplicates = dict(zip(places, map(str, row["duplicate_id"] or ()), strict=True))
        refused = frozenset(index - 1 for index in row["refused"] or ())
        return self.outcomes(row["partition_ids"], duplicates, refused)

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
    if first.status == "failed" or first.deferral is not None:
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
        activity: Activity,
        pushed: Wake,
        load: LoadWatch,
        buffer: PushBuffer | None = None,
        wait_behind_s: float = 0.0,
    ) -> None:
        self._database = database
        self._encryption = encryption
        self._places = places
        self._maintenance = maintenance
        self._activity = activity
        self._pushed = pushed
        self._load = load
        self._buffer = buffer
        self._wait_behind_s = wait_behind_s
        self.deferred = Counter(dict.fromkeys(DEFERRALS, 0))  # messages, by reason
        self.refused = 0
        self.lane: Lane[list[Message], list[Outcome]] = Lane(
            "push",
            self.store,
            policy,
            concurrency=concurrency,
            repeat_for_s=_REPEAT_FOR_S if buffer is None else _REPEAT_BEFORE_JOURNAL_S,
        )
        self.queue_lane: Lane[list[Message], list[Outcome]] = Lane(
            "queue",
            self._queue,
            replace(policy, max_concurrent=1, max_requests=max(policy.max_requests, _MOST_QUEUED_TOGETHER)),
            repeat_for_s=_REPEAT_FOR_S if buffer is None else _REPEAT_BEFORE_JOURNAL_S,
        )
        load.watch(self.lane, self.queue_lane)

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
        decision = self._load.decide_push()
        if decision.choice is Choice.REJECT:
            self.refused += len(messages)
            raise Overloaded("the server is overloaded and the operation queue is full", decision.retry_after_s)
        lane = self.queue_lane if decision.choice is Choice.QUEUE else self.lane
        outcomes = await lane.submit(messages, messages[0].queue, len(messages))
        if outcomes[0].status == "rejected" and all(outcome.status == "rejected" for outcome in outcomes):
            self.refused += len(messages)
            raise Overloaded("the operation queue is full", self._load.retry_after_s())
        return outcomes

    async def _journal(self, buffer: PushBuffer, messages: list[Message], reason: str) -> list[Outcome]:
        self._encryption.require_key_for({message.queue for message in messages})
        held, ahead = await buffer.put(messages)
        self.deferred[reason] += len(messages)
        deferral = Deferral(held.operation_id, ahead, None, reason)
        return [Outcome("buffered", message.id, "", deferral) for message in messages]

    async def store(self, requests: list[list[Message]]) -> list[list[Outcome]]:
        """Store the messages of several requests with one call, each partition's in their order.

        What belongs to a partition with unfinished operations is queued behind them.
        """
        return await self._call(requests, "auto")

    async def _queue(self, requests: list[list[Message]]) -> list[list[Outcome]]:
        return await self._call(requests, "queue")

    async def _call(self, requests: list[list[Message]], mode: Mode) -> list[list[Outcome]]:
        call = PushCall.merge([message for request in requests for message in request])
        owners = [number for number, request in enumerate(requests) for _ in request]
        try:
            outcomes = await self._store(call, owners, mode)
        except EncryptionRequired as refusal:
            self._encryption.require_key()
            await self._places.demand_encryption(refusal.detail)
            outcomes = await self._store(call, owners, mode)
        for queue, partitions in by_queue(zip(call.queues, call.partitions, strict=True)).items():
            self._pushed(queue, partitions)
        self._count(requests, call, outcomes)
        dealt = iter(outcomes)
        return [list(islice(dealt, len(request))) for request in requests]

    def _count(self, requests: list[list[Message]], call: PushCall, outcomes: list[Outcome]) -> None:
        asked = Counter(request[0].queue for request in requests)
        stored: Counter[str] = Counter()
        if call.was_new:
            for target, messages in Counter(call.target).items():
                stored[call.queues[target - 1]] += messages
        else:
            given = (message for request in requests for message in request)
            stored.update(m.queue for m, outcome in zip(given, outcomes, strict=True) if outcome.status == "queued")
        for queue in asked | stored:
            self._activity.pushed(queue, asked[queue], stored[queue])

    async def _store(self, call: PushCall, owners: list[int], mode: Mode) -> list[Outcome]:
        known = await self._places.find(call.queues, call.partitions)
        requests = [owners[position] for position in call.order]
        try:
            row = await self._database.fetchrow(
                statement("push_or_queue"),
                *call.arguments(self._encryption, known),
                mode,
                requests,
                self._load.queue_limit,
            )
        except InternalError:
            self._places.doubt(call.queues, call.partitions)
            raise
        if row is None:
            raise AssertionError("queen.push returned no row")
        self._places.learn(call.queues, call.partitions, known, row["partition_ids"])
        outcomes = call.outcomes_of(row)
        call.was_new = all(row[name] is None for name in ("duplicate_index", "refused")) and not call.repeats
        if row["queued_id"] is None and row["overflow"] is None:
            return outcomes
        call.was_new = False
        return self._deferred(call, outcomes, requests, row, mode)

    def _deferred(
        self, call: PushCall, outcomes: list[Outcome], requests: list[int], row: asyncpg.Record, mode: Mode
    ) -> list[Outcome]:
        """The outcomes with those that were queued, or found the operation queue full."""
        reason = "maintaining_order" if mode == "auto" else "system_busy"
        made: dict[tuple[int, int], Deferral] = {}
        queued = zip(row["queued_target"] or (), row["queued_request"] or (), row["queued_id"] or (), strict=True)
        for position, (target, request, operation_id) in enumerate(queued, start=row["queued_before"] or 0):
            wait_s = self._load.estimated_wait_s(position + 1)
            made[target, request] = Deferral(str(operation_id), position, wait_s, reason)
        self._load.tell_queued((row["queued_before"] or 0) + len(made))
        full = frozenset(row["overflow"] or ())
        for position, outcome in enumerate(outcomes):
            place = call.place[position] if call.place[position] >= 0 else call.repeats[position]
            target = call.target[place]
            deferral = made.get((target, requests[place]))
            if deferral is not None:
                self.deferred[reason] += 1
                outcomes[position] = Outcome("queued", outcome.message_id, outcome.partition_id, deferral)
            elif target in full:
                outcomes[position] = Outcome("rejected", outcome.message_id, outcome.partition_id)
        return outcomes
