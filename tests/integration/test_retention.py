"""Retention, eviction and the clean-up of partitions: what a sweep deletes and what it leaves."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from server_settings import settings_with
from versioned_sql import VersionedSession

from integration.queen import Queen, age_messages, age_partitions, blocked, data, expire_leases, leases, stored
from queenmq.config import Settings
from queenmq.server import Server
from queenmq.services.retention import Eviction, Retention


@pytest.fixture
def settings() -> Settings:
    return settings_with(retention={"batch_size": 10, "eviction_batch_size": 10})


@pytest.fixture
def retention(server: Server, settings: Settings) -> Retention:
    return Retention(server.broker.operation_runner, settings.retention)


@pytest.fixture
def eviction(server: Server, settings: Settings) -> Eviction:
    return Eviction(server.database, server.broker.activity, settings.retention)


class TestRetention:
    async def test_old_messages_are_deleted_read_or_not(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, retentionSeconds=10)
        await queen.push("orders", "read", "pending")
        [message] = await queen.pop("orders")
        await queen.ack(message)
        await age_messages(sql, "orders", 11)
        await queen.push("orders", "young")
        await retention.work()
        assert await stored(sql, "orders") == 1
        assert data(await queen.drain("orders")) == ["young"]
        assert data(await queen.drain("orders", consumerGroup="late")) == ["young"]

    async def test_young_messages_stay(self, queen: Queen, sql: asyncpg.Connection, retention: Retention) -> None:
        await queen.configure("orders", retentionEnabled=True, retentionSeconds=3600, completedRetentionSeconds=3600)
        await queen.push("orders", 1, 2)
        await queen.drain("orders")
        await retention.work()
        assert await stored(sql, "orders") == 2

    async def test_nothing_is_deleted_unless_it_is_enabled(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention, eviction: Eviction
    ) -> None:
        await queen.configure("orders", retentionSeconds=10, completedRetentionSeconds=10)
        await queen.push("orders", 1)
        await queen.drain("orders")
        await age_messages(sql, "orders", 5000)
        await retention.work()
        await eviction.work()
        assert await stored(sql, "orders") == 1

    async def test_what_a_group_of_single_partitions_has_not_begun_stays(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        """Its next pop of any partition gets it; what it has finished by name is deleted."""
        await queen.configure("orders", retentionEnabled=True, completedRetentionSeconds=10)
        await queen.push("orders", "a", partition="ann")
        await queen.push("orders", "b", partition="bob")
        await queen.drain("orders", consumerGroup="first")
        await queen.drain("orders", "ann", consumerGroup="second")
        await age_messages(sql, "orders", 11)
        await retention.work()
        assert await stored(sql, "orders") == 1
        assert data(await queen.drain("orders", consumerGroup="second")) == ["b"]
        await retention.work()
        assert await stored(sql, "orders") == 0

    async def test_what_was_old_when_a_group_of_single_partitions_began_does_not_stay(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, completedRetentionSeconds=10)
        await queen.push("orders", "a", partition="ann")
        await queen.push("orders", "b", partition="bob")
        await queen.drain("orders", consumerGroup="first")
        await age_messages(sql, "orders", 11)
        for name in ("ann", "bob"):
            assert await queen.pop("orders", name, consumerGroup="second", subscriptionMode="new") == []
        await retention.work()
        assert await stored(sql, "orders") == 0

    async def test_one_turn_deletes_more_than_one_step(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, retentionSeconds=10)
        await queen.push("orders", *range(35))
        await queen.push_items(*({"queue": "orders", "partition": f"p{n}"} for n in range(25)))
        await age_messages(sql, "orders", 11)
        await retention.work()
        assert await stored(sql, "orders") == 0

    async def test_offsets_go_on_and_keys_are_free_after_it(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, retentionSeconds=10)
        await queen.push("orders", "a", "b")
        await age_messages(sql, "orders", 11)
        await retention.work()
        [again] = await queen.push("orders", "a")
        assert again["status"] == "queued"
        assert await sql.fetchval('SELECT "offset" FROM queen.messages') == 3
        assert data(await queen.drain("orders")) == ["a"]

    async def test_a_group_that_stood_in_the_deleted_part_goes_on(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, retentionSeconds=10)
        await queen.push("orders", 1, 2, 3)
        [held] = await queen.pop("orders", consumerGroup="g")
        await age_messages(sql, "orders", 11)
        await queen.push("orders", 4)
        await retention.work()
        assert (await queen.ack(held))["error"] == "Message not found"
        await expire_leases(sql)
        assert data(await queen.drain("orders", consumerGroup="g")) == [4]

    async def test_a_group_without_unread_messages_sleeps_after_it(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, retentionSeconds=10)
        await queen.pop("orders")
        await queen.push("orders", 1)
        await age_messages(sql, "orders", 11)
        await retention.work()
        assert await queen.pop("orders") == []
        assert await sql.fetchval("SELECT count(*) FROM queen.partition_consumers WHERE ready_at IS NOT NULL") == 0
        await queen.push("orders", 2)
        assert data(await queen.pop("orders")) == [2]

    async def test_dead_letters_survive_their_message(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, retentionSeconds=10)
        await queen.push("orders", {"n": 1})
        [message] = await queen.pop("orders")
        await queen.ack(message, "dlq", error="poison")
        await age_messages(sql, "orders", 11)
        await retention.work()
        assert await stored(sql, "orders") == 0
        [letter] = await queen.dead_letters("orders")
        assert (letter["data"], letter["errorMessage"]) == ({"n": 1}, "poison")

    async def test_traces_go_with_their_message(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, retentionSeconds=10)
        await queen.push("orders", "old")
        [message] = await queen.pop("orders")
        await queen.trace(message, {"step": 1}, traceNames=["a", "b"])
        await queen.ack(message)
        await age_messages(sql, "orders", 11)
        await queen.push("orders", "young")
        [message] = await queen.pop("orders")
        await queen.trace(message, {"step": 2}, traceNames="c")
        await retention.work()
        assert await sql.fetchval("SELECT array_agg(transaction_id) FROM queen.message_traces") == ["young"]
        assert await sql.fetchval("SELECT array_agg(name) FROM queen.message_trace_names") == ["c"]


class TestCompletedRetention:
    async def test_what_every_group_has_read_is_deleted(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, completedRetentionSeconds=10)
        await queen.push("orders", *range(4))
        fast = await queen.pop("orders", consumerGroup="fast", batch=3)
        slow = await queen.pop("orders", consumerGroup="slow", batch=2)
        await queen.ack_batch(fast)
        await queen.ack_batch(slow)
        await age_messages(sql, "orders", 11)
        await retention.work()
        assert await stored(sql, "orders") == 2
        assert data(await queen.drain("orders", consumerGroup="slow")) == [2, 3]
        assert data(await queen.drain("orders", consumerGroup="fast")) == [3]
        await retention.work()
        assert await stored(sql, "orders") == 0

    async def test_a_group_that_has_read_nothing_keeps_everything(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, completedRetentionSeconds=10)
        await queen.push("orders", 1, 2)
        await queen.drain("orders", consumerGroup="reader")
        await queen.pop("orders", consumerGroup="beginner")
        await age_messages(sql, "orders", 11)
        await retention.work()
        assert await stored(sql, "orders") == 2

    async def test_messages_that_nobody_has_read_stay(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, completedRetentionSeconds=10)
        await queen.push("orders", 1, 2)
        await age_messages(sql, "orders", 11)
        await retention.work()
        assert data(await queen.drain("orders")) == [1, 2]

    async def test_what_is_finished_behind_an_unfinished_one_stays(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, completedRetentionSeconds=10)
        await queen.push("orders", 1, 2, 3)
        batch = await queen.pop("orders", batch=3)
        await queen.ack_batch(batch[1:])
        await age_messages(sql, "orders", 11)
        await retention.work()
        await expire_leases(sql)
        assert data(await queen.drain("orders")) == [1]

    async def test_a_dead_letter_that_is_retried_meanwhile_stays(
        self, queen: Queen, sql: asyncpg.Connection, database_url: str
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, completedRetentionSeconds=10)
        await queen.push("orders", 1, 2, 3)
        batch = await queen.pop("orders", batch=3)
        await queen.ack(batch[1], status="dlq")
        await queen.ack_batch([batch[0], batch[2]])
        await age_messages(sql, "orders", 11)
        await sql.execute("UPDATE queen.queues SET archive_before_delete = true")
        other: asyncpg.Connection = await asyncpg.connect(database_url, connection_class=VersionedSession)
        await other.execute("SELECT pg_advisory_lock(1)")
        await sql.execute("BEGIN")
        # Retention has seen what every group has read, and has not locked anything yet.
        await sql.execute(
            "CREATE OR REPLACE FUNCTION queen.archived_upto(p_queue uuid, p_partition uuid) RETURNS bigint"
            " LANGUAGE sql AS $$ SELECT 3::bigint FROM pg_advisory_xact_lock(1) $$"
        )
        running = asyncio.create_task(sql.fetchrow("SELECT (queen.retain(id, NULL, 10)).* FROM queen.queues"))
        await blocked(other)
        retry = "SELECT queen.retry_message($1, $2, gen_random_uuid())"
        assert await other.fetchval(retry, batch[1]["partitionId"], batch[1]["transactionId"]) == 1
        await other.close()
        row = await running
        await sql.execute("ROLLBACK")
        assert row is not None
        assert row["deleted"] == 1, "all but what comes again and what is behind it"
        assert data(await queen.pop("orders", batch=3)) == [2]


class TestEviction:
    async def test_messages_that_waited_too_long_are_not_delivered(
        self, queen: Queen, sql: asyncpg.Connection, eviction: Eviction
    ) -> None:
        await queen.configure("orders", maxWaitTimeSeconds=10)
        await queen.pop("orders")
        await queen.push("orders", 1, 2)
        await age_messages(sql, "orders", 11)
        await queen.push("orders", 3)
        await eviction.work()
        assert data(await queen.drain("orders")) == [3]
        assert await stored(sql, "orders") == 1
        assert await queen.dead_letters() == []

    async def test_also_if_nobody_has_ever_popped(
        self, queen: Queen, sql: asyncpg.Connection, eviction: Eviction
    ) -> None:
        await queen.configure("orders", maxWaitTimeSeconds=10)
        await queen.push("orders", 1)
        await age_messages(sql, "orders", 11)
        await eviction.work()
        assert await stored(sql, "orders") == 0

    async def test_what_every_group_has_read_stays(
        self, queen: Queen, sql: asyncpg.Connection, eviction: Eviction
    ) -> None:
        await queen.configure("orders", maxWaitTimeSeconds=10)
        await queen.push("orders", 1)
        await queen.drain("orders")
        await age_messages(sql, "orders", 11)
        await eviction.work()
        assert await stored(sql, "orders") == 1

    async def test_with_a_dead_letter_queue_they_go_there(
        self, queen: Queen, sql: asyncpg.Connection, eviction: Eviction
    ) -> None:
        await queen.configure("orders", maxWaitTimeSeconds=10, deadLetterQueue=True)
        await queen.push("orders", "a", "b", "c")
        batch = await queen.pop("orders", batch=3)
        await queen.ack_batch(batch, "completed", "retry", "completed")
        await queen.pop("orders", consumerGroup="ahead", subscriptionMode="new")
        await age_messages(sql, "orders", 11)
        await eviction.work()
        assert await queen.pop("orders") == []
        [letter] = await queen.dead_letters("orders")
        assert (letter["data"], letter["consumerGroup"]) == ("b", "__QUEUE_MODE__")
        assert "maxWaitTimeSeconds" in letter["errorMessage"]

    async def test_with_a_dead_letter_queue_also_if_nobody_has_ever_popped(
        self, queen: Queen, sql: asyncpg.Connection, eviction: Eviction
    ) -> None:
        await queen.configure("orders", maxWaitTimeSeconds=10, deadLetterQueue=True)
        await queen.push("orders", "a")
        await age_messages(sql, "orders", 11)
        await eviction.work()
        assert data(await queen.dead_letters("orders")) == ["a"]

    async def test_what_a_consumer_works_on_is_left_to_it(
        self, queen: Queen, sql: asyncpg.Connection, eviction: Eviction
    ) -> None:
        await queen.configure("orders", maxWaitTimeSeconds=10)
        await queen.push("orders", 1, 2)
        [message] = await queen.pop("orders")
        await age_messages(sql, "orders", 11)
        await eviction.work()
        assert await leases(sql) == 1
        assert (await queen.ack(message))["success"]
        await eviction.work()
        assert await queen.pop("orders") == []

    async def test_a_group_that_goes_back_meanwhile_is_noticed(
        self, queen: Queen, sql: asyncpg.Connection, database_url: str
    ) -> None:
        await queen.configure("orders", maxWaitTimeSeconds=10)
        await queen.push("orders", 1, 2)
        await queen.drain("orders")
        seen = "SELECT partition_id, unread_at FROM queen.partition_ages"
        partition_id, unread_at = await sql.fetchrow(seen)
        other: asyncpg.Connection = await asyncpg.connect(database_url, connection_class=VersionedSession)
        await other.execute("BEGIN")
        await other.execute("UPDATE queen.partition_consumers SET position = 0, ready_at = clock_timestamp()")
        noting = asyncio.create_task(sql.execute("SELECT queen.note_unread($1, $2)", partition_id, unread_at))
        await blocked(other)
        await other.execute("COMMIT")
        await noting
        await other.close()
        assert tuple(await sql.fetchrow(seen)) == (partition_id, unread_at)

    async def test_a_step_is_bounded(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", maxWaitTimeSeconds=10)
        await queen.push("orders", *range(100))
        await age_messages(sql, "orders", 11)
        step = "SELECT deleted FROM queen.evict((SELECT id FROM queen.queues), NULL, NULL, 10)"
        assert 0 < await sql.fetchval(step) <= 10


async def test_a_run_goes_on_while_interrupted_work_is_given_back(
    queen: Queen, sql: asyncpg.Connection, server: Server, retention: Retention
) -> None:
    await queen.configure("orders", retentionEnabled=True, retentionSeconds=10)
    for _ in range(10):
        await queen.push("orders", *range(35))
        await age_messages(sql, "orders", 11)
        server.broker.operation_runner.steps.interrupted = True
        await asyncio.gather(server.broker.operation_runner.take_up(), retention.work())
        assert await stored(sql, "orders") == 0


class TestPartitionCleanup:
    async def test_empty_partitions_that_were_idle_for_long_are_removed(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, retentionSeconds=10)
        await queen.push_items(*({"queue": "orders", "partition": f"p{n}"} for n in range(25)))
        await queen.drain("orders", partitions=100)
        await age_partitions(sql, "orders", 31)
        await queen.push("orders", "keeps it", partition="p7")
        await retention.work()
        assert await partitions(sql) == ["p7"]
        tables = ("partition_lookup", "partition_consumers", "messages")
        assert [await sql.fetchval(f"SELECT count(*) FROM queen.{table}") for table in tables] == [1, 1, 1]

    async def test_not_before_their_time(self, queen: Queen, sql: asyncpg.Connection, retention: Retention) -> None:
        await queen.configure("orders", retentionEnabled=True, retentionSeconds=10)
        await queen.push("orders", 1)
        await age_partitions(sql, "orders", 29)
        await retention.work()
        assert await stored(sql, "orders") == 0
        assert await partitions(sql) == ["Default"]

    async def test_not_while_they_have_messages(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.push("orders", "m")
        await age_partitions(sql, "orders", 100)
        await retention.work()
        assert data(await queen.drain("orders")) == ["m"]

    async def test_a_removed_partition_comes_back_with_the_next_push(
        self, queen: Queen, sql: asyncpg.Connection, retention: Retention
    ) -> None:
        await queen.configure("orders", retentionEnabled=True, retentionSeconds=10)
        await queen.push("orders", "old", partition="p")
        await queen.pop("orders", consumerGroup="new", subscriptionMode="new")
        [letter] = await queen.pop("orders")
        await queen.ack(letter, "dlq")
        await age_partitions(sql, "orders", 31)
        await retention.work()
        assert await partitions(sql) == []
        await queen.push("orders", "young", partition="p")
        for group in ("new", "__QUEUE_MODE__", "fresh"):
            assert data(await queen.drain("orders", consumerGroup=group)) == ["young"]
        assert data(await queen.dead_letters("orders", partition="p")) == ["old"]


async def partitions(sql: asyncpg.Connection) -> list[str]:
    return [row["name"] for row in await sql.fetch("SELECT name FROM queen.partitions ORDER BY name")]
