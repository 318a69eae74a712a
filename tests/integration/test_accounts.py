"""The accounts of groups and dead letters (the queries audit_groups and audit_letters): right after whatever Queen
does, wrong after what somebody did behind its back.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from integration.queen import Queen, age_messages, expire_leases
from integration.test_messages import act
from queenmq.config import RetentionSettings
from queenmq.server import Server
from queenmq.services.retention import Eviction, Retention
from queenmq.services.service import Service
from queenmq.storage.statements import statement

STEPS = 60
STATUSES = ("completed", "completed", "completed", "failed", "retry", "dlq")


async def problems(sql: asyncpg.Connection) -> list[tuple[Any, ...]]:
    found = []
    for row in await sql.fetch("SELECT id FROM queen.queues ORDER BY name"):
        for name in ("audit_groups", "audit_letters"):
            found += [tuple(one) for one in await sql.fetch(statement(name), row["id"])]
    return found


# Rows that tell another number of failures of their head than there is, or that keep some of a finished message.
MISCOUNTED = """
    SELECT c.consumer_group, c.position, c.done::text, c.attempts, c.failures::text FROM queen.partition_consumers c
    WHERE (c.attempts <> queen.head_failures(c.partition_id, c.position, c.done, c.failures) AND EXISTS (
               SELECT 1 FROM queen.messages m
               WHERE m.partition_id = c.partition_id AND m."offset" > c.position AND NOT c.done @> m."offset"))
       OR EXISTS (SELECT 1 FROM unnest(c.failures) AS f
                  WHERE f.offsets && (c.done + int8multirange(int8range(NULL, c.position, '(]'))) OR isempty(f.offsets))
"""


class Life:
    """Everything that may happen to a queue, by chance."""

    def __init__(self, queen: Queen, sql: asyncpg.Connection, server: Server, chance: random.Random) -> None:
        self.queen = queen
        self.sql = sql
        settings = RetentionSettings()
        self.sweeps: tuple[Service, ...] = (
            Retention(server.broker.operation_runner, settings),
            Eviction(server.database, server.broker.activity, settings),
        )
        self.chance = chance
        self.steps: list[Callable[[], Awaitable[object]]] = [
            self.push,
            self.push,
            self.consume,
            self.consume,
            self.consume,
            self.hold,
            self.expire,
            self.at_once,
            self.late_ack,
            self.seek,
            self.redrive,
            self.redrive,
            self.redrive_all,
            self.purge,
            self.bury,
            self.delete,
            self.clear,
            self.grow_old,
            self.forget,
        ]
        self.held: list[dict[str, Any]] = []
        self.told: list[str] = []

    async def step(self) -> None:
        chosen = self.chance.choice(self.steps)
        self.told.append(chosen.__name__)
        await chosen()

    def group(self) -> str:
        return self.chance.choice(["a", "b", "c"])

    async def push(self) -> None:
        count = self.chance.randint(1, 8)
        await self.queen.push("orders", *range(count), partition=self.chance.choice("xy"))

    async def pop(self, **params: Any) -> list[dict[str, Any]]:
        return await self.queen.pop("orders", consumerGroup=self.group(), batch=self.chance.randint(1, 10), **params)

    async def consume(self) -> None:
        messages = await self.pop()
        for message in self.chance.sample(messages, len(messages)):
            await self.queen.ack(message, self.chance.choice(STATUSES))

    async def hold(self) -> None:
        self.held = await self.pop() or self.held

    async def late_ack(self) -> None:
        """With a lease that may be over, and without one."""
        for message in self.held:
            await self.queen.ack(message, **({"leaseId": None} if self.chance.random() < 0.5 else {}))

    async def expire(self) -> None:
        await expire_leases(self.sql)
        await self.sql.execute(
            "UPDATE queen.partition_consumers SET retry_at = NULL, ready_at = now() WHERE retry_at > now()"
        )

    async def at_once(self) -> None:
        await self.pop(autoAck=True)

    async def seek(self) -> None:
        back = datetime.now(UTC) - timedelta(seconds=self.chance.choice([0.05, 1, 50, 5000]))
        body = self.chance.choice([{"toEnd": True}, {"timestamp": back.isoformat()}])
        await self.queen.http.post(f"/api/v1/consumer-groups/{self.group()}/queues/orders/seek", json=body)

    async def redrive(self) -> None:
        if letters := (await self.queen.dead_letter_page(queue="orders"))["messages"]:
            letter = self.chance.choice(letters)
            await act(self.queen, letter, "retry", 409 if await self.has_lost_its_place(letter) else 200)

    async def has_lost_its_place(self, letter: dict[str, Any]) -> bool:
        """Whether its message was pushed anew for another group's letter: this one stays as long as that is stored."""
        return await self.sql.fetchval(
            """
            SELECT EXISTS (
                SELECT 1 FROM queen.messages WHERE partition_id = $1 AND transaction_id = $2 AND "offset" <> (
                    SELECT max("offset") FROM queen.dead_letter_queue WHERE partition_id = $1 AND transaction_id = $2))
            """,
            letter["partitionId"],
            letter["transactionId"],
        )

    async def redrive_all(self) -> None:
        narrowed = self.chance.choice([{}, {"partition": "x"}, {"consumerGroup": self.group()}])
        await self.queen.http.post("/api/v1/dlq/redrive", json={"queue": "orders"} | narrowed)

    async def purge(self) -> None:
        await self.queen.http.delete("/api/v1/dlq", params={"queue": "orders", "limit": self.chance.randint(1, 3)})

    async def some_message(self) -> dict[str, Any] | None:
        rows = await self.sql.fetch(
            'SELECT m.partition_id::text AS "partitionId", m.transaction_id AS "transactionId" FROM queen.messages m '
            'JOIN queen.partitions p ON p.id = m.partition_id ORDER BY p.name, m."offset"'
        )
        return dict(self.chance.choice(rows)) if rows else None

    async def bury(self) -> None:
        if message := await self.some_message():
            await act(self.queen, message, "dlq")

    async def delete(self) -> None:
        if message := await self.some_message():
            await act(self.queen, message, "delete")

    async def clear(self) -> None:
        if self.chance.random() < 0.3:
            await self.queen.http.delete("/api/v1/queues/orders/clear")

    async def grow_old(self) -> None:
        await age_messages(self.sql, "orders", 20)
        await self.push()
        for sweep in self.sweeps:
            await sweep.work()

    async def forget(self) -> None:
        if self.chance.random() < 0.3:
            await self.queen.delete_group(self.group(), "orders", deleteMetadata="false")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ttl": 30, "deadLetterQueue": True, "dlqAfterMaxRetries": True},
        {"retentionEnabled": True, "retentionSeconds": 70, "completedRetentionSeconds": 30, "ttl": 0},
        {"maxWaitTimeSeconds": 30, "deadLetterQueue": True},
        {"maxWaitTimeSeconds": 50, "dlqAfterMaxRetries": True, "ttl": 30},
    ],
)
async def test_whatever_happens_the_accounts_are_right(
    queen: Queen, sql: asyncpg.Connection, server: Server, options: dict[str, Any]
) -> None:
    seed = random.randrange(10**6)
    await queen.configure("orders", retryLimit=1, retryDelay=0, **options)
    life = Life(queen, sql, server, random.Random(seed))
    most_consumed = 0  # a step may forget groups, and what they consumed
    for _ in range(STEPS):
        await life.step()
        consumed = await sql.fetchval("SELECT coalesce(sum(total_consumed), 0) FROM queen.partition_consumers")
        most_consumed = max(most_consumed, consumed)
        assert await problems(sql) == [], f"seed {seed}: {life.told}"
        assert await sql.fetch(MISCOUNTED) == [], f"seed {seed}: {life.told}"
    assert most_consumed > 0, f"seed {seed}: {life.told}"
    assert await sql.fetchval("SELECT count(*) FROM queen.stale_lookup()") == 0


