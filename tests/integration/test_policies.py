"""Retry policies: how long messages wait that fail, and what their partition does meanwhile."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest
from many_partitions import buffers

from integration.queen import Json, Queen, data, expire_leases


async def policy(http: httpx.AsyncClient, queue: str = "q", group: str | None = None, **retry: Any) -> Json:
    body = {"queue": queue, "consumerGroup": group, "retry": retry}
    answer = await http.post("/api/v1/policies", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def skipped(http: httpx.AsyncClient, queue: str = "q") -> list[Json]:
    answer = await http.get(f"/api/v1/queues/{queue}/skipped")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["messages"])


async def position(sql: asyncpg.Connection, group: str = "g") -> int:
    found = await sql.fetchval("SELECT position FROM queen.partition_consumers WHERE consumer_group = $1", group)
    assert isinstance(found, int)
    return found


async def let_skipped_return(sql: asyncpg.Connection) -> None:
    """As if their time had come."""
    await sql.execute(
        """UPDATE queen.partition_consumers c
           SET skipped = ARRAY(
                   SELECT (clock_timestamp(), s.offsets, s.parks)::queen.skipped FROM unnest(c.skipped) AS s),
               ready_at = clock_timestamp(), generation = generation + 1
           WHERE c.skipped IS NOT NULL AND c.lease_id IS NULL"""
    )


async def take(queen: Queen, batch: int = 1, **params: Any) -> list[Json]:
    return await queen.pop("q", consumerGroup="g", batch=batch, **params)


async def insert(sql: asyncpg.Connection, partition: str) -> None:
    await sql.execute(
        """INSERT INTO queen.messages (partition_id, payload) VALUES ($1, '"inserted"'::bytea)""", UUID(partition)
    )


class TestSkip:
    @pytest.fixture(autouse=True)
    async def skips(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.configure("q", retryLimit=2)
        await policy(http, poison="skip", strategy="fixed", delayMs=3_600_000)

    async def test_the_partition_goes_on_and_the_message_comes_back(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.push("q", 1, 2, 3)
        first, *_ = await take(queen, 2)
        await queen.ack(first, "failed", consumerGroup="g")
        assert data(await take(queen, 10)) == [2, 3]
        await let_skipped_return(sql)
        assert await take(queen) == []  # the lease of the others is out

    async def test_what_is_skipped_does_not_hide_what_a_filter_lets_through(
        self, http: httpx.AsyncClient, queen: Queen
    ) -> None:
        await queen.push("q", *range(60))
        answer = await http.post("/api/v1/consumer-groups/g/queues/q/filter", json={"filter": "payload >= 0"})
        assert answer.status_code == 200, answer.text
        await queen.ack_batch(await take(queen, 50), "failed", consumerGroup="g")
        assert data(await take(queen, 10)) == list(range(50, 60))

    async def test_older_servers_may_still_run(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        """They would move positions over what is skipped. The contract step records the migration."""
        record = await sql.fetchrow("DELETE FROM queen.schema_migrations WHERE version = 29 RETURNING *")
        body = {"queue": "other", "retry": {"poison": "skip"}}
        try:
            await queen.configure("other")
            assert (await http.post("/api/v1/policies", json=body)).status_code == 409
        finally:
            names = ", ".join(record.keys())
            values = ", ".join(f"${number}" for number in range(1, len(record) + 1))
            await sql.execute(f"INSERT INTO queen.schema_migrations ({names}) VALUES ({values})", *record.values())
        assert (await http.post("/api/v1/policies", json=body)).status_code == 200

    async def test_the_position_waits_for_it(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.push("q", 1, 2, 3)
        [first] = await take(queen)
        await queen.ack(first, "failed", consumerGroup="g")
        for _ in (2, 3):
            [message] = await take(queen)
            await queen.ack(message, consumerGroup="g")
        assert await position(sql) == 0
        assert [(one["offset"], one["retryCount"], one["parked"]) for one in await skipped(http)] == [(1, 1, False)]
        assert await take(queen) == []
        await let_skipped_return(sql)
        [again] = await take(queen)
        assert (again["data"], again["retryCount"]) == (1, 1)
        await queen.ack(again, consumerGroup="g")
        assert (await position(sql), await skipped(http)) == (3, [])

    async def test_a_whole_lease_is_finished_around_it(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("q", 1, 2, 3, 4)
        [first] = await take(queen)
        await queen.ack(first, "failed", consumerGroup="g")
        rest = await take(queen, 10)
        await queen.finish(rest[0]["leaseId"])
        assert await position(sql) == 0
        await let_skipped_return(sql)
        assert data(await take(queen, 10)) == [1]

    async def test_a_push_wakes_a_partition_in_which_all_else_is_skipped(self, queen: Queen) -> None:
        await queen.push("q", 1)
        [first] = await take(queen)
        await queen.ack(first, "failed", consumerGroup="g")
        assert await take(queen) == []
        await queen.push("q", 2)
        assert data(await take(queen)) == [2]

    async def test_a_push_that_commits_later_is_not_slept_through(self, queen: Queen, sql: asyncpg.Connection) -> None:
        """The push holds the partition's head, so the ack cannot know whether there is something new."""
        await queen.push("q", 1, 2)
        [first] = await take(queen)
        await queen.ack(first, "failed", consumerGroup="g")
        [second] = await take(queen)
        async with sql.transaction():
            await insert(sql, first["partitionId"])
            await queen.ack(second, consumerGroup="g")
            assert await take(queen) == []
        assert data(await take(queen)) == ["inserted"]

    async def test_a_push_that_finds_it_waiting_wakes_it_at_its_commit(
        self, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.push("q", 1)
        [first] = await take(queen)
        await queen.ack(first, "failed", consumerGroup="g")
        assert await take(queen) == []
        async with sql.transaction():
            await insert(sql, first["partitionId"])
            assert await take(queen) == []
        assert data(await take(queen)) == ["inserted"]

    async def test_a_long_poll_gets_it_when_its_time_comes(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await policy(http, poison="skip", strategy="fixed", delayMs=300)
        await queen.push("q", 1)
        [first] = await take(queen)
        await queen.ack(first, "failed", consumerGroup="g")
        assert data(await queen.wait("q", consumerGroup="g")) == [1]

    async def test_auto_ack_passes_over_it(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("q", 1, 2, 3)
        [first] = await take(queen)
        await queen.ack(first, "failed", consumerGroup="g")
        assert data(await take(queen, 10, autoAck="true")) == [2, 3]
        assert (await position(sql), await take(queen)) == (0, [])
        await let_skipped_return(sql)
        assert data(await take(queen, 10, autoAck="true")) == [1]
        assert await position(sql) == 3

    async def test_it_becomes_a_dead_letter_in_the_end(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("q", 1, 2)
        for _ in range(3):
            [message] = await take(queen)
            assert message["data"] == 1
            await queen.ack(message, "failed", consumerGroup="g")
            await let_skipped_return(sql)
        assert [letter["data"] for letter in await queen.dead_letters("q")] == [1]
        assert data(await take(queen)) == [2]

    async def test_too_many_of_them_block_the_partition(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.push("q", *range(120))
        batch = await take(queen, 100)
        await queen.finish(batch[0]["leaseId"], status="failed")
        assert len(await skipped(http)) == 100
        [next_one] = await take(queen)
        assert next_one["data"] == 100
        await queen.ack(next_one, "failed", consumerGroup="g")
        assert await take(queen) == []
        assert len(await skipped(http)) == 100

    async def test_a_retry_by_hand_delivers_it_at_once(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.push("q", 1, 2)
        [first] = await take(queen)
        await queen.ack(first, "failed", consumerGroup="g")
        [second] = await take(queen)  # its lease lies behind what is skipped
        path = f"/api/v1/messages/{first['partitionId']}/{first['transactionId']}/retry"
        assert (await http.post(path)).status_code == 200
        await queen.ack(second, consumerGroup="g")
        [again] = await take(queen)
        assert (again["data"], again["retryCount"]) == (1, 0)

    async def test_what_is_skipped_can_be_deleted_and_buried(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.push("q", 1, 2, 3)
        for _ in range(2):
            [message] = await take(queen)
            await queen.ack(message, "failed", consumerGroup="g")
        one, two = await skipped(http)
        path = f"/api/v1/messages/{one['partitionId']}"
        assert (await http.delete(f"{path}/{one['transactionId']}")).status_code == 200
        assert (await http.post(f"{path}/{two['transactionId']}/dlq")).status_code == 200
        [last] = await take(queen)
        await queen.ack(last, consumerGroup="g")
        assert (await position(sql), await skipped(http)) == (3, [])

    async def test_an_expired_lease_skips_the_message_it_was_at(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("q", retryLimit=2, dlqAfterMaxRetries=True)
        await queen.push("q", 1, 2)
        await take(queen, 2)
        await expire_leases(sql)
        assert data(await take(queen, 10)) == [2]

    async def test_a_seek_forgets_it(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.push("q", 1, 2)
        [first] = await take(queen)
        await queen.ack(first, "failed", consumerGroup="g")
        await queen.seek("g", "q", timestamp="2020-01-01T00:00:00Z")
        assert await skipped(http) == []
        assert data(await take(queen, 10)) == [1, 2]


class TestPark:
    @pytest.fixture(autouse=True)
    async def parks(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.configure("q")
        await policy(http, group="g", poison="park", limit=0)
        await queen.push("q", 1, 2, 3)
        first, *_ = await take(queen, 3)
        await queen.ack(first, "failed", consumerGroup="g")

    async def test_the_rest_waits_until_it_is_settled(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        assert await take(queen) == []
        await queen.push("q", 4)
        assert (await take(queen), await queen.dead_letters("q")) == ([], [])
        [parked] = await skipped(http)
        assert (parked["parked"], parked["until"], parked["offset"]) == (True, None, 1)
        explained = (await http.get("/api/v1/explain/q", params={"consumerGroup": "g"})).json()
        assert (explained["reason"], explained["deliverable"]) == ("parked", False)
        assert data(await queen.pop("q", consumerGroup="h", batch=10)) == [1, 2, 3, 4]

    @pytest.mark.parametrize("settled", ["retry", "dlq", "delete"])
    async def test_settled(self, settled: str, http: httpx.AsyncClient, queen: Queen) -> None:
        assert await take(queen) == []
        [parked] = await skipped(http)
        path = f"/api/v1/messages/{parked['partitionId']}/{parked['transactionId']}"
        answer = await (http.delete(path) if settled == "delete" else http.post(f"{path}/{settled}"))
        assert answer.status_code == 200
        assert data(await take(queen, 10)) == ([1, 2, 3] if settled == "retry" else [2, 3])
        assert await skipped(http) == []

    async def test_what_is_due_behind_it_waits(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.configure("r")
        await policy(http, queue="r", group="g", poison="park", limit=0)
        await queen.push("r", 1, 2, 3)
        messages = await queen.pop("r", consumerGroup="g", batch=3)
        await queen.ack_batch(messages[:2], "failed", consumerGroup="g")
        first, second = (f"/api/v1/messages/{m['partitionId']}/{m['transactionId']}/retry" for m in messages[:2])
        assert (await http.post(second)).status_code == 200
        assert await queen.pop("r", consumerGroup="g") == []
        ready = "SELECT ready_at <= clock_timestamp() FROM queen.partition_consumers WHERE partition_id = $1"
        assert await sql.fetchval(ready, messages[0]["partitionId"]) is False
        explained = (await http.get("/api/v1/explain/r", params={"consumerGroup": "g"})).json()
        assert (explained["reason"], explained["deliverable"]) == ("parked", False)
        assert (await http.post(first)).status_code == 200
        assert data(await queen.pop("r", consumerGroup="g", batch=3)) == [1, 2, 3]

    async def test_other_groups_block(self, queen: Queen) -> None:
        [first] = await queen.pop("q", consumerGroup="h")
        await queen.ack(first, "failed", consumerGroup="h")
        assert await queen.pop("q", consumerGroup="h") == []
        assert await queen.dead_letters("q") == []


class TestDelays:
    async def test_a_list_by_the_failures_of_the_message(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.configure("q", retryLimit=10)
        await policy(http, strategy="list", delaysMs=[1000, 60_000])
        await queen.push("q", 1)
        waits = []
        for _ in range(3):
            [message] = await take(queen)
            await queen.ack(message, "failed", consumerGroup="g")
            waits.append(
                await sql.fetchval(
                    "SELECT extract(epoch FROM retry_at - clock_timestamp()) FROM queen.partition_consumers"
                )
            )
            await sql.execute("UPDATE queen.partition_consumers SET ready_at = clock_timestamp(), retry_at = NULL")
        assert [round(float(wait)) for wait in waits] == [1, 60, 60]

    async def test_a_group_has_its_own(self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("q", 1)
        await policy(http, limit=0)
        await policy(http, group="g", strategy="fixed", delayMs=0)
        [message] = await take(queen)
        await queen.ack(message, "failed", consumerGroup="g")
        [message] = await take(queen)
        assert message["retryCount"] == 1
        [other] = await queen.pop("q", consumerGroup="h")
        await queen.ack(other, "failed", consumerGroup="h")
        assert len(await queen.dead_letters("q")) == 1
        explained = (await http.get("/api/v1/explain/q", params={"consumerGroup": "h"})).json()
        assert explained["partitions"][0]["attemptsLeft"] == 1


async def test_what_is_finished_behind_a_skipped_message_is_not_walked_over(
    queen: Queen, http: httpx.AsyncClient, sql: asyncpg.Connection
) -> None:
    """What a pop touches does not grow with it, nor what an ack does, which asks whether something is left."""
    await queen.configure("q")
    await policy(http, poison="skip", strategy="fixed", delayMs=3_600_000)
    await queen.push("q", "bad")
    [bad] = await take(queen)
    await queen.ack(bad, "failed")
    touched = []
    for finished in (100, 4000):
        while (reached := await sql.fetchval("SELECT max(upper(done)) FROM queen.partition_consumers") or 0) < finished:
            await queen.push("q", *range(500 if reached else 100))
            await queen.ack_batch(await take(queen, batch=1000))
        await queen.push("q", {"after": finished})
        touched.append([await cost(sql, POP), await cost(sql, SETTLE)])
        assert data(await queen.drain("q", consumerGroup="g")) == [{"after": finished}]
    assert [many <= few + 10 for few, many in zip(*touched, strict=True)] == [True, True], touched
    assert await position(sql) == 0


async def cost(sql: asyncpg.Connection, query: str) -> int:
    """The least of some times: first the session reads catalogs, and entries of indexes for rows that are dead are
    touched until somebody has marked them. Nothing is changed."""
    touched = []
    for _ in range(6):
        transaction = sql.transaction()
        await transaction.start()
        touched.append(await buffers(sql, query))
        await transaction.rollback()
    return min(touched)


POP = """SELECT * FROM queen.pop(ARRAY['q'], ARRAY[NULL::text], ARRAY['g'], ARRAY[1], ARRAY[1], ARRAY[false],
                                 ARRAY[gen_random_uuid()])"""
SETTLE = "SELECT queen.settle(array_agg(partition_id), array_agg(consumer_group), true) FROM queen.partition_consumers"
