"""Pushes that expect a last offset: stored under the lock that shows it, all or nothing, and never later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from server_settings import settings_with

from integration.queen import Json, Queen, ack_op, blocked, data, decide_pushes, push_op, stored, until
from queenmq.broker.load_manager import Choice
from queenmq.config import Settings
from queenmq.server import Server
from queenmq.storage.statements import versioned

NEVER_MS = 3_600_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_with(
        operations={"interval_ms": NEVER_MS},
        journal={"folder": tmp_path, "replay_interval_ms": 10, "wait_ms": 50},
        server={"encryption_key": bytes(32)},
    )


def event(number: int, partition: str = "p", queue: str = "q", **fields: Any) -> Json:
    return {"queue": queue, "partition": partition, "transactionId": str(number), "payload": number} | fields


def expect(last_offset: int, partition: str = "p", queue: str = "q") -> Json:
    return {"queue": queue, "partition": partition, "lastOffset": last_offset}


async def push(http: httpx.AsyncClient, *items: Json, at: list[Json] | None = None) -> httpx.Response:
    return await http.post("/api/v1/push", json={"items": items} | ({} if at is None else {"expect": at}))


async def appended(http: httpx.AsyncClient, at: int, *numbers: int, partition: str = "p") -> list[Json]:
    answer = await push(http, *(event(n, partition) for n in numbers), at=[expect(at, partition)])
    assert answer.status_code == 201, answer.text
    return list(answer.json())


async def test_it_is_stored_if_the_partition_ends_there(http: httpx.AsyncClient, queen: Queen) -> None:
    first = await appended(http, 0, 1, 2)
    assert [(one["status"], one["offset"]) for one in first] == [("queued", 1), ("queued", 2)]
    await queen.push("q", 3, partition="p")
    [fourth] = await appended(http, 3, 4)
    assert fourth["offset"] == 4
    messages = await queen.pop("q", "p", batch=10)
    assert data(messages) == [1, 2, 3, 4]
    assert [message["id"] for message in messages[:2]] == [one["messageId"] for one in first]


async def test_else_nothing_is_stored_and_the_answer_says_where_it_ends(
    http: httpx.AsyncClient, server: Server, sql: asyncpg.Connection
) -> None:
    await appended(http, 0, 1, 2)
    answer = await push(*(http, event(3), event(4, "other"), event(5, "free")), at=[expect(1), expect(0, "other")])
    assert answer.status_code == 409
    shown = answer.json()
    assert shown["code"] == "offset_conflict"
    assert shown["conflicts"] == [{"queue": "q", "partition": "p", "expected": 1, "actual": 2}]
    assert "is 2, not 1" in shown["error"]
    assert await stored(sql, "q") == 2
    assert server.broker.conditional_pusher.conflicts == 1
    text = (await http.get("/metrics/prometheus")).text
    assert "queen_push_offset_conflicts_total 1" in text


async def test_of_many_at_once_one_wins_each_round(http: httpx.AsyncClient, queen: Queen) -> None:
    async def append(writer: int, times: int) -> None:
        at = 0
        done = 0
        while done < times:
            number = writer * 100 + done
            answer = await push(http, event(number), at=[expect(at)])
            if answer.status_code == 201:
                [result] = answer.json()
                assert (result["status"], result["offset"]) == ("queued", at + 1)
                at, done = at + 1, done + 1
            else:
                assert answer.status_code == 409, answer.text
                [found] = answer.json()["conflicts"]
                assert found["actual"] > at
                at = found["actual"]

    async def push_always() -> None:
        for number in range(20):
            await queen.push("q", f"plain-{number}", partition="p")

    await asyncio.gather(*(append(writer, 5) for writer in range(8)), push_always())
    messages = await queen.pop("q", "p", batch=100)
    assert [message["offset"] for message in messages] == list(range(1, 61))
    own = [number for number in data(messages) if isinstance(number, int)]
    assert all([n for n in own if n // 100 == writer] == [writer * 100 + i for i in range(5)] for writer in range(8))


async def test_requests_that_share_a_call_do_not_share_a_fate(
    http: httpx.AsyncClient, queen: Queen, server: Server, sql: asyncpg.Connection
) -> None:
    await queen.push("q", 0, partition="held")
    lane = server.broker.conditional_pusher.lane
    async with sql.transaction():
        await sql.execute("SELECT 1 FROM queen.partition_lookup FOR UPDATE")
        pushes = [asyncio.create_task(push(http, event(1, "held"), at=[expect(1, "held")]))]
        await until(lambda: lane.in_flight > 0 or server.broker.locks.known != {})
        good = [asyncio.create_task(push(http, event(n, f"p{n}"), at=[expect(0, f"p{n}")])) for n in range(6)]
        bad = [asyncio.create_task(push(http, event(n, f"x{n}"), at=[expect(7, f"x{n}")])) for n in range(6)]
        answers = await asyncio.gather(*good, *bad)
    assert [answer.status_code for answer in answers] == [201] * 6 + [409] * 6
    assert (await pushes[0]).status_code == 201


class TestRepetition:
    async def test_it_is_a_duplicate(self, http: httpx.AsyncClient) -> None:
        first = await appended(http, 0, 1, 2)
        again = await appended(http, 0, 1, 2)
        assert [(one["status"], one["offset"]) for one in again] == [("duplicate", 1), ("duplicate", 2)]
        assert [one["messageId"] for one in again] == [one["messageId"] for one in first]

    async def test_but_not_if_only_a_part_was_stored(self, http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
        await appended(http, 0, 1)
        assert (await push(http, event(1), event(2), at=[expect(0)])).status_code == 409
        assert await stored(sql, "q") == 1
        again = await appended(http, 1, 1, 2, 2)
        assert [(one["status"], one["offset"]) for one in again] == [("duplicate", 1), ("queued", 2), ("duplicate", 2)]

    async def test_a_lost_answer_is_repeated_and_stored_once(
        self, http: httpx.AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch, sql: asyncpg.Connection
    ) -> None:
        database = server.broker.database
        fetchrow = database.fetchrow
        lost = 0

        async def lose_the_first(query: str, *arguments: Any, **options: Any) -> Any:
            nonlocal lost
            row = await fetchrow(query, *arguments, **options)
            if "push_expected" in query and not lost:
                lost += 1
                row = await fetchrow(query, *arguments, **options)
            return row

        monkeypatch.setattr(database, "fetchrow", lose_the_first)
        results = await appended(http, 0, 1, 2)
        assert [(one["status"], one["offset"]) for one in results] == [("queued", 1), ("queued", 2)]
        assert (lost, await stored(sql, "q")) == (1, 2)


class TestNeverLater:
    async def test_not_while_the_server_is_overloaded(
        self, http: httpx.AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch, sql: asyncpg.Connection
    ) -> None:
        decide_pushes(server, monkeypatch, Choice.QUEUE)
        answer = await push(http, event(1), at=[expect(0)])
        assert (answer.status_code, answer.json()["code"]) == (429, "overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        assert await sql.fetchval("SELECT count(*) FROM queen.operation_queue") == 0

    async def test_not_behind_operations_of_its_partition(
        self, http: httpx.AsyncClient, queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patched:
            decide_pushes(server, patched, Choice.QUEUE)
            assert (await push(http, event(1))).status_code == 202
        refused, other = await asyncio.gather(
            push(http, event(2), at=[expect(0)]), push(http, event(2, "other"), at=[expect(0, "other")])
        )
        assert (refused.status_code, refused.json()["code"], other.status_code) == (429, "overloaded", 201)
        while await server.broker.operation_runner.run_pushes(50, 100):
            pass
        assert (await appended(http, 1, 2))[0]["offset"] == 2
        assert data(await queen.pop("q", "p", batch=10)) == [1, 2]

    async def test_not_while_pushes_are_switched_off_and_not_before_what_was_journalled(
        self, http: httpx.AsyncClient, server: Server, sql: asyncpg.Connection
    ) -> None:
        await push(http, event(0))
        assert (await http.post("/api/v1/system/maintenance", json={"enabled": True})).status_code == 200
        assert (await push(http, event(1))).status_code == 202
        answer = await push(http, event(2), at=[expect(1)])
        assert (answer.status_code, answer.json()["code"]) == (503, "maintenance")
        async with sql.transaction():
            await sql.execute("SELECT 1 FROM queen.partition_lookup FOR UPDATE")
            assert (await http.post("/api/v1/system/maintenance", json={"enabled": False})).status_code == 200
            answer = await push(http, event(2), at=[expect(1)])
            assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
        journal = server.broker.journal
        assert journal is not None
        await until(lambda: not journal.messages)
        assert (await push(http, event(2), at=[expect(1)])).status_code == 409
        assert (await push(http, event(2), at=[expect(2)])).status_code == 201

    async def test_not_as_a_timer(self, http: httpx.AsyncClient) -> None:
        answer = await push(http, event(1, delay=5), at=[expect(0)])
        assert (answer.status_code, answer.json()["field"]) == (400, "items[0]")


async def test_a_full_queue_takes_all_of_it_or_nothing(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
) -> None:
    await queen.configure("q", maxSize=3)
    await appended(http, 0, 1, 2)
    results = await appended(http, 2, 3, 4)
    assert [one["status"] for one in results] == ["failed", "failed"]
    assert "maxSize" in results[0]["error"]
    assert await stored(sql, "q") == 2
    assert (await appended(http, 2, 3))[0]["status"] == "queued"


async def test_an_encrypted_queue_gets_it_encrypted(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
) -> None:
    await push(http, event(0, "before"))
    await queen.configure("q", encryptionEnabled=True)
    await sql.execute("DELETE FROM queen.messages")
    await appended(http, 0, 1)
    assert await sql.fetchval("SELECT bool_and(is_encrypted) FROM queen.messages")
    assert data(await queen.pop("q", "p")) == [1]


@pytest.mark.parametrize(
    "at",
    [
        [expect(0, "nothing is pushed to it")],
        [expect(0), expect(1)],
        [{"queue": "q", "partition": "p"}],
        [expect(-1)],
        [expect(2**63)],
        [{"queue": "q", "partition": "p", "lastOffset": "0"}],
        {},
    ],
)
async def test_what_makes_no_sense_is_refused(http: httpx.AsyncClient, sql: asyncpg.Connection, at: Any) -> None:
    assert (await push(http, event(1), at=at)).status_code == 400
    body = {"operations": [{"type": "push", "items": [event(1)]}], "expect": at}
    assert (await http.post("/api/v1/transaction", json=body)).status_code == 400
    assert await sql.fetchval("SELECT count(*) FROM queen.messages") == 0


class TestTransaction:
    async def commit(self, http: httpx.AsyncClient, *operations: Json, at: list[Json]) -> Json:
        answer = await http.post("/api/v1/transaction", json={"operations": operations, "expect": at})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def test_all_of_it_is_applied_or_nothing(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.push("source", "m")
        [message] = await queen.pop("source")
        await appended(http, 0, 1)
        steps = [ack_op(message), {"type": "push", "items": [event(2), event(3, "other")]}]
        refused = await self.commit(http, *steps, at=[expect(0), expect(0, "other")])
        assert (refused["success"], refused["reason"], refused["results"]) == (False, "offset_conflict", [])
        assert refused["conflicts"] == [{"queue": "q", "partition": "p", "expected": 0, "actual": 1}]
        assert await stored(sql, "q") == 1
        done = await self.commit(http, *steps, at=[expect(1), expect(0, "other")])
        assert done["success"], done
        assert await stored(sql, "q") == 3
        again = await self.commit(http, steps[1], at=[expect(1), expect(0, "other")])
        assert (again["success"], "duplicate key" in again["error"]) == (False, True)

    async def test_partitions_without_an_expectation_may_end_anywhere(
        self, http: httpx.AsyncClient, queen: Queen
    ) -> None:
        await queen.push("q", 0, partition="free")
        steps = [push_op("q", 1, partition="free"), {"type": "push", "items": [event(2)]}]
        assert (await self.commit(http, *steps, at=[expect(0)]))["success"]

    async def test_it_waits_for_who_writes_and_sees_what_was_written(
        self, http: httpx.AsyncClient, sql: asyncpg.Connection
    ) -> None:
        await appended(http, 0, 1)
        async with sql.transaction():
            await sql.execute(
                "INSERT INTO queen.messages (partition_id, transaction_id) SELECT id, 'by hand' FROM queen.partitions"
                " WHERE name = 'p'"
            )
            steps = {"type": "push", "items": [event(2)]}
            waiting = asyncio.create_task(self.commit(http, steps, at=[expect(1)]))
            await blocked(sql)
        assert (await waiting)["conflicts"][0]["actual"] == 2


async def test_the_function_returns_where_each_target_ended(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("q", 1, 2, partition="p")
    nothing = ", ".join(["'{}'"] * 9)
    call = versioned(f"SELECT * FROM queen.push_expected($1, $2, NULL, {nothing}, $3, $4)")
    row = await sql.fetchrow(call, ["q"], ["p"], [0], [2])
    assert (row["last_offsets"], row["conflicting"], row["behind"]) == ([2], None, None)
