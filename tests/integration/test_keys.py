"""Values under keys, counters and locks: conditions, expiry, fencing, and all of them in transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from server_settings import settings_with

from integration.queen import Queen, ack_op, another_server, push_op
from queenmq.reports import keys
from queenmq.reports.reading import Reader
from queenmq.server import Server
from queenmq.storage.failures import AnswerLost

Json = dict[str, Any]
HOUR = {"ttlSeconds": 3600}


async def kv(queen: Queen, *operations: Json) -> list[Json]:
    answer = await queen.http.post("/api/v1/kv", json={"operations": operations})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


async def put(queen: Queen, key: str, value: Any, **fields: Any) -> Json:
    operation = (
        {"op": "put", "ns": "n", "key": key, "value": value} | (HOUR if "forever" not in fields else {}) | fields
    )
    [result] = await kv(queen, operation)
    return result


async def get(queen: Queen, key: str) -> Json:
    [result] = await kv(queen, {"op": "get", "ns": "n", "key": key})
    return result


async def lock(queen: Queen, op: str, name: str = "l", **fields: Any) -> Json:
    answer = await queen.http.post("/api/v1/locks", json={"operations": [{"op": op, "name": name} | fields]})
    assert answer.status_code == 200, answer.text
    [result] = answer.json()["results"]
    return result


async def expire(sql: asyncpg.Connection) -> None:
    await sql.execute("UPDATE queen.kv SET expires_at = clock_timestamp() WHERE expires_at IS NOT NULL")


def lose_one_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next transaction is committed, and its server does not learn it."""
    unmerged = server.broker._transactor._unmerged
    once, errors = unmerged._once, iter([AnswerLost()])

    async def lossy(messages: Any, rows: Any, call: Callable[[str], Awaitable[Any]]) -> Any:
        answer = await once(messages, rows, call)
        for error in errors:
            raise error
        return answer

    monkeypatch.setattr(unmerged, "_once", lossy)


class TestValues:
    async def test_compare_and_set(self, queen: Queen) -> None:
        first = await put(queen, "k", {"price": 1.5}, expect=0)
        assert (first["applied"], first["value"]) == (True, {"price": 1.5})
        assert (await put(queen, "k", 2, expect=0))["reason"] == "exists"
        second = await put(queen, "k", 2, expect=first["version"])
        assert second["applied"]
        assert second["version"] > first["version"]
        late = await put(queen, "k", 3, expect=first["version"])
        assert (late["applied"], late["reason"], late["value"], late["version"]) == (
            *(False, "version", 2),
            second["version"],
        )
        assert (await put(queen, "other", 1, expect=7))["reason"] == "absent"

    async def test_one_of_many_wins(self, queen: Queen) -> None:
        results = await asyncio.gather(*(put(queen, "k", n, expect=0) for n in range(20)))
        assert sum(result["applied"] for result in results) == 1
        winner = next(result for result in results if result["applied"])
        assert (await get(queen, "k"))["value"] == winner["value"]

    async def test_deleting_and_checking(self, queen: Queen) -> None:
        made = await put(queen, "k", 1, forever=True)
        [held, gone, again] = await kv(
            queen,
            {"op": "check", "ns": "n", "key": "k", "expect": made["version"]},
            {"op": "delete", "ns": "n", "key": "k"},
            {"op": "delete", "ns": "n", "key": "k"},
        )
        assert (held["applied"], gone["applied"], again["applied"], again["reason"]) == (True, True, False, "absent")
        assert await get(queen, "k") == {"found": False, "key": "k"}

    async def test_an_expired_value_is_not_there(self, queen: Queen, sql: asyncpg.Connection, server: Server) -> None:
        await put(queen, "k", 1)
        await put(queen, "stays", 1, forever=True)
        await expire(sql)
        assert not (await get(queen, "k"))["found"]
        assert (await put(queen, "k", 2, expect=0))["applied"]
        await expire(sql)
        await server.broker.keys.forget_expired()
        assert await sql.fetchval("SELECT count(*) FROM queen.kv") == 1

    async def test_a_value_comes_as_it_was_given(self, queen: Queen) -> None:
        value = b'{"b": 1.50, "a": "\\u0000"}'
        body = b'{"operations": [{"op": "put", "ns": "n", "key": "k", "forever": true, "value": ' + value + b"}]}"
        assert (await queen.http.post("/api/v1/kv", content=body)).status_code == 200
        answer = await queen.http.post("/api/v1/kv", json={"operations": [{"op": "get", "ns": "n", "key": "k"}]})
        assert value in answer.content

    async def test_reading_many(self, queen: Queen) -> None:
        for key in ("a:1", "a:2", "a:3", "b:1"):
            await put(queen, key, key)
        [many, page] = await kv(
            queen,
            {"op": "getMany", "ns": "n", "keys": ["a:2", "zz", "a:1"]},
            {"op": "getPrefix", "ns": "n", "prefix": "a:", "limit": 2},
        )
        assert ([row["value"] for row in many["rows"]], many["missing"]) == (["a:1", "a:2"], ["zz"])
        assert ([row["key"] for row in page["rows"]], page["truncated"], page["nextAfter"]) == (
            ["a:1", "a:2"],
            True,
            "a:2",
        )
        [rest] = await kv(
            queen, {"op": "getPrefix", "ns": "n", "prefix": "a:", "after": "a:2", "limit": 2, "keysOnly": True}
        )
        assert ([row["key"] for row in rest["rows"]], rest["truncated"]) == (["a:3"], False)
        assert "value" not in rest["rows"][0]

    async def test_what_is_required_decides_for_all(self, queen: Queen) -> None:
        answer = await queen.http.post(
            "/api/v1/kv",
            json={
                "operations": [
                    {"op": "put", "ns": "n", "key": "a", "value": 1, "forever": True},
                    {"op": "check", "ns": "n", "key": "b", "expect": 3, "required": True},
                ]
            },
        )
        shown = answer.json()
        assert (shown["failedIndex"], [one["reason"] for one in shown["results"]]) == (1, ["rolled_back", "absent"])
        assert not (await get(queen, "a"))["found"]

    async def test_batches_in_opposite_orders_do_not_wait_for_each_other(self, queen: Queen) -> None:
        keys = [f"k{n}" for n in range(10)]

        def batch(names: list[str]) -> list[Json]:
            return [{"op": "incr", "ns": "n", "key": key, "forever": True} for key in names]

        await asyncio.gather(*(kv(queen, *batch(keys if n % 2 else keys[::-1])) for n in range(20)))
        assert (await get(queen, "k0"))["value"] == 20


