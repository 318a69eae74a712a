"""Streams: what a stream engine in a client keeps here, and its cycle of push, state and ack that is applied as one."""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg

from queenmq.core.message import Message
from queenmq.engine.activity import Activity
from queenmq.engine.encryption import PayloadEncryption
from queenmq.engine.places import Places
from queenmq.engine.push import Outcome, PushCall
from queenmq.engine.unmerged import Unmerged
from queenmq.engine.wake_ups import Freed, Wake, by_queue
from queenmq.storage.database import Database
from queenmq.storage.statements import statement


@dataclass(frozen=True, slots=True)
class Query:
    id: str
    config_hash: str
    fresh: bool
    was_reset: bool
    mismatch: bool


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


@dataclass(frozen=True, slots=True)
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


class Streams:
    def __init__(
        self,
        database: Database,
        encryption: PayloadEncryption,
        places: Places,
        unmerged: Unmerged,
        activity: Activity,
        changed: Wake,
        freed: Freed,
    ) -> None:
        self._database = database
        self._encryption = encryption
        self._places = places
        self._activity = activity
        self._changed = changed
        self._freed = freed
        self._unmerged = unmerged

    async def register(self, name: str, source: str, sink: str | None, config_hash: str, reset: bool) -> Query:
        """Make a query or find it again; with `mismatch`, it has another configuration and was left alone."""
        row = await self._database.fetchrow(statement("register_query"), name, source, sink, config_hash, reset)
        if row is None:
            raise AssertionError("queen.register_query returned no row")
        return Query(str(row["query_id"]), row["config_hash"], row["fresh"], row["was_reset"], row["mismatch"])

    async def state(
        self, query_id: str, partition_id: str, keys: list[str], prefix: str | None, ripe_at: float | None, limit: int
    ) -> list[asyncpg.Record]:
        """Rows of key, value and time of change; filters that are not given do not narrow."""
        return await self._database.fetch(
            statement("stream_state"), query_id, partition_id, keys, prefix, ripe_at, limit
        )

    async def cycle(self, cycle: Cycle) -> Cycled:
        """Apply all of it. Raises TransactionRefused with the reason if nothing was applied."""
        call = PushCall.merge(cycle.messages)
        return await self._unmerged.run(cycle.messages, lambda: self._run(call, cycle))

    async def _run(self, call: PushCall, cycle: Cycle) -> Cycled:
        known = await self._places.find(call.queues, call.partitions) if call.queues else None
        ack = cycle.ack
        row = await self._database.fetchrow(
            statement("stream_cycle"),
            *call.arguments(self._encryption, known),
            cycle.query_id,
            cycle.partition_id,
            cycle.group,
            [change.kind for change in cycle.changes],
            [change.key for change in cycle.changes],
            [change.value for change in cycle.changes],
            [change.window_end for change in cycle.changes],
            *((None, None, None, None) if ack is None else (ack.transaction_id, ack.lease_id, ack.status, ack.error)),
            cycle.release_lease,
        )
        if row is None:
            raise AssertionError("queen.stream_cycle returned no row")
        self._places.learn(call.queues, call.partitions, known, row["partition_ids"] or ())
        self._tell(call, cycle.group, row)
        places = [index - 1 for index in row["duplicate_index"] or ()]
        duplicates = dict(zip(places, map(str, row["duplicate_id"] or ()), strict=True))
        return Cycled(
            queue=row["queue_name"],
            outcomes=call.outcomes(row["partition_ids"] or [], duplicates, frozenset()),
            acked=row["acked"] or 0,
            released=bool(row["released"]),
            dead_lettered=bool(row["dead_lettered"]),
        )

    def _tell(self, call: PushCall, group: str, row: asyncpg.Record) -> None:
        for queue, partitions in by_queue(zip(call.queues, call.partitions, strict=True)).items():
            self._changed(queue, partitions)
        for target in call.target:
            self._activity.pushed(call.queues[target - 1], 0, 1)
        if row["released"]:
            self._freed({(row["queue_name"], row["partition_name"], group)})
        if row["acked"]:
            counts = self._activity.of(row["queue_name"])
            counts.ack_success += row["acked"]
            counts.dead_lettered += bool(row["dead_lettered"])
