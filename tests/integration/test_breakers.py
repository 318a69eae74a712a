"""Breakers: a group whose messages fail pauses itself, lets a batch through after a while, and goes on when it can."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest

from integration.queen import Json, Queen, another_server, data, expire_leases, parked
from queenmq.config import Settings
from queenmq.server import Server

OPENS = {"failures": 2, "of": 4, "pauseSeconds": 3600}


async def set_breaker(http: httpx.AsyncClient, breaker: Json | None, group: str | None = None) -> None:
    answer = await http.post("/api/v1/policies", json={"queue": "q", "consumerGroup": group, "breaker": breaker})
    assert answer.status_code == 200, answer.text


@pytest.fixture(autouse=True)
async def breaker(http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.configure("q", retryLimit=100, retryDelay=0)
    await set_breaker(http, OPENS)


async def take(queen: Queen, group: str = "g", **params: Any) -> list[Json]:
    return await queen.pop("q", consumerGroup=group, **params)


async def fail(queen: Queen, times: int, group: str = "g") -> None:
    for _ in range(times):
        [message] = await take(queen, group)
        await queen.ack(message, "failed", consumerGroup=group)


async def opened(queen: Queen) -> None:
    await queen.push("q", 1, 2, 3)
    await fail(queen, 3)


async def let_probe(sql: asyncpg.Connection) -> None:
    """As if the time of the pause had passed."""
    assert (
        await sql.execute("UPDATE queen.breakers SET probe_at = clock_timestamp() WHERE opened_at IS NOT NULL")
        == "UPDATE 1"
    )


async def pauses(http: httpx.AsyncClient) -> list[Json]:
    return list((await http.get("/api/v1/pauses", params={"queue": "q"})).json()["pauses"])


class TestOpening:
    async def test_too_many_failures_pause_the_group(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.push("q", 1)
        await fail(queen, 2)
        assert await pauses(http) == []
        await fail(queen, 1)
        assert await take(queen) == await queen.pop("q", "Default", consumerGroup="g") == []
        [shown] = await pauses(http)
        assert (shown["consumerGroup"], shown["pausedBy"]) == ("g", "breaker")
        assert (shown["reason"], shown["partition"]) == ("3 of the last 3 messages failed", None)
        assert shown["probeAt"] > shown["pausedAt"]
        explained = (await http.get("/api/v1/explain/q", params={"consumerGroup": "g"})).json()
        assert (explained["reason"], explained["deliverable"]) == ("paused", False)
        assert "by breaker since" in explained["explanation"]
        listed = (await http.get("/api/v1/consumer-groups", params={"queue": "q"})).json()
        assert {one["name"]: one["standing"] == "Paused" for one in listed}["g"]
        assert data(await take(queen, "h")) == [1]

    async def test_what_is_completed_counts(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.push("q", *range(20))
        for _ in range(6):
            await fail(queen, 1)
            [message] = await take(queen)
            await queen.ack(message, consumerGroup="g")
        assert await pauses(http) == []
        batch = await take(queen, batch=3)
        await queen.finish(batch[0]["leaseId"], status="failed")
        assert [one["reason"] for one in await pauses(http)] == ["3 of the last 4 messages failed"]

    async def test_dead_letters_and_expired_leases_count(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.configure("q", retryLimit=100, dlqAfterMaxRetries=True)
        await queen.push("q", 1, 2, 3)
        for _ in range(2):
            [message] = await take(queen)
            await queen.ack(message, "dlq", consumerGroup="g")
        await take(queen)
        await expire_leases(sql)
        await take(queen)
        assert len(await pauses(http)) == 1

    async def test_other_servers_and_restarts(self, queen: Queen, settings: Settings, database_url: str) -> None:
        await opened(queen)
        async with another_server(settings, database_url) as other:
            assert await take(other) == []

    async def test_a_group_has_its_own(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.push("q", 1)
        await set_breaker(http, {"failures": 0, "of": 1}, group="g")
        await fail(queen, 1)
        await fail(queen, 1, "h")
        assert [one["consumerGroup"] for one in await pauses(http)] == ["g"]

    @pytest.mark.parametrize("after", [{"failures": 0, "of": 5}, None])
    async def test_that_of_the_queue_changes_only_groups_without_one(
        self, after: Json | None, http: httpx.AsyncClient, queen: Queen
    ) -> None:
        """A retry policy of its own is no breaker of its own."""
        await set_breaker(http, OPENS | {"failures": 0})
        await set_breaker(http, OPENS | {"failures": 0}, group="own")
        await http.post("/api/v1/policies", json={"queue": "q", "consumerGroup": "g", "retry": {"fixed": 0}})
        await queen.push("q", 1)
        for group in ("own", "g", "h"):
            await fail(queen, 1, group)
        assert sorted(one["consumerGroup"] for one in await pauses(http)) == ["g", "h", "own"]
        await set_breaker(http, after)
        assert [one["consumerGroup"] for one in await pauses(http)] == ["own"]
        assert await take(queen, "own") == []
        assert data(await take(queen, "g")) == [1]


class TestHalfOpen:
    @pytest.fixture(autouse=True)
    async def is_open(self, breaker: None, queen: Queen) -> None:
        await opened(queen)

    async def test_one_batch_is_let_through(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.push("q", "other", partition="p")
        await let_probe(sql)
        answers = await asyncio.gather(*(take(queen, partitions=10, batch=10) for _ in range(5)))
        assert sum(map(bool, answers)) == 1
        assert len(await pauses(http)) == 1

    async def test_a_failure_pauses_it_again(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await let_probe(sql)
        await fail(queen, 1)
        assert await take(queen) == []
        await let_probe(sql)
        [again] = await queen.wait("q", consumerGroup="g")
        assert again["retryCount"] == 4

    @pytest.mark.parametrize("whole", [True, False])
    async def test_a_success_ends_it(
        self, whole: bool, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await let_probe(sql)
        [message] = await take(queen)
        if whole:
            await queen.finish(message["leaseId"])
        else:
            await queen.ack(message, consumerGroup="g")
        assert await pauses(http) == []
        await fail(queen, 2)  # it counts from the beginning
        assert data(await take(queen)) == [2]

    async def test_a_batch_that_nobody_acknowledges(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await let_probe(sql)
        await take(queen)
        await expire_leases(sql)
        assert await take(queen) == []
        await let_probe(sql)  # which is when the lease would have ended
        assert data(await queen.wait("q", consumerGroup="g")) == [1]

    async def test_nothing_to_deliver_keeps_it_half_open(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.seek("g", "q", toEnd=True)
        await let_probe(sql)
        assert await take(queen) == []
        await queen.push("q", "new")
        assert data(await take(queen)) == ["new"]

    async def test_auto_ack_proves_nothing(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await let_probe(sql)
        assert await take(queen, autoAck="true") == []


class TestByHand:
    async def test_resume_closes_it(self, http: httpx.AsyncClient, queen: Queen, server: Server) -> None:
        await opened(queen)
        poll = asyncio.create_task(queen.wait("q", consumerGroup="g"))
        await parked(server)
        answer = await http.post("/api/v1/resume", json={"queue": "q", "consumerGroup": "g"})
        assert answer.json()["changed"] is True
        assert data(await poll) == [1]
        assert (await http.post("/api/v1/resume", json={"queue": "q", "consumerGroup": "g"})).json()["changed"] is False

    async def test_taking_it_back_closes_it(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await opened(queen)
        await set_breaker(http, None)
        assert data(await take(queen)) == [1]
        assert (await http.get("/api/v1/policies")).json() == {"policies": []}

    async def test_an_old_lease_does_not_close_it(self, queen: Queen) -> None:
        await queen.push("q", "old", partition="p")
        [old] = await queen.pop("q", "p", consumerGroup="g")
        await opened(queen)
        await queen.ack(old, consumerGroup="g")
        assert await take(queen) == []

    @pytest.mark.parametrize(
        "given", [{"failures": 4, "of": 4}, {"failures": 1, "of": 0}, {"of": 3}, {"failures": 1, "of": 5000}]
    )
    async def test_what_makes_no_sense_is_refused(self, given: Json, http: httpx.AsyncClient) -> None:
        answer = await http.post("/api/v1/policies", json={"queue": "q", "breaker": given})
        assert answer.status_code == 400

    async def test_a_policy_of_nothing_is_refused(self, http: httpx.AsyncClient) -> None:
        assert (await http.post("/api/v1/policies", json={"queue": "q"})).status_code == 400
        answer = await http.post("/api/v1/policies", json={"queue": "nowhere", "breaker": OPENS})
        assert answer.status_code == 404