class TestCounters:
    async def test_bounds(self, queen: Queen) -> None:
        async def add(delta: int) -> Json:
            [result] = await kv(queen, {"op": "incr", "ns": "n", "key": "c", "delta": delta, "min": 0, "max": 5} | HOUR)
            return result

        assert [(await add(n))["applied"] for n in (3, 2, 1, -6, -5)] == [True, True, False, False, True]
        assert (await add(9))["reason"] == "limit"
        await put(queen, "c", "text")
        assert (await add(1))["reason"] == "type"

    async def test_a_counter_keeps_its_end(self, queen: Queen) -> None:
        operation = {"op": "incr", "ns": "n", "key": "c"}
        [first] = await kv(queen, operation | {"ttlSeconds": 60})
        [second] = await kv(queen, operation | {"ttlSeconds": 6000})
        assert (second["value"], second["expiresAt"]) == (2, first["expiresAt"])

    async def test_nothing_is_lost_among_many(self, queen: Queen) -> None:
        await asyncio.gather(*(kv(queen, {"op": "incr", "ns": "n", "key": "c", "forever": True}) for _ in range(50)))
        assert (await get(queen, "c"))["value"] == 50


class TestLocks:
    async def test_one_holder_with_growing_numbers(self, queen: Queen, sql: asyncpg.Connection) -> None:
        mine = await lock(queen, "acquire", owner="me", ttlSeconds=30)
        assert (mine["acquired"], mine["slot"], mine["owner"]) == (True, 0, "me")
        theirs = await lock(queen, "acquire", owner="they", ttlSeconds=30)
        assert (theirs["acquired"], theirs["reason"], theirs["holders"][0]["owner"]) == (False, "held", "me")
        again = await lock(queen, "acquire", owner="me", ttlSeconds=30)
        assert (again["acquired"], again["already"]) == (True, True)
        renewed = await lock(queen, "renew", token=again["token"], ttlSeconds=30)
        assert renewed["token"] > again["token"] > mine["token"]
        assert (await lock(queen, "renew", token=mine["token"], ttlSeconds=30))["reason"] == "lost"
        await expire(sql)
        assert (await lock(queen, "renew", token=renewed["token"], ttlSeconds=30))["renewed"] is False
        theirs = await lock(queen, "acquire", owner="they", ttlSeconds=30)
        assert theirs["token"] > renewed["token"]
        assert (await lock(queen, "release", token=renewed["token"]))["reason"] == "lost"
        assert (await lock(queen, "release", token=theirs["token"]))["released"]
        assert await lock(queen, "get") == {"held": False, "holders": []}

    async def test_permits(self, queen: Queen) -> None:
        taken = await asyncio.gather(*(lock(queen, "acquire", owner=f"o{n}", ttlSeconds=30, limit=3) for n in range(9)))
        got = [one for one in taken if one["acquired"]]
        assert sorted(one["slot"] for one in got) == [0, 1, 2]
        assert len({one["token"] for one in got}) == 3
        await lock(queen, "release", token=got[0]["token"], slot=got[0]["slot"])
        assert (await lock(queen, "acquire", owner="new", ttlSeconds=30, limit=3))["slot"] == got[0]["slot"]

    async def test_who_names_no_owner_is_one_of_its_own(self, queen: Queen) -> None:
        mine, theirs = [await lock(queen, "acquire", ttlSeconds=30) for _ in range(2)]
        assert (mine["acquired"], theirs["acquired"], theirs["reason"]) == (True, False, "held")
        assert theirs["holders"][0]["owner"] == mine["owner"]
        again = await lock(queen, "acquire", owner=mine["owner"], ttlSeconds=30)
        assert (again["acquired"], again["already"]) == (True, True)
        renewed = await lock(queen, "renew", token=again["token"], ttlSeconds=30)
        assert (renewed["renewed"], renewed["owner"]) == (True, mine["owner"])
        assert (await lock(queen, "release", token=renewed["token"]))["released"]

    async def test_nobody_writes_to_a_lock_by_its_key(self, queen: Queen) -> None:
        body = {"operations": [{"op": "put", "ns": "lock:l", "key": "0", "value": 1, "forever": True}]}
        assert "POST /api/v1/locks" in (await queen.refused("/api/v1/kv", body))["error"]


