"""Traces: what a consumer records about a message."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import asyncpg

from integration.queen import Json, Message, Queen


async def popped(queen: Queen) -> Message:
    await queen.push("orders", "t")
    [message] = await queen.pop("orders")
    return message


async def test_a_trace_is_recorded(queen: Queen, sql: asyncpg.Connection) -> None:
    message = await popped(queen)
    fields = {"consumerGroup": "g", "eventType": "step", "traceNames": ["checkout", "audit", "audit"]}
    answer = await queen.trace(message, {"n": 1}, **fields)
    assert answer == {"success": True, "traceId": answer["traceId"]}
    row = await sql.fetchrow(
        "SELECT id, partition_id::text, transaction_id, consumer_group, event_type, convert_from(data, 'UTF8') AS data "
        "FROM queen.message_traces"
    )
    assert tuple(row) == (UUID(answer["traceId"]), message["partitionId"], "t", "g", "step", '{"n":1}')
    names = await sql.fetch("SELECT name FROM queen.message_trace_names ORDER BY name")
    assert [row["name"] for row in names] == ["audit", "checkout"]


async def test_only_the_message_and_the_data_are_needed(queen: Queen, sql: asyncpg.Connection) -> None:
    message = await popped(queen)
    for data in ("text", 5, [1], {}):
        await queen.trace(message, data)
    rows = await sql.fetch("SELECT DISTINCT event_type, consumer_group FROM queen.message_traces")
    assert [tuple(row) for row in rows] == [("info", None)]
    assert await sql.fetchval("SELECT count(*) FROM queen.message_traces") == 4


async def test_names_may_be_nothing_one_or_many(queen: Queen, sql: asyncpg.Connection) -> None:
    message = await popped(queen)
    given: list[Any] = [None, [], "one", ["two", "three"]]
    for names in given:
        await queen.trace(message, {}, traceNames=names)
    rows = await sql.fetch("SELECT name FROM queen.message_trace_names")
    assert {row["name"] for row in rows} == {"one", "two", "three"}


async def test_a_finished_message_can_be_traced(queen: Queen) -> None:
    message = await popped(queen)
    await queen.ack(message)
    assert (await queen.trace(message, {"after": True}))["success"]


async def test_an_unknown_message_is_not_found(queen: Queen) -> None:
    message = await popped(queen)
    for wrong in ({"transactionId": "unknown"}, {"partitionId": str(uuid4())}):
        assert (await queen.trace(message | wrong, {}, status=404))["error"] == "Message not found"


async def test_bad_traces_are_refused_and_nothing_is_written(queen: Queen, sql: asyncpg.Connection) -> None:
    message = await popped(queen)
    good: Json = {"transactionId": "t", "partitionId": message["partitionId"], "data": {}}
    both = "transactionId and partitionId are required"
    refusals: list[tuple[Json, str | None]] = [
        ({"partitionId": message["partitionId"], "data": {}}, both),
        ({"transactionId": "t", "data": {}}, both),
        ({"transactionId": 1, "partitionId": message["partitionId"], "data": {}}, both),
        ({"transactionId": "t", "partitionId": message["partitionId"]}, "data is required"),
        (good | {"partitionId": "x"}, "partitionId must be a UUID"),
        (good | {"traceNames": [1]}, None),
        (good | {"traceNames": ["a\0"]}, None),
        (good | {"eventType": "e" * 256}, None),
        (good | {"consumerGroup": 5}, None),
    ]
    for body, error in refusals:
        refusal = await queen.refused("/api/v1/traces", body)
        assert error is None or refusal["error"] == error
    assert await sql.fetchval("SELECT count(*) FROM queen.message_traces") == 0
