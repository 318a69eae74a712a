"""Conflation: a group gets the newest message of each partition; older ones are passed over and counted."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import asyncpg
import pytest

from integration.queen import Queen, age_messages, data, expire_leases, parked
from integration.test_accounts import problems
from integration.test_policies import policy
from queenmq.config import Settings
from queenmq.server import Server
from queenmq.services.retention import Retention

LAST = {"consumerGroup": "g", "batch": 10, "partitions": 10}
ASKED = LAST | {"conflation": True}


async def conflate(queen: Queen, enabled: bool = True, group: str = "g", queue: str = "q", status: int = 200) -> Any:
    path = f"/api/v1/consumer-groups/{group}/queues/{queue}/conflation"
    answer = await queen.http.post(path, json={"enabled": enabled})
    assert answer.status_code == status, answer.text
    return answer.json()


async def passed_over(queen: Queen, group: str = "g", queue: str = "q") -> int:
    answer = await queen.http.get(f"/api/v1/consumer-groups/{group}/queues/{queue}/conflation")
    return int(answer.json()["passedOver"])


@pytest.fixture
async def queue(queen: Queen) -> str:
    await queen.configure("q", retryLimit=1, retryDelay=0)
    return "q"


class TestDelivery:
    async def test_the_newest_of_each_partition(self, queen: Queen, queue: str, sql: asyncpg.Connection) -> None:
        shown = await conflate(queen)
        assert (shown["enabled"], shown["passedOver"]) == (True, 0)
        await queen.push("q", *range(5), partition="a")
        await queen.push("q", 5, partition="b")
        found = await queen.pop("q", **LAST)
        assert sorted(data(found)) == [4, 5]
        await queen.push("q", 6, 7, partition="a")
        assert await queen.pop("q", **LAST) == []
        await queen.ack_batch(found)
        assert data(await queen.drain("q", consumerGroup="g")) == [7]
        assert await passed_over(queen) == 5
        assert await queen.pop("q", **LAST) == []
        rows = await sql.fetch(
            """SELECT position, done::text, ready_at, total_consumed, passed_over FROM queen.partition_consumers c
               JOIN queen.partitions p ON p.id = c.partition_id WHERE p.name IN ('a', 'b') ORDER BY p.name"""
        )
        assert [tuple(row) for row in rows] == [(7, "{}", None, 2, 5), (1, "{}", None, 1, 0)]
        assert data(await queen.drain("q", "a", consumerGroup="other")) == [0, 1, 2, 3, 4, 6, 7]
        assert await problems(sql) == []

    async def test_a_newer_one_takes_the_place_of_one_that_failed_or_whose_lease_ended(
        self, queen: Queen, queue: str, sql: asyncpg.Connection
    ) -> None:
        await conflate(queen)
        await queen.push("q", 0, 1)
        [message] = await queen.pop("q", **LAST)
        await queen.ack(message, "failed")
        [again] = await queen.pop("q", **LAST)
        assert (again["data"], again["retryCount"]) == (1, 1)
        await queen.ack(again, "retry")
        await queen.push("q", 2)
        [newer] = await queen.pop("q", **LAST)
        assert (newer["data"], newer["retryCount"]) == (2, 0)
        await expire_leases(sql)
        assert not (await queen.ack(again))["success"]
        await queen.push("q", 3)
        assert data(await queen.drain("q", consumerGroup="g")) == [3]
        assert await passed_over(queen) == 3
        assert await queen.dead_letters("q") == []
        assert await problems(sql) == []

    async def test_a_message_that_waits_for_its_retry_does_not_come_after_a_newer_one(
        self, queen: Queen, queue: str, sql: asyncpg.Connection
    ) -> None:
        await policy(queen.http, poison="skip", strategy="fixed", delayMs=3_600_000, limit=5)
        await conflate(queen)
        await queen.push("q", 0, 1)
        [message] = await queen.pop("q", **LAST)
        await queen.ack(message, "failed")
        assert await queen.pop("q", **LAST) == []
        await queen.push("q", 2)
        assert data(await queen.drain("q", consumerGroup="g")) == [2]
        row = await sql.fetchrow("SELECT position, done::text, skipped, failures FROM queen.partition_consumers")
        assert tuple(row) == (3, "{}", None, None)
        assert await problems(sql) == []

    async def test_with_a_filter_the_newest_that_fits(self, queen: Queen, queue: str, sql: asyncpg.Connection) -> None:
        await conflate(queen)
        path = "/api/v1/consumer-groups/g/queues/q/filter"
        await queen.http.post(path, json={"filter": "payload.kind = 'a'"})
        kinds = ["a", "b", "a", *["b"] * 120]
        await queen.push("q", *({"n": n, "kind": kind} for n, kind in enumerate(kinds)))
        # A pop examines for 50 ms at most, and a long poll goes on.
        found = await queen.wait("q", **LAST)
        assert data(found) == [{"n": 2, "kind": "a"}]
        await queen.ack_batch(found)
        assert (await queen.http.get(path)).json()["passedOver"] == 120
        assert await passed_over(queen) == 2
        await queen.push("q", {"n": 200, "kind": "b"})
        assert await queen.pop("q", **LAST) == []
        assert await sql.fetchval("SELECT ready_at FROM queen.partition_consumers") is None
        assert await problems(sql) == []

    async def test_a_filter_goes_on_where_its_time_ended(
        self, queen: Queen, queue: str, sql: asyncpg.Connection
    ) -> None:
        await conflate(queen)
        path = "/api/v1/consumer-groups/g/queues/q/filter"
        await queen.http.post(path, json={"filter": "payload.n = 0"})
        filling = [1] * 30_000
        await queen.push("q", *({"n": n, "filling": filling} for n in range(120)))
        asked = 1
        while not (found := await queen.pop("q", **LAST)):
            asked += 1
            assert asked < 120
        assert found[0]["offset"] == 1
        await queen.ack_batch(found)
        assert await sql.fetchval("SELECT position FROM queen.partition_consumers") == 120

    async def test_with_a_delay_the_newest_that_is_due(self, queen: Queen, queue: str, sql: asyncpg.Connection) -> None:
        await queen.configure("q", delayedProcessing=3600)
        await conflate(queen)
        await queen.push("q", 0, 1)
        assert await queen.pop("q", **LAST) == []
        await age_messages(sql, "q", 3601)
        await sql.execute("UPDATE queen.partition_consumers SET ready_at = clock_timestamp()")
        await queen.push("q", 2)
        assert data(await queen.pop("q", **LAST)) == [1]

    async def test_seeking_back_brings_the_newest(self, queen: Queen, queue: str) -> None:
        await conflate(queen)
        await queen.push("q", 0, 1, 2)
        assert data(await queen.drain("q", consumerGroup="g")) == [2]
        await queen.seek("g", "q", timestamp="2020-01-01T00:00:00Z")
        assert data(await queen.drain("q", consumerGroup="g")) == [2]

    async def test_consumed_at_delivery_and_a_take(self, queen: Queen, queue: str, sql: asyncpg.Connection) -> None:
        await conflate(queen)
        await queen.push("q", 0, 1)
        assert data(await queen.pop("q", consumerGroup="g", autoAck=True, batch=5)) == [1]
        row = await sql.fetchrow("SELECT position, ready_at, total_consumed FROM queen.partition_consumers")
        assert tuple(row) == (2, None, 1)
        await queen.push("q", 2, 3)
        answer = await queen.pop_answer("q", **LAST)
        await queen.push("q", 4, 5)
        taken = await queen.take(answer["leaseId"], "q", consumerGroup="g", batch=10)
        assert data(taken["taken"]["messages"]) == [5]

    async def test_nothing_is_reordered_or_doubled_and_the_last_arrives(
        self, queen: Queen, queue: str, sql: asyncpg.Connection
    ) -> None:
        """Pushes, pops, failures, expiries and deletions in any order; at the end the newest was finished."""
        await conflate(queen)
        chance = random.Random(7)
        finished: dict[str, list[int]] = {"a": [], "b": []}
        held: list[dict[str, Any]] = []
        number = 0
        for _ in range(120):
            step = chance.random()
            if step < 0.4:
                await queen.push("q", *range(number, number + 3), partition=chance.choice("ab"))
                number += 3
            elif step < 0.7:
                held += await queen.pop("q", **LAST)
            elif step < 0.9 and held:
                message = held.pop(chance.randrange(len(held)))
                status = chance.choice(["completed", "completed", "failed", "retry"])
                if (await queen.ack(message, status))["success"] and status == "completed":
                    finished[message["partition"]].append(message["data"])
            elif step > 0.97:
                await expire_leases(sql)
        await expire_leases(sql)
        for message in await queen.drain("q", consumerGroup="g"):
            finished[message["partition"]].append(message["data"])
        for partition, numbers in finished.items():
            assert numbers == sorted(set(numbers))
            [newest] = data(await queen.pop("q", partition, consumerGroup="all", batch=1000))[-1:]
            dead = [letter["data"] for letter in await queen.dead_letters("q")]
            assert newest in (*numbers[-1:], *dead)
        assert await problems(sql) == []


async def test_what_retention_has_deleted_is_not_counted_again(
    queen: Queen, sql: asyncpg.Connection, server: Server, settings: Settings
) -> None:
    await queen.configure("q", retentionEnabled=True, retentionSeconds=3600)
    await queen.push("q", 0)
    await conflate(queen)
    assert data(await queen.drain("q", consumerGroup="g")) == [0]
    await queen.push("q", *range(1, 7))
    await age_messages(sql, "q", 7200)
    await queen.push("q", *range(7, 11))
    await Retention(server.broker.operation_runner, settings.retention).work()
    [seventh] = await queen.pop("q", consumerGroup="other", batch=1)
    deletion = await queen.http.delete(f"/api/v1/messages/{seventh['partitionId']}/{seventh['transactionId']}")
    assert deletion.status_code == 200, deletion.text
    assert data(await queen.drain("q", consumerGroup="g")) == [10]
    assert await passed_over(queen) == 2
    row = await sql.fetchrow(
        "SELECT position, total_consumed, passed_over FROM queen.partition_consumers WHERE consumer_group = 'g'"
    )
    assert tuple(row) == (11, 2, 9)
    assert await problems(sql) == []


class TestAsking:
    """`conflation=true` of a pop, as the published clients from 1.1 on send it."""

    async def test_a_new_group_conflates_and_every_answer_says_so(self, queen: Queen) -> None:
        empty = await queen.pop_answer("q", **ASKED)
        assert (empty["messages"], empty["conflation"]) == ([], True)
        await queen.push("q", 0, 1)
        first = await queen.pop_answer("q", **ASKED)
        assert (data(first["messages"]), first["conflation"]) == ([1], True)
        await queen.ack_batch(first["messages"])
        # What is stored wins for the others of the group, too.
        await queen.push("q", 2, 3)
        plain = await queen.pop_answer("q", **LAST)
        assert data(plain["messages"]) == [3]
        assert (await conflate(queen))["passedOver"] == 2

    async def test_a_long_poll_on_a_queue_that_does_not_exist_yet(self, queen: Queen, server: Server) -> None:
        poll = asyncio.create_task(queen.pop_answer("q", **ASKED, wait=True, timeout=30_000))
        await parked(server)
        await queen.push("q", 0, 1, 2)
        answer = await poll
        assert (data(answer["messages"]), answer["conflation"]) == ([2], True)

    @pytest.mark.parametrize("partition", [None, "Default"])
    async def test_a_group_that_reads_otherwise_stays_so_and_the_answer_says_so(
        self, queen: Queen, partition: str | None
    ) -> None:
        await queen.push("q", 0, 1)
        [message] = await queen.pop("q", partition, consumerGroup="g")
        await queen.ack(message)
        asked = {"consumerGroup": "g", "conflation": True, "batch": 5}
        answer = await queen.pop_answer("q", partition, **asked)
        assert (data(answer["messages"]), answer["conflationConflict"]) == ([1], True)
        assert "conflation" not in answer
        empty = await queen.pop_answer("q", partition, **asked, wait=True, timeout=1)
        assert (empty["messages"], empty["conflationConflict"]) == ([], True)

    async def test_queues_of_a_namespace(self, queen: Queen) -> None:
        await queen.configure("ns.a", namespace="ns")
        await queen.push("ns.a", 0, 1)
        query = {"namespace": "ns", "consumerGroup": "g", "batch": "9", "conflation": "true"}
        answer = (await queen.http.get("/api/v1/pop", params=query)).json()
        assert (data(answer["messages"]), answer["conflation"]) == ([1], True)
        empty = (await queen.http.get("/api/v1/pop", params=query)).json()
        assert (empty["messages"], empty["conflation"]) == ([], True)

    @pytest.mark.parametrize("params", [{}, {"consumerGroup": "g", "autoAck": "true"}])
    async def test_refusals(self, queen: Queen, params: dict[str, str]) -> None:
        answer = await queen.http.get("/api/v1/pop/queue/q", params={"conflation": "true", **params})
        assert answer.status_code == 400
        assert "conflation" in answer.json()["error"]


class TestAdministration:
    async def test_refusals(self, queen: Queen, queue: str) -> None:
        assert "name one" in (await conflate(queen, group="__QUEUE_MODE__", status=400))["error"]
        await conflate(queen, queue="unknown", status=404)
        assert (await queen.http.get("/api/v1/consumer-groups/g/queues/unknown/conflation")).status_code == 404
        answer = await queen.http.post("/api/v1/consumer-groups/g/queues/q/conflation", json={})
        assert answer.status_code == 400

    async def test_off_again(self, queen: Queen, queue: str, sql: asyncpg.Connection) -> None:
        await conflate(queen)
        await queen.push("q", 0, 1)
        assert data(await queen.drain("q", consumerGroup="g")) == [1]
        assert not (await conflate(queen, enabled=False))["enabled"]
        assert not await sql.fetchval("SELECT has_conflation FROM queen.queues")
        await queen.push("q", 2, 3)
        assert data(await queen.drain("q", consumerGroup="g")) == [2, 3]

    async def test_it_goes_with_its_group_and_its_queue(
        self, queen: Queen, queue: str, sql: asyncpg.Connection
    ) -> None:
        await conflate(queen)
        await queen.push("q", 0, 1)
        await queen.pop("q", **LAST)
        await queen.delete_group("g", "q")
        assert await sql.fetchval("SELECT count(*) FROM queen.conflating_groups") == 0
        assert len(await queen.pop("q", **LAST)) == 2
        await conflate(queen)
        await queen.delete_queue("q")
        assert await sql.fetchval("SELECT count(*) FROM queen.conflating_groups") == 0
