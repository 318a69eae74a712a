"""Deleting a queue removes everything of it, and a queue of the same name starts anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import asyncpg
import pytest

from integration.queen import Json, Queen, blocked, data
from queenmq.broker import lane, lock_wait

T = TypeVar("T")

DELETE_QUEUES = "DELETE FROM queen.queues"
HOLD_DEAD_LETTERS = """
    CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock(1);
        RETURN NEW;
    END $$;
    CREATE TRIGGER hold BEFORE INSERT ON queen.dead_letter_queue FOR EACH ROW EXECUTE FUNCTION public.hold();
"""
LET_THEM_GO = "DROP FUNCTION public.hold CASCADE"


async def row_counts(sql: asyncpg.Connection) -> dict[str, int]:
    """How many rows each table has that is about queues; not those about migrations, servers, histories and jobs."""
    tables = await sql.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'queen'::regnamespace AND relkind = 'r' "
        "AND relname NOT LIKE 'schema_%' AND relname NOT LIKE 'pipeline_%' AND relname NOT LIKE 'archive_%' "
        "AND relname NOT LIKE 'function_%' AND relname NOT LIKE 'server%' AND relname NOT LIKE 'outbox%' "
        "AND relname NOT IN ('maintenance', 'activity', 'stream_queries', 'operation_queue', 'tokens', 'audit_log', "
        "'quotas', 'ready_fences', 'timer_floors', 'kv', 'consumers')"
    )
    return {row["relname"]: await sql.fetchval(f"SELECT count(*) FROM queen.{row['relname']}") for row in tables}


async def use(queen: Queen, queue: str) -> None:
    """Leave traces of every kind."""
    await queen.configure(queue, retryLimit=0, maxSize=100)
    await queen.push_items(*({"queue": queue, "partition": f"p{n % 3}", "payload": n} for n in range(9)))
    policy: Json = {"queue": queue, "retry": {"poison": "skip"}, "breaker": {"failures": 5, "of": 9}}
    policy |= {"limits": {"leases": 100, "rate": 1000, "perKey": {"leases": 100}}, "fairness": {"separator": ":"}}
    assert (await queen.http.post("/api/v1/policies", json=policy)).status_code == 200
    [message] = await queen.pop(queue)
    await queen.trace(message, {}, traceNames=["a", "b"])
    await queen.ack(message, "dlq")
    await queen.pop(queue, consumerGroup="new", subscriptionMode="new")
    await queen.pop(queue, "p9", consumerGroup="narrow", subscriptionMode="new")
    await queen.pop(queue, consumerGroup="all", batch=2)
    query = {"name": queue, "source_queue": queue, "config_hash": "h"}
    query_id = (await queen.http.post("/streams/v1/queries", json=query)).json()["query_id"]
    cycle = {"query_id": query_id, "partition_id": message["partitionId"]}
    state = [{"type": "upsert", "key": "k", "value": 1}]
    assert (await queen.http.post("/streams/v1/cycle", json=cycle | {"state_ops": state})).json()["success"]
    assert (await queen.http.post("/streams/v1/state/get", json=cycle)).json()["rows"]
    [gone] = await queen.push_items({"queue": queue, "partition": "p8", "payload": 1})
    [kept] = await queen.pop(queue, "p8", consumerGroup="deleting")
    url = f"/api/v1/messages/{kept['partitionId']}/{gone['transactionId']}"
    assert (await queen.http.delete(url)).status_code == 200
    timer = {"op": "schedule", "queue": queue, "timerKey": "k", "data": 1, "delayMs": 3_600_000}
    assert (await queen.http.post("/api/v1/timers", json={"operations": [timer]})).status_code == 200
    pause = {"queue": queue, "consumerGroup": "paused"}
    assert (await queen.http.post("/api/v1/pause", json=pause)).status_code == 200
    wanted = {"filter": "headers.kind = 'another'"}
    path = f"/api/v1/consumer-groups/filtering/queues/{queue}/filter"
    assert (await queen.http.post(path, json=wanted)).status_code == 200
    assert await queen.pop(queue, consumerGroup="filtering", batch=10) == []
    path = f"/api/v1/consumer-groups/conflating/queues/{queue}/conflation"
    assert (await queen.http.post(path, json={"enabled": True})).status_code == 200
    await queen.http.post("/api/v1/stats/refresh")


async def drop_a_partition(queen: Queen, sql: asyncpg.Connection, queue: str) -> None:
    await queen.push_items({"queue": queue, "partition": "dropped", "payload": 1})
    await sql.execute(
        "DELETE FROM queen.partitions p USING queen.queues q "
        "WHERE p.queue_id = q.id AND q.name = $1 AND p.name = 'dropped'",
        queue,
    )
    # What a pop does that finds many old versions of rows.
    await sql.fetch("SELECT queen.move_ready_floor(id, 'all') FROM queen.queues WHERE name = $1", queue)
    await queen.pop(queue, consumerGroup="late")  # which makes the queue larger, and no push has counted that yet
    await queen.http.post("/api/v1/stats/refresh")


async def test_the_answer_tells_whether_it_existed(queen: Queen) -> None:
    await queen.configure("orders")
    assert await queen.delete_queue("orders") == {"deleted": True, "queue": "orders", "existed": True}
    assert await queen.delete_queue("orders") == {"deleted": True, "queue": "orders", "existed": False}


async def test_everything_of_the_queue_goes_and_nothing_of_another(queen: Queen, sql: asyncpg.Connection) -> None:
    await use(queen, "other")
    await drop_a_partition(queen, sql, "other")
    before = await row_counts(sql)
    await use(queen, "orders")
    await drop_a_partition(queen, sql, "orders")
    assert [table for table, count in (await row_counts(sql)).items() if count <= before[table]] == []
    await queen.delete_queue("orders")
    assert await row_counts(sql) == before
    await queen.delete_queue("other")
    assert {table: n for table, n in (await row_counts(sql)).items() if n} == {}


async def test_deleting_the_row_in_psql_does_the_same(queen: Queen, sql: asyncpg.Connection) -> None:
    await use(queen, "other")
    await drop_a_partition(queen, sql, "other")
    before = await row_counts(sql)
    await use(queen, "orders")
    await drop_a_partition(queen, sql, "orders")
    await sql.execute("DELETE FROM queen.queues WHERE name = 'orders'")
    assert await row_counts(sql) == before
    await sql.execute("DELETE FROM queen.queues")
    assert {table: n for table, n in (await row_counts(sql)).items() if n} == {}


async def test_a_queue_of_the_same_name_starts_anew(queen: Queen) -> None:
    await use(queen, "orders")
    first = await queen.configure("orders")
    await queen.delete_queue("orders")
    assert await queen.pop("orders") == []
    [pushed] = await queen.push("orders", "m", partition="p0")
    assert pushed["status"] == "queued"
    for group in ("__QUEUE_MODE__", "new", "narrow", "all"):
        assert data(await queen.drain("orders", consumerGroup=group)) == ["m"]
    assert await queen.dead_letters("orders") == []
    assert (await queen.configure("orders"))["queueId"] != first["queueId"]


async def test_a_subscription_to_a_queue_that_never_was_is_forgotten(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.pop("orders", consumerGroup="g", subscriptionMode="new")
    await queen.pop("orders", "p", consumerGroup="g", subscriptionMode="new")
    await queen.delete_queue("orders")
    assert {table: n for table, n in (await row_counts(sql)).items() if n} == {}


async def test_leases_of_a_deleted_queue_are_lost(queen: Queen) -> None:
    await queen.push("orders", "m")
    [message] = await queen.pop("orders")
    await queen.delete_queue("orders")
    assert (await queen.ack(message))["success"] is False
    await queen.extend(message["leaseId"], status=404)
    await queen.trace(message, {}, status=404)


async def test_a_long_poll_goes_on_with_the_new_queue(queen: Queen) -> None:
    await queen.configure("orders")
    poll = asyncio.create_task(queen.wait("orders"))
    await queen.delete_queue("orders")
    await queen.push("orders", "m")
    assert data(await poll) == ["m"]


async def test_names_are_decoded(queen: Queen) -> None:
    await queen.push("sales/ü 1", "m")
    assert await queen.delete_queue("sales%2F%C3%BC%201") == {"deleted": True, "queue": "sales/ü 1", "existed": True}


async def test_deleting_under_load_hurts_nobody(queen: Queen) -> None:
    """Pushes, pops and acks race with deletes: all are answered, and what is pushed last can be read."""

    async def produce() -> None:
        for n in range(20):
            items = ({"queue": "orders", "partition": f"p{m}", "payload": n} for m in range(5))
            await queen.push_items(*items)

    async def consume() -> None:
        for _ in range(20):
            popped = await queen.pop("orders", batch=5, partitions=5)
            await queen.ack_batch(popped)

    async def delete() -> None:
        for _ in range(10):
            await queen.delete_queue("orders")

    await asyncio.gather(produce(), consume(), delete(), consume(), produce())
    await queen.delete_queue("orders")
    await queen.push("orders", "last")
    assert data(await queen.drain("orders")) == ["last"]


@pytest.fixture
async def dead_letters_are_held(sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Nobody can write a dead letter until the advisory lock 1 is given back: calls that want to wait for it."""
    for module in (lane, lock_wait):
        monkeypatch.setattr(module, "FIRST_TIMEOUT", "60000")
        monkeypatch.setattr(module, "NEXT_TIMEOUT", "60000")
    await sql.execute(HOLD_DEAD_LETTERS)
    await sql.execute("SELECT pg_advisory_lock(1)")
    yield
    await sql.execute("SELECT pg_advisory_unlock_all()")
    await sql.execute(LET_THEM_GO)


