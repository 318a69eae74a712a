"""The stored functions without HTTP and without the merging of the broker: one call, one connection, one transaction.

The arrays are built by the broker's own code. What a session does between BEGIN and COMMIT is up to the test.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from queenmq.broker.ack import Acked, acked_of, columns, run_columns
from queenmq.broker.finish import finish_columns
from queenmq.core.acknowledgement import Acknowledgement, Finish, runs_of
from queenmq.core.message import BETWEEN, Message
from queenmq.core.names import QUEUE_MODE
from queenmq.core.options import QueueOptions
from queenmq.core.push_call import Outcome, PushCall
from queenmq.ids import uuid7
from queenmq.storage.statements import statement, versioned

EVERYTHING = 1_000_000
LOCK_TIMEOUT = "20s"
SEEK = versioned("""
    SELECT moved FROM queen.seek((SELECT id FROM queen.queues WHERE name = $2), $3, $1, $4, NULL, NULL, 1000000)
""")
RETAIN = versioned("SELECT * FROM queen.retain($1, $2, $3)")


@dataclass(frozen=True)
class Pop:
    """One request of a merged pop."""

    queue: str
    partition: str | None = None
    group: str = QUEUE_MODE
    batch: int = 1
    partitions: int = 1
    auto_ack: bool = False
    lease_id: str = field(default_factory=lambda: str(uuid7()))


@dataclass(frozen=True)
class Popped:
    """What one request got. Not subscribed: its group has to subscribe first."""

    rows: list[dict[str, Any]]
    subscribed: bool = True

    @property
    def transactions(self) -> list[str]:
        return [row["transaction_id"] for row in self.rows]


def glued_messages(row: asyncpg.Record) -> list[dict[str, Any]]:
    """The messages of a row of `queen.pop`, each with columns of its own."""
    glued = msgspec.json.decode(b"[%b}]" % row["glued"].replace(BETWEEN, b"},"), type=list[dict[str, msgspec.Raw]])
    found = [{name: one[name] if name == "data" else json.loads(bytes(one[name])) for name in one} for one in glued]
    assert len(found) == row["message_count"]
    return [
        {
            "request": row["request"],
            "partition_id": row["partition_id"],
            "partition_name": row["partition_name"],
            "message_id": UUID(one["id"]),
            "transaction_id": one["transactionId"],
            "payload": bytes(one["data"]),
            "created_at": datetime.fromisoformat(one["createdAt"]),
            "retry_count": one["retryCount"],
            "message_offset": one["offset"],
        }
        for one in found
    ]


class Session:
    """One connection as the server's pool opens it; the verbs are the stored functions."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.sql = connection
        self.pid = connection.get_server_pid()

    async def begin(self) -> None:
        await self.sql.execute("BEGIN")

    async def commit(self) -> None:
        await self.sql.execute("COMMIT")

    async def rollback(self) -> None:
        await self.sql.execute("ROLLBACK")

    async def configure(self, queue: str, **options: Any) -> None:
        o = QueueOptions(**options)
        await self.sql.fetchrow(
            statement("configure"), queue, "", "",
            o.lease_time, o.retry_limit, o.retry_delay, o.max_size, o.ttl, o.dead_letter_queue,
            o.dlq_after_max_retries, o.priority, o.delayed_processing, o.window_buffer, o.retention_seconds,
            o.completed_retention_seconds, o.retention_enabled, o.encryption_enabled, o.max_wait_time_seconds,
            o.archive_before_delete, o.set_aside_failed_pushes, True, True, o.pop_wait(),
        )  # fmt: skip

    async def push(self, *items: tuple[str, str, str], mode: str = "auto") -> list[Outcome]:
        """Push (queue, partition, transaction id)s; the payload is the transaction id."""
        messages = [Message(q, p, f'"{t}"'.encode(), str(uuid7()), t) for q, p, t in items]
        call = PushCall.merge(messages)
        requests = list(range(len(messages)))
        row = await self.sql.fetchrow(
            statement("push_or_queue"), *call.arguments(), mode, requests, None, None, LOCK_TIMEOUT
        )
        places = [index - 1 for index in row["duplicate_index"] or ()]
        duplicates = dict(zip(places, map(str, row["duplicate_id"] or ()), strict=True))
        return call.outcomes(row["partition_ids"], duplicates, frozenset(i - 1 for i in row["refused"] or ()))

    async def insert(self, queue: str, partition: str, *transactions: str) -> None:
        """What a psql session does: INSERT INTO queen.messages, with nothing but what is known to it."""
        await self.sql.executemany(
            "INSERT INTO queen.messages (partition_id, transaction_id, payload) SELECT p.id, $3, '1' "
            "FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 AND p.name = $2",
            [(queue, partition, transaction) for transaction in transactions],
        )

    async def schedule(self, queue: str, partition: str, key: str) -> None:
        """A timer that is due at once, whose key is its transaction id."""
        await self.sql.fetch(
            statement("change_timers"),
            *(["schedule"], [queue], [key], [partition], [0], [None], [str(uuid7())], [key], [None], [None], [False]),
            *([b"1"], [None], [None], [None]),
        )

    async def pop_merged(self, pops: Sequence[Pop]) -> list[Popped]:
        # As the broker chooses (`Popper._call`).
        rows = await self.sql.fetch(
            statement("pop" if any(p.auto_ack for p in pops) else "pop_leased"),
            [p.queue for p in pops],
            [p.partition for p in pops],
            [p.group for p in pops],
            [p.batch for p in pops],
            [p.partitions for p in pops],
            [p.auto_ack for p in pops],
            [p.lease_id for p in pops],
            2**24,
            2**25,
            LOCK_TIMEOUT,
        )
        answers = []
        for number in range(1, len(pops) + 1):
            mine = [row for row in rows if row["request"] == number]
            subscribed = all(row["glued"] is not None or row["ready_in_ms"] is not None for row in mine)
            answers.append(
                Popped([one for row in mine if row["glued"] is not None for one in glued_messages(row)], subscribed)
            )
        return answers

    async def pop(self, queue: str, partition: str | None = None, **options: Any) -> Popped:
        [popped] = await self.pop_merged([Pop(queue, partition, **options)])
        return popped

    async def subscribe(
        self,
        queue: str,
        group: str = QUEUE_MODE,
        partition: str | None = None,
        mode: str = "all",
        since: datetime | None = None,
    ) -> None:
        await self.sql.fetchval(statement("subscribe"), queue, partition, group, mode, since, LOCK_TIMEOUT, None, False)

    async def ack(self, items: Iterable[Acknowledgement]) -> list[Acked]:
        runs = runs_of(items)
        return list(acked_of(runs, await self.sql.fetch(statement("ack"), *run_columns(runs), LOCK_TIMEOUT)))

    async def finish(self, *finishes: Finish) -> list[asyncpg.Record]:
        return await self.sql.fetch(statement("finish"), *finish_columns(list(finishes)), LOCK_TIMEOUT)

    async def take(self, finish: Finish, queue: str) -> list[asyncpg.Record]:
        """Finish a lease and pop again."""
        claim = ([queue], [None], [QUEUE_MODE], [100], [10], [False], [str(uuid7())], 2**24, 2**25)
        return await self.sql.fetch(statement("take"), *finish_columns([finish]), *claim, LOCK_TIMEOUT)

    async def transact(self, items: list[tuple[str, str, str]], acks: list[Acknowledgement]) -> None:
        """Push, and acknowledge under the leases of the acknowledgements."""
        call = PushCall.merge([Message(q, p, f'"{t}"'.encode(), str(uuid7()), t) for q, p, t in items])
        leases = [item.lease_id for item in acks]
        await self.sql.fetchrow(statement("transact"), *call.arguments(), *columns(acks), leases, None, LOCK_TIMEOUT)

    async def renew(self, *leases: str, seconds: int = 60) -> set[str]:
        """Which of the leases were live."""
        rows = await self.sql.fetch(statement("renew"), list(leases), [seconds] * len(leases), LOCK_TIMEOUT)
        return {str(row["lease_id"]) for row in rows}

    async def release(self, *leases: str) -> None:
        await self.sql.fetchval(statement("release"), list(leases), LOCK_TIMEOUT)

    async def seek(self, group: str, queue: str, partition: str | None = None, at: datetime | None = None) -> int:
        return await self.sql.fetchval(SEEK, group, queue, partition, at)

    async def delete_group(self, group: str, queue: str | None, metadata: bool = True) -> int:
        return await self.sql.fetchval(statement("delete_group"), group, queue, metadata)

    async def delete_queue(self, queue: str) -> bool:
        return await self.sql.fetchval(statement("delete_queue"), queue, "session", None, EVERYTHING)

    async def sweep(self, step: str, queue: str) -> int:
        """Run `retain` or `evict` over a queue. Returns the messages deleted."""
        queue_id = await self.sql.fetchval("SELECT id FROM queen.queues WHERE name = $1", queue)
        if step == "retain":
            row = await self.sql.fetchrow(RETAIN, queue_id, None, 1000)
        else:
            row = await self.sql.fetchrow(statement(step), queue_id, None, None, 1000)
        return row["deleted"]


def ack(row: asyncpg.Record, lease: str | None, status: str = "completed", group: str = QUEUE_MODE) -> Acknowledgement:
    """The acknowledgement of a popped row."""
    return Acknowledgement(str(row["partition_id"]), row["transaction_id"], group, lease, status, None)
