"""Streams: what a stream engine in a client keeps here, and its cycle of push, state and ack that is applied as one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import asyncpg

from queenmq.broker.encryption import PayloadEncryption
from queenmq.broker.locked_rows import position
from queenmq.broker.parts import Parts
from queenmq.broker.push import Targets, heads
from queenmq.broker.unmerged import Unmerged
from queenmq.broker.wake_ups import by_queue
from queenmq.core.acknowledgement import COMPLETED
from queenmq.core.message import Message
from queenmq.core.push_call import Outcome, PushCall
from queenmq.errors import TooLarge
from queenmq.storage.statements import statement


@dataclass(frozen=True, slots=True)
class Query:
    id: str
    config_hash: str
    fresh: bool
    was_reset: bool
    mismatch: bool


@dataclass(frozen=True, slots=True)
class StateEntry:
    key: str
    value: bytes
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class StateChange:
    kind: str  # "upsert" or "delete"
    key: str
    value: bytes
    window_end: float | None


@dataclass(frozen=True, slots=True)
class StreamAck:
    """Finishes what was delivered up to and with one message; `failed` and `dlq` make that one a dead letter."""

    transaction_id: str
    lease_id: str | None
    status: str
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    query_id: str
    partition_id: str
    group: str
    changes: list[StateChange]
    messages: list[Message]
    ack: StreamAck | None
    release_lease: bool


@dataclass(frozen=True, slots=True)
class Cycled:
    queue: str
    outcomes: list[Outcome]
    acked: int
    released: bool
    dead_lettered: bool
    stale: bool  # nothing was done: the state that it deletes is not what its broker had read


class Streams:
    def __init__(self, parts: Parts, encryption: PayloadEncryption, targets: Targets, unmerged: Unmerged) -> None:
        self._database = parts.database
        self._encryption = encryption
        self._targets = targets
        self._activity = parts.activity
        self._long_polls = parts.long_polls
        self._unmerged = unmerged

    async def register(self, name: str, source: str, sink: str | None, config_hash: str, reset: bool) -> Query:
        """Make a query or find it again; with `mismatch`, it has another configuration and was left alone."""
        row = await self._database.fetchrow(statement("register_query"), name, source, sink, config_hash, reset)
        if row is None:
            raise AssertionError("queen.register_query returned no row")
        return Query(str(row["query_id"]), row["config_hash"], row["fresh"], row["was_reset"], row["mismatch"])

    async def state(
        self,
        query_id: str,
        partition_id: str,
        keys: list[str],
        prefix: str | None,
        ripe_at: float | None,
        *,
        limit: int,
        max_bytes: int,
    ) -> list[StateEntry]:
        """Filters that are not given do not narrow.

        Raises TooLarge for more than `max_bytes`: a part of a state must not be taken for the whole.
        """
        rows = await self._database.fetch(
            statement("stream_state"), query_id, partition_id, keys, prefix, ripe_at, limit, max_bytes, repeatable=True
        )
        if any(row["omitted"] for row in rows):
            raise TooLarge(f"the state has more than {max_bytes} bytes (QUEEN_MAX_ANSWER_BYTES): ask for fewer keys")
        return [StateEntry(row["key"], row["value"], row["updated_at"]) for row in rows]

    async def cycle(self, cycle: Cycle) -> Cycled:
        """Apply all of it. Raises TransactionRefused with the reason if nothing was applied."""
        call = PushCall.merge(cycle.messages)
        rows = heads(cycle.messages) | {position(cycle.partition_id, cycle.group)}
        return await self._unmerged.run(
            cycle.messages,
            rows,
            lambda lock_timeout: self._run(call, cycle, lock_timeout),
            lambda: self._applied_before(cycle),
        )

    async def _applied_before(self, cycle: Cycle) -> Cycled | None:
        """What is known of a cycle that is applied already: all but how many messages its ack finished.

        Its messages are there and not pushed again, and what it acknowledges is finished.
        """
        ack = cycle.ack
        if ack is None:
            return None
        [acked] = await self._database.fetch(
            *(statement("acks_finished"), [cycle.partition_id], [ack.transaction_id], [cycle.group], [None]),
            repeatable=True,
        )
        if not acked["finished"] or acked["dead"] is not (ack.status not in COMPLETED):
            return None
        stored = await self._database.fetch(
            statement("stored_messages"),
            [message.queue for message in cycle.messages],
            [message.partition for message in cycle.messages],
            [message.transaction_id for message in cycle.messages],
            repeatable=True,
        )
        if any(row["id"] is None for row in stored):
            return None
        pairs = zip(cycle.messages, stored, strict=True)
        outcomes = [
            Outcome("queued" if str(row["id"]) == message.id else "duplicate", str(row["id"]), str(row["partition_id"]))
            for message, row in pairs
        ]
        return Cycled(
            acked["queue_name"],
            outcomes,
            acked=1,
            released=cycle.release_lease,
            dead_lettered=acked["dead"],
            stale=False,
        )

    async def _run(self, call: PushCall, cycle: Cycle, lock_timeout: str) -> Cycled:
        known = await self._targets.resolve(call.queues, call.partitions) if call.queues else None
        ack = cycle.ack
        row = await self._database.fetchrow(
            statement("stream_cycle"),
            *call.arguments(known, self._encryption.seal(call.messages)),
            cycle.query_id,
            cycle.partition_id,
            cycle.group,
            [change.kind for change in cycle.changes],
            [change.key for change in cycle.changes],
            [change.value for change in cycle.changes],
            [change.window_end for change in cycle.changes],
            *((None, None, None, None) if ack is None else (ack.transaction_id, ack.lease_id, ack.status, ack.error)),
            cycle.release_lease,
            lock_timeout,
        )
        if row is None:
            raise AssertionError("queen.stream_cycle returned no row")
        if row["stale"]:
            return Cycled(row["queue_name"], [], 0, released=False, dead_lettered=False, stale=True)
        self._targets.learn(call.queues, call.partitions, known, row["partition_ids"] or ())
        self._tell(call, cycle.group, row)
        places = [index - 1 for index in row["duplicate_index"] or ()]
        duplicates = dict(zip(places, map(str, row["duplicate_id"] or ()), strict=True))
        return Cycled(
            queue=row["queue_name"],
            outcomes=call.outcomes(row["partition_ids"] or [], duplicates, frozenset()),
            acked=row["acked"] or 0,
            released=bool(row["released"]),
            dead_lettered=bool(row["dead_lettered"]),
            stale=False,
        )

    def _tell(self, call: PushCall, group: str, row: asyncpg.Record) -> None:
        for queue, partitions in by_queue(zip(call.queues, call.partitions, strict=True)).items():
            self._long_polls.wake(queue, partitions)
        for target in call.target:
            self._activity.pushed(call.queues[target - 1], 0, 1)
        if row["released"]:
            self._long_polls.wake_freed({(row["queue_name"], row["partition_name"], group)})
        if row["acked"]:
            counts = self._activity.of(row["queue_name"])
            counts.ack_success += row["acked"]
            counts.dead_lettered += bool(row["dead_lettered"])
