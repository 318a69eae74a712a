"""Listings of large things: bounded in bytes, whole in rows, and honest about what they leave out."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from server_settings import settings_with

from integration.queen import Queen
from queenmq.config import Settings

MOST = 25_000
SIZE = 10_000


@pytest.fixture
def settings() -> Settings:
    return settings_with(limits={"max_answer_bytes": MOST})


async def get(queen: Queen, path: str, **params: Any) -> Any:
    answer = await queen.http.get(path, params=params)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) < 2 * MOST
    return answer.json()


async def push(queen: Queen, count: int = 5) -> None:
    items = [{"queue": "q", "payload": "x" * SIZE, "transactionId": f"t{number}"} for number in range(count)]
    await queen.push_items(*items)


def omitted(rows: list[dict[str, Any]]) -> list[bool]:
    return [row.get("omitted", False) for row in rows]


async def test_messages_with_their_payloads(queen: Queen) -> None:
    await push(queen)
    rows = (await get(queen, "/api/v1/messages", queue="q", payload=True))["messages"]
    assert [row["transactionId"] for row in rows] == [f"t{number}" for number in reversed(range(5))]
    assert omitted(rows) == [False, False, True, True, True]
    assert [row["payload"] is None for row in rows] == omitted(rows)
    # Without payloads nothing is left out, and one alone is always told.
    assert omitted((await get(queen, "/api/v1/messages", queue="q"))["messages"]) == [False] * 5
    path = f"/api/v1/messages/{rows[-1]['partitionId']}/t0"
    assert len((await get(queen, path))["payload"]) == SIZE


async def test_dead_letters(queen: Queen) -> None:
    await push(queen)
    while popped := await queen.pop("q", batch=5):
        for message in popped:
            await queen.ack(message, "dlq", error="e" * 2000)
    rows = (await get(queen, "/api/v1/dlq", queue="q"))["messages"]
    assert (len(rows), omitted(rows)) == (5, [False, False, True, True, True])
    assert [row["undecryptable"] for row in rows] == [False] * 5
    assert [len(row["errorMessage"]) for row in rows] == [2000, 2000, 1000, 1000, 1000]
    page = (await get(queen, "/api/v1/dlq", queue="q", limit=2, offset=3))["messages"]
    assert ([row["id"] for row in page], omitted(page)) == ([row["id"] for row in rows[3:]], [False, False])


@pytest.mark.parametrize("params", [{}, {"state": "failing"}], ids=["by name", "failing"])
async def test_partitions_with_their_last_errors(queen: Queen, params: dict[str, str]) -> None:
    items = [{"queue": "q", "partition": f"p{number}", "payload": 1} for number in range(25)]
    await queen.push_items(*items)
    for group in ("g", "h"):
        for message in await queen.pop("q", consumerGroup=group, batch=25, partitions=25):
            await queen.ack(message, "failed", error="e" * 2000)
    rows = (await get(queen, "/api/v1/resources/queues/q/partitions", **params))["partitions"]
    assert [len(row["groups"]) for row in rows] == [1] * 25
    assert {row["groupCount"] for row in rows} == {2}
    assert {len(row["groups"][0]["lastAttempt"]["error"]) for row in rows} == {MOST // 4 // 25}
    [alone] = (await get(queen, "/api/v1/resources/queues/q/partitions", partition="p7"))["partitions"]
    assert [len(group["lastAttempt"]["error"]) for group in alone["groups"]] == [2000, 2000]


async def test_traces(queen: Queen) -> None:
    await push(queen, 1)
    [message] = await queen.pop("q")
    for _ in range(5):
        await queen.trace(message, "d" * 1000, traceNames=["n"])
    by_name = (await get(queen, "/api/v1/traces/by-name/n"))["traces"]
    assert omitted(by_name) == [False, False, True, True, True]
    assert [row["data"] is None for row in by_name] == omitted(by_name)
    for _ in range(5):
        await queen.trace(message, "d" * SIZE)
    of_message = (await get(queen, f"/api/v1/traces/{message['partitionId']}/t0"))["traces"]
    assert omitted(of_message) == [False] * 6 + [True] * 4


async def test_operations(queen: Queen, sql: asyncpg.Connection) -> None:
    ids = [uuid4() for _ in range(5)]
    for identity in ids:
        await sql.execute(
            "INSERT INTO queen.operation_queue (id, kind, queue_name, partition_name, status, result, finished_at) "
            "VALUES ($1, 'push', 'q', 'p', 'completed', (SELECT jsonb_agg(jsonb_build_object("
            "'status', 'queued', 'transactionId', n::text, 'messageId', gen_random_uuid())) "
            "FROM generate_series(1, 40) n), now())",
            identity,
        )
    rows = (await get(queen, "/api/v1/operations"))["operations"]
    assert (len(rows), omitted(rows)[-1]) == (5, True)
    alone = await get(queen, f"/api/v1/operations/{ids[0]}")
    assert (len(alone["result"]), "omitted" in alone) == (40, False)


async def test_a_part_of_a_state_is_not_taken_for_the_whole(queen: Queen, sql: asyncpg.Connection) -> None:
    await push(queen, 1)
    partition = await sql.fetchval("SELECT id FROM queen.partitions")
    body = {"name": "s", "source_queue": "q", "config_hash": "h"}
    query = (await queen.http.post("/streams/v1/queries", json=body)).json()["query_id"]
    for number in range(4):
        await sql.execute(
            "INSERT INTO queen.stream_state (query_id, partition_id, key, value) VALUES ($1, $2, $3, $4)",
            *(query, partition, f"k{number}", b'"' + b"x" * SIZE + b'"'),
        )
    asked = {"query_id": query, "partition_id": str(partition)}
    refused = await queen.http.post("/streams/v1/state/get", json=asked)
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    some = await queen.http.post("/streams/v1/state/get", json=asked | {"keys": ["k1", "k3"]})
    assert [row["key"] for row in some.json()["rows"]] == ["k1", "k3"]
