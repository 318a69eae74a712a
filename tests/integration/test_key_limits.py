"""Limits of keys: how much the partitions whose names begin alike get at once and in a second, on all servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from statistics import median
from typing import Any

import asyncpg
import httpx
import pytest
from many_partitions import buffers
from many_partitions import fill as fill_by_sql

from integration.queen import Json, Queen, another_server, expire_leases, parked
from queenmq.broker.pop import Claim
from queenmq.config import Settings
from queenmq.core.names import BEGINNING
from queenmq.ids import uuid7
from queenmq.server import Server
from queenmq.storage.statements import statement, versioned

RULE = {"separator": ":"}


async def limit(http: httpx.AsyncClient, per_key: Json | None, group: str | None = None, **others: Any) -> Json:
    body: Json = {"queue": "q", "consumerGroup": group, "limits": None if per_key is None else {"perKey": per_key}}
    if group is None:
        body |= {"fairness": RULE}
    answer = await http.post("/api/v1/policies", json=body | others)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def fill(queen: Queen, each: int = 1, **keys: int) -> None:
    """So many partitions for each key, in this order, with `each` messages."""
    for key, partitions in keys.items():
        items = [
            {"queue": "q", "partition": f"{key}:{n}", "payload": m} for n in range(partitions) for m in range(each)
        ]
        await queen.push_items(*items)


async def take(queen: Queen, group: str = "g", **params: Any) -> list[Json]:
    return await queen.pop("q", consumerGroup=group, **params)


async def take_all(queen: Queen, group: str = "g", **params: Any) -> list[Json]:
    """Pop until nothing comes, twice: what another pop holds for a moment comes then."""
    got: list[Json] = []
    missed = 0
    while missed < 2:
        more = await take(queen, group, **params)
        missed = 0 if more else missed + 1
        got += more
    return got


async def look(server: Server, group: str = "g") -> None:
    """Return when the server knows which keys are ready."""
    turns = server.broker.policies.fairness
    await asyncio.gather(*turns._tasks)
    turns._looks += 1
    await turns._look("q", group, turns._places["q", group])


def keys(messages: list[Json]) -> Counter[str]:
    return Counter(message["partition"].partition(":")[0] for message in messages)


@pytest.fixture
async def other(settings: Settings, database_url: str) -> AsyncIterator[Queen]:
    async with another_server(settings, database_url) as other:
        yield other


class TestLeases:
    async def test_no_more_are_open_at_once(self, http: httpx.AsyncClient, queen: Queen, other: Queen) -> None:
        await fill(queen, a=8, b=8, c=1)
        await limit(http, {"leases": 2})
        answers = await asyncio.gather(*(take(one) for one in (queen, other) * 10))
        got = [message for answer in answers for message in answer] + await take_all(queen)
        assert keys(got) == {"a": 2, "b": 2, "c": 1}
        [first, *_] = [message for message in got if message["partition"].startswith("a:")]
        await queen.ack(first)
        assert keys(await take_all(other)) == {"a": 1}

    async def test_a_full_key_does_not_keep_others_waiting(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, a=300)
        await fill(queen, b=2, c=1, d=1)
        await limit(http, {"leases": 1})
        got = [await take(queen) for _ in range(4)]  # one after the other, the first of them before anything is known
        assert keys([message for answer in got for message in answer]) == {"a": 1, "b": 1, "c": 1, "d": 1}
        assert await take(queen) == []

    async def test_many_full_keys_do_not_keep_others_waiting(self, http: httpx.AsyncClient, queen: Queen) -> None:
        """More than a pop tries one after the other, all before the key that has something."""
        await fill(queen, **{f"a{number:03}": 2 for number in range(210)})
        await limit(http, {"leases": 1})
        full: list[Json] = []
        for _ in range(30):  # the last ones come one by one; a pop that does not wait may try full keys only
            if len(full) < 210:
                full += await take(queen, batch=1000, partitions=1000, wait=True, timeout=5_000)
        assert len(full) == 210
        await fill(queen, z=1)
        for _ in range(3):
            if found := await queen.pop("q", consumerGroup="g", wait=True, timeout=5_000):
                break
        assert keys(found) == {"z": 1}

    async def test_a_row_without_its_key_comes_when_that_is_written(
        self, http: httpx.AsyncClient, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        """Until then, pops that find a full key pass it over, because they go from key to key."""
        await fill(queen, a=20, b=1)
        await take(queen)
        async with sql.transaction():
            row = "partition_id = (SELECT id FROM queen.partitions WHERE name = 'b:0') AND consumer_group = 'g'"
            await sql.execute(f"SELECT 1 FROM queen.partition_consumers WHERE {row} FOR UPDATE")
            await limit(http, {"leases": 1})
            assert await sql.fetchval(f"SELECT fair_key FROM queen.partition_consumers WHERE {row}") is None
        assert await take_all(queen) == []
        await server.broker.refresh()
        assert keys(await take_all(queen)) == {"b": 1}

    async def test_a_batch_of_several_partitions(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, each=2, a=5, b=1)
        await limit(http, {"leases": 3})
        got = await take(queen, batch=100, partitions=100)
        assert Counter(message["partition"].partition(":")[0] for message in got) == {"a": 6, "b": 2}

    @pytest.mark.parametrize("how", ["finish", "take", "expiry", "seek", "group"])
    async def test_however_a_lease_ends(
        self, how: str, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await fill(queen, a=3)
        await limit(http, {"leases": 1})
        [message] = await take(queen)
        assert await take_all(queen) == []
        match how:
            case "finish":
                await queen.finish(message["leaseId"])
            case "take":
                taken = await queen.take(message["leaseId"], "q", consumerGroup="g")
                assert keys(taken["taken"]["messages"]) == {"a": 1}
                await queen.finish(taken["taken"]["messages"][0]["leaseId"])
            case "expiry":
                await expire_leases(sql)
            case "seek":
                await queen.seek("g", "q", timestamp="2020-01-01T00:00:00Z")
            case "group":
                await queen.delete_group("g", "q", deleteMetadata="false")
        assert len(await take_all(queen)) == 1

    async def test_many_leases_of_a_key_one_after_the_other(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await fill(queen, a=80)
        await limit(http, {"leases": 20})
        for _ in range(60):
            [message] = await take(queen)
            await queen.ack(message)
        kept = "SELECT cardinality(partitions) FROM queen.limit_keys ORDER BY generation DESC LIMIT 1"
        assert await sql.fetchval(kept) <= 20
        assert len(await take_all(queen)) == 20

    async def test_of_all_groups_together_and_of_one(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, a=8, b=8)
        await limit(http, {"leases": 3})
        await limit(http, {"leases": 2}, group="h")
        assert [keys(await take_all(queen, group)) for group in ("h", "g", "i")] == [
            {"a": 2, "b": 2},
            {"a": 1, "b": 1},
            {},
        ]

    async def test_beside_a_limit_of_the_group(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, a=8, b=8)
        await limit(http, None)
        await limit(http, None, group="g", limits={"leases": 3, "perKey": {"leases": 2}})
        assert sorted(keys(await take_all(queen)).values()) == [1, 2]

    async def test_a_named_partition_goes_by_its_key(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, a=2, b=1)
        await limit(http, {"leases": 1})
        assert [len(await queen.pop("q", name, consumerGroup="g")) for name in ("a:1", "a:0", "b:0")] == [1, 0, 1]

    async def test_leases_that_are_out_count(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, a=6, b=3)
        out = await take(queen, batch=3, partitions=3)
        assert keys(out) == {"a": 3}
        await limit(http, {"leases": 3})
        assert keys(await take_all(queen)) == {"b": 3}
        await limit(http, {"leases": 4}, fairness={"separator": ":", "weights": {"a": 2}})
        assert keys(await take_all(queen)) == {"a": 1}
        await limit(http, {"leases": 7}, fairness={"separator": "x"})  # each partition is a key
        assert keys(await take_all(queen)) == {"a": 2}

    async def test_nothing_is_lost_or_reordered(self, http: httpx.AsyncClient, queen: Queen, other: Queen) -> None:
        await fill(queen, each=6, a=5, b=2, c=1)
        await limit(http, {"leases": 2, "rate": 10_000})
        seen: dict[str, list[int]] = {}

        async def consume(server: Queen) -> None:
            while sum(map(len, seen.values())) < 48:
                for message in await take(server, batch=2):
                    seen.setdefault(message["partition"], []).append(message["data"])
                    await server.ack(message)

        async with asyncio.timeout(60):
            await asyncio.gather(*(consume(server) for server in (queen, other) * 3))
        assert seen == {
            f"{key}:{n}": list(range(6)) for key, count in (("a", 5), ("b", 2), ("c", 1)) for n in range(count)
        }


class TestRate:
    async def test_each_key_has_its_bucket(self, http: httpx.AsyncClient, queen: Queen, other: Queen) -> None:
        await fill(queen, each=20, a=4, b=4, c=1)
        await limit(http, {"rate": 0.001, "burst": 7})
        answers = await asyncio.gather(*(take_all(one, batch=3, autoAck="true") for one in (queen, other) * 2))
        got = [message for answer in answers for message in answer] + await take_all(queen, autoAck="true")
        assert keys(got) == {"a": 7, "b": 7, "c": 7}
        told = (await http.get("/api/v1/explain/q", params={"consumerGroup": "g"})).json()
        assert (told["reason"], told["deliverable"]) == ("limited", False)
        assert "of the queue is limited by 0.001 messages a second; next at" in told["explanation"]

    async def test_a_key_that_has_little_left_does_not_shorten_the_batches_of_others(
        self, http: httpx.AsyncClient, queen: Queen
    ) -> None:
        await fill(queen, each=10, a=1, b=1)
        await limit(http, {"rate": 0.001, "burst": 11})
        await queen.ack_batch(await queen.pop("q", "a:0", consumerGroup="g", batch=9))
        assert keys(await take(queen, batch=100, partitions=2)) == {"a": 1, "b": 10}
        merged = await asyncio.gather(*(take(queen, "h", batch=10) for _ in range(4)))
        assert sorted(len(messages) for messages in merged) == [0, 0, 1, 1]

    async def test_it_refills(self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
        await fill(queen, each=20, a=1)
        await limit(http, {"rate": 0.01, "burst": 5})
        assert len(await take_all(queen, batch=10, autoAck="true")) == 5
        await sql.execute("UPDATE queen.limit_keys SET refilled_at = refilled_at - interval '350 seconds'")
        assert len(await take_all(queen, batch=10, autoAck="true")) == 3
        await sql.execute("UPDATE queen.limit_keys SET refilled_at = refilled_at - interval '51 seconds'")
        assert len(await take_all(queen, batch=10, autoAck="true")) == 1

    async def test_what_is_not_delivered_is_not_counted(self, http: httpx.AsyncClient, queen: Queen) -> None:
        """Batches that are not filled, and messages that a filter keeps from the group."""
        await fill(queen, each=3, a=4)
        answer = await http.post("/api/v1/consumer-groups/g/queues/q/filter", json={"filter": "payload >= 2"})
        assert answer.status_code == 200, answer.text
        await queen.push("q", 0, partition="a:9")
        await limit(http, {"rate": 0.001, "burst": 4})
        assert len(await take_all(queen, batch=10)) == 4
        await limit(http, {"rate": 0.001, "burst": 12})
        assert len(await take_all(queen, "h", batch=100)) == 12

    async def test_long_polls_get_what_it_allows(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, each=40, a=2, b=1)
        await limit(http, {"rate": 100, "burst": 1})
        started, got = asyncio.get_running_loop().time(), Counter[str]()
        while got.total() < 60:
            got += keys(await queen.wait("q", consumerGroup="g", autoAck="true", batch=10))
        assert asyncio.get_running_loop().time() - started > (max(got.values()) - 1) / 100 - 0.1


class TestWaiting:
    async def test_an_ack_wakes_whoever_waits_for_the_key(
        self, http: httpx.AsyncClient, queen: Queen, server: Server
    ) -> None:
        await fill(queen, a=2, b=1)
        await limit(http, {"leases": 1})
        [message] = await queen.pop("q", "a:0", consumerGroup="g")
        [another] = await queen.pop("q", "b:0", consumerGroup="g")
        by_name = asyncio.create_task(queen.wait("q", "a:1", consumerGroup="g"))
        await parked(server)
        await queen.ack(another)  # of another key
        await queen.ack(message)
        [message] = await by_name
        of_any = asyncio.create_task(queen.wait("q", consumerGroup="g"))
        await fill(queen, a=1)
        await parked(server)
        await queen.ack(message)
        assert keys(await of_any) == {"a": 1}

    async def test_pushes_to_a_full_key_cost_no_calls_and_others_wake(
        self, http: httpx.AsyncClient, queen: Queen, server: Server
    ) -> None:
        await fill(queen, each=100, a=2, b=1)
        await limit(http, {"rate": 0.001, "burst": 1})
        assert len(await take_all(queen, autoAck="true")) == 2
        turns = server.broker.policies.fairness
        turns._looks += 1
        await turns._look("q", "g", turns._places["q", "g"])
        poll = asyncio.create_task(queen.wait("q", consumerGroup="g"))
        await parked(server)
        lane = server.broker.lanes["pop"]
        before = lane.requests
        for number in range(50):
            await queen.push("q", f"m{number}", partition="a:0")
        assert lane.requests - before < 30
        await queen.push("q", "another", partition="c:0")
        assert keys(await poll) == {"c": 1}

    async def test_a_key_comes_back_as_soon_as_a_lease_ends(
        self, http: httpx.AsyncClient, queen: Queen, server: Server
    ) -> None:
        """While others have more than enough, too."""
        await fill(queen, each=40, a=3, b=40)
        await limit(http, {"leases": 1}, limits={"perKey": {"leases": 30}})
        await limit(http, {"leases": 1}, group="g")
        got, out = Counter[str](), await take_all(queen)
        for _ in range(60):
            for message in out:
                await queen.ack(message)
            got += keys(out)
            out = [*await take(queen), *await take(queen)]
        assert got["a"] > 40


class TestCompany:
    async def test_pops_of_one_key_do_not_miss_each_other(
        self, http: httpx.AsyncClient, queen: Queen, server: Server
    ) -> None:
        """The row of the key is held by one call at a time: who comes meanwhile goes with the next one."""
        await fill(queen, each=100, a=10)
        await limit(http, {"rate": 1_000_000})
        await take(queen, autoAck=True)
        await look(server)
        lane = server.broker._popper.lane
        for _ in range(20):
            answers = await asyncio.gather(*(take(queen, autoAck=True) for _ in range(24)))
            assert [len(answer) for answer in answers] == [1] * 24
        assert lane.calls > 20

    async def test_only_queues_with_few_keys_that_are_limited_are_popped_by_one_call_at_a_time(
        self, http: httpx.AsyncClient, queen: Queen, server: Server
    ) -> None:
        few = server.broker.policies.fairness.one_at_a_time
        await fill(queen, each=5, a=1, b=1)
        await limit(http, {"rate": 1_000_000})
        await take(queen)
        await look(server)
        assert set(few) == {"q"}
        await fill(queen, each=5, **{f"k{number}": 1 for number in range(10)})
        await look(server)
        assert not few
        await queen.drain("q", consumerGroup="g", batch=100, partitions=100)
        await look(server)
        assert set(few) == {"q"}
        await limit(http, None)
        await take(queen)
        await look(server)
        assert not few

    async def test_a_group_that_pops_no_more_does_not_keep_others_to_one_call(
        self, http: httpx.AsyncClient, queen: Queen, server: Server
    ) -> None:
        fairness = server.broker.policies.fairness
        await fill(queen, **{f"k{number}": 1 for number in range(10)})
        await limit(http, {"rate": 1_000_000})
        await take(queen)
        await look(server)
        await queen.drain("q", consumerGroup="g", batch=100, partitions=100)
        await look(server)
        await queen.pop("q", consumerGroup="other")
        await look(server, "other")
        assert fairness.one_at_a_time == {"q": {"g"}}
        fairness._places["q", "g"].look_at -= 60
        await look(server, "other")
        assert not fairness.one_at_a_time

    async def test_what_is_popped_together_uses_few_keys(
        self, http: httpx.AsyncClient, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        """And the keys get their shares."""
        await fill(queen, **{f"k{number}": 40 for number in range(10)})
        await limit(http, {"leases": 100})
        await take(queen)
        await look(server)
        got: list[Json] = []
        while await sql.fetchval("SELECT count(*) FROM queen.limit_keys") < 10:
            got += await take(queen)
        changes = "SELECT sum(generation) FROM queen.limit_keys"
        before = await sql.fetchval(changes)
        alone = len(got)
        for _ in range(10):
            claims = [
                Claim(queue="q", partition=None, group="g", batch=1, partitions=1, auto_ack=False, start=BEGINNING)
                for _ in range(16)
            ]
            for answer in await asyncio.gather(*map(server.broker.pop, claims)):
                got += [{"partition": run.partition} for run in answer.runs]
        assert len(got) == 160 + alone
        assert await sql.fetchval(changes) - before <= 70, "each of them would be a change of its own"
        assert max(keys(got).values()) - min(keys(got).values()) <= 8

    async def test_a_key_with_little_room_is_not_asked_for_more(
        self, http: httpx.AsyncClient, queen: Queen, server: Server
    ) -> None:
        await fill(queen, **{f"k{number}": 5 for number in range(10)})
        await limit(http, {"leases": 1})
        await take(queen)
        await look(server)
        answers = await asyncio.gather(*(take(queen) for _ in range(20)))
        got = [message for answer in answers for message in answer] + await take_all(queen)
        assert keys(got) == {f"k{number}": 1 for number in range(1, 10)}, "k0 has its lease"


async def test_what_a_pop_reads(sql: asyncpg.Connection) -> None:
    """However many partitions of full keys have waited longer."""
    await fill_by_sql(sql, "q", 3000)
    await sql.execute(versioned("SELECT queen.subscribe('q', NULL, 'g', 'all', NULL)"))
    await sql.execute("UPDATE queen.queues SET fair_separator = '0'")
    await sql.execute(
        """UPDATE queen.partition_consumers c SET fair_key = CASE WHEN p.name LIKE '%00' THEN 'few' ELSE 'many' END
           FROM queen.partitions p WHERE p.id = c.partition_id"""
    )
    await sql.execute(
        "UPDATE queen.partitions SET name = CASE WHEN name LIKE '%00' THEN 'few0' ELSE 'many0' END || name"
    )
    await sql.execute(
        "UPDATE queen.partition_consumers SET ready_at = ready_at - interval '1 minute' WHERE fair_key = 'many'"
    )
    await sql.execute("VACUUM ANALYZE queen.partition_consumers, queen.partitions")

    async def read() -> int:
        asked = (["q"] * 4, [None] * 4, ["g"] * 4, [1] * 4, [1] * 4, [False] * 4, [str(uuid7()) for _ in range(4)])
        return await buffers(sql, statement("pop_leased"), *asked, 2**24, 2**25, "1s")

    plain = [await read() for _ in range(4)]
    id = await sql.fetchval("SELECT id FROM queen.queues WHERE name = 'q'")
    await sql.execute(versioned("SELECT queen.set_limits($1, '', NULL, '{}', NULL, NULL, NULL, 20, 1000, 1000)"), id)
    limited = [await read() for _ in range(5)]
    assert await sql.fetchval("SELECT count(*) FROM queen.partition_consumers WHERE lease_id IS NOT NULL") > 30
    assert median(limited) < median(plain) + 300  # the leases that live are looked up, and no partition that is left


async def test_what_a_pop_reads_of_two_limits(sql: asyncpg.Connection) -> None:
    """The leases of a key are not examined by each pop, also if the queue and the group limit them."""
    await fill_by_sql(sql, "q", 1000)
    await sql.execute(versioned("SELECT queen.subscribe('q', NULL, 'g', 'all', NULL)"))
    await sql.execute("UPDATE queen.queues SET fair_separator = '0'")
    await sql.execute("UPDATE queen.partition_consumers SET fair_key = 'k'")
    await sql.execute("UPDATE queen.partitions SET name = 'k0' || name")
    await sql.execute("VACUUM ANALYZE queen.partition_consumers, queen.partitions")

    async def read(count: int) -> int:
        asked = (["q"] * count, [None] * count, ["g"] * count, [1] * count, [1] * count, [False] * count)
        leases = [str(uuid7()) for _ in range(count)]
        return await buffers(sql, statement("pop_leased"), *asked, leases, 2**24, 2**25, "1s")

    id = await sql.fetchval("SELECT id FROM queen.queues WHERE name = 'q'")
    set_limit = versioned("SELECT queen.set_limits($1, $2, NULL, '{}', NULL, NULL, NULL, 1000, NULL, NULL)")
    await sql.execute(set_limit, id, "")
    await read(150)
    one = [await read(1) for _ in range(9)]
    await sql.execute(set_limit, id, "g")
    two = [await read(1) for _ in range(9)]
    assert median(two) < median(one) + 100


class TestSetting:
    async def test_they_need_keys(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, a=1)

        async def answered(**parts: Any) -> tuple[int, str]:
            answer = await http.post("/api/v1/policies", json={"queue": "q", **parts})
            return answer.status_code, answer.json().get("error", "")

        limits = {"perKey": {"leases": 1}}
        status, error = await answered(limits=limits)
        assert status == 409
        assert "limits perKey need fairness" in error
        assert (await answered(limits=limits, fairness=RULE))[0] == 200
        assert (await answered(limits={"leases": 5}, consumerGroup="g"))[0] == 200
        status, error = await answered(fairness=None)
        assert status == 409
        assert "take these limits back as well" in error
        [shown, _] = (await http.get("/api/v1/policies")).json()["policies"]
        assert (shown["limits"], shown["fairness"]) == (limits, RULE)
        assert (await answered(limits=None, fairness=None))[0] == 200

    @pytest.mark.parametrize(
        "given", [{}, {"leases": 0}, {"leases": 101}, {"rate": 0}, {"burst": 3}, {"leases": 1, "perKey": {}}]
    )
    async def test_what_makes_no_sense_is_refused(self, given: Json, http: httpx.AsyncClient, queen: Queen) -> None:
        await fill(queen, a=1)
        body = {"queue": "q", "limits": {"perKey": given}, "fairness": RULE}
        answer = await http.post("/api/v1/policies", json=body)
        assert answer.status_code == 400
        assert "perKey" in answer.json()["error"]

    async def test_they_go_with_their_queue_and_group(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        kept = "SELECT count(*) FROM queen.limit_keys"
        await fill(queen, a=2, b=2)
        await limit(http, {"leases": 2})
        await limit(http, {"rate": 5}, group="g")
        await take_all(queen)
        assert await sql.fetchval(kept) == 4
        await queen.delete_group("g", deleteMetadata="true")
        assert await sql.fetchval(kept) == 2
        await queen.delete_queue("q")
        assert await sql.fetchval(kept) == 0

    async def test_keys_that_are_not_used_any_more_are_forgotten(
        self, http: httpx.AsyncClient, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        await fill(queen, a=1, b=1, c=1)
        await limit(http, {"leases": 2, "rate": 1})
        for message in await take_all(queen):
            if not message["partition"].startswith("c:"):
                await queen.ack(message)
        await sql.execute("UPDATE queen.limit_keys SET refilled_at = refilled_at - interval '2 hours' WHERE key <> 'b'")
        server.broker.policies.fairness._forget_at = 0.0
        await server.broker.policies.fairness.refresh()
        left = await sql.fetch("SELECT key FROM queen.limit_keys ORDER BY key")
        assert [row["key"] for row in left] == ["b", "c"]  # one was used not long ago, and the other has a lease
