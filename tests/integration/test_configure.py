"""Configure: creates a queue, replaces all of its options, and says what they are."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import asyncpg

from integration.queen import Queen

DEFAULTS = {
    "leaseTime": 300,
    "maxSize": 0,
    "ttl": 3600,
    "retryLimit": 3,
    "retryDelay": 1000,
    "deadLetterQueue": False,
    "dlqAfterMaxRetries": False,
    "priority": 0,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "retentionEnabled": False,
    "encryptionEnabled": False,
    "maxWaitTimeSeconds": 0,
    "archiveBeforeDelete": False,
    "setAsideFailedPushes": False,
    "popWaitBaseIntervalMs": None,
    "popWaitMaxIntervalMs": None,
    "popWaitBackoffThreshold": None,
    "popWaitBackoffMultiplier": None,
}
OTHERS = {
    "leaseTime": 17,
    "maxSize": 5000,
    "ttl": 120,
    "retryLimit": 0,
    "retryDelay": 250,
    "deadLetterQueue": True,
    "dlqAfterMaxRetries": True,
    "priority": -4,
    "delayedProcessing": 2,
    "windowBuffer": 3,
    "retentionSeconds": 60,
    "completedRetentionSeconds": 30,
    "retentionEnabled": True,
    "encryptionEnabled": False,
    "maxWaitTimeSeconds": 90,
    "archiveBeforeDelete": True,
    "setAsideFailedPushes": True,
    "popWaitBaseIntervalMs": 200,
    "popWaitMaxIntervalMs": 5000,
    "popWaitBackoffThreshold": 2,
    "popWaitBackoffMultiplier": 1.5,
}


async def test_a_queue_without_options_has_the_defaults(queen: Queen) -> None:
    configured = await queen._call("POST", "/api/v1/configure", 200, {"queue": "orders"})
    assert configured["configured"] is True
    assert (configured["queue"], configured["namespace"], configured["task"]) == ("orders", "", "")
    assert configured["options"] == DEFAULTS
    assert UUID(configured["queueId"]) != UUID(configured["partitionId"])


async def test_every_option_is_echoed(queen: Queen) -> None:
    configured = await queen.configure("orders", "sales", "ship", **OTHERS)
    assert configured["options"] == OTHERS
    assert (configured["namespace"], configured["task"]) == ("sales", "ship")


async def test_configuring_again_replaces_every_option_and_keeps_the_ids(queen: Queen) -> None:
    first = await queen.configure("orders", "sales", "ship", **OTHERS)
    again = await queen.configure("orders", leaseTime=30)
    assert again["options"] == DEFAULTS | {"leaseTime": 30}
    assert (again["namespace"], again["task"]) == ("", "")
    assert (again["queueId"], again["partitionId"]) == (first["queueId"], first["partitionId"])


async def test_without_a_mode_only_what_is_given_is_changed(queen: Queen) -> None:
    await queen.configure("orders", "sales", "ship", **OTHERS)
    merged = await queen.merge_options("orders", leaseTime=30, ttl=None, maxSize=0)
    assert merged["options"] == OTHERS | {"leaseTime": 30, "ttl": 3600, "maxSize": 0}
    assert (merged["namespace"], merged["task"]) == ("sales", "ship")
    assert await queen.merge_options("orders") == merged
    assert (await queen.merge_options("new", leaseTime=5))["options"] == DEFAULTS | {"leaseTime": 5}


async def test_services_that_name_different_options_do_not_undo_each_other(queen: Queen) -> None:
    named = {name: OTHERS[name] for name in OTHERS if name != "encryptionEnabled"}
    await asyncio.gather(*(queen.merge_options("orders", **{name: value}) for name, value in named.items()))
    assert (await queen.merge_options("orders"))["options"] == OTHERS


async def test_the_same_configuration_twice_is_the_same_answer(queen: Queen) -> None:
    assert await queen.configure("orders", **OTHERS) == await queen.configure("orders", **OTHERS)


async def test_the_partition_default_is_made(queen: Queen, sql: asyncpg.Connection) -> None:
    configured = await queen.configure("orders")
    rows = await sql.fetch("SELECT id::text, name FROM queen.partitions")
    assert [tuple(row) for row in rows] == [(configured["partitionId"], "Default")]


async def test_unknown_options_are_ignored(queen: Queen) -> None:
    assert (await queen.configure("orders", shape="round", leaseTime=5))["options"] == DEFAULTS | {"leaseTime": 5}


async def test_an_auto_created_queue_takes_namespace_and_task_from_its_name(
    queen: Queen, sql: asyncpg.Connection
) -> None:
    names = ("plain", "sales.ship", "a.b.c", ".x", "end.")
    await queen.push_items(*({"queue": name} for name in names))
    rows = await sql.fetch("SELECT name, namespace, task FROM queen.queues")
    assert {tuple(row) for row in rows} == {
        ("plain", "plain", ""),
        ("sales.ship", "sales", "ship"),
        ("a.b.c", "a", "b"),
        (".x", "", "x"),
        ("end.", "end", ""),
    }


async def test_a_push_does_not_change_a_configured_queue(queen: Queen, sql: asyncpg.Connection) -> None:
    configured = await queen.configure("sales.ship", "other", "", priority=9)
    await queen.push("sales.ship", 1, partition="new")
    row = await sql.fetchrow("SELECT id::text, namespace, task, priority FROM queen.queues")
    assert tuple(row) == (configured["queueId"], "other", "", 9)


async def test_an_auto_created_queue_has_the_default_options(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("pushed", 1)
    await queen.configure("configured")
    columns = "to_jsonb(q) - 'id' - 'name' - 'namespace' - 'created_at' - 'version'"
    assert len(await sql.fetch(f"SELECT DISTINCT {columns} FROM queen.queues q")) == 1


REFUSALS: list[tuple[dict[str, Any], str | None, str]] = [
    ({}, "queue is required", "queue"),
    ({"queue": 7}, "queue is required", "queue"),
    ({"queue": ""}, "queue must not be empty", "queue"),
    ({"queue": "q" * 256}, "queue must have at most 255 characters", "queue"),
    ({"queue": "a\0b"}, "queue must not contain NUL", "queue"),
    ({"queue": "q", "namespace": "n" * 256}, "namespace must have at most 255 characters", "namespace"),
    ({"queue": "q", "options": {"leaseTime": -1}}, None, "options.leaseTime"),
    ({"queue": "q", "options": {"leaseTime": "long"}}, None, "options.leaseTime"),
    ({"queue": "q", "options": {"retryLimit": 1.5}}, None, "options.retryLimit"),
    ({"queue": "q", "options": {"maxSize": 2**40}}, None, "options.maxSize"),
    ({"queue": "q", "options": {"retentionEnabled": 1}}, None, "options.retentionEnabled"),
    ({"queue": "q", "options": {"encryptionEnabled": True}}, None, "options.encryptionEnabled"),
]


async def test_what_cannot_be_configured_is_refused_and_nothing_is_written(
    queen: Queen, sql: asyncpg.Connection
) -> None:
    for body, error, field in REFUSALS:
        refusal = await queen.refused("/api/v1/configure", body)
        assert refusal["field"] == field
        assert error is None or refusal["error"] == error
    assert await sql.fetchval("SELECT count(*) FROM queen.queues") == 0


async def test_a_body_that_is_missing_or_no_json_is_refused(queen: Queen) -> None:
    assert (await queen.refused("/api/v1/configure", None))["error"] == "Empty request body"
    answer = await queen.http.post("/api/v1/configure", content=b'{"queue":')
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Invalid JSON")
