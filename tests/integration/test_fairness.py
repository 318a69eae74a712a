"""Fairness: keys made of the names of partitions take turns, however many partitions each has."""

from __future__ import annotations

import asyncio
from collections import Counter
from statistics import median
from typing import Any

import asyncpg
import httpx
import pytest
from many_partitions import buffers
from many_partitions import fill as fill_by_sql

from integration.queen import Json, Queen, another_server
from queenmq.broker import fairness
from queenmq.config import Settings
from queenmq.core.fairness import Turns
from queenmq.errors import DatabaseUnavailable
from queenmq.ids import uuid7
from queenmq.server import Server
from queenmq.storage.statements import statement, versioned

RULE = {"separator": ":"}


async def fair(http: httpx.AsyncClient, rule: Json | None = RULE, queue: str = "q") -> Json:
    answer = await http.post("/api/v1/policies", json={"queue": queue, "fairness": rule})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def fill(queen: Queen, each: int = 1, **tenants: int) -> None:
    """So many partitions for each tenant, in this order, with `each` messages."""
    for tenant, partitions in tenants.items():
        items = [
            {"queue": "q", "partition": f"{tenant}:{n}", "payload": m} for n in range(partitions) for m in range(each)
        ]
        for first in range(0, len(items), 1000):
            await queen.push_items(*items[first : first + 1000])


async def look(server: Server, group: str = "g") -> None:
    """Return when the server knows which keys are ready."""
    turns = server.broker.policies.fairness
    turns._looks += 1
    await turns._look("q", group, turns._places["q", group])


async def take(queen: Queen, **params: Any) -> list[Json]:
    return await queen.pop("q", consumerGroup="g", **params)


def tenants(messages: list[Json]) -> Counter[str]:
    return Counter(message["partition"].partition(":")[0] for message in messages)


