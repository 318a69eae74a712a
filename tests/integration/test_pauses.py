"""Pause and resume: what is paused is not delivered by any server, and nothing else changes."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest
from server_settings import settings_with

from integration.cluster import cluster
from integration.queen import Json, Queen, another_server, data, expire_leases, parked, until
from queenmq.config import Settings
from queenmq.server import Server


async def pause(http: httpx.AsyncClient, queue: str = "q", **fields: Any) -> Json:
    answer = await http.post("/api/v1/pause", json={"queue": queue} | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def resume(http: httpx.AsyncClient, queue: str = "q", **fields: Any) -> bool:
    answer = await http.post("/api/v1/resume", json={"queue": queue} | fields)
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["changed"])


async def explain(http: httpx.AsyncClient, group: str = "g", queue: str = "q", **params: str) -> Json:
    answer = await http.get(f"/api/v1/explain/{queue}", params={"consumerGroup": group} | params)
    return dict(answer.json())


class TestWhatIsPaused:
    async def test_a_queue_for_all_groups(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.push("q", 1, partition="p")
        await queen.push("other", 1)
        shown = await pause(http, reason="repairs")
        assert (shown["changed"], shown["reason"], shown["consumerGroup"], shown["partition"]) == (
            *(True, "repairs"),
            *(None, None),
        )
        assert await queen.pop("q") == await queen.pop("q", "p") == await queen.pop("q", consumerGroup="g") == []
        assert await queen.pop("q", autoAck="true") == []
        assert data(await queen.pop("other")) == [1]
        assert await resume(http) is True
        assert data(await queen.pop("q")) == data(await queen.pop("q", "p", consumerGroup="g")) == [1]

    async def test_a_group(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.push("q", 1, partition="p")
        await pause(http, consumerGroup="g")
        assert await queen.pop("q", consumerGroup="g") == await queen.pop("q", "p", consumerGroup="g") == []
        assert data(await queen.pop("q", consumerGroup="h")) == [1]
        await resume(http, consumerGroup="g")
        assert data(await queen.pop("q", consumerGroup="g")) == [1]

    async def test_a_partition_of_a_group(self, http: httpx.AsyncClient, queen: Queen) -> None:
        for partition in ("a", "b", "c"):
            await queen.push("q", partition, partition=partition)
        await pause(http, consumerGroup="g", partition="a")
        assert sorted(data(await queen.pop("q", consumerGroup="g", batch=10, partitions=10))) == ["b", "c"]
        assert await queen.pop("q", "a", consumerGroup="g") == []
        assert data(await queen.pop("q", "a", consumerGroup="h")) == ["a"]
        await resume(http, consumerGroup="g", partition="a")
        assert data(await queen.pop("q", "a", consumerGroup="g")) == ["a"]

    async def test_queues_by_namespace(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.configure("q", namespace="n")
        await queen.configure("r", namespace="n")
        await queen.push("q", 1)
        await queen.push("r", 2)
        await pause(http, consumerGroup="g")
        assert data(await queen.pop_matching(namespace="n", consumerGroup="g")) == [2]
        assert await queen.pop_matching(namespace="n", consumerGroup="g") == []
        await resume(http, consumerGroup="g")
        assert data(await queen.pop_matching(namespace="n", consumerGroup="g")) == [1]

    async def test_pauses_are_independent(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.push("q", 1)
        await pause(http)
        await pause(http, consumerGroup="g")
        assert await resume(http) is True
        assert await queen.pop("q", consumerGroup="g") == []
        assert data(await queen.pop("q", consumerGroup="h")) == [1]
        assert await resume(http, consumerGroup="h") is False


class TestWhatGoesOn:
    async def test_leases_that_are_out_can_be_acknowledged_and_renewed(
        self, http: httpx.AsyncClient, queen: Queen
    ) -> None:
        await queen.push("q", 1, 2)
        [message] = await queen.pop("q", consumerGroup="g")
        await pause(http)
        assert (await queen.extend(message["leaseId"], 60))["success"]
        taken = await queen.take(message["leaseId"], "q", consumerGroup="g")
        assert (taken["success"], taken["taken"]) == (True, None)
        await resume(http)
        assert data(await queen.pop("q", consumerGroup="g")) == [2]

    async def test_what_fails_or_expires_meanwhile_comes_again_afterwards(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.push("q", 1)
        await queen.pop("q", consumerGroup="g")
        await pause(http, consumerGroup="g")
        await expire_leases(sql)
        assert await queen.pop("q", consumerGroup="g") == []
        await resume(http, consumerGroup="g")
        assert data(await queen.pop("q", consumerGroup="g")) == [1]

    async def test_a_group_that_begins_while_it_is_paused_starts_there(
        self, http: httpx.AsyncClient, queen: Queen
    ) -> None:
        await queen.push("q", "old")
        await pause(http, consumerGroup="g")
        assert await queen.pop("q", consumerGroup="g", subscriptionMode="new") == []
        await queen.push("q", "new")
        await resume(http, consumerGroup="g")
        assert data(await queen.pop("q", consumerGroup="g", subscriptionMode="new")) == ["new"]


class TestLongPolls:
    async def test_they_wait_and_resume_wakes_them(self, http: httpx.AsyncClient, queen: Queen, server: Server) -> None:
        await pause_new(http, queen)
        polls = [asyncio.create_task(queen.wait("q", where, consumerGroup="g")) for where in (None, "p")]
        await parked(server, 2)
        await queen.push("q", 1, partition="x")
        await queen.push("q", 2, partition="p")
        await resume(http)
        assert sorted(data([*await polls[0], *await polls[1]])) in ([1, 2], [0, 2])

    async def test_pushes_meanwhile_cost_no_calls(self, http: httpx.AsyncClient, queen: Queen, server: Server) -> None:
        await pause_new(http, queen)
        poll = asyncio.create_task(queen.wait("q", consumerGroup="g"))
        await parked(server)
        lane = server.broker.lanes["pop"]
        before = lane.requests
        for number in range(50):
            await queen.push("q", f"m{number}", partition=f"p{number}")
        assert lane.requests - before <= 5
        await resume(http)
        assert len(await poll) == 1

    async def test_on_another_server(
        self, http: httpx.AsyncClient, queen: Queen, settings: Settings, database_url: str
    ) -> None:
        await queen.push("q", 0)
        async with another_server(settings, database_url) as other:
            await pause(http)
            assert await other.pop("q", consumerGroup="g") == []
            poll = asyncio.create_task(other.wait("q", consumerGroup="g"))
            await resume(http)
            assert data(await poll) == [0]

    async def test_resume_reaches_the_long_polls_of_other_servers(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("pauses", "pop"):
            monkeypatch.setattr(f"queenmq.broker.{module}.ASK_AGAIN_S", 3600.0)
        async with cluster(database_url, "ab") as (a, b):
            await pause_new(b.http, Queen(b.http))
            poll = asyncio.create_task(Queen(b.http).wait("q", consumerGroup="g"))
            await parked(b.server)
            assert await resume(a.http) is True
            assert data(await poll) == [0]


async def pause_new(http: httpx.AsyncClient, queen: Queen) -> None:
    """A queue with a message, and a pause that the group has met."""
    await queen.push("q", 0)
    await pause(http)
    assert await queen.pop("q", consumerGroup="g") == []


async def test_it_survives_a_restart(
    http: httpx.AsyncClient, queen: Queen, settings: Settings, database_url: str
) -> None:
    await queen.push("q", 1)
    await pause(http)
    async with another_server(settings, database_url) as later:
        assert await later.pop("q") == []
        [shown] = (await later.http.get("/api/v1/pauses")).json()["pauses"]
        assert (shown["queue"], shown["consumerGroup"], shown["partition"]) == ("q", None, None)


async def test_a_pause_that_is_there_stays_as_it_was(http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.push("q", 1)
    first = await pause(http, reason="one")
    again = await pause(http, reason="two")
    assert again == first | {"changed": False}
    assert await resume(http) is True
    assert await resume(http) is False
    assert (await http.get("/api/v1/pauses")).json() == {"pauses": []}


async def test_explain_says_who_and_since_when(http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.push("q", 1, partition="a")
    await queen.push("q", 2, partition="b")
    made = await pause(http, consumerGroup="g", partition="a", reason="bad data")
    found = await explain(http)
    assert found["deliverable"] is True
    by_name = {one["partition"]: one["reason"] for one in found["partitions"]}
    assert by_name == {"a": "paused", "b": "deliverable"}
    only = await explain(http, partition="a")
    assert (only["reason"], only["deliverable"]) == ("paused", False)
    assert f"since {made['pausedAt']}: bad data" in only["explanation"]
    assert "Partition 'a' is paused for group 'g'" in only["explanation"]
    await pause(http)
    found = await explain(http)
    assert (found["reason"], found["state"], found["deliverable"]) == ("paused", "Paused", False)
    assert found["explanation"].startswith("The queue is paused for all groups by")
    await queen.pop("q", consumerGroup="g")
    group = (await http.get("/api/v1/consumer-groups/g")).json()["q"]
    assert {one["reason"] for one in group["partitions"]} == {"paused"}
    heads = (await http.get("/api/v1/resources/queues/q/partitions")).json()["partitions"]
    assert {one["reason"] for head in heads for one in head["groups"]} == {"paused"}


async def test_the_metric(http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.push("q", 1)
    await pause(http)
    await pause(http, consumerGroup="g")
    assert 'queen_queue_pauses{queue="q"} 2' in (await http.get("/metrics/prometheus")).text


class TestWhatIsDeleted:
    async def test_a_queue_takes_its_pauses_with_it(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.push("q", 1)
        await pause(http)
        await queen.delete_queue("q")
        await queen.push("q", 2)
        assert data(await queen.pop("q")) == [2]

        async def none_left() -> bool:
            return await sql.fetchval("SELECT count(*) FROM queen.pauses") == 0

        await until(none_left)

    async def test_so_does_a_group(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.push("q", 1)
        await queen.pop("q", consumerGroup="g", autoAck="true")
        await pause(http, consumerGroup="g")
        await queen.delete_group("g", "q")
        assert data(await queen.pop("q", consumerGroup="g", subscriptionMode="all")) == [1]


async def test_what_makes_no_sense_is_refused(http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.push("q", 1)
    for path in ("/api/v1/pause", "/api/v1/resume"):
        for body in ({}, {"queue": ""}, {"queue": "q", "partition": "p"}, {"queue": "q", "consumerGroup": ""}):
            assert (await http.post(path, json=body)).status_code == 400
        assert (await http.post(path, json={"queue": "unknown"})).status_code == 404


async def test_an_unknown_field_is_refused(http: httpx.AsyncClient, queen: Queen) -> None:
    """It may be meant to narrow what is paused."""
    await queen.push("q", 1)
    for path in ("/api/v1/pause", "/api/v1/resume"):
        refusal = await queen.refused(path, {"queue": "q", "group": "g"})
        assert "unknown field 'group'" in refusal["error"]
    assert (await http.get("/api/v1/pauses")).json() == {"pauses": []}


async def test_too_many_pauses(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("q", 1)
    await sql.execute(
        "INSERT INTO queen.pauses (queue_id, consumer_group, partition_name) "
        "SELECT q.id, 'g', n::text FROM queen.queues q, generate_series(1, 1000) n WHERE q.name = 'q'"
    )
    answer = await http.post("/api/v1/pause", json={"queue": "q", "consumerGroup": "g", "partition": "p"})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert (await pause(http, consumerGroup="g", partition="7"))["changed"] is False


class TestByWhom:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(auth={"enabled": True, "secret": "a secret of more than thirty-two bytes"})

    async def test_the_subject_of_the_token(self, http: httpx.AsyncClient) -> None:
        import jwt

        token = jwt.encode({"sub": "alice", "role": "admin"}, "a secret of more than thirty-two bytes", "HS256")
        http.headers["Authorization"] = f"Bearer {token}"
        await Queen(http).push("q", 1)
        assert (await pause(http))["pausedBy"] == "alice"
        assert " by alice since " in (await explain(http))["explanation"]
        logged = (await http.get("/api/v1/audit")).json()
        assert "POST /api/v1/pause" in str(logged)
