"""Limits: how many leases a queue or a group has at once, and how many messages it gets in a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest

from integration.consuming import consuming
from integration.queen import Json, Queen, ack_op, another_server, data, expire_leases, leases, parked
from queenmq.config import Settings
from queenmq.server import Server
from queenmq.storage.statements import versioned

PARTITIONS = 8


async def limit(http: httpx.AsyncClient, limits: Json | None, group: str | None = "g", queue: str = "q") -> Json:
    answer = await http.post("/api/v1/policies", json={"queue": queue, "consumerGroup": group, "limits": limits})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def fill(queen: Queen, each: int = 1, partitions: int = PARTITIONS) -> None:
    """Push `each` messages to each of the partitions."""
    items = [{"queue": "q", "partition": f"p{n}", "payload": m} for n in range(partitions) for m in range(each)]
    await queen.push_items(*items)


async def take(queen: Queen, group: str = "g", **params: Any) -> list[Json]:
    return await queen.pop("q", consumerGroup=group, **params)


async def take_all(queen: Queen, group: str = "g", **params: Any) -> list[Json]:
    """Pop until nothing comes."""
    got: list[Json] = []
    while more := await take(queen, group, **params):
        got += more
    return got


async def age_buckets(sql: asyncpg.Connection, seconds: float) -> None:
    """As if that much time had passed."""
    await sql.execute("UPDATE queen.limit_tokens SET refilled_at = refilled_at - make_interval(secs => $1)", seconds)


async def explain(http: httpx.AsyncClient, group: str = "g") -> Json:
    return dict((await http.get("/api/v1/explain/q", params={"consumerGroup": group})).json())


@pytest.fixture
async def other(settings: Settings, database_url: str) -> AsyncIterator[Queen]:
    async with another_server(settings, database_url) as other:
        yield other


class TestLeases:
    async def test_no_more_are_open_at_once(
        self, http: httpx.AsyncClient, queen: Queen, other: Queen, sql: asyncpg.Connection
    ) -> None:
        await fill(queen)
        await limit(http, {"leases": 3})
        answers = await asyncio.gather(*(take(one) for one in (queen, other) * 10))
        got = [message for answer in answers for message in answer]
        got += await take_all(queen)  # what one server holds for a moment, the other does not find
        assert len(got) == await leases(sql) == 3
        assert len(await take_all(queen, "h")) == PARTITIONS  # another group
        told = await explain(http)
        assert (told["reason"], told["deliverable"], told["state"]) == ("limited", False, "Limited")
        assert "limited by 3 leases at once, and all are open; next at" in told["explanation"]
        assert told["until"] is not None

    @pytest.mark.parametrize("how", ["ack", "failed", "finish", "transaction", "expiry", "seek", "group"])
    async def test_however_a_lease_ends(
        self, how: str, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.configure("q", retryDelay=0)
        await fill(queen)
        await limit(http, {"leases": 1})
        [message] = await take(queen)
        assert await take(queen) == []
        match how:
            case "ack" | "failed":
                await queen.ack(message, "failed" if how == "failed" else "completed")
            case "finish":
                await queen.finish(message["leaseId"])
            case "transaction":
                assert (await queen.transact(ack_op(message), leases=[message["leaseId"]]))["success"]
            case "expiry":
                await expire_leases(sql)
            case "seek":
                await queen.seek("g", "q", timestamp="2020-01-01T00:00:00Z")
            case "group":
                await queen.delete_group("g", "q", deleteMetadata="false")
        assert len(await take(queen)) == 1
        assert await take(queen) == []

    async def test_a_take_uses_the_slot_that_it_frees(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen)
        await limit(http, {"leases": 1})
        [message] = await take(queen)
        for _ in range(PARTITIONS - 1):
            taken = await queen.take(message["leaseId"], "q", consumerGroup="g")
            [message] = taken["taken"]["messages"]
        assert await take(queen) == []

    async def test_a_renewed_lease_keeps_its_slot(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen)
        await limit(http, {"leases": 1})
        [message] = await take(queen)
        await queen.extend(message["leaseId"], 900)
        assert await take(queen) == []

    async def test_of_all_groups_together(self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
        await fill(queen)
        await limit(http, {"leases": 3}, group=None)
        await limit(http, {"leases": 2}, group="h")
        assert [len(await take_all(queen, group)) for group in ("h", "g", "i")] == [2, 1, 0]
        assert await leases(sql) == 3
        assert "The queue is limited by 3 leases" in (await explain(http, "i"))["explanation"]

    async def test_a_lease_is_of_a_partition(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, each=2)
        await limit(http, {"leases": 3})
        got = await take(queen, batch=100, partitions=100)
        assert len({message["partition"] for message in got}) == 3
        assert len(got) == 6
        assert await take(queen, "g", partitions=2) == []

    async def test_auto_ack_has_none(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen)
        await limit(http, {"leases": 1})
        assert len(await take_all(queen, autoAck="true")) == PARTITIONS

    async def test_leases_that_are_out_count(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen)
        out = [*await take(queen), *await take(queen), *await take(queen)]
        await limit(http, {"leases": 2})
        assert await take(queen) == []
        await queen.ack(out[0])
        await limit(http, {"leases": 3})
        assert len(await take_all(queen)) == 1
        await limit(http, None)
        assert len(await take_all(queen)) == PARTITIONS - 4

    async def test_a_named_partition_is_limited_too(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen)
        await limit(http, {"leases": 1})
        assert len(await queen.pop("q", "p1", consumerGroup="g")) == 1
        assert await queen.pop("q", "p2", consumerGroup="g") == []

    async def test_nothing_is_lost_or_reordered(self, http: httpx.AsyncClient, queen: Queen, other: Queen) -> None:
        await fill(queen, each=6)
        await limit(http, {"leases": 2, "rate": 100000})
        seen: dict[str, list[int]] = {}

        async def consume(server: Queen) -> None:
            while sum(map(len, seen.values())) < PARTITIONS * 6:
                for message in await take(server, batch=2):
                    seen.setdefault(message["partition"], []).append(message["data"])
                    await server.ack(message)

        async with asyncio.timeout(60):
            await asyncio.gather(*(consume(server) for server in (queen, other) * 3))
        assert seen == {f"p{n}": list(range(6)) for n in range(PARTITIONS)}


class TestRate:
    async def test_the_bucket_and_its_refill(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await fill(queen, each=50)
        await limit(http, {"rate": 0.01, "burst": 10})
        assert len(await take_all(queen, batch=4, autoAck="true")) == 10
        await age_buckets(sql, 300)
        assert len(await take_all(queen, batch=4)) == 3
        await age_buckets(sql, 100_000)
        assert len(await take_all(queen, batch=1)) in (PARTITIONS - 1, 9)  # the others are leased
        told = await explain(http)
        assert told["reason"] in ("limited", "leased")

    @pytest.mark.parametrize("burst", [1, 63, 300, 1000])
    async def test_all_servers_go_by_one_bucket(
        self, burst: int, http: httpx.AsyncClient, queen: Queen, other: Queen
    ) -> None:
        await fill(queen, each=250)
        await limit(http, {"rate": 0.001, "burst": burst})
        answers = await asyncio.gather(
            *(take_all(one, batch=40, partitions=3, autoAck="true") for one in (queen, other) * 4)
        )
        rest = await take_all(queen, batch=100, autoAck="true")  # a part of it may have been held for a moment
        assert sum(map(len, answers)) + len(rest) == burst
        told = await explain(http)
        assert "Group 'g' is limited by 0.001 messages a second; next at" in told["explanation"]
        assert (told["reason"], told["deliverable"]) == ("limited", False)

    async def test_of_the_queue_and_of_the_group(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, each=5)
        await limit(http, {"rate": 0.001, "burst": 9}, group=None)
        await limit(http, {"rate": 0.001, "burst": 6}, group="g")
        assert [len(await take_all(queen, group, autoAck="true", batch=2)) for group in ("g", "h")] == [6, 3]

    async def test_merged_pops_share_what_there_is(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, each=5)
        await limit(http, {"rate": 0.001, "burst": 7})
        answers = await asyncio.gather(*(take(queen, batch=5) for _ in range(20)))
        assert sum(map(len, answers)) + len(await take_all(queen)) == 7

    async def test_a_clock_that_was_set_back_does_not_stop_it(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await fill(queen, each=5)
        await limit(http, {"rate": 1, "burst": 5})
        assert len(await take_all(queen, batch=5, autoAck="true")) >= 5
        await age_buckets(sql, -3600)
        assert len(await take(queen, batch=5)) == 5

    async def test_no_part_of_a_second_gets_lost(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        """What is refilled while a pop runs belongs to the next one."""
        await fill(queen)
        await limit(http, {"rate": 1000, "burst": 10})
        async with sql.transaction():
            asked = "SELECT l.* FROM queen.queues q, queen.limits_for(q.id, 'g', 0, 4) l"
            allowed = await sql.fetchrow(versioned(asked))
            used = (allowed["shards"], allowed["tokens"], allowed["queue_shards"], allowed["at"])
            await sql.execute(versioned("SELECT queen.use_limits('g', '{}', 0, $1, $2, $3, $4, '{}', '{}', 4)"), *used)
            bucket = await sql.fetchrow("SELECT tokens, refilled_at FROM queen.limit_tokens")
        assert tuple(bucket) == (6.0, *allowed["at"])

    async def test_with_a_filter(self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
        await fill(queen, each=9, partitions=1)
        answer = await http.post("/api/v1/consumer-groups/g/queues/q/filter", json={"filter": "payload >= 3"})
        assert answer.status_code == 200, answer.text
        await limit(http, {"rate": 0.001, "burst": 2})
        assert data(await take(queen, batch=9, autoAck="true")) == [3, 4]
        assert await take(queen) == []
        await age_buckets(sql, 10_000)
        assert data(await take_all(queen, batch=9, autoAck="true")) == [5, 6]


class TestLongPolls:
    async def test_an_ack_wakes_the_next(self, http: httpx.AsyncClient, queen: Queen, server: Server) -> None:
        await fill(queen)
        await limit(http, {"leases": 1})
        [message] = await take(queen)
        polls = [asyncio.create_task(queen.wait("q", consumerGroup="g")) for _ in range(3)]
        await parked(server, 3)
        for _ in range(3):
            await queen.ack(message)
            [done], _ = await asyncio.wait(polls, return_when="FIRST_COMPLETED", timeout=20)
            polls.remove(done)
            [message] = await done
        assert len(await take_all(queen)) == 0

    async def test_pushes_meanwhile_cost_no_calls(self, http: httpx.AsyncClient, queen: Queen, server: Server) -> None:
        await fill(queen)
        await limit(http, {"leases": 1}, group="g")
        await limit(http, {"rate": 0.001, "burst": 1}, group="h")
        [message], _ = await take(queen), await take(queen, "h")
        polls = [asyncio.create_task(queen.wait("q", consumerGroup=group)) for group in ("g", "h")]
        await parked(server, 2)
        lane = server.broker.lanes["pop"]
        before = lane.requests
        for number in range(50):
            await queen.push("q", f"m{number}", partition=f"x{number}")
        assert lane.requests - before < 40  # else it would be a hundred
        await queen.ack(message)
        assert len(await polls[0]) == 1
        await limit(http, None, group="h")
        assert len(await polls[1]) == 1

    async def test_they_get_what_the_rate_allows(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, each=20)
        await limit(http, {"rate": 200, "burst": 1})
        started = asyncio.get_running_loop().time()
        got = 0
        while got < 60:
            got += len(await queen.wait("q", consumerGroup="g", autoAck="true", batch=10))
        assert asyncio.get_running_loop().time() - started > (got - 1) / 200 - 0.1

    async def test_a_connection_obeys(self, http: httpx.AsyncClient, queen: Queen, server: Server) -> None:
        await fill(queen)
        await limit(http, {"leases": 2})
        async with consuming(server, "q", consumerGroup="g", inFlight=5) as connection:
            first, second = await connection.next_batch(), await connection.next_batch()
            await parked(server)
            assert connection.batches == []
            for _ in range(PARTITIONS - 2):
                assert (await connection.finish(first))["success"]
                first, second = second, await connection.next_batch()


class TestSetting:
    async def test_they_are_shown_and_taken_back(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen)
        assert (await limit(http, {"leases": 2, "rate": 10.5}))["changed"] is True
        assert (await limit(http, {"leases": 2, "rate": 10.5}))["changed"] is False
        [shown] = (await http.get("/api/v1/policies")).json()["policies"]
        assert shown["limits"] == {"leases": 2, "rate": 10.5}
        assert (shown["consumerGroup"], shown["retry"], shown["breaker"]) == ("g", None, None)
        await http.post("/api/v1/policies", json={"queue": "q", "consumerGroup": "g", "retry": {"limit": 5}})
        [shown] = (await http.get("/api/v1/policies")).json()["policies"]
        assert shown["limits"] == {"leases": 2, "rate": 10.5}
        assert shown["retry"] == {"limit": 5}
        assert (await limit(http, None))["changed"] is True
        [shown] = (await http.get("/api/v1/policies")).json()["policies"]
        assert shown["limits"] is None

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"leases": 0},
            {"leases": 1001},
            {"rate": 0},
            {"rate": -1},
            {"rate": 10**7},
            {"burst": 5},
            {"rate": 1, "burst": 0},
            {"concurrency": 5},
            {"leases": "5"},
        ],
    )
    async def test_what_makes_no_sense_is_refused(self, given: Json, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen)
        answer = await http.post("/api/v1/policies", json={"queue": "q", "limits": given})
        assert answer.status_code == 400
        assert "limits" in answer.json()["error"]

    async def test_there_are_not_too_many(self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
        await fill(queen)
        for number in range(10):
            await limit(http, {"leases": 1000}, group=f"g{number}")
        body = {"queue": "q", "consumerGroup": "h", "limits": {"leases": 1}, "retry": {"limit": 3}}
        answer = await http.post("/api/v1/policies", json=body)
        assert answer.status_code == 409, answer.text
        assert "10,000 leases together" in answer.json()["error"]
        assert await sql.fetchval("SELECT count(*) FROM queen.policies") == 0
        await queen.delete_group("g3", deleteMetadata="true")  # which nobody has ever used
        assert (await http.post("/api/v1/policies", json=body)).status_code == 200
        await sql.execute(
            """INSERT INTO queen.policies (queue_id, consumer_group, retry)
               SELECT id, 'x' || n, '{}' FROM queen.queues, generate_series(1, 990) AS n"""
        )
        answer = await http.post("/api/v1/policies", json=body | {"consumerGroup": "i"})
        assert answer.status_code == 409, answer.text
        assert (await http.post("/api/v1/policies", json=body | {"retry": {"limit": 4}})).status_code == 200
        assert (await limit(http, None, group="h"))["changed"] is True

    async def test_they_go_with_their_queue_and_group(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        kept = (
            "SELECT (SELECT count(*) FROM queen.limits) + (SELECT count(*) FROM queen.limit_slots)"
            " + (SELECT count(*) FROM queen.limit_tokens)"
        )
        await fill(queen)
        await limit(http, {"leases": 5, "rate": 1000})
        assert await sql.fetchval(kept) == 1 + 5 + 8
        await queen.delete_group("g", deleteMetadata="true")
        assert await sql.fetchval(kept) == 0
        assert await sql.fetchval("SELECT has_limits FROM queen.queues WHERE name = 'q'") is False
        await limit(http, {"leases": 5, "rate": 1000}, group=None)
        await queen.delete_queue("q")
        assert await sql.fetchval(kept) == 0