async def test_messages_are_delivered_though_turns_cannot_be_counted(
    http: httpx.AsyncClient, queen: Queen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are finished by then: what is not delivered now is lost."""
    await fill(queen, a=1, b=1)
    await fair(http)
    monkeypatch.setattr(Turns, "got", lambda *_: 1 / 0)
    got = [message for _ in range(2) for message in await take(queen, autoAck="true")]
    assert tenants(got) == {"a": 1, "b": 1}


class TestShares:
    async def test_many_partitions_do_not_get_many_turns(
        self, http: httpx.AsyncClient, queen: Queen, server: Server
    ) -> None:
        await fill(queen, big=300)
        await fill(queen, each=20, small=10)
        await fair(http)
        assert tenants(await take(queen)) == {"big": 1}  # the first one does not know the keys yet
        await look(server)
        got: list[Json] = []
        while len(got) < 200:
            batch = await take(queen)
            got += batch
            await queen.ack_batch(batch)
        shares = tenants(got)
        assert 90 <= shares["small"] <= 110

    async def test_pops_that_are_merged(self, http: httpx.AsyncClient, queen: Queen, server: Server) -> None:
        await fill(queen, big=100, small=10)
        await fair(http)
        await take(queen)
        await look(server)
        answers = await asyncio.gather(*(take(queen) for _ in range(16)))
        assert tenants([message for answer in answers for message in answer])["small"] in (7, 8, 9)

    async def test_keys_of_one_partition_have_their_turns_in_merged_pops(
        self, http: httpx.AsyncClient, queen: Queen, server: Server
    ) -> None:
        await fill(queen, big=100)
        await fill(queen, each=20, **{f"small{n}": 1 for n in range(16)})
        await fair(http)
        await take(queen)
        await look(server)
        got: Counter[str] = Counter()
        for _ in range(6):
            answers = await asyncio.gather(*(take(queen) for _ in range(16)))
            batch = [message for answer in answers for message in answer]
            got += tenants(batch)
            await queen.ack_batch(batch)
            await look(server)
        assert got["big"] <= 18, got

    async def test_weights(self, http: httpx.AsyncClient, queen: Queen, server: Server) -> None:
        await fill(queen, a=60, b=60)
        await fair(http, RULE | {"weights": {"b": 3}})
        await take(queen)
        await look(server)
        got = [message for _ in range(40) for message in await take(queen)]
        assert 28 <= tenants(got)["b"] <= 32

    async def test_takes_and_connections_share_too(self, http: httpx.AsyncClient, queen: Queen, server: Server) -> None:
        await fill(queen, a=60, b=60)
        await fair(http)
        [message] = await take(queen)
        await look(server)
        got = []
        for _ in range(40):
            taken = await queen.take(message["leaseId"], "q", consumerGroup="g")
            [message] = taken["taken"]["messages"]
            got.append(message)
        assert 18 <= tenants(got)["b"] <= 22

    async def test_nothing_is_held_back_for_anybody(
        self, http: httpx.AsyncClient, queen: Queen, server: Server
    ) -> None:
        await fill(queen, a=30, b=2)
        await queen.push("q", "plain")  # its key is its name
        await fair(http)
        await take(queen)
        await look(server)
        answers = await asyncio.gather(*(take(queen, batch=2, partitions=2) for _ in range(20)))
        got = [message for answer in answers for message in answer]
        while more := await take(queen, partitions=3, batch=10):
            got += more
        assert tenants(got) == {"a": 29, "b": 2, "Default": 1}

    async def test_order_within_a_partition(self, http: httpx.AsyncClient, queen: Queen, server: Server) -> None:
        await fill(queen, each=5, a=3, b=1)
        await fair(http)
        seen: dict[str, list[int]] = {}
        for _ in range(20):
            [message] = await take(queen)
            seen.setdefault(message["partition"], []).append(message["data"])
            await queen.ack(message)
            await look(server)
        assert seen == {name: list(range(5)) for name in ("a:0", "a:1", "a:2", "b:0")}

    async def test_a_group_that_comes_later_and_new_partitions(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await fill(queen, a=2)
        await fair(http)
        await take(queen)
        await fill(queen, b=2)
        keys = "SELECT fair_key FROM queen.partition_consumers ORDER BY fair_key"
        assert [row[0] for row in await sql.fetch(keys)] == ["a", "a", "b", "b"]


async def test_what_a_pop_reads(sql: asyncpg.Connection) -> None:
    """A key is found among many partitions without reading those of others, and costs little more than any."""
    await fill_by_sql(sql, "q", 3000)
    await sql.execute(versioned("SELECT queen.subscribe('q', NULL, 'g', 'all', NULL)"))
    await sql.execute("UPDATE queen.queues SET fair_separator = '0'")
    await sql.execute(
        """UPDATE queen.partition_consumers c SET fair_key = CASE WHEN p.name LIKE '%00' THEN 'few' ELSE 'many' END
           FROM queen.partitions p WHERE p.id = c.partition_id"""
    )
    await sql.execute("VACUUM ANALYZE queen.partition_consumers")

    async def read(name: str, *keys: list[str]) -> int:
        asked = (["q"] * 4, [None] * 4, ["g"] * 4, [1] * 4, [1] * 4, [False] * 4, [str(uuid7()) for _ in range(4)])
        return await buffers(sql, statement(name), *asked, 2**24, 2**25, "1s", *keys)

    plain = [await read("pop_leased") for _ in range(8)]
    fair = [await read("pop_leased_fair", ["few", "many", "few", "many"]) for _ in range(8)]
    assert median(fair) < 1.25 * median(plain)
    ready = await buffers(sql, statement("fair_keys_ready"), "q", "g", 100, "", 4)
    assert ready < 60, "PostgreSQL 16 reads ten more than 14 and 18"


class TestSetting:
    async def test_shown_changed_and_taken_back(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await fill(queen, a=3)
        await take(queen)
        keys = "SELECT DISTINCT fair_key FROM queen.partition_consumers"
        assert (await fair(http))["changed"] is True
        assert (await fair(http))["changed"] is False
        assert [row[0] for row in await sql.fetch(keys)] == ["a"]
        [shown] = (await http.get("/api/v1/policies")).json()["policies"]
        assert (shown["fairness"], shown["limits"], shown["consumerGroup"]) == (RULE, None, None)
        await fair(http, {"separator": "a"})
        assert [row[0] for row in await sql.fetch(keys)] == [""]
        await fair(http, None)
        assert [row[0] for row in await sql.fetch(keys)] == [None]
        assert (await http.get("/api/v1/policies")).json() == {"policies": []}
        assert await sql.fetchval("SELECT count(*) FROM queen.fairness") == 0

    async def test_rows_that_somebody_holds_follow_later(
        self, http: httpx.AsyncClient, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        await fill(queen, a=3)
        await take(queen)
        async with sql.transaction():
            await sql.execute("SELECT 1 FROM queen.partition_consumers LIMIT 1 FOR UPDATE")
            await fair(http)
            assert await sql.fetchval("SELECT filled FROM queen.fairness") is False
        await server.broker.refresh()
        assert await sql.fetchval("SELECT filled FROM queen.fairness") is True
        assert await sql.fetchval("SELECT count(*) FROM queen.partition_consumers WHERE fair_key = 'a'") == 3

    async def test_a_separator_that_was_filled_meanwhile_is_not_the_one_that_counts(
        self, http: httpx.AsyncClient, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        await fill(queen, a=3)
        await take(queen)
        await fair(http)
        await sql.execute("UPDATE queen.queues SET fair_separator = '0'")
        await sql.execute("UPDATE queen.fairness SET filled = false")
        await server.broker.policies.fairness._fill("q", ":")  # by a server that has not heard of it
        assert await sql.fetchval("SELECT filled FROM queen.fairness") is False
        await server.broker.refresh()
        assert await sql.fetchval("SELECT filled FROM queen.fairness") is True
        keys = "SELECT fair_key FROM queen.partition_consumers ORDER BY 1"
        assert [row[0] for row in await sql.fetch(keys)] == ["a:", "a:1", "a:2"]

    async def test_all_parts_are_set_or_none(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await fill(queen, a=1)
        body = {"queue": "q", "fairness": RULE, "retry": {"limit": 3}, "limits": {"leases": 2}}
        assert (await http.post("/api/v1/policies", json=body)).json()["changed"] is True
        [shown] = (await http.get("/api/v1/policies")).json()["policies"]
        assert {part: shown[part] for part in ("fairness", "retry", "limits")} == {
            part: body[part] for part in ("fairness", "retry", "limits")
        }
        by = "SELECT xmin::text FROM queen.limits UNION SELECT xmin::text FROM queen.policies"
        assert len(await sql.fetch(by)) == 1

    async def test_many_changes_are_read_at_once(
        self, http: httpx.AsyncClient, queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await fill(queen, a=1)
        await fair(http)
        turns, calls = server.broker.policies.fairness, 0
        fetch = turns._database.fetch

        async def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += arguments[0] == statement("fair_queues")
            return await fetch(*arguments, **options)

        monkeypatch.setattr(turns._database, "fetch", counted)
        for _ in range(100):
            turns.changed_elsewhere("q", ":")
        await asyncio.gather(*turns._tasks, *(turns._read() for _ in range(100)))
        assert calls <= 3

    async def test_a_look_that_fails_leaves_nothing_to_prefer(
        self, http: httpx.AsyncClient, queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await fill(queen, a=3, b=3)
        await fair(http)
        await take(queen)
        await look(server)
        turns = server.broker.policies.fairness
        await asyncio.gather(*turns._tasks)
        place = turns._places["q", "g"]
        assert set(place.turns.ready) == {"a", "b"}

        async def fails(*_: Any, **__: Any) -> Any:
            raise DatabaseUnavailable

        with monkeypatch.context() as broken:
            broken.setattr(turns._database, "fetch", fails)
            with pytest.raises(DatabaseUnavailable):
                await look(server)
        assert not place.turns.ready
        assert len(await take(queen)) == 1

    async def test_another_server_follows(
        self, http: httpx.AsyncClient, queen: Queen, settings: Settings, database_url: str
    ) -> None:
        await fill(queen, a=500, b=3)
        await fair(http)
        async with another_server(settings, database_url) as other:
            got = await other.pop("q", consumerGroup="g")
            while not tenants(got)["b"]:
                got += await other.pop("q", consumerGroup="g")
        assert len(got) < 500

    async def test_many_keys_are_examined_in_parts(
        self, http: httpx.AsyncClient, queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fairness, "_MOST_KEYS", 3)
        await fill(queen, a=1, b=1, c=1, d=1, e=1)
        await fair(http)
        await take(queen)
        seen = []
        for _ in range(4):
            await look(server)
            seen.append(set(server.broker.policies.fairness._places["q", "g"].turns.ready))
        assert set.union(*seen) == set("bcde")
        assert max(map(len, seen)) <= 3

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"separator": ""},
            {"separator": "x" * 17},
            {"separator": ":", "weights": {"a": 0}},
            {"separator": ":", "weights": {"a:b": 1}},
            {"separator": ":", "fairnessKey": "a"},
        ],
    )
    async def test_what_makes_no_sense_is_refused(self, given: Json, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, a=1)
        answer = await http.post("/api/v1/policies", json={"queue": "q", "fairness": given})
        assert answer.status_code == 400, answer.text
        assert "fairness" in answer.json()["error"]

    async def test_a_key_of_a_message_is_refused(self, queen: Queen) -> None:
        item = {"queue": "q", "payload": 1, "fairnessKey": "a"}
        error = (await queen.refused("/api/v1/push", {"items": [item]}))["error"]
        assert "fairnessKey is not supported: push to a partition with the key in its name" in error

    async def test_it_is_of_a_queue(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, a=1)
        body = {"queue": "q", "consumerGroup": "g", "fairness": RULE}
        assert "of a queue" in (await queen.refused("/api/v1/policies", body))["error"]
        answer = await http.post("/api/v1/policies", json={"queue": "nowhere", "fairness": RULE})
        assert answer.status_code == 404
