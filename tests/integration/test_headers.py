"""Headers of a message: kept on every way into a partition and out of it, shown, searched, and bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from server_settings import settings_with

from integration.queen import Queen, ack_op, age_messages, decide_pushes
from queenmq.broker.load_manager import Choice
from queenmq.config import Settings
from queenmq.server import Server

HEADERS = {"type": "order", "Región": "eu-süd ☃", "empty": ""}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_with(
        journal={"folder": tmp_path / "journal", "replay_interval_ms": 10},
        limits={"max_answer_bytes": 50_000},
        outbox={"interval_ms": 10},
        timers={"interval_ms": 10},
        server={"encryption_key": bytes(32)},
    )


def item(queue: str = "q", name: str = "m", **fields: Any) -> dict[str, Any]:
    return {"queue": queue, "payload": name, "transactionId": name, "headers": HEADERS} | fields


async def popped(queen: Queen, queue: str = "q") -> dict[str, Any]:
    [message] = await queen.wait(queue)
    return message


class TestEveryWayIn:
    async def test_a_push(self, queen: Queen) -> None:
        await queen.push_items(item(), item(name="without", headers=None), item(name="none", headers={}))
        first, *others = await queen.pop("q", batch=10)
        assert first["headers"] == HEADERS
        assert [message["transactionId"] for message in others] == ["without", "none"]
        assert not any("headers" in message for message in others)

    async def test_without_headers_the_column_is_null(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("q", 1)
        assert await sql.fetchval("SELECT headers IS NULL FROM queen.messages")

    async def test_a_push_that_is_deferred(
        self, queen: Queen, server: Server, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as busy:
            decide_pushes(server, busy, Choice.QUEUE)
            answer = await http.post("/api/v1/push", json={"items": [item(name="a"), item(name="b", headers=None)]})
        assert answer.status_code == 202
        found: list[dict[str, Any]] = []
        while len(found) < 2:
            found += await queen.wait("q", autoAck=True)
        assert [message.get("headers") for message in found] == [HEADERS, None]

    async def test_a_push_through_the_journal(self, queen: Queen, http: httpx.AsyncClient) -> None:
        await http.post("/api/v1/system/maintenance", json={"enabled": True})
        answer = await http.post("/api/v1/push", json={"items": [item(), item(name="without", headers=None)]})
        assert answer.json()[0]["status"] == "buffered", answer.text
        await http.post("/api/v1/system/maintenance", json={"enabled": False})
        first = await popped(queen)
        assert first["headers"] == HEADERS

    async def test_a_timer(self, queen: Queen, http: httpx.AsyncClient) -> None:
        pushed = await queen.push_items(item(delay=0))
        assert pushed[0]["status"] == "scheduled"
        assert (await popped(queen))["headers"] == HEADERS
        operation = {"op": "schedule", "queue": "q", "timerKey": "k", "data": 1, "delayMs": 3_600_000}
        await http.post("/api/v1/timers", json={"operations": [operation | {"headers": HEADERS}]})
        assert (await http.get("/api/v1/timers/q/k")).json()["headers"] == HEADERS
        assert (await http.get("/api/v1/timers/q")).json()["rows"][0]["headers"] == HEADERS

    async def test_a_conditional_push_and_a_transaction(self, queen: Queen, http: httpx.AsyncClient) -> None:
        expect = [{"queue": "q", "partition": "Default", "lastOffset": 0}]
        body = {"items": [item(), item(name="without", headers=None)], "expect": expect}
        assert (await http.post("/api/v1/push", json=body)).status_code == 201
        first, second = await queen.pop("q", batch=2)
        assert (first["headers"], "headers" in second) == (HEADERS, False)
        await queen.transact(ack_op(first), {"type": "push", "items": [item("results")]}, leases=[first["leaseId"]])
        assert (await popped(queen, "results"))["headers"] == HEADERS

    async def test_a_send_in_the_applications_transaction(self, queen: Queen, sql: asyncpg.Connection) -> None:
        async with sql.transaction():
            for headers in (HEADERS, {}, None):
                await sql.fetchval(
                    "SELECT queen.send_with_headers('q', 'p', '1', $1::jsonb)",
                    None if headers is None else json.dumps(headers),
                )
        found: list[dict[str, Any]] = []
        while len(found) < 3:
            found += await queen.wait("q", "p", autoAck=True)
        assert [message.get("headers") for message in found] == [HEADERS, None, None]

    @pytest.mark.parametrize(
        "headers",
        [
            '["a"]',
            '{"a": 1}',
            '{"": "x"}',
            json.dumps({"a": "x" * 20_000}),
            json.dumps(dict.fromkeys(map(str, range(101)), "")),
        ],
        ids=["no map", "no string", "no name", "too large", "too many"],
    )
    async def test_a_send_refuses_what_a_push_does(self, sql: asyncpg.Connection, queen: Queen, headers: str) -> None:
        with pytest.raises((asyncpg.InvalidParameterValueError, asyncpg.ProgramLimitExceededError), match="headers"):
            await sql.fetchval("SELECT queen.send_with_headers('q', 'p', '1', $1::jsonb)", headers)

    @pytest.mark.parametrize(
        "headers",
        [["a"], {"a": 1}, {"": "x"}, {"a": "\0"}, {"a": "x" * 20_000}, dict.fromkeys(map(str, range(101)), "")],
        ids=["no map", "no string", "no name", "NUL", "too large", "too many"],
    )
    async def test_a_push_says_what_is_wrong(self, queen: Queen, headers: object) -> None:
        refusal = await queen.refused("/api/v1/push", {"items": [item(headers=headers)]})
        assert "headers" in refusal["error"]


class TestEveryWayOut:
    async def test_a_fetch_a_listing_and_one_message(self, queen: Queen, http: httpx.AsyncClient) -> None:
        await queen.push_items(item())
        fetched = (await http.post("/api/v1/fetch", json={"entries": [{"queue": "q"}]})).json()
        assert fetched["entries"][0]["records"][0]["headers"] == HEADERS
        [listed] = (await http.get("/api/v1/messages", params={"queue": "q"})).json()["messages"]
        assert listed["headers"] == HEADERS
        shown = (await http.get(f"/api/v1/messages/{listed['partitionId']}/m")).json()
        assert shown["headers"] == HEADERS

    async def test_a_listing_is_searched_by_header(self, queen: Queen, http: httpx.AsyncClient) -> None:
        items = [item(name=str(n), headers={"n": f"a:{n}"}) for n in range(60)]
        await queen.push_items(*items, item(name="without", headers=None))
        params = {"queue": "q", "header": "n:a:7", "limit": 2, "payload": True}
        found = (await http.get("/api/v1/messages", params=params)).json()["messages"]
        assert [(message["transactionId"], message["payload"]) for message in found] == [("7", "7")]
        refusal = await http.get("/api/v1/messages", params={"header": "n"})
        assert (refusal.status_code, refusal.json()["error"]) == (400, "header must be name:value")

    async def test_a_dead_letter_and_its_way_back(
        self, queen: Queen, http: httpx.AsyncClient, sql: asyncpg.Connection
    ) -> None:
        await queen.configure("q", retryLimit=0, retentionSeconds=1, retentionEnabled=True)
        await queen.push_items(item(name="a"), item(name="b"))
        for message in await queen.pop("q", batch=2):
            await queen.ack(message, "dlq", error="no")
        assert [letter["headers"] for letter in await queen.dead_letters("q")] == [HEADERS] * 2
        await age_messages(sql, "q", 3600)
        await sql.execute("DELETE FROM queen.messages")
        [letter, _] = await queen.dead_letters("q")
        assert (await http.post(f"/api/v1/messages/{letter['partitionId']}/{letter['transactionId']}/retry")).is_success
        assert (await http.post("/api/v1/dlq/redrive", json={"queue": "q"})).is_success
        back = await queen.pop("q", batch=2)
        assert [message["headers"] for message in back] == [HEADERS] * 2

    async def test_headers_of_an_encrypted_queue_are_in_clear(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("q", encryptionEnabled=True)
        await queen.push_items(item())
        row = await sql.fetchrow("SELECT is_encrypted, headers FROM queen.messages")
        assert (row["is_encrypted"], json.loads(row["headers"])) == (True, HEADERS)
        assert (await popped(queen))["headers"] == HEADERS

    async def test_a_take(self, queen: Queen) -> None:
        await queen.push_items(item(name="a"), item(name="b"), item(name="c"))
        answer = await queen.pop_answer("q", batch=1)
        taken = await queen.take(answer["leaseId"], "q", batch=1)
        assert taken["taken"]["messages"][0]["headers"] == HEADERS

    async def test_they_count_in_the_size_of_an_answer(self, queen: Queen) -> None:
        large = {str(n): "x" * 1000 for n in range(15)}
        await queen.push_items(*(item(name=str(n), headers=large) for n in range(20)))
        assert len(await queen.pop("q", batch=20)) == 3
