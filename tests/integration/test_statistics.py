"""The figures of queues, partitions, namespaces and groups: what they say, and that they follow what happens."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from integration.queen import Json, Queen, age_messages, another_server, expire_leases, stored
from queenmq.config import Settings
from queenmq.server import Server
from queenmq.storage.statements import statement

CLEAR = "SELECT * FROM queen.clear((SELECT id FROM queen.queues WHERE name = 'orders'), NULL, $1, NULL, 10)"
NOTHING = {"total": 0, "pending": 0, "processing": 0, "completed": 0, "failed": 0, "deadLetter": 0}


async def get(queen: Queen, path: str, expect: int = 200, **params: Any) -> Any:
    answer = await queen.http.get(f"/api/v1/{path}", params=params)
    assert answer.status_code == expect, answer.text
    return answer.json()


async def refresh(queen: Queen) -> Json:
    answer = await queen.http.post("/api/v1/stats/refresh")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def totals(queen: Queen, queue: str) -> Json:
    """Of the two that answer for a queue, after a check that they and the reckoned figures agree."""
    await refresh(queen)
    described = await get(queen, f"resources/queues/{queue}")
    detail = await get(queen, f"status/queues/{queue}")
    flat = {name: value for name, value in detail["totals"].items() if name != "messages"}
    assert described["totals"] == flat == detail["totals"]["messages"]
    [listed] = [q for q in (await get(queen, "resources/queues"))["queues"] if q["name"] == queue]
    assert listed["messages"] == {name: flat[name] for name in ("total", "pending", "processing")}
    assert listed["partitions"] == len(described["partitions"])
    assert [p["stats"] for p in described["partitions"]] == [p["stats"] for p in detail["partitions"]]
    assert [p["messages"] for p in detail["partitions"]] == [p["stats"] for p in detail["partitions"]]
    return flat


async def test_the_figures_follow_a_message_through_its_life(queen: Queen) -> None:
    await queen.configure("orders", retryDelay=0, retryLimit=1)
    assert await totals(queen, "orders") == NOTHING
    await queen.push("orders", 1, 2, 3, 4)
    assert await totals(queen, "orders") == NOTHING | {"total": 4, "pending": 4}
    popped = await queen.pop("orders", batch=2)
    assert await totals(queen, "orders") == NOTHING | {"total": 4, "pending": 2, "processing": 2}
    await queen.ack(popped[0])
    assert await totals(queen, "orders") == NOTHING | {"total": 4, "pending": 2, "processing": 1, "completed": 1}
    await queen.ack(popped[1], "failed")
    assert await totals(queen, "orders") == NOTHING | {"total": 4, "pending": 3, "completed": 1, "failed": 1}
    [message] = await queen.pop("orders")
    await queen.ack(message, "dlq")
    assert await totals(queen, "orders") == NOTHING | {"total": 4, "pending": 2, "completed": 2, "deadLetter": 1}
    await queen.drain("orders")
    assert await totals(queen, "orders") == NOTHING | {"total": 4, "completed": 4, "deadLetter": 1}


async def test_acks_in_the_middle_count(queen: Queen) -> None:
    await queen.push("orders", 1, 2, 3)
    popped = await queen.pop("orders", batch=3)
    await queen.ack(popped[1])
    assert await totals(queen, "orders") == NOTHING | {"total": 3, "processing": 2, "completed": 1}


async def test_an_expired_lease_is_pending_again(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", 1)
    await queen.pop("orders")
    await expire_leases(sql)
    assert await totals(queen, "orders") == NOTHING | {"total": 1, "pending": 1}


async def test_the_slowest_group_counts(queen: Queen) -> None:
    await queen.push("orders", 1, 2, 3)
    await queen.drain("orders", consumerGroup="fast")
    assert await totals(queen, "orders") == NOTHING | {"total": 3, "completed": 3}
    await queen.pop("orders", consumerGroup="slow", batch=1)
    assert await totals(queen, "orders") == NOTHING | {"total": 3, "pending": 2, "processing": 1}


async def test_a_group_of_single_partitions_counts_in_the_others(queen: Queen) -> None:
    """Its next pop of any partition gets what is there."""
    await queen.push("orders", 1, 2, partition="a")
    await queen.push("orders", 3, partition="b")
    await queen.drain("orders", consumerGroup="fast")
    await queen.drain("orders", "a", consumerGroup="single")
    assert await totals(queen, "orders") == NOTHING | {"total": 3, "pending": 1, "completed": 2}
    described = await get(queen, "resources/queues/orders")
    assert [(one["name"], one["stats"]["pending"]) for one in described["partitions"]] == [("a", 0), ("b", 1)]
    [unread] = (await get(queen, "resources/queues", only="unread"))["queues"]
    assert unread["name"] == "orders"
    await queen.drain("orders", consumerGroup="single")
    assert await totals(queen, "orders") == NOTHING | {"total": 3, "completed": 3}


async def test_namespaces_and_tasks_are_summed(queen: Queen) -> None:
    await queen.configure("a", namespace="shop", task="mail")
    await queen.configure("b", namespace="shop", task="print")
    await queen.configure("c")
    await queen.push("a", 1, 2)
    await queen.push("b", 3, partition="other")
    await refresh(queen)
    shop = {"namespace": "shop", "queues": 2, "partitions": 3, "messages": {"total": 3, "pending": 3}}
    assert (await get(queen, "resources/namespaces"))["namespaces"] == [shop]
    tasks = (await get(queen, "resources/tasks"))["tasks"]
    assert [(t["task"], t["queues"], t["messages"]["total"]) for t in tasks] == [("mail", 1, 2), ("print", 1, 1)]
    overview = await get(queen, "resources/overview")
    assert {name: overview[name] for name in ("queues", "partitions", "namespaces", "tasks")} == {
        "queues": 3,
        "partitions": 4,
        "namespaces": 1,
        "tasks": 2,
    }
    assert overview["messages"] == NOTHING | {"total": 3, "pending": 3}
    assert overview["statsAge"] < 10


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({}, ["a", "b.x", "b.y"]),
        ({"search": "B."}, ["b.x", "b.y"]),
        ({"namespace": "b"}, ["b.x", "b.y"]),
        ({"namespace": "b", "task": "y"}, ["b.y"]),
        ({"limit": 1, "offset": 1}, ["b.x"]),
        ({"limit": 0}, []),
        ({"namespace": "nobody's"}, []),
    ],
)
async def test_queues_are_listed_by_name(queen: Queen, params: Json, names: list[str]) -> None:
    for queue in ("b.y", "a", "b.x"):
        await queen.push(queue, 1)
    assert [q["name"] for q in (await get(queen, "resources/queues", **params))["queues"]] == names
    if "search" not in params:
        answer = await get(queen, "status/queues", **params)
        assert [q["name"] for q in answer["queues"]] == names
        assert answer["pagination"] == {"limit": params.get("limit", 100), "offset": params.get("offset", 0)}


async def test_what_was_just_pushed_is_in_the_list(queen: Queen) -> None:
    await queen.push("orders", 1, 2)
    [queue] = (await get(queen, "resources/queues"))["queues"]
    assert (queue["partitions"], queue["messages"]["pending"]) == (1, 2)


async def test_partitions_are_listed_with_their_times(queen: Queen) -> None:
    await queen.push("orders", 1, 2, partition="b")
    await queen.push("orders", 3, partition="a")
    await queen.configure("empty")
    listed = (await get(queen, "resources/partitions", queue="orders"))["partitions"]
    assert [(p["queue"], p["name"], p["messages"]["total"]) for p in listed] == [("orders", "a", 1), ("orders", "b", 2)]
    assert len((await get(queen, "resources/partitions"))["partitions"]) == 3
    assert [
        p["name"] for p in (await get(queen, "resources/partitions", queue="orders", limit=1, offset=1))["partitions"]
    ] == ["b"]
    described = await get(queen, "resources/queues/orders")
    assert [p["name"] for p in described["partitions"]] == ["a", "b"]
    assert described["partitions"][1]["oldestMessage"] <= described["partitions"][1]["newestMessage"]
    [empty] = (await get(queen, "resources/queues/empty"))["partitions"]
    assert (empty["oldestMessage"], empty["newestMessage"]) == (None, None)


async def test_the_totals_are_about_all_partitions_whatever_the_page(queen: Queen) -> None:
    for n in range(5):
        await queen.push("orders", n, partition=f"p{n}")
    await refresh(queen)
    page = await get(queen, "resources/queues/orders", limit=2)
    assert (len(page["partitions"]), page["totals"]["pending"]) == (2, 5)
    assert (await get(queen, "status/queues/orders", includePartitions="False"))["partitions"] == []


async def test_an_unknown_queue_is_not_found(queen: Queen) -> None:
    for path in ("resources/queues/nobody", "status/queues/nobody"):
        assert (await get(queen, path, 404))["error"] == "Queue not found"
    answer = await queen.http.delete("/api/v1/queues/nobody/clear")
    assert (answer.status_code, answer.json()["error"]) == (404, "Queue not found")


# Clear


async def test_clear_deletes_all_messages_and_nothing_else(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", 1, 2, 3, partition="a")
    await queen.push("orders", 4, partition="b")
    await queen.push("other", 5)
    popped = await queen.pop("orders", "a", consumerGroup="g", batch=2)
    await queen.ack(popped[0], "dlq")
    answer = await queen.http.delete("/api/v1/queues/orders/clear")
    assert answer.json() == {"cleared": True, "queue": "orders", "partition": None, "deleted": 4}
    assert (await stored(sql, "orders"), await stored(sql, "other")) == (0, 1)
    assert len(await queen.dead_letters("orders")) == 1
    assert (await queen.ack(popped[1]))["success"] is False
    await queen.push("orders", 6, partition="a")
    assert [m["data"] for m in await queen.pop("orders", consumerGroup="g", batch=10)] == [6]
    assert await sql.fetchval("SELECT count(*) FROM queen.stale_lookup()") == 0


async def test_clear_of_one_partition(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", 1, 2, partition="a")
    await queen.push("orders", 3, partition="b")
    answer = await queen.http.delete("/api/v1/queues/orders/clear", params={"partition": "a"})
    assert answer.json() == {"cleared": True, "queue": "orders", "partition": "a", "deleted": 2}
    answer = await queen.http.delete("/api/v1/queues/orders/clear", params={"partition": "nobody"})
    assert answer.json()["deleted"] == 0
    assert await totals(queen, "orders") == NOTHING | {"total": 1, "pending": 1}


async def test_clear_goes_on_in_steps_until_all_is_gone(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", *range(25), partition="a")
    await queen.push("orders", *range(7), partition="b")
    await sql.execute('DELETE FROM queen.messages WHERE "offset" = 3')
    deleted, after, finished, steps = 0, None, False, 0
    while not finished:
        row = await sql.fetchrow(CLEAR, after)
        deleted, after, finished, steps = deleted + row["deleted"], row["next"], row["finished"], steps + 1
    assert (deleted, steps) == (30, 4)
    assert await stored(sql, "orders") == 0


# Groups


async def test_groups_are_listed_by_queue(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", 1, 2, partition="a")
    await queen.push("orders", 3, partition="b")
    await queen.push("bills", 4)
    [held] = await queen.pop("orders", "a", consumerGroup="g", batch=1)
    await queen.drain("bills", consumerGroup="g")
    await queen.drain("orders", consumerGroup="done")
    await queen.pop("orders", consumerGroup="late", subscriptionMode="new")
    await age_messages(sql, "orders", 1000)
    await refresh(queen)
    groups = {(g["name"], g["queueName"]): g for g in await get(queen, "consumer-groups")}
    assert groups.keys() == {("g", "bills"), ("g", "orders"), ("done", "orders"), ("late", "orders")}
    g = groups["g", "orders"]
    # The partition that it has not popped yet counts, too: its next pop of any partition gets it.
    assert (g["topics"], g["members"], g["partitionsWithLag"], g["state"]) == (["orders"], 1, 2, "Lagging")
    assert (g["totalLag"], g["unread"], 999 < g["maxTimeLag"] < 1100) == (3, 3, True)
    assert (g["standing"], g["reading"]) == ("Behind", True)
    assert [groups[key]["state"] for key in (("g", "bills"), ("done", "orders"), ("late", "orders"))] == ["Stable"] * 3
    assert groups["late", "orders"]["subscriptionMode"] == "new"
    assert groups["late", "orders"]["subscriptionTimestamp"] is not None
    await queen.ack(held)


async def test_a_group_that_starts_with_the_first_message_starts_at_no_moment(queen: Queen) -> None:
    await queen.push("orders", 1)
    await queen.pop("orders", consumerGroup="g")
    [group] = await get(queen, "consumer-groups")
    assert (group["subscriptionMode"], group["subscriptionTimestamp"]) == ("all", None)


async def test_lag_counts_what_is_due(queen: Queen, sql: asyncpg.Connection) -> None:
    """And from when it was due; what a delay or a window keeps back is only unread."""
    options = {"delayed": {"delayedProcessing": 600}, "gathering": {"windowBuffer": 600}, "expiring": {"ttl": 600}}
    for queue, given in options.items():
        await queen.configure(queue, **given)
        await queen.pop(queue, consumerGroup="g")
        await queen.push(queue, 1, 2)
    told = {}
    for age, due in ((400, ("expiring",)), (600, ("delayed", "gathering"))):
        for queue in options:
            await age_messages(sql, queue, age)
        await refresh(queen)
        told = {group["queueName"]: group for group in await get(queen, "consumer-groups")}
        assert {queue for queue, group in told.items() if group["totalLag"] == 2} == set(due)
        lagging = await get(queen, "consumer-groups/lagging", minLagSeconds=60)
        assert {row["queue_name"] for row in lagging} == set(due)
        overview = await get(queen, "resources/overview")
        assert 399 <= overview["lag"]["time"]["max"] < 500  # since it was due, not since it was pushed
        for queue, group in told.items():
            assert group["unread"] == 2
            assert group["standing"] == ("Behind" if queue in due else "Waiting")
            [place] = (await get(queen, "consumer-groups/g"))[queue]["partitions"]
            assert (place["unread"], place["offsetLag"]) == (2, group["totalLag"])
    assert 399 <= told["delayed"]["maxTimeLag"] < 500


async def test_a_group_is_reading_only_if_somebody_reads(queen: Queen, sql: asyncpg.Connection, server: Server) -> None:
    await queen.push("orders", 1, 2)

    async def standing() -> str:
        await refresh(queen)
        [group] = await get(queen, "consumer-groups")
        return group["standing"]

    [held] = await queen.pop("orders", consumerGroup="g")
    assert await standing() == "Reading"
    await queen.ack(held, "retry")
    assert await standing() == "Idle"
    await queen.ack((await queen.pop("orders", consumerGroup="g"))[0])
    assert await standing() == "Reading"
    await sql.execute("UPDATE queen.partition_consumers SET last_consumed_at = now() - interval '2 minutes'")
    assert await standing() == "Idle"
    await queen.drain("orders", consumerGroup="g")
    assert await standing() == "Up to date"


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_group_that_is_paused_is_called_so(queen: Queen, sql: asyncpg.Connection, group: str | None) -> None:
    """However far it is behind, and also if nothing is unread. Groups of which one partition is paused go on."""
    await queen.push("orders", 1, partition="a")
    await queen.pop("orders", consumerGroup="g")
    await queen.pop("orders", consumerGroup="h")
    await age_messages(sql, "orders", 1000)
    await refresh(queen)

    async def standings() -> dict[str, str]:
        return {one["name"]: one["standing"] for one in await get(queen, "consumer-groups")}

    assert await standings() == {"g": "Behind", "h": "Behind"}
    for pause, told in (({"consumerGroup": "g", "partition": "a"}, "Behind"), ({"consumerGroup": group}, "Paused")):
        await queen.http.post("/api/v1/pause", json={"queue": "orders"} | pause)
        assert await standings() == {"g": told, "h": told if group is None else "Behind"}
    await expire_leases(sql)
    await queen.http.post("/api/v1/resume", json={"queue": "orders", "consumerGroup": group})
    await queen.http.post("/api/v1/resume", json={"queue": "orders", "consumerGroup": "g", "partition": "a"})
    await queen.drain("orders", consumerGroup="g")
    await queen.http.post("/api/v1/pause", json={"queue": "orders", "consumerGroup": group})
    await refresh(queen)
    assert (await standings())["g"] == "Paused"


async def test_a_group_is_paused_while_pops_are_switched_off(queen: Queen) -> None:
    await queen.push("orders", 1)
    await queen.pop("orders", consumerGroup="g")
    await queen.http.post("/api/v1/system/maintenance/pop", json={"enabled": True})
    assert [one["standing"] for one in await get(queen, "consumer-groups")] == ["Paused"]
    await queen.http.post("/api/v1/system/maintenance/pop", json={"enabled": False})
    assert [one["standing"] for one in await get(queen, "consumer-groups")] != ["Paused"]


async def test_a_group_that_waits_for_a_queue_that_is_not_there_is_dead(queen: Queen) -> None:
    await queen.pop("nowhere", consumerGroup="g", subscriptionMode="new")
    [group] = await get(queen, "consumer-groups")
    assert (group["name"], group["queueName"], group["state"]) == ("g", "nowhere", "Dead")


async def test_a_group_is_described_by_queue_and_partition(queen: Queen) -> None:
    await queen.push("orders", 1, 2, 3, partition="a")
    await queen.push("orders", 4, partition="b")
    await queen.drain("orders", "b", consumerGroup="g")
    [held] = await queen.pop("orders", consumerGroup="g")
    [group] = (await get(queen, "consumer-groups/g")).items()
    assert group[0] == "orders"
    partitions = {p["partition"]: p for p in group[1]["partitions"]}
    assert partitions.keys() == {"a", "b"}
    a, b = partitions["a"], partitions["b"]
    assert (a["offsetLag"], a["leaseActive"], a["workerId"], a["totalConsumed"]) == (3, True, held["leaseId"], 0)
    assert (b["offsetLag"], b["leaseActive"], b["workerId"], b["totalConsumed"]) == (0, False, None, 1)
    assert (b["timeLagSeconds"], b["lastConsumedAt"] is not None) == (0, True)
    assert await get(queen, "consumer-groups/nobody") == {}


async def test_lagging_partitions_are_told_oldest_first(queen: Queen, sql: asyncpg.Connection) -> None:
    for queue, age in (("old", 8000), ("older", 9000), ("young", 10)):
        await queen.push(queue, 1, 2)
        await queen.pop(queue, consumerGroup="g", batch=1)
        await age_messages(sql, queue, age)
    await refresh(queen)
    lagging = await get(queen, "consumer-groups/lagging")
    assert [row["queue_name"] for row in lagging] == ["older", "old"]
    first = lagging[0]
    assert (first["consumer_group"], first["partition_name"], first["offset_lag"]) == ("g", "Default", 2)
    assert 9000 <= first["time_lag_seconds"] < 9100
    assert first["lag_hours"] == pytest.approx(2.5, abs=0.1)
    assert [row["queue_name"] for row in await get(queen, "consumer-groups/lagging", minLagSeconds=8500)] == ["older"]
    assert len(await get(queen, "consumer-groups/lagging", minLagSeconds=5)) == 3
    await queen.seek("g", "older", toEnd=True)
    assert [row["queue_name"] for row in await get(queen, "consumer-groups/lagging")] == ["old"]


# Status


async def test_the_status_has_the_throughput_of_the_range(queen: Queen) -> None:
    await queen.push("orders", 1, 2, 3)
    await queen.push("bills", 4)
    popped = await queen.pop("orders", batch=3)
    await queen.ack_batch(popped, "completed", "completed", "dlq", error="broken")
    assert await queen.pop("orders") == []
    await refresh(queen)
    status = await get(queen, "status")
    assert (status["bucketMinutes"], status["pointCount"]) == (1, len(status["throughput"]))
    summed = {
        name: sum(point[name] for point in status["throughput"]) for name in ("ingested", "processed", "popMessages")
    }
    assert summed == {"ingested": 4, "processed": 3, "popMessages": 3}
    assert status["messages"]["requests"] == {"push": 2, "pop": 2, "ack": 1}
    assert status["messages"]["batchEfficiency"]["push"] == 2
    assert (status["messages"]["total"], status["messages"]["deadLetter"]) == (4, 1)
    assert status["deadLetterQueue"] == {
        "totalMessages": 1,
        "affectedPartitions": 1,
        "topErrors": [
            {
                "error": "broken",
                "fingerprint": "broken",
                "count": 1,
                "lastFailedAt": status["deadLetterQueue"]["topErrors"][0]["lastFailedAt"],
            }
        ],
    }
    assert {q["name"] for q in status["queues"]} == {"orders", "bills"}
    narrowed = await get(queen, "status", queue="bills")
    assert (sum(p["ingested"] for p in narrowed["throughput"]), [q["name"] for q in narrowed["queues"]]) == (
        1,
        ["bills"],
    )


@pytest.mark.parametrize(("hours", "width"), [(1, 1), (6, 5), (24, 15), (168, 60), (169, 360)])
async def test_the_width_of_the_buckets_follows_the_range(queen: Queen, hours: int, width: int) -> None:
    days, rest = divmod(hours, 24)
    params = {"from": "2024-01-01T00:00:00Z", "to": f"2024-01-{1 + days:02}T{rest:02}:00:00Z"}
    assert (await get(queen, "status", **params))["bucketMinutes"] == width


async def test_analytics_count_what_was_pushed(queen: Queen) -> None:
    await queen.push("orders", *range(5))
    await refresh(queen)
    for interval in ("minute", "hour", "day"):
        answer = await get(queen, "status/analytics", interval=interval)
        assert (answer["interval"], sum(p["messages"] for p in answer["dataPoints"])) == (interval, 5)
    assert sum(p["messages"] for p in (await get(queen, "status/analytics", queue="other"))["dataPoints"]) == 0


async def test_the_buffers_are_empty(queen: Queen) -> None:
    assert await get(queen, "status/buffers") == {"pending": 0, "failed": 0, "dbHealthy": True, "worker": "worker-1"}


# Keeping them


async def test_the_figures_are_kept_without_being_asked(
    queen: Queen, server: Server, settings: Settings, database_url: str
) -> None:
    async with another_server(settings, database_url) as elsewhere:
        await elsewhere.push("orders", 1)
        # What another server did is seen at the next reconciliation, or here, because the queue is new.
        await server.broker.statistics.refresh()
        [queue] = (await get(queen, "resources/queues"))["queues"]
        assert queue["messages"]["pending"] == 1


async def test_a_quiet_queue_is_walked_seldom(queen: Queen, sql: asyncpg.Connection) -> None:
    """One that costs much to walk, and that was last walked ten minutes ago, which is ten times as long."""
    await queen.push("orders", 1, 2)
    await refresh(queen)
    await sql.execute(
        "UPDATE queen.queue_statistics SET reckoned_at = reckoned_at - interval '10 minutes', cost_ms = 2000"
    )
    await sql.execute("DELETE FROM queen.activity")
    due = statement("statistics_due"), [], 120.0, 20, 1000
    assert await sql.fetch(*due) == []
    assert [row["name"] for row in await sql.fetch(due[0], ["orders"], *due[2:])] == ["orders"], "it was touched here"
    add = "INSERT INTO queen.activity (queue_name, bucket, server, parked, {0}) VALUES ('orders', now(), 'other', 3, 1)"
    for column, is_due in (("pop_empty", False), ("pop_messages", True)):
        async with sql.transaction():
            await sql.execute(add.format(column))
            assert bool(await sql.fetch(*due)) is is_due, column
            await sql.execute("DELETE FROM queen.activity WHERE server = 'other'")
    await queen.pop("orders")
    await sql.execute("UPDATE queen.queue_statistics SET leases = 1")
    assert len(await sql.fetch(*due)) == 1, "a lease ends by itself"


async def test_a_queue_is_walked_in_pages(queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenmq.broker.statistics._PAGE", 2)
    monkeypatch.setattr("queenmq.broker.statistics._KEPT", 3)
    for n in range(5):
        await queen.push("orders", n, n, partition=f"p{n}")
    [message] = await queen.pop("orders", consumerGroup="g")
    await queen.ack(message)
    await refresh(queen)
    [queue] = (await get(queen, "resources/queues"))["queues"]
    assert (queue["partitions"], queue["messages"]) == (5, {"total": 10, "pending": 9, "processing": 0})
    [group] = await get(queen, "consumer-groups")
    assert (group["partitionsWithLag"], group["totalLag"]) == (5, 9)
    assert len(await get(queen, "consumer-groups/lagging", minLagSeconds=0)) == 3


async def test_what_could_not_be_stored_is_stored_later(
    queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queen.push("orders", 1, 2)
    statistics = server.broker.statistics

    async def fail(*_: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(server.database, "fetch", fail)
        with pytest.raises(ConnectionError):
            await statistics.store_activity({})
    await queen.push("orders", 3)
    await refresh(queen)
    status = await get(queen, "status", queue="orders")
    assert sum(point["ingested"] for point in status["throughput"]) == 3
    assert server.broker.activity.now().push_messages == 3


async def test_old_history_is_forgotten_and_the_totals_stay(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", 1)
    await refresh(queen)
    await sql.execute("UPDATE queen.activity SET bucket = bucket - interval '8 days' WHERE bucket > '-infinity'")
    assert (await refresh(queen))["cleanup"] == 2
    rows = await sql.fetch("SELECT queue_name, bucket::text, push_messages FROM queen.activity WHERE push_messages > 0")
    assert [tuple(row) for row in rows] == [("", "-infinity", 1)]


async def test_dead_letters_are_counted_however_they_come_and_go(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", 1, 2, 3)
    await queen.ack_batch(await queen.pop("orders", batch=3), "dlq")
    counts = "SELECT sum(letters)::integer FROM queen.dead_letter_counts"
    assert await sql.fetchval(counts) == 3
    await sql.execute('DELETE FROM queen.dead_letter_queue WHERE "offset" = 2')
    assert await sql.fetchval(counts) == 2
    await queen.seek("__QUEUE_MODE__", "orders", timestamp="1970-01-01")
    await queen.ack_batch(await queen.pop("orders", batch=3), "dlq")
    assert await sql.fetchval(counts) == 3
    await queen.delete_queue("orders")
    assert await sql.fetchval("SELECT count(*) FROM queen.dead_letter_counts") == 0


async def test_a_refresh_that_takes_long_goes_on_behind_the_answer(
    queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queen.push("orders", 1, 2)
    statistics, go_on = server.broker.statistics, asyncio.Event()
    measure = statistics._measure

    async def wait(*queue: Any, is_busy: bool) -> None:
        await go_on.wait()
        await measure(*queue, is_busy=is_busy)

    monkeypatch.setattr(statistics, "_measure", wait)
    monkeypatch.setattr("queenmq.http.routes.resources._REFRESH_S", 0.01)
    assert (await refresh(queen))["skipped"] is True
    [walk] = statistics._walks
    # Whoever asks while it is under way gets the next one, and all of them the same.
    await queen.push("orders", 3)
    assert (await refresh(queen))["skipped"] is True
    assert (await refresh(queen))["skipped"] is True
    [later] = statistics._walks - {walk}
    go_on.set()
    assert await walk == await later == 1
    monkeypatch.undo()
    [queue] = (await get(queen, "resources/queues"))["queues"]
    assert queue["messages"]["total"] == 3
    assert not statistics._walks
