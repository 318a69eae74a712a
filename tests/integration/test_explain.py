"""Why nothing is delivered: every reason that there is, as the server tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
import pytest
from server_settings import settings_with

from integration.queen import Json, Queen, age_messages, decide_pushes, expire_leases, until
from integration.test_statistics import get
from queenmq.broker.load_manager import Choice
from queenmq.config import Settings
from queenmq.reports.reading import Query, Reader
from queenmq.server import Server


async def explain(queen: Queen, queue: str = "orders", **params: Any) -> Json:
    explained = await get(queen, f"explain/{queue}", **params)
    assert explained["explanation"].endswith(".")
    assert explained["advice"].endswith(".")
    popped = await queen.pop(
        queue, params.get("partition"), **{k: v for k, v in params.items() if k == "consumerGroup"}
    )
    assert bool(popped) is (explained["reason"] == "deliverable") is explained["deliverable"], explained
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


async def test_what_the_first_pop_of_a_group_gets_is_told(queen: Queen) -> None:
    await queen.push("orders", "first")
    explained = await get(queen, "explain/orders", consumerGroup="g")
    assert (explained["reason"], explained["deliverable"]) == ("group_never_started", True)
    assert "Its first pop gets something. 1 message can be popped now." in explained["explanation"]
    assert await queen.pop("orders", consumerGroup="g")
    await queen.configure("empty")
    explained = await get(queen, "explain/empty", consumerGroup="g")
    assert (explained["reason"], explained["deliverable"]) == ("group_never_started", False)
    assert "nothing is stored" in explained["explanation"]


async def test_a_group_that_has_popped_only_a_named_partition_has_the_others_before_it(queen: Queen) -> None:
    await queen.push("orders", "tea", "cup", partition="ann")
    await queen.push("orders", "hat", partition="bob")
    await queen.drain("orders", "ann", consumerGroup="packing")
    [group] = await get(queen, "consumer-groups")
    assert (group["name"], group["unread"], group["totalLag"], group["partitionsWithLag"]) == ("packing", 1, 1, 1)
    shown = (await get(queen, "consumer-groups/packing"))["orders"]["partitions"]
    assert [(place["partition"], place["state"], place["started"]) for place in shown] == [
        ("bob", "Ready", False),
        ("ann", "Up to date", True),
    ]
    assert (await get(queen, "explain/orders"))["consumerGroup"] == "packing"
    assert (await get(queen, "explain/orders", partition="bob", group="packing"))["reason"] == "deliverable"
    explained = await explain(queen, consumerGroup="packing")
    assert explained["reason"] == "deliverable"
    assert "Partition 'bob' comes next: 1 message can be popped now." in explained["explanation"]
    assert explained["partitions"][0]["nextTransactionId"] == "hat"


async def test_what_has_expired_is_not_called_deliverable(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders", ttl=100)
    await queen.pop("orders")
    await queen.push("orders", 1, 2)
    await age_messages(sql, "orders", 200)
    explained = await explain(queen)
    assert (explained["reason"], explained["partitions"][0]["unread"]) == ("expired", 2)
    await queen.push("orders", "fresh")
    explained = await explain(queen)
    assert "1 message can be popped now" in explained["explanation"]
    assert explained["partitions"][0]["nextTransactionId"] == "fresh"


async def test_what_the_next_pop_gives_up_is_not_called_deliverable(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders", retryLimit=0, dlqAfterMaxRetries=True)
    await queen.push("orders", "bad")
    await queen.pop("orders")
    await expire_leases(sql)
    explained = await explain(queen)
    assert explained["reason"] == "exhausted"
    assert "Message bad has used up its attempts" in explained["explanation"]
    assert (await explain(queen))["deadLetters"] == 1


async def test_a_partition_behind_many_that_have_nothing_is_found(queen: Queen, sql: asyncpg.Connection) -> None:
    """Retention took what they had, so they are still awake, and come before the one that has something."""
    for n in range(25):
        await queen.push("orders", n, partition=f"p{n:02}")
    await queen.pop("orders", "none")
    await queen.pop("orders", subscriptionMode="all", autoAck=True)
    await sql.execute("SELECT queen.clear(id, NULL, NULL, NULL, 1000) FROM queen.queues")
    await queen.push("orders", "last", partition="z")
    explained = await explain(queen)
    assert explained["deliverable"]
    assert "Partition 'z' comes next" in explained["explanation"]


async def test_all_is_told_of_one_moment(queen: Queen, server: Server, monkeypatch: Any) -> None:
    """Whatever is committed between its statements."""
    await queen.push("orders", 1)
    await queen.drain("orders")
    fetch = Reader.rows

    async def slowly(reader: Reader, query: Query[Any], *arguments: object) -> Any:
        rows = await fetch(reader, query, *arguments)
        if query.name == "explain_groups":
            await queen.push("orders", 2)
        return rows

    monkeypatch.setattr(Reader, "rows", slowly)
    explained = await get(queen, "explain/orders")
    assert (explained["reason"], explained["partitions"][0]["lastOffset"]) == ("end_reached", 1)


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
    for partition, letters in ((None, 3), ("eu", 2), ("us", 1)):  # type: ignore[assignment]
        explained = await explain(queen, **({} if partition is None else {"partition": partition}))
        assert (explained["reason"], explained["deadLetters"]) == ("end_reached", letters)
        said = "1 message became a dead letter" if letters == 1 else f"{letters} messages became dead letters"
        assert said in explained["explanation"]
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
        fresh = (await get(queen, "explain/orders", consumerGroup="fresh"))["partitions"][0]
        assert (fresh["state"], fresh["ready"]) == ("Paused", 0)
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
    decide_pushes(server, monkeypatch, Choice.QUEUE)
    monkeypatch.setattr(server.broker.operation_runner, "run_pushes", _never)
    item = {"queue": "orders", "payload": 2}
    answer = await queen.http.post("/api/v1/push", json={"items": [item]})
    assert answer.status_code == 202
    for params in ({}, {"partition": "Default"}):
        explained = await explain(queen, **params)
        assert (explained["reason"], explained["queuedPushes"]) == ("backpressure", 1)
        assert explained["partitions"][0]["reason"] == "backpressure"
        assert "1 push accepted under load, the oldest since" in explained["explanation"]
    monkeypatch.undo()
    while await server.broker.operation_runner.run_pushes(10, 10):
        pass
    explained = await explain(queen)
    assert (explained["reason"], explained["queuedPushes"]) == ("deliverable", 0)


async def _never(*_: int) -> int:
    return 0


class TestWithAJournal:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return settings_with(journal={"folder": tmp_path, "replay_interval_ms": 10})

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


async def test_nothing_fits_the_filter_of_the_group(queen: Queen) -> None:
    await queen.configure("orders")
    text = "payload.n > 9"
    await queen.http.post("/api/v1/consumer-groups/g/queues/orders/filter", json={"filter": text})
    await queen.pop("orders", consumerGroup="g")
    await queen.push("orders", *({"n": n} for n in range(3)))
    explained = await explain(queen, consumerGroup="g")
    assert (explained["reason"], explained["filter"], explained["passedOver"]) == ("filtered", text, 0)
    assert f"The filter of the group, {text}, does not let any of the next 3" in explained["explanation"]
    explained = await explain(queen, consumerGroup="g")
    assert (explained["reason"], explained["passedOver"]) == ("end_reached", 3)
    assert f"3 of them it was not given, because its filter, {text}, did not" in explained["explanation"]
    await queen.push("orders", {"n": 1}, {"n": 10})
    explained = await explain(queen, consumerGroup="g")
    assert f"Of the next 2 the filter {text} lets 1 through." in explained["explanation"]


async def test_the_group_gets_only_the_newest(queen: Queen) -> None:
    await queen.configure("orders")
    await queen.http.post("/api/v1/consumer-groups/g/queues/orders/conflation", json={"enabled": True})
    await queen.push("orders", 1, 2, 3)
    await queen.ack_batch(await queen.pop("orders", consumerGroup="g"))
    explained = await explain(queen, consumerGroup="g")
    assert (explained["reason"], explained["conflation"], explained["passedOver"]) == ("end_reached", True, 2)
    assert "2 of them it was not given, because their partitions had newer ones." in explained["explanation"]
    await queen.push("orders", 4, 5)
    assert "it gets only the newest of them" in (await explain(queen, consumerGroup="g"))["explanation"]
