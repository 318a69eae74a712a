"""Streams: what a stream engine in a client keeps here, and its cycle of push, state and ack that is applied as one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import asyncpg

from queenmq.core.message import Message
from queenmq.engine.activity import Activity
from queenmq.engine.encryption import PayloadEncryption
from queenmq.engine.maintenance import Maintenance
from queenmq.engine.places import Places
from queenmq.engine.push import Outcome, PushCall
from queenmq.engine.sidecar import Policy
from queenmq.engine.wake_ups import Wake, by_queue
from queenmq.errors import Overloaded
from queenmq.overload.push_buffer import PushBuffer
from queenmq.storage.database import Database, EncryptionRequired, TryAgain
from queenmq.storage.statements import statement

_TRIES = 6
_FIRST_PAUSE_S = 0.005


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
        maintenance: Maintenance,
        policy: Policy,
        activity: Activity,
        changed: Wake,
        buffer: PushBuffer | None = None,
        wait_behind_s: float = 0.0,
    ) -> None:
        self._database = database
        self._encryption = encryption
        self._places = places
        self._maintenance = maintenance
        self._activity = activity
        self._changed = changed
        self._buffer = buffer
        self._wait_behind_s = wait_behind_s
        self._slots = asyncio.Semaphore(policy.max_concurrent)
        self._max_pending = policy.max_pending
        self._pending = 0

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
        if cycle.messages:
            self._maintenance.require_pushes()
        if self._pending >= self._max_pending:
            raise Overloaded("too many stream cycles are waiting for the database")
        self._pending += 1
        try:
            if self._buffer is not None:
                await self._buffer.require_turn(cycle.messages, self._wait_behind_s)
            async with self._slots:
                return await self._commit(cycle)
        finally:
            self._pending -= 1

    async def _commit(self, cycle: Cycle) -> Cycled:
        call = PushCall.merge(cycle.messages)
        try:
            return await self._try(call, cycle)
        except EncryptionRequired as refusal:
            self._encryption.require_key()
            await self._places.demand_encryption(refusal.detail)
            return await self._try(call, cycle)

    async def _try(self, call: PushCall, cycle: Cycle) -> Cycled:
        pause = _FIRST_PAUSE_S
        for _ in range(_TRIES - 1):
            try:
                return await self._run(call, cycle)
            except TryAgain:
                await asyncio.sleep(pause)
                pause *= 2
        return await self._run(call, cycle)

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
        self._tell(call, row)
        places = [index - 1 for index in row["duplicate_index"] or ()]
        duplicates = dict(zip(places, map(str, row["duplicate_id"] or ()), strict=True))
        return Cycled(
            queue=row["queue_name"],
            outcomes=call.outcomes(row["partition_ids"] or [], duplicates, frozenset()),
            acked=row["acked"] or 0,
            released=bool(row["released"]),
            dead_lettered=bool(row["dead_lettered"]),
        )

    def _tell(self, call: PushCall, row: asyncpg.Record) -> None:
        for queue, partitions in by_queue(zip(call.queues, call.partitions, strict=True)).items():
            self._changed(queue, partitions)
        for target in call.target:
            self._activity.pushed(call.queues[target - 1], 0, 1)
        if row["acked"]:
            self._changed(row["queue_name"], (row["partition_name"],))
            counts = self._activity.of(row["queue_name"])
            counts.ack_success += row["acked"]
            counts.dead_lettered += bool(row["dead_lettered"])