class TestTransactions:
    async def transact(self, queen: Queen, *operations: Json, **riders: Any) -> Json:
        answer = await queen.http.post("/api/v1/transaction", json={"operations": operations} | riders)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def test_a_marker_makes_an_effect_happen_once(self, queen: Queen) -> None:
        marker = {"op": "putIfAbsent", "ns": "n", "key": "seen", "value": 1, "required": True} | HOUR
        count = {"op": "incr", "ns": "n", "key": "c", "forever": True}
        first = await self.transact(queen, push_op("q", 1), kv=[marker, count])
        assert (first["success"], first["kv"][1]["value"]) == (True, 1)
        second = await self.transact(queen, push_op("q", 2), kv=[marker, count])
        assert (second["success"], second["reason"], second["failedIndex"], second["kvReason"]) == (
            *(False, "kv_precondition"),
            *(0, "exists"),
        )
        assert second["value"] == 1
        assert [message["data"] for message in await queen.pop("q", batch=10)] == [1]
        assert (await get(queen, "c"))["value"] == 1

    async def test_a_failed_ack_takes_the_values_with_it(self, queen: Queen) -> None:
        await queen.push("q", 1)
        [message] = await queen.pop("q")
        put_one = {"op": "put", "ns": "n", "key": "k", "value": 1, "forever": True}
        lost = ack_op(message, leaseId="00000000-0000-0000-0000-000000000001")
        refused = await self.transact(queen, lost, kv=[put_one])
        assert not refused["success"]
        assert not (await get(queen, "k"))["found"]
        assert (await self.transact(queen, ack_op(message), kv=[put_one]))["success"]
        assert (await get(queen, "k"))["found"]

    async def test_a_guard_keeps_the_old_holder_out(self, queen: Queen, sql: asyncpg.Connection) -> None:
        mine = await lock(queen, "acquire", owner="me", ttlSeconds=30)
        assert (await self.transact(queen, push_op("q", 1), kv=[mine["guard"]]))["success"]
        await expire(sql)
        theirs = await lock(queen, "acquire", owner="they", ttlSeconds=30)
        late = await self.transact(queen, push_op("q", 2), kv=[mine["guard"]])
        assert (late["success"], late["kvReason"]) == (False, "version")
        assert (await self.transact(queen, push_op("q", 3), kv=[theirs["guard"]]))["success"]
        assert [message["data"] for message in await queen.pop("q", batch=10)] == [1, 3]

    async def test_timers_and_values_alone(self, queen: Queen) -> None:
        timer = {"op": "schedule", "queue": "q", "timerKey": "t", "data": 1, "delayMs": 3_600_000}
        blocked = {"op": "check", "ns": "n", "key": "k", "expect": 1, "required": True}
        assert not (await self.transact(queen, kv=[blocked], timers=[timer]))["success"]
        assert (await queen.http.get("/api/v1/timers/q")).json()["rows"] == []
        done = await self.transact(queen, timers=[timer], kv=[{"op": "incr", "ns": "n", "key": "k", "forever": True}])
        assert (done["success"], done["timers"][0]["status"]) == (True, "scheduled")
        assert (await queen.http.get("/api/v1/timers/q")).json()["rows"][0]["timerKey"] == "t"

    async def test_as_many_as_there_are_connections(self, database_url: str) -> None:
        settings = settings_with(database={"pool_size": 2}, overload={"enabled": False})
        timer = {"op": "schedule", "timerKey": "t", "schedule": "@every 1h", "data": 1}
        async with another_server(settings, database_url) as queen:
            calls = [self.transact(queen, timers=[timer | {"queue": f"q{number}"}]) for number in range(20)]
            answers = await asyncio.gather(*calls)
        assert all(answer["success"] for answer in answers)

    async def test_a_counter_whose_answer_got_lost_counts_once(
        self, queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody can tell a repetition by changes of keys, nor by an acknowledgement while its lease goes on."""
        await queen.push("q", 1, 2)
        first, _ = await queen.pop("q", batch=2)
        count = {"op": "incr", "ns": "n", "key": "c", "forever": True}
        for counted, operations in enumerate(([], [ack_op(first)]), 1):
            lose_one_answer(server, monkeypatch)
            answer = await queen.http.post("/api/v1/transaction", json={"operations": operations, "kv": [count]})
            assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown"), answer.text
            assert (await get(queen, "c"))["value"] == counted

    async def test_a_push_or_a_guard_whose_answer_got_lost_is_repeated(
        self, queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the keys have become is not known any more then, and nothing is said of it."""
        lose_one_answer(server, monkeypatch)
        count = {"op": "incr", "ns": "n", "key": "c", "forever": True}
        done = await self.transact(queen, push_op("q", 1), kv=[count])
        assert (done["success"], len(done["results"]), "kv" in done) == (True, 1, False)
        assert (await get(queen, "c"))["value"] == 1
        [message] = await queen.pop("q")
        mine = await lock(queen, "acquire", owner="me", ttlSeconds=30)
        lose_one_answer(server, monkeypatch)
        assert (await self.transact(queen, ack_op(message), kv=[mine["guard"]]))["success"]

    async def test_what_is_no_change_is_refused(self, queen: Queen) -> None:
        body = {"operations": [], "kv": [{"op": "get", "ns": "n", "key": "k"}]}
        assert "not for transactions" in (await queen.refused("/api/v1/transaction", body))["error"]


class TestLists:
    async def listed(self, queen: Queen, what: str, **query: Any) -> Json:
        answer = await queen.http.get(f"/api/v1/{what}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def test_namespaces_are_listed_without_locks_and_without_those_that_are_over(
        self, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        assert await self.listed(queen, "kv") == {"namespaces": [], "nextAfter": None}
        await lock(queen, "acquire", owner="o", ttlSeconds=60)
        # Names on both sides of those of locks, and close to them.
        names = ["a", "lock", "lock-a", "lock9z", "lock;", "lockers", "z"]
        await kv(queen, *({"op": "put", "ns": name, "key": "k", "value": 1} | HOUR for name in names))
        await kv(queen, {"op": "put", "ns": "z", "key": "for ever", "value": 1, "forever": True})
        shown = (await self.listed(queen, "kv"))["namespaces"]
        assert [(one["namespace"], one["keys"]) for one in shown] == [*((name, 1) for name in names[:-1]), ("z", 2)]
        assert not any(one["more"] for one in shown)
        found = (await self.listed(queen, "kv", prefix="lock"))["namespaces"]
        assert [one["namespace"] for one in found] == names[1:-1]
        assert (await self.listed(queen, "kv", prefix="lock:"))["namespaces"] == []
        await expire(sql)
        assert (await self.listed(queen, "kv"))["namespaces"] == [{"namespace": "z", "keys": 1, "more": False}]

    async def test_pages_have_every_name_once(self, queen: Queen) -> None:
        names = [f"n{number:02}" for number in range(25)]
        await kv(queen, *({"op": "put", "ns": name, "key": "k", "value": 1} | HOUR for name in names))
        for name in names:
            await lock(queen, "acquire", name, owner="o", ttlSeconds=60)
        for what, field, key in (("kv", "namespaces", "namespace"), ("locks", "locks", "name")):
            seen: list[str] = []
            query: Json = {"limit": 10}
            while query.get("after", "") is not None:
                page = await self.listed(queen, what, **query)
                seen += [one[key] for one in page[field]]
                query["after"] = page["nextAfter"]
            assert seen == names

    async def test_a_large_namespace_is_counted_up_to_a_bound(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await sql.execute(
            "INSERT INTO queen.kv (namespace, key, version, value)"
            " SELECT 'n', i::text, i, '1' FROM generate_series(1, 200) i"
        )
        assert (await self.listed(queen, "kv"))["namespaces"] == [{"namespace": "n", "keys": 100, "more": True}]

    async def test_locks_are_listed_with_their_holders_but_without_their_tokens(
        self, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        for owner in ("one", "two"):
            await lock(queen, "acquire", "nightly", owner=owner, ttlSeconds=60, limit=2)
        await lock(queen, "acquire", "over", owner="gone", ttlSeconds=60)
        await sql.execute("UPDATE queen.kv SET expires_at = clock_timestamp() WHERE namespace = 'lock:over'")
        [shown] = (await self.listed(queen, "locks"))["locks"]
        assert shown["name"] == "nightly"
        assert [(one["slot"], one["owner"]) for one in shown["holders"]] == [(0, "one"), (1, "two")]
        assert shown["holders"][0].keys() == {"slot", "owner", "since", "expiresAt", "renewedAt"}
        assert (await self.listed(queen, "locks", prefix="day"))["locks"] == []

    @pytest.mark.parametrize("query", [{"limit": "-1"}, {"limit": "x"}, {"prefix": "a\0"}, {"after": "x" * 300}])
    async def test_bad_pages_are_refused(self, queen: Queen, query: Json) -> None:
        for what in ("kv", "locks"):
            assert (await queen.http.get(f"/api/v1/{what}", params=query)).status_code == 400

    async def test_many_keys_and_locks_cost_a_descent_for_each_name(self, sql: asyncpg.Connection) -> None:
        """And not a row for each key, nor a scan over the locks that lie between."""
        if sql.get_server_version().major < 15:
            pytest.skip("PostgreSQL 14 writes down what it has read some time later")
        await sql.execute(
            "INSERT INTO queen.kv (namespace, key, version, value)"
            " SELECT 'lock:' || i, '0', i, '1'::json FROM generate_series(1, 20000) i"
            " UNION ALL SELECT 'n' || i % 5, i::text, i, '1'::json FROM generate_series(1, 20000) i"
        )
        await sql.execute("VACUUM ANALYZE queen.kv")
        reader = Reader(sql)
        before = await buffers(sql)
        rows, after = await keys.namespaces(reader, "", "", 100, None)
        assert [one.namespace for one in rows] == ["n0", "n1", "n2", "n3", "n4"]
        assert after is None
        assert await buffers(sql) - before < 1000, "of 40,000 rows"


async def buffers(sql: asyncpg.Connection) -> int:
    await sql.execute("SELECT pg_stat_force_next_flush()")
    found: int = await sql.fetchval(
        "SELECT heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read FROM pg_statio_user_tables"
        " WHERE schemaname = 'queen' AND relname = 'kv'"
    )
    return found


@pytest.mark.parametrize(
    ("operation", "told"),
    [
        ({"op": "put", "key": "k", "value": 1}, "needs either ttlSeconds or forever"),
        ({"op": "put", "key": "k", "value": 1, "ttlSeconds": 1, "forever": True}, "needs either ttlSeconds or forever"),
        ({"op": "put", "key": "k", "forever": True}, "value is required"),
        ({"op": "put", "value": 1, "forever": True}, "key is required"),
        ({"op": "put", "key": "k", "value": "x" * 300_000, "forever": True}, "more than 262144 bytes"),
        ({"op": "check", "key": "k"}, "expect is required"),
        ({"op": "getMany"}, "keys is required"),
        ({"op": "put", "key": "", "value": 1, "forever": True}, "must not be empty"),
        # A condition with another name would be one that nobody checks.
        ({"op": "put", "key": "k", "value": 1, "forever": True, "expected": 3}, "unknown field 'expected'"),
    ],
)
async def test_refusals(queen: Queen, operation: Json, told: str) -> None:
    body = {"operations": [{"ns": "n"} | operation]}
    assert told in (await queen.refused("/api/v1/kv", body))["error"]
