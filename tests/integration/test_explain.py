"""Why nothing is delivered: every reason that there is, as the server tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
import pytest

from integration.queen import Json, Queen, age_messages, expire_leases, until
from integration.test_statistics import get
from queenmq.config import Settings
from queenmq.overload.load_manager import Choice, Decision
from queenmq.server import Server


async def explain(queen: Queen, queue: str = "orders", **params: Any) -> Json:
    explained = await get(queen, f"explain/{queue}", **params)
    assert explained["explanation"].endswith(".")
    assert explained["advice"].endswith(".")
    popped = await queen.pop(
        queue, params.get("partition"), **{k: v for k, v in params.items() if k == "consumerGroup"}
    )
    assert bool(popped) is (explained["reason"] == "deliverable"), explained
    return explained


async def test_the_queue_is_unknown(queen: Queen) -> None:
    explained = await explain(queen)
    assert (explained["reason"], explained["partitions"]) == ("queue_unknown", [])
    assert "There is no queue 'orders'" in explained["explanation"]


async def test_the_partition_is_unknown(queen: Queen) -> None:
    await queen.push("orders", 1)
    assert (await explain(queen, partition="nobody"))["reason"] == "partition_unknown"


async def test_the_group_never_started(queen: Queen) -> None:
    await queen.push("orders", 1)
    await queen.pop("orders", consumerGroup="other")
    explained = await get(queen, "explain/orders", consumerGroup="g")
    assert (explained["reason"], explained["groups"]) == ("group_never_started", ["other"])
    assert "other" in explained["explanation"]


async def test_the_only_group_is_meant_if_none_is_named(queen: Queen) -> None:
    await queen.push("orders", 1)
    await queen.pop("orders", consumerGroup="g")
    assert (await get(queen, "explain/orders"))["consumerGroup"] == "g"
    assert (await get(queen, "explain/orders", group="h"))["consumerGroup"] == "h"


async def test_the_group_is_at_the_end(queen: Queen) -> None:
    await queen.push("orders", 1)
    await queen.drain("orders")
    explained = await explain(queen)
    assert (explained["reason"], explained["partitions"][0]["unread"]) == ("end_reached", 0)


async def test_the_group_is_at_the_end_and_has_given_something_up(queen: Queen) -> None:
    await queen.push("orders", 1, 2, partition="eu")
    await queen.push("orders", 3, partition="us")
    for partition in ("eu", "us"):
        for message in await queen.pop("orders", partition, batch=10):
            await queen.ack(message, "dlq")
    for partition, letters in ((None, 3), ("eu", 2), ("us", 1)):
        explained = await explain(queen, **({} if partition is None else {"partition": partition}))
        assert (explained["reason"], explained["deadLetters"]) == ("end_reached", letters)
        told = "1 message up, which is a dead letter now" if letters == 1 else f"{letters} messages up, which are dead"
        assert told in explained["explanation"]
        assert "redrive" in explained["advice"]
    assert (await get(queen, "explain/orders", consumerGroup="other"))["deadLetters"] == 0


async def test_the_partition_is_leased(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", 1, 2, 3)
    held = await queen.pop("orders", batch=2)
    explained = await explain(queen)
    [place] = explained["partitions"]
    assert (explained["reason"], place["leaseId"], place["leased"]) == ("leased", held[0]["leaseId"], 2)
    assert explained["until"] == place["leaseExpiresAt"] is not None
    assert held[0]["leaseId"] in explained["explanation"]
    await expire_leases(sql)
    assert (await explain(queen))["reason"] == "deliverable"


async def test_the_head_fails(queen: Queen) -> None:
    await queen.configure("orders", retryDelay=60_000, retryLimit=3)
    await queen.push("orders", "bad", "good")
    [message] = await queen.pop("orders")
    await queen.ack(message, "failed")
    explained = await explain(queen)
    [place] = explained["partitions"]
    assert (explained["reason"], place["attempts"], place["attemptsLeft"]) == ("retry_pause", 1, 3)
    assert place["nextTransactionId"] == "bad"
    assert "failed once" in explained["explanation"]
    assert "3 attempts are left" in explained["explanation"]


async def test_what_failed_and_can_be_tried_again_is_told(queen: Queen) -> None:
    await queen.configure("orders", retryDelay=0, retryLimit=1)
    await queen.push("orders", "bad")
    [message] = await queen.pop("orders")
    await queen.ack(message, "failed")
    explained = await explain(queen)
    assert (explained["reason"], explained["partitions"][0]["attemptsLeft"]) == ("deliverable", 1)
    assert "1 attempt is left" in explained["explanation"]


async def test_the_message_is_delayed(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders", delayedProcessing=600)
    await queen.pop("orders")
    await queen.push("orders", 1)
    explained = await explain(queen)
    assert (explained["reason"], explained["until"] is not None) == ("delayed", True)
    assert "600 s" in explained["explanation"]


async def test_the_window_is_open(queen: Queen) -> None:
    await queen.configure("orders", windowBuffer=600)
    await queen.pop("orders")
    await queen.push("orders", 1)
    assert (await explain(queen))["reason"] == "window_open"


async def test_pops_are_paused(queen: Queen) -> None:
    await queen.push("orders", 1)
    await queen.pop("orders")
    await queen.http.post("/api/v1/system/maintenance/pop", json={"enabled": True})
    try:
        explained = await explain(queen)
        assert (explained["reason"], explained["paused"]) == ("paused", True)
        assert explained["partitions"][0]["reason"] == "leased"
    finally:
        await queen.http.post("/api/v1/system/maintenance/pop", json={"enabled": False})


async def test_of_many_partitions_the_one_that_comes_next_speaks(queen: Queen, sql: asyncpg.Connection) -> None:
    for n in range(30):
        await queen.push("orders", n, partition=f"p{n:02}")
    await queen.drain("orders", "p00")
    await queen.pop("orders", partitions=29, batch=29)
    explained = await explain(queen)
    assert (explained["reason"], len(explained["partitions"])) == ("leased", 20)
    assert "Partition 'p" in explained["explanation"]
    await queen.push("orders", 1, partition="p00")
    await age_messages(sql, "orders", 10)
    explained = await explain(queen)
    assert explained["reason"] == "deliverable"
    assert "Partition 'p00'" in explained["explanation"]


async def test_pushes_wait_in_the_operation_queue(server: Server, queen: Queen, monkeypatch: Any) -> None:
    await queen.push("orders", 1)
    await queen.drain("orders")
    monkeypatch.setattr(server.engine.load, "decide_push", lambda: Decision(Choice.QUEUE, "system_busy"))
    monkeypatch.setattr(server.engine.operations, "run", _never)
    item = {"queue": "orders", "payload": 2}
    answer = await queen.http.post("/api/v1/push", json={"items": [item]})
    assert answer.status_code == 202
    for params in ({}, {"partition": "Default"}):
        explained = await explain(queen, **params)
        assert (explained["reason"], explained["queuedPushes"]) == ("backpressure", 1)
        assert explained["partitions"][0]["reason"] == "backpressure"
        assert "1 push accepted under load, the oldest since" in explained["explanation"]
    monkeypatch.undo()
    while await server.engine.operations.run(10, 10):
        pass
    explained = await explain(queen)
    assert (explained["reason"], explained["queuedPushes"]) == ("deliverable", 0)


async def _never(*_: int) -> int:
    return 0


class TestWithAJournal:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(port=0, shutdown_grace_s=2, file_buffer_dir=tmp_path, file_buffer_flush_ms=10)

    async def test_pushes_wait_in_the_journal(self, queen: Queen) -> None:
        await queen.push("orders", 1)
        await queen.drain("orders")
        await queen.http.post("/api/v1/system/maintenance", json={"enabled": True})
        items = [{"queue": queue, "payload": 2} for queue in ("orders", "new")]
        for item in items:
            answer = await queen.http.post("/api/v1/push", json={"items": [item]})
            assert answer.status_code == 202
        for queue in ("orders", "new"):
            explained = await explain(queen, queue)
            assert (explained["reason"], explained["journalledPushes"]) == ("backpressure", 1), explained
            assert "switched off for maintenance" in explained["explanation"]
        assert (await get(queen, "status/buffers"))["pending"] == 2
        assert (await queen.http.get("/metrics")).json()["buffer"]["pending"] == 2
        await queen.http.post("/api/v1/system/maintenance", json={"enabled": False})

        async def stored() -> bool:
            return (await get(queen, "explain/orders"))["reason"] == "deliverable"

        await until(stored)