class TestMeetingOthers:
    """What others do while a delete is under way waits for it, and is then answered as if it had come later."""

    async def delete_meanwhile(self, sql: asyncpg.Connection, call: Awaitable[T], statement: str) -> T:
        """The answer to a call that came while a transaction with `statement` was open."""
        async with sql.transaction():
            await sql.execute(statement)
            answer = asyncio.ensure_future(call)
            await blocked(sql)
        return await answer

    async def test_a_push_to_a_known_partition(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", "gone")
        [pushed] = await self.delete_meanwhile(sql, queen.push("orders", "m"), DELETE_QUEUES)
        assert pushed["status"] == "queued"
        assert data(await queen.drain("orders")) == ["m"]

    async def test_a_push_to_a_new_partition(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", "gone")
        [pushed] = await self.delete_meanwhile(sql, queen.push("orders", "m", partition="new"), DELETE_QUEUES)
        assert pushed["status"] == "queued"
        assert data(await queen.drain("orders")) == ["m"]

    async def test_a_configuration(self, queen: Queen, sql: asyncpg.Connection) -> None:
        first = await queen.configure("orders")
        second = await self.delete_meanwhile(sql, queen.configure("orders"), DELETE_QUEUES)
        assert second["queueId"] != first["queueId"]

    async def test_an_ack(self, queen: Queen, sql: asyncpg.Connection) -> None:
        for status in ("completed", "dlq"):
            await queen.push("orders", "m")
            [message] = await queen.pop("orders")
            result = await self.delete_meanwhile(sql, queen.ack(message, status), DELETE_QUEUES)
            assert result["success"] is False
        assert {table: n for table, n in (await row_counts(sql)).items() if n} == {}

    async def test_a_trace(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        await self.delete_meanwhile(sql, queen.trace(message, {}, status=404), DELETE_QUEUES)

    async def test_the_first_pop_of_a_group(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", "m")
        assert await self.delete_meanwhile(sql, queen.pop("orders", consumerGroup="g"), DELETE_QUEUES) == []

    async def test_the_first_pop_of_a_group_when_a_partition_is_cleaned_up(
        self, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.push("orders", "m", partition="stays")
        await queen.push("orders", "m", partition="idle")
        clean_up = "DELETE FROM queen.partitions WHERE name = 'idle'"
        [message] = await self.delete_meanwhile(sql, queen.pop("orders", consumerGroup="g"), clean_up)
        assert message["partition"] == "stays"

    @pytest.mark.parametrize(
        "path", ["consumer-groups/g", "consumer-groups/g/queues/orders", "resources/queues/orders"]
    )
    async def test_it_never_waits_for_an_ack_that_waits_for_it(
        self, queen: Queen, sql: asyncpg.Connection, dead_letters_are_held: None, path: str
    ) -> None:
        """An ack that writes a dead letter is held just before that, and the delete comes in between."""
        await queen.push("orders", "m")
        [message] = await queen.pop("orders", consumerGroup="g")
        ack = asyncio.create_task(queen.ack(message, "dlq"))
        await blocked(sql)
        delete = asyncio.create_task(queen.http.delete(f"/api/v1/{path}"))
        await blocked(sql, 2)
        await sql.execute("SELECT pg_advisory_unlock(1)")
        [deleted, acked] = await asyncio.gather(delete, ack)
        assert deleted.status_code == 200, deleted.text
        assert acked["success"]
