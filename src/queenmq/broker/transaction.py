"""Transaction: pushes and acknowledgements that are applied together or not at all.

Transactions are not merged: one that fails must not touch another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from queenmq.broker.ack import columns, positions
from queenmq.broker.encryption import PayloadEncryption
from queenmq.broker.keys import Keys
from queenmq.broker.parts import Parts
from queenmq.broker.push import Targets, heads
from queenmq.broker.timers import Timers
from queenmq.broker.unmerged import Unmerged
from queenmq.broker.wake_ups import by_queue
from queenmq.core.acknowledgement import COMPLETED, Acknowledgement
from queenmq.core.keys import KeyChange, KeyChanged
from queenmq.core.message import Message
from queenmq.core.push_call import PushCall, Target
from queenmq.core.timer import TimerChange, TimerState
from queenmq.errors import OffsetConflict, OffsetFound
from queenmq.storage.failures import AnswerLost, OffsetsDiffer, TransactionRefused
from queenmq.storage.statements import statement


@dataclass(slots=True)
class Transaction:
    messages: list[Message]
    acknowledgements: list[Acknowledgement]
    required_leases: list[str]
    expected: Mapping[Target, int] = field(default_factory=dict)  # the last offset that these targets must have
    keys: Sequence[KeyChange] = ()
    timers: Sequence[TimerChange] = ()

    @property
    def repeatable(self) -> bool:
        """Whether a second try cannot apply it again. A message that is there already refuses the whole of it; an
        acknowledgement of what is finished does not while its lease goes on, and a counter would count twice."""
        return bool(self.messages) or all(change.change == "check" for change in self.keys)


@dataclass(slots=True)
class Committed:
    """After a lost answer nobody knows any more what became of keys and timers: of those there is nothing then."""

    partition_ids: list[str]  # one per message
    offsets: list[int]  # the same
    dead_lettered: list[bool]  # one per acknowledgement
    keys: list[KeyChanged] = field(default_factory=list)
    timers: list[TimerState] = field(default_factory=list)


class Transactor:
    def __init__(
        self, parts: Parts, encryption: PayloadEncryption, targets: Targets, unmerged: Unmerged, timers: Timers
    ) -> None:
        self._database = parts.database
        self._encryption = encryption
        self._targets = targets
        self._activity = parts.activity
        self._long_polls = parts.long_polls
        self._unmerged = unmerged
        self._timers = timers

    async def commit(self, transaction: Transaction) -> Committed:
        """Apply all of it. Raises TransactionRefused or OffsetConflict with the reason if nothing was applied, and
        AnswerLost if nobody can know whether it was."""
        call = PushCall.merge(transaction.messages)
        if call.repeats:
            repeated = transaction.messages[min(call.repeats)].transaction_id
            raise TransactionRefused(
                "duplicate key value violates unique constraint: "
                f"transactionId {repeated!r} is pushed twice to one partition"
            )
        rows = heads(transaction.messages) | positions(transaction.acknowledgements, transaction.required_leases)
        try:
            return await self._unmerged.run(
                transaction.messages,
                rows,
                lambda lock_timeout: self._run(call, transaction, lock_timeout),
                lambda: self._done_before(transaction),
                repeatable=transaction.repeatable,
            )
        except OffsetsDiffer as refusal:
            found = dict(zip(call.targets, refusal.last_offsets, strict=True))
            asked = [OffsetFound(*target, offset, found[target]) for target, offset in transaction.expected.items()]
            raise OffsetConflict([one for one in asked if one.expected != one.actual]) from refusal

    async def _done_before(self, transaction: Transaction) -> Committed | None:
        return await self.committed_before(transaction) or await self._finished_before(transaction)

    async def _finished_before(self, transaction: Transaction) -> Committed | None:
        """For a transaction that only acknowledges: whether all of that is done."""
        acks = transaction.acknowledgements
        if transaction.messages or not acks:
            return None
        required = transaction.required_leases
        only = required[0] if len(required) == 1 else None
        leases = [ack.lease_id or only for ack in acks]
        rows = await self._database.fetch(statement("acks_finished"), *columns(acks)[:3], leases, repeatable=True)
        if not all(row["finished"] for row in rows):
            return None
        if any(row["expired"] for row in rows):
            raise AnswerLost  # under the leases that came after, it may have been finished as well
        return Committed(partition_ids=[], offsets=[], dead_lettered=[row["dead"] for row in rows])

    async def committed_before(self, transaction: Transaction) -> Committed | None:
        """What an earlier try of the same transaction, with the same ids, has done; None if there is no trace of one.

        For a refusal that may only mean that another server has committed it, and its answer was lost.
        """
        messages = transaction.messages
        if not messages:
            return None
        rows = await self._database.fetch(
            statement("stored_messages"),
            [message.queue for message in messages],
            [message.partition for message in messages],
            [message.transaction_id for message in messages],
            repeatable=True,
        )
        if any(str(row["id"]) != message.id for row, message in zip(rows, messages, strict=True)):
            return None
        return Committed(
            partition_ids=[str(row["partition_id"]) for row in rows],
            offsets=[row["offset"] for row in rows],
            dead_lettered=[ack.status not in COMPLETED for ack in transaction.acknowledgements],
        )

    async def _run(self, call: PushCall, transaction: Transaction, lock_timeout: str) -> Committed:
        known = await self._targets.resolve(call.queues, call.partitions) if call.queues else None
        arguments = (
            *call.arguments(known, self._encryption.seal(call.messages)),
            *columns(transaction.acknowledgements),
            transaction.required_leases,
            [transaction.expected.get(target) for target in call.targets] if transaction.expected else None,
            lock_timeout,
        )
        keys: list[KeyChanged] = []
        timers: list[TimerState] = []
        if transaction.keys or transaction.timers:
            prepared = await self._timers.prepare(transaction.timers) if transaction.timers else None
            async with self._database.connection() as connection, connection.transaction():
                if transaction.keys:
                    keys = await Keys.change_in(connection, transaction.keys, lock_timeout)
                if prepared is not None:
                    timers = await self._timers.apply(connection, prepared)
                row = await connection.fetchrow(statement("transact"), *arguments)
        else:
            row = await self._database.fetchrow(statement("transact"), *arguments)
        if row is None:
            raise AssertionError("queen.transact returned no row")
        self._targets.learn(call.queues, call.partitions, known, row["partition_ids"] or ())
        for queue, partitions in by_queue(zip(call.queues, call.partitions, strict=True)).items():
            self._long_polls.wake(queue, partitions)
        if row["ack_queues"]:
            self._long_polls.wake_freed(
                set(zip(row["ack_queues"], row["ack_partitions"], row["ack_groups"], strict=True))
            )
        self._count(call, row["ack_queues"] or (), row["dead_lettered"] or ())
        targets = [str(partition_id) for partition_id in row["partition_ids"] or ()]
        last_offsets = row["last_offsets"]
        return Committed(
            partition_ids=[targets[call.target[place] - 1] for place in call.place],
            offsets=[last_offsets[call.target[place] - 1] + call.rank[place] for place in call.place],
            dead_lettered=list(row["dead_lettered"] or ()),
            keys=keys,
            timers=timers,
        )

    def _count(self, call: PushCall, acked: Sequence[str], dead_lettered: Sequence[bool]) -> None:
        for queue in {*call.queues, *acked}:
            self._activity.of(queue).transactions += 1
        for target, messages in Counter(call.target).items():
            self._activity.pushed(call.queues[target - 1], 0, messages)
        self._activity.acked((queue, None, dead, 1) for queue, dead in zip(acked, dead_lettered, strict=True))