class TestBehindItsBack:
    @pytest.fixture(autouse=True)
    async def consumed(self, queen: Queen) -> None:
        """Ten messages: the first five consumed, the third and the fifth given up."""
        await queen.push("orders", *"abcdefghij")
        messages = await queen.pop("orders", consumerGroup="g", batch=5)
        await queen.ack_batch(messages, "completed", "completed", "dlq", "completed", "dlq")

    @pytest.mark.parametrize(
        ("fault", "problem"),
        [
            (
                "UPDATE queen.partition_consumers SET position = position + 2",
                "of 7 offsets up to position 7 and beyond it 2 are not accounted for: "
                "neither finished, nor dead letters, nor passed over",
            ),
            (
                "UPDATE queen.partition_consumers SET done = '{[8,9)}'",
                "of 6 offsets up to position 5 and beyond it 1 are not accounted for: "
                "neither finished, nor dead letters, nor passed over",
            ),
            (
                "UPDATE queen.partition_consumers SET position = 11, total_consumed = 11",
                "position 11 is behind the last offset 10",
            ),
            (
                "UPDATE queen.partition_consumers SET lease_offsets = '{[5,7)}', lease_id = gen_random_uuid()",
                "leased offsets {[5,7)} are not between position 5 and last offset 10",
            ),
            (
                'DELETE FROM queen.dead_letter_queue WHERE "offset" = 3',
                "the dead letter of offset 3 is missing",
            ),
            ("DELETE FROM queen.dead_letter_queue", "2 dead letters are missing"),
            ("TRUNCATE queen.dead_letter_queue", "2 dead letters are missing"),
            (
                "INSERT INTO queen.dead_letter_queue (queue_id, partition_id, partition_name, consumer_group, "
                'message_id, transaction_id, "offset", is_encrypted, payload, error_message, retry_count, created_at) '
                "SELECT d.queue_id, m.partition_id, 'Default', 'g', m.id, m.transaction_id, m.\"offset\", "
                "m.is_encrypted, m.payload, 'made up', 0, m.created_at FROM queen.messages m, "
                'queen.dead_letter_queue d WHERE m."offset" = 1 AND d."offset" = 3',
                "1 dead letters were not written by Queen",
            ),
            (
                "UPDATE queen.dead_letter_queue SET payload = '0' WHERE \"offset\" = 3",
                "the dead letter of offset 3 is not a copy of its message",
            ),
        ],
    )
    async def test_it_is_found(self, sql: asyncpg.Connection, fault: str, problem: str) -> None:
        assert await problems(sql) == []
        await sql.execute(fault)
        assert await problems(sql) == [("Default", "g", problem)]

    async def test_a_message_that_vanishes_and_is_passed_is_found(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await sql.execute('DELETE FROM queen.messages WHERE "offset" = 7')
        assert len(await queen.drain("orders", consumerGroup="g")) == 4
        [(_, _, problem)] = await problems(sql)
        assert problem.startswith("of 10 offsets up to position 10 and beyond it 1 are not accounted for")

    async def test_a_second_burial_of_a_message_is_counted_once(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.seek("g", "orders", timestamp="1970-01-01T00:00:00Z")
        messages = await queen.pop("orders", consumerGroup="g", batch=4)
        await queen.ack_batch(messages, "completed", "completed", "dlq", "dlq")
        assert await sql.fetchval("SELECT count(*) FROM queen.dead_letter_queue") == 3
        assert await problems(sql) == []
