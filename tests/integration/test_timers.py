"""Timers: pushed once, at their moment and in their order, whatever happens to servers, partitions and queues."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from server_settings import changed, settings_with

from integration.queen import Queen, another_server, blocked, data, until
from queenmq.broker.timers import _MOST_AT_ONCE, _MOST_BYTES
from queenmq.config import Settings
from queenmq.core.message import Message
from queenmq.ids import uuid7_text
from queenmq.server import Server
from queenmq.storage.statements import statement

HOUR_MS = 3_600_000
NONE = object()

Json = dict[str, Any]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_with(
        timers={"interval_ms": 20},
        journal={"folder": tmp_path / "journal", "replay_interval_ms": 10},
        server={"encryption_key": bytes(32)},
    )


def schedule(key: str, payload: Any, queue: str = "q", **fields: Any) -> Json:
    moment = {} if {"deliverAt", "schedule"} & fields.keys() else {"delayMs": 0}
    return {"op": "schedule", "queue": queue, "timerKey": key, "data": payload} | moment | fields


async def change(http: httpx.AsyncClient, *operations: Json) -> list[Json]:
    answer = await http.post("/api/v1/timers", json={"operations": operations})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["results"])


async def pending(sql: asyncpg.Connection) -> int:
    return int(await sql.fetchval("SELECT count(*) FROM queen.timers"))


async def none_pending(sql: asyncpg.Connection) -> bool:
    return await pending(sql) == 0


class TestItsMoment:
    async def test_it_becomes_the_message_that_was_promised(self, http: httpx.AsyncClient, queen: Queen) -> None:
        [made] = await change(http, schedule("k", {"a": 1}, partition="p", delayMs=50, txn="order-1"))
        assert (made["ok"], made["status"], made["timerKey"], made["txn"]) == (True, "scheduled", "k", "order-1")
        [message] = await queen.wait("q", "p")
        assert (message["id"], message["transactionId"], message["data"]) == (made["messageId"], "order-1", {"a": 1})
        assert datetime.fromisoformat(message["createdAt"]) >= datetime.fromisoformat(made["deliverAt"])
        assert (await http.get("/api/v1/timers/q/k")).json() == {"found": False}

    async def test_not_before_it(self, http: httpx.AsyncClient, queen: Queen, server: Server) -> None:
        await change(http, schedule("k", 1, delayMs=HOUR_MS), schedule("later", 2, deliverAt="2126-01-01T00:00:00Z"))
        assert await server.broker.timers.push_due() == 0
        assert await queen.pop("q") == []

    async def test_a_delay_and_a_moment_in_the_past_are_due_at_once(
        self, http: httpx.AsyncClient, queen: Queen
    ) -> None:
        await change(http, schedule("k", 1, delayMs=-5), schedule("l", 2, deliverAt="2001-01-01T00:00:00Z"))
        assert sorted(data(await queen.wait("q", batch=2, partitions=2))) == [1, 2]

    async def test_a_partition_gets_them_in_the_order_of_their_moments(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection, server: Server
    ) -> None:
        numbers = [5, 3, 9, 1, 7]
        moments = [f"2020-01-01T00:00:0{number}Z" for number in numbers]
        await change(http, *(schedule(f"k{n}", n, deliverAt=at) for n, at in zip(numbers, moments, strict=True)))
        await until(lambda: none_pending(sql))
        assert data(await queen.pop("q", batch=10)) == sorted(numbers)

    async def test_a_long_poll_is_woken_on_another_server(
        self, http: httpx.AsyncClient, settings: Settings, database_url: str
    ) -> None:
        async with another_server(settings, database_url) as other:
            waiting = asyncio.create_task(other.wait("q"))
            await change(http, schedule("k", "x", delayMs=100))
            assert data(await waiting) == ["x"]

    async def test_a_queue_that_is_full_gets_it_all_the_same(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.configure("q", maxSize=1)
        await queen.push("q", "first")
        await change(http, schedule("k", "second"))
        first = await queen.wait("q")
        await queen.ack(first[0])
        assert data(await queen.wait("q")) == ["second"]

    async def test_it_waits_while_pushes_are_switched_off(
        self, http: httpx.AsyncClient, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        await http.post("/api/v1/system/maintenance", json={"enabled": True})
        await change(http, schedule("k", 1))
        assert await server.broker.timers.push_due() == 0
        assert await pending(sql) == 1
        await http.post("/api/v1/system/maintenance", json={"enabled": False})
        assert data(await queen.wait("q")) == [1]


class TestChanges:
    async def test_the_same_key_replaces(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await change(http, schedule("k", "old", delayMs=HOUR_MS))
        [made] = await change(http, schedule("k", "new", delayMs=10) | {"op": "reschedule"})
        assert made["status"] == "rescheduled"
        assert data(await queen.wait("q")) == ["new"]
        assert await queen.pop("q") == []

    async def test_cancel(self, http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
        await change(http, schedule("a/b c", 1, delayMs=HOUR_MS, txn="t"))
        answer = await http.delete("/api/v1/timers/q/a/b%20c")
        assert answer.json()["status"] == "cancelled"
        assert answer.json()["txn"] == "t"
        assert await pending(sql) == 0

    async def test_cancelling_what_is_not_there(self, http: httpx.AsyncClient) -> None:
        answer = (await http.delete("/api/v1/timers/q/k", params={"txn": "t"})).json()
        assert answer == {"ok": False, "status": "absent", "queue": "q", "timerKey": "k", "txn": "t"}

    async def test_changes_of_one_timer_are_applied_in_their_order(self, http: httpx.AsyncClient) -> None:
        cancel = {"op": "cancel", "queue": "q", "timerKey": "k"}
        results = await change(
            http, schedule("k", 1, delayMs=HOUR_MS), cancel, cancel, schedule("k", 2, delayMs=HOUR_MS)
        )
        assert [result["status"] for result in results] == ["scheduled", "cancelled", "absent", "scheduled"]

    async def test_a_payload_as_the_published_clients_send_it(self, http: httpx.AsyncClient, queen: Queen) -> None:
        payload = b64encode(b'{"b": [1, 2]}').decode()
        await change(http, {"op": "schedule", "queue": "q", "timerKey": "k", "payload": payload, "delayMs": 0})
        assert data(await queen.wait("q")) == [{"b": [1, 2]}]

    async def test_listing(self, http: httpx.AsyncClient) -> None:
        await change(http, *(schedule(f"k{n}", n, delayMs=HOUR_MS) for n in range(5)), schedule("x", 1, queue="other"))
        page = (await http.get("/api/v1/timers/q", params={"limit": 3})).json()
        assert [row["timerKey"] for row in page["rows"]] == ["k0", "k1", "k2"]
        assert (page["truncated"], page["nextAfter"]) == (True, "k2")
        page = (await http.get("/api/v1/timers/q", params={"after": "k2"})).json()
        assert [row["timerKey"] for row in page["rows"]] == ["k3", "k4"]
        assert (page["truncated"], page["nextAfter"]) == (False, None)

    async def test_all_or_nothing(self, http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
        answer = await http.post(
            "/api/v1/timers",
            json={"operations": [schedule("k", 1, delayMs=HOUR_MS), schedule("l", 1, schedule="nonsense")]},
        )
        assert answer.status_code == 400
        assert await pending(sql) == 0

    async def test_a_deleted_queue_takes_its_timers_with_it(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await change(http, schedule("k", 1, delayMs=HOUR_MS), schedule("k", 1, queue="other", delayMs=HOUR_MS))
        await queen.delete_queue("q")
        assert [row["queue_name"] for row in await sql.fetch("SELECT queue_name FROM queen.timers")] == ["other"]


class TestPushedLater:
    async def test_some_of_a_push(self, http: httpx.AsyncClient, queen: Queen) -> None:
        later = {"queue": "q", "partition": "p", "payload": "later", "transactionId": "t", "delay": 0.1}
        now = {"queue": "q", "partition": "p", "payload": "now"}
        answer = await http.post("/api/v1/push", json={"items": [later, now]})
        assert answer.status_code == 201
        scheduled, stored = answer.json()
        assert (scheduled["status"], scheduled["index"], stored["status"], stored["index"]) == (
            "scheduled",
            0,
            "queued",
            1,
        )
        first, second = [(await queen.wait("q", autoAck=True))[0] for _ in range(2)]
        assert (first["data"], second["data"]) == ("now", "later")
        assert (second["id"], second["transactionId"]) == (scheduled["messageId"], "t")

    async def test_nothing_is_kept_of_a_push_that_a_server_without_a_journal_refuses(
        self, settings: Settings, database_url: str, sql: asyncpg.Connection
    ) -> None:
        later, now = {"queue": "q", "payload": "later", "delay": 3600}, {"queue": "q", "payload": "now"}
        async with another_server(changed(settings, journal={"folder": None}), database_url) as queen:
            await queen.http.post("/api/v1/system/maintenance", json={"enabled": True})
            answer = await queen.http.post("/api/v1/push", json={"items": [later, now]})
            assert (answer.status_code, answer.json()["code"]) == (503, "maintenance")
            assert await pending(sql) == 0
            answer = await queen.http.post("/api/v1/push", json={"items": [later]})
            assert (answer.status_code, await pending(sql)) == (201, 1), "timers wait for the end of it"

    async def test_a_repeated_push_is_the_same_timer(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        item = {"queue": "q", "payload": 1, "transactionId": "t", "deliverAt": "2126-01-01T00:00:00Z"}
        for _ in range(2):
            [made] = await queen.push_items(item)
        assert made["deliverAt"] == "2126-01-01T00:00:00.000Z"
        assert await pending(sql) == 1
        assert (await http.delete(f"/api/v1/timers/q/{made['timerKey']}")).json()["status"] == "cancelled"

    async def test_after_it_was_pushed_it_is_a_duplicate(self, queen: Queen, sql: asyncpg.Connection) -> None:
        item = {"queue": "q", "payload": 1, "transactionId": "t", "delay": 0}
        for _ in range(2):
            await queen.push_items(item)
            await until(lambda: none_pending(sql))
        assert len(await queen.drain("q")) == 1

    @pytest.mark.parametrize(
        ("fields", "complaint"),
        [
            ({"delay": -1}, "delay must be"),
            ({"delay": "1"}, "delay must be"),
            ({"deliverAt": "soon"}, "deliverAt must be an ISO-8601 timestamp"),
            ({"delay": 1, "deliverAt": "2030-01-01T00:00:00Z"}, "both delay and deliverAt"),
        ],
    )
    async def test_what_is_refused(self, queen: Queen, fields: Json, complaint: str) -> None:
        answer = await queen.refused("/api/v1/push", {"items": [{"queue": "q", "payload": 1} | fields]})
        assert complaint in answer["error"]

    async def test_not_in_a_transaction(self, queen: Queen) -> None:
        push = {"type": "push", "items": [{"queue": "q", "payload": 1, "delay": 5}]}
        answer = await queen.refused("/api/v1/transaction", {"operations": [push]})
        assert "only for POST /api/v1/push" in answer["error"]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"delayMs": 1, "deliverAt": "2030-01-01T00:00:00Z"}, "needs one of delayMs, deliverAt and schedule"),
        ({"delayMs": None}, "delayMs must be an integer"),
        ({"delayMs": NONE, "deliverAt": "tomorrow"}, "deliverAt must be an ISO-8601 timestamp"),
        ({"delayMs": 10**15}, "delayMs must be an integer <="),
        ({"delayMs": NONE, "schedule": "every day"}, "neither a cron expression"),
        ({"delayMs": NONE, "schedule": ""}, "neither a cron expression"),
        ({"delayMs": NONE, "schedule": "0 9 * * *", "timeZone": "Mars"}, "is not the name of a time zone"),
        ({"delayMs": 1, "timeZone": "Europe/Rome"}, "timeZone is only for a schedule"),
        ({"timerKey": ""}, "timerKey must not be empty"),
        ({"timerKey": "k" * 256}, "at most 255 characters"),
        ({"payload": "e30="}, "in data (JSON) or in payload (Base64)"),
        ({"payloadZstd": True}, "compressed payloads are not supported"),
        ({"op": "start"}, "op"),
    ],
)
async def test_what_is_refused(http: httpx.AsyncClient, fields: Json, complaint: str) -> None:
    operation = {name: value for name, value in (schedule("k", 1) | fields).items() if value is not NONE}
    answer = await http.post("/api/v1/timers", json={"operations": [operation]})
    assert answer.status_code == 400, answer.text
    assert complaint in answer.json()["error"]


@pytest.mark.parametrize("payload", ["e30", "%%%", b64encode(b"{").decode(), b64encode(b"\xff").decode()])
async def test_a_payload_that_is_no_json(http: httpx.AsyncClient, payload: str) -> None:
    operation = {"op": "schedule", "queue": "q", "timerKey": "k", "payload": payload, "delayMs": 0}
    answer = await http.post("/api/v1/timers", json={"operations": [operation]})
    assert answer.status_code == 400
    assert "must be the Base64 of JSON" in answer.json()["error"]


class TestRepeated:
    async def test_it_comes_again_until_it_is_cancelled(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        [made] = await change(http, schedule("k", {"tick": 1}, schedule="@every 1s"))
        [first] = await queen.wait("q", autoAck=True)
        assert first["transactionId"] == made["txn"] == f"k@{made['deliverAt']}"
        await sql.execute("UPDATE queen.timers SET next_attempt_at = clock_timestamp()")
        [second] = await queen.wait("q", autoAck=True)
        assert second["data"] == {"tick": 1}
        assert second["transactionId"] > first["transactionId"]
        shown = (await http.get("/api/v1/timers/q/k")).json()
        assert (shown["schedule"], shown["found"]) == ("@every 1s", True)
        assert (await http.delete("/api/v1/timers/q/k")).json()["status"] == "cancelled"
        assert await pending(sql) == 0

    async def test_what_was_missed_comes_once(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection, server: Server
    ) -> None:
        await change(http, schedule("k", 1, schedule="* * * * *", timeZone="Europe/Rome"))
        past = "clock_timestamp() - interval '3 hours'"
        await sql.execute(f"UPDATE queen.timers SET deliver_at = {past}, next_attempt_at = {past}")
        assert data(await queen.wait("q", batch=10)) == [1]
        assert await sql.fetchval("SELECT deliver_at > clock_timestamp() - interval '1 minute' FROM queen.timers")


class TestEncryption:
    async def test_it_is_stored_encrypted(self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("q", encryptionEnabled=True)
        await change(http, schedule("k", "a secret", schedule="@every 1h"))
        assert b"secret" not in await sql.fetchval("SELECT payload FROM queen.timers")
        assert (await http.get("/api/v1/timers/q/k")).json()["encrypted"] is True
        for _ in range(2):
            await sql.execute("UPDATE queen.timers SET next_attempt_at = clock_timestamp()")
            assert data(await queen.wait("q", autoAck=True)) == ["a secret"]
        assert await sql.fetchval("SELECT bool_and(is_encrypted) FROM queen.messages")

    async def test_a_queue_that_demands_it_only_later(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await change(http, schedule("k", "a secret", delayMs=HOUR_MS))
        await queen.configure("q", encryptionEnabled=True)
        await sql.execute("UPDATE queen.timers SET next_attempt_at = clock_timestamp()")
        assert data(await queen.wait("q")) == ["a secret"]
        assert await sql.fetchval("SELECT bool_and(is_encrypted) FROM queen.messages")

    async def test_one_that_cannot_be_decrypted_holds_up_no_other(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.configure("q", encryptionEnabled=True)
        await change(http, schedule("bad", "x", delayMs=HOUR_MS))
        await sql.execute(
            "UPDATE queen.timers SET payload = '\\x00', next_attempt_at = clock_timestamp() - interval '1 day'"
        )
        await change(http, schedule("good", "y"))
        assert data(await queen.wait("q")) == ["y"]
        shown = (await http.get("/api/v1/timers/q/bad")).json()
        assert shown["attempts"] >= 1
        assert shown["lastError"]


async def test_a_time_zone_that_this_server_does_not_know_holds_up_no_other(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
) -> None:
    await change(http, schedule("bad", "x", schedule="* * * * *", timeZone="Europe/Rome"))
    past = "clock_timestamp() - interval '1 day'"
    await sql.execute(
        f"UPDATE queen.timers SET time_zone = 'Mars/Olympus', deliver_at = {past}, next_attempt_at = {past}"
    )
    await change(http, schedule("good", "y"))
    assert data(await queen.wait("q")) == ["y"]
    assert "Mars/Olympus" in (await http.get("/api/v1/timers/q/bad")).json()["lastError"]


class TestExactlyOnce:
    async def test_by_several_servers_at_once(
        self, http: httpx.AsyncClient, queen: Queen, settings: Settings, database_url: str, sql: asyncpg.Connection
    ) -> None:
        count = 600
        async with another_server(settings, database_url), another_server(settings, database_url):
            for start in range(0, count, 100):
                numbers = range(start, start + 100)
                await change(http, *(schedule(f"k{n}", n, partition=f"p{n % 7}") for n in numbers))
            await until(lambda: none_pending(sql))
        messages = await queen.drain("q", partitions=7)
        assert sorted(data(messages)) == list(range(count))

    async def test_what_fails_behind_the_push_undoes_it(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await sql.execute("""
            CREATE FUNCTION queen.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no disk'; END $$;
            CREATE TRIGGER fail BEFORE DELETE ON queen.timers FOR EACH ROW EXECUTE FUNCTION queen.fail()""")
        await change(http, schedule("k", 1))

        async def attempted() -> bool:
            return bool(await sql.fetchval("SELECT attempts > 0 FROM queen.timers"))

        await until(attempted)
        assert await sql.fetchval("SELECT count(*) FROM queen.messages") == 0
        assert "no disk" in await sql.fetchval("SELECT error FROM queen.timers")
        await sql.execute("DROP FUNCTION queen.fail() CASCADE")
        await sql.execute("UPDATE queen.timers SET next_attempt_at = clock_timestamp()")
        assert data(await queen.wait("q")) == [1]
        assert await queen.pop("q") == []

    async def test_a_locked_partition_holds_up_no_other(
        self, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection, second: asyncpg.Connection
    ) -> None:
        await queen.push("q", "first", partition="locked")
        async with second.transaction():
            await second.execute("SELECT 1 FROM queen.partition_lookup FOR UPDATE")
            await change(http, schedule("a", "behind", partition="locked"), schedule("b", "other", partition="free"))
            assert data(await queen.wait("q", "free")) == ["other"]
        await sql.execute("UPDATE queen.timers SET next_attempt_at = clock_timestamp()")
        await until(lambda: none_pending(sql))
        assert data(await queen.pop("q", "locked", batch=10)) == ["first", "behind"]

    async def test_a_cancellation_waits_for_a_push_that_is_under_way(
        self,
        http: httpx.AsyncClient,
        queen: Queen,
        server: Server,
        sql: asyncpg.Connection,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        pushing, go_on = asyncio.Event(), asyncio.Event()
        push = server.broker.timers._push

        async def slow(*arguments: Any) -> Any:
            call = await push(*arguments)
            pushing.set()
            await go_on.wait()
            return call

        monkeypatch.setattr(server.broker.timers, "_push", slow)
        await change(http, schedule("k", 1))
        await pushing.wait()
        cancelling = asyncio.create_task(http.delete("/api/v1/timers/q/k"))
        await blocked(sql)
        assert not cancelling.done()
        go_on.set()
        assert (await cancelling).json()["status"] == "absent"
        assert data(await queen.wait("q")) == [1]


async def test_timers_that_wait_cost_nothing(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection, server: Server
) -> None:
    async def buffers() -> int:
        async with sql.transaction():
            plan = await sql.fetchval(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement('due_timers')}", _MOST_AT_ONCE, _MOST_BYTES, [], []
            )
        root = json.loads(plan)[0]["Plan"]
        return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])

    fill = """
        INSERT INTO queen.timers (queue_name, key, partition_name, deliver_at, next_attempt_at, message_id,
                                  transaction_id, is_encrypted, payload)
        SELECT 'q', $1 || i, 'p', clock_timestamp() + interval '1 day', clock_timestamp() + interval '1 day',
               gen_random_uuid(), i::text, false, 'null' FROM generate_series(1, 20000) i"""
    await sql.execute(fill, "a")
    before = await buffers()
    await sql.execute(fill, "b")
    assert await buffers() <= before + 2
    assert await server.broker.timers.push_due() == 0


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


FILL = """
    INSERT INTO queen.timers (queue_name, key, partition_name, deliver_at, next_attempt_at, message_id, transaction_id,
                              is_encrypted, payload)
    SELECT 'q', 'k' || i, 'stuck', moment, moment, gen_random_uuid(), i::text, false, convert_to(i::text, 'UTF8')
    FROM generate_series(1, $1) i, LATERAL (SELECT now() - interval '1 day' + i * interval '1 second' AS moment) m"""


async def test_a_partition_with_a_journal_holds_up_no_other_and_keeps_its_order(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection, server: Server, second: asyncpg.Connection
) -> None:
    """More of them than one batch has wait behind what the journal cannot store."""
    await queen.push("q", 0, partition="stuck")
    async with second.transaction():
        await second.execute("SELECT 1 FROM queen.partition_lookup FOR UPDATE")
        assert server.broker.journal is not None
        await server.broker.journal.put([Message("q", "stuck", b'"journalled"', uuid7_text(), "j")])
        await sql.execute(FILL, 1500)
        await change(http, schedule("free", "on time", partition="free"))
        assert data(await queen.wait("q", "free")) == ["on time"]
        assert await pending(sql) == 1500
    await until(lambda: none_pending(sql))
    assert data(await queen.drain("q", "stuck")) == [0, "journalled", *range(1, 1501)]
