"""Conditional push: messages that are stored only if their partitions end where the producer expects.

The condition is checked under the locks of the heads, in the transaction that stores the messages. A push like that is
never deferred or journalled: nobody could tell its producer whether the condition held. Requests for the same partition
never share a call, so each is checked against what the one before it has stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

import asyncpg

from queenmq.broker.encryption import PayloadEncryption
from queenmq.broker.load import LoadWatch
from queenmq.broker.load_manager import Choice
from queenmq.broker.locking_lane import LockingLane
from queenmq.broker.maintenance import Maintenance
from queenmq.broker.merging import Policy
from queenmq.broker.parts import Parts
from queenmq.broker.push import Targets, heads
from queenmq.broker.wake_ups import by_queue
from queenmq.core.message import Message
from queenmq.core.push_call import Outcome, PushCall, Target
from queenmq.errors import OffsetConflict, OffsetFound, Overloaded, QueenError
from queenmq.journal.interface import Journal
from queenmq.storage.failures import EncryptionRequired, TransactionRefused
from queenmq.storage.statements import statement

_REPEAT_FOR_S = 10.0  # it may be repeated safely (same ids), so a short outage is waited out


@dataclass(frozen=True, slots=True)
class ConditionalPush:
    """`expected` is the last offset that each of these targets must have."""

    messages: list[Message]
    expected: Mapping[Target, int]


Answer = list[Outcome] | QueenError


class ConditionalPusher:
    def __init__(
        self,
        parts: Parts,
        policy: Policy,
        *,
        encryption: PayloadEncryption,
        targets: Targets,
        maintenance: Maintenance,
        load: LoadWatch,
        journal: Journal | None,
        wait_behind_s: float,
    ) -> None:
        self._database = parts.database
        self._activity = parts.activity
        self._long_polls = parts.long_polls
        self._encryption = encryption
        self._targets = targets
        self._maintenance = maintenance
        self._load = load
        self._journal = journal
        self._wait_behind_s = wait_behind_s
        self.conflicts = 0  # requests that were refused
        self.lane: LockingLane[ConditionalPush, Answer] = LockingLane(
            "conditional_push",
            self._call,
            policy,
            locks=parts.locks,
            rows=lambda request: heads(request.messages),
            admission=_one_for_each_partition,
            repeat_for_s=_REPEAT_FOR_S,
            refuses=lambda answer: isinstance(answer, Overloaded),
        )

    async def push(self, push: ConditionalPush) -> list[Outcome]:
        """Store all messages of it, or none. The outcomes are in their order, with offsets.

        Raises OffsetConflict if a partition has another last offset, and what is unavailable if it cannot be known now.
        """
        messages = push.messages
        self._maintenance.require_pushes()
        if self._journal is not None:
            await self._journal.require_turn(messages, self._wait_behind_s)
        if self._load.decide_push().choice is not Choice.EXECUTE:
            self._load.refused += len(messages)
            raise Overloaded(
                "the server is overloaded, and a push with expect is never deferred", self._load.retry_after_s()
            )
        try:
            answer = await self.lane.submit(push, (messages[0].queue, messages[0].partition), len(messages))
        except TransactionRefused:
            return [Outcome("failed", message.id, "") for message in messages]  # its queue has no room
        if isinstance(answer, QueenError):
            raise answer
        return answer

    async def _call(self, requests: list[ConditionalPush], lock_timeout: str) -> list[Answer]:
        call = PushCall.merge([message for request in requests for message in request.messages])
        owners = {
            (message.queue, message.partition): number
            for number, request in enumerate(requests)
            for message in request.messages
        }
        try:
            row = await self._store(call, requests, owners, lock_timeout)
        except EncryptionRequired as refusal:
            self._encryption.require_key()
            await self._targets.demand_encryption(refusal.detail)
            row = await self._store(call, requests, owners, lock_timeout)
        outcomes = iter(_outcomes(call, row))
        conflicting, behind = set(row["conflicting"] or ()), set(row["behind"] or ())
        found = dict(zip(call.targets, row["last_offsets"], strict=True))
        answers: list[Answer] = []
        for number, request in enumerate(requests):
            own = list(islice(outcomes, len(request.messages)))
            if number in conflicting:
                self.conflicts += 1
                answers.append(_conflict(request, found))
            elif number in behind:
                answers.append(Overloaded("older pushes of the partition are still in the operation queue", 1))
            else:
                self._after(request, own)
                answers.append(own)
        return answers

    async def _store(
        self, call: PushCall, requests: list[ConditionalPush], owners: Mapping[Target, int], lock_timeout: str
    ) -> asyncpg.Record:
        known = await self._targets.resolve(call.queues, call.partitions)
        sealed = self._encryption.seal(call.messages) if self._encryption.available else None
        row = await self._database.fetchrow(
            statement("push_expected"),
            *call.arguments(known, sealed),
            [owners[target] for target in call.targets],
            [requests[owners[target]].expected.get(target) for target in call.targets],
            lock_timeout,
            repeatable=True,
        )
        if row is None:
            raise AssertionError("queen.push_expected returned no row")
        self._targets.learn(call.queues, call.partitions, known, row["partition_ids"])
        return row

    def _after(self, request: ConditionalPush, outcomes: list[Outcome]) -> None:
        stored = sum(outcome.status == "queued" for outcome in outcomes)
        self._activity.pushed(request.messages[0].queue, 1, stored)
        touched = {(message.queue, message.partition) for message in request.messages}
        for queue, partitions in by_queue(touched).items():
            self._long_polls.wake(queue, partitions)


def _one_for_each_partition() -> Callable[[ConditionalPush], bool]:
    """Admits the first request for each partition: the next one is checked when that is stored."""
    taken: set[object] = set()

    def admit(request: ConditionalPush) -> bool:
        rows = heads(request.messages)
        if not rows.isdisjoint(taken):
            return False
        taken.update(rows)
        return True

    return admit


def _outcomes(call: PushCall, row: asyncpg.Record) -> list[Outcome]:
    """One per message, in the order of the requests; those of refused requests mean nothing."""
    ids = [str(partition_id) for partition_id in row["partition_ids"]]
    shown = []
    for position, place in enumerate(call.place):
        first = place if place >= 0 else call.repeats[position]
        message, stored_id = call.messages[first], str(row["stored_id"][first])
        is_own = place >= 0 and stored_id == message.id
        partition_id, offset = ids[call.target[first] - 1], row["stored_offset"][first]
        shown.append(Outcome("queued" if is_own else "duplicate", stored_id, partition_id, offset=offset))
    return shown


def _conflict(request: ConditionalPush, found: Mapping[Target, int]) -> OffsetConflict:
    return OffsetConflict(
        [
            OffsetFound(*target, expected, found[target])
            for target, expected in request.expected.items()
            if found[target] != expected
        ]
    )
