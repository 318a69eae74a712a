"""Listings that begin with what is stuck: partitions, groups and queues by state, errors by their cause."""

from __future__ import annotations

from typing import Any

import asyncpg
import httpx
import pytest

from integration.queen import Json, Queen


async def get(http: httpx.AsyncClient, path: str, **params: Any) -> Any:
    answer = await http.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def fail(queen: Queen, partition: str, times: int = 1, queue: str = "q", error: str = "no") -> None:
    for _ in range(times):
        [message] = await queen.pop(queue, partition, consumerGroup="g")
        await queen.ack(message, "failed", error=error)


@pytest.fixture
async def troubled(http: httpx.AsyncClient, queen: Queen) -> None:
    """Partitions in every state."""
    await queen.configure("q", retryLimit=5, retryDelay=0)
    for partition in ("calm", "fails", "fails-more", "held", "dead", "long"):
        await queen.push("q", "a", "b", partition=partition)
    await queen.push("q", *(f"m{n}" for n in range(20)), partition="long")
    for partition in ("calm", "held", "dead", "long"):
        [message] = await queen.pop("q", partition, consumerGroup="g")
        if partition != "held":
            await queen.ack(message, "dlq" if partition == "dead" else "completed")
    await fail(queen, "fails")
    await fail(queen, "fails-more", 2)
    await http.post("/api/v1/stats/refresh")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("failing", ["fails-more", "fails"]),
        ("leased", ["held"]),
        ("dead_letters", ["dead"]),
    ],
)
async def test_partitions_in_a_state(http: httpx.AsyncClient, troubled: None, state: str, expected: list[str]) -> None:
    path = "/api/v1/resources/queues/q/partitions"
    found = await get(http, path, state=state)
    assert [one["name"] for one in found["partitions"]] == expected
    page = await get(http, path, state=state, limit=1, offset=1)
    assert [one["name"] for one in page["partitions"]] == expected[1:2]


async def test_partitions_by_what_is_unread_and_waits(http: httpx.AsyncClient, troubled: None) -> None:
    path = "/api/v1/resources/queues/q/partitions"
    unread = [one["name"] for one in (await get(http, path, state="unread"))["partitions"]]
    assert (unread[0], set(unread)) == ("long", {"calm", "fails", "fails-more", "held", "dead", "long"})
    waiting = [one["name"] for one in (await get(http, path, state="waiting"))["partitions"]]
    assert {"fails", "fails-more", "calm"} <= set(waiting)
    assert (await http.get(path, params={"state": "odd"})).status_code == 400
    assert len((await get(http, path, state="failing", search="x"))["partitions"]) == 2


async def test_partitions_say_for_how_long_they_have_waited(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
) -> None:
    for partition, age, status in (("new", 0, "retry"), ("old", 7200, "retry"), ("read", 7200, "completed")):
        await queen.push("q", "a", partition=partition)
        [message] = await queen.pop("q", partition, consumerGroup="g")
        await queen.ack(message, status)
        await sql.execute(
            "UPDATE queen.messages m SET created_at = m.created_at - make_interval(secs => $2) "
            "FROM queen.partitions p WHERE p.id = m.partition_id AND p.name = $1",
            *(partition, age),
        )
    await http.post("/api/v1/stats/refresh")
    found = (await get(http, "/api/v1/resources/queues/q/partitions", state="waiting"))["partitions"]
    waits = {one["name"]: one["groups"][0]["timeLagSeconds"] for one in found}
    assert list(waits) == ["old", "new"]
    assert 7200 <= waits["old"] < 7300 > 100 > waits["new"]
    [read] = (await get(http, "/api/v1/resources/queues/q/partitions", partition="read"))["partitions"]
    assert read["groups"][0]["timeLagSeconds"] is None


async def test_groups_that_fail_or_are_behind_come_first(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection, troubled: None
) -> None:
    await queen.push("another", "x")
    await queen.ack((await queen.pop("another", consumerGroup="a"))[0])
    await http.post("/api/v1/stats/refresh")
    path = "/api/v1/consumer-groups"
    by_name = await get(http, path)
    assert [one["name"] for one in by_name] == ["a", "g"]
    assert [one["consumed"] for one in by_name] == [1, 3]
    for sort in ("lag", "unread", "leased", "failing", "dead_letters"):
        worst, other = await get(http, path, sort=sort)
        assert (worst["name"], worst["failing"], worst["deadLetters"]) == ("g", 2, 1)
        assert (other["failing"], other["deadLetters"]) == (0, 0)
    for only in ("unread", "due", "leased", "failing", "dead_letters"):
        assert [(one["name"], one["total"]) for one in await get(http, path, only=only)] == [("g", 1)]
    assert [(one["name"], one["total"]) for one in await get(http, path, limit=1, offset=1)] == [("g", 2)]
    assert await get(http, path, only="behind") == []
    await sql.execute("UPDATE queen.group_statistics SET oldest_unread_at = now() - interval '1 hour' WHERE lag > 0")
    assert [one["standing"] for one in await get(http, path, only="behind")] == ["Behind"]
    assert (await http.get(path, params={"sort": "odd"})).status_code == 400


async def test_queues_have_rates_lag_and_failures(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection, troubled: None
) -> None:
    await queen.push("a", "x")
    await http.post("/api/v1/stats/refresh")
    path = "/api/v1/resources/queues"
    assert [one["name"] for one in (await get(http, path))["queues"]] == ["a", "q"]
    for sort in ("pending", "leased", "failing", "dead_letters", "lag"):
        worst: Json = (await get(http, path, sort=sort))["queues"][0]
        assert (worst["name"], worst["failing"], worst["deadLetters"], worst["leases"]) == ("q", 2, 1, 1)
    for only, names in (
        ("unread", ["a", "q"]),
        *((word, ["q"]) for word in ("due", "leased", "failing", "dead_letters")),
    ):
        assert [one["name"] for one in (await get(http, path, only=only))["queues"]] == names, only
    assert (await http.get(path, params={"only": "odd"})).status_code == 400
    await queen.configure("rated")  # which no server counts anything of
    await sql.execute(
        "INSERT INTO queen.activity (bucket, server, queue_name, push_messages, pop_messages) "
        "SELECT date_trunc('minute', now()) + interval '1 minute' * n, 's', 'rated', 120, 30 "
        "FROM generate_series(-1, 60) n"  # of whichever minute is the last whole one when it is asked for
    )
    [found] = (await get(http, path, search="rated"))["queues"]
    assert (found["pushedPerSecond"], found["poppedPerSecond"]) == (2.0, 0.5)
    assert (await http.get(path, params={"sort": "odd"})).status_code == 400


async def test_groups_have_a_rate(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    async def rate(measured_s: int | None = None) -> float | None:
        """What the list says when the group was measured so long ago, and again now."""
        if measured_s is not None:
            await sql.execute(
                "UPDATE queen.group_statistics SET rate_since = clock_timestamp() - make_interval(secs => $1)",
                measured_s,
            )
        await http.post("/api/v1/stats/refresh")
        [listed] = await get(http, "/api/v1/consumer-groups", queue="q")
        found: float | None = listed["finishedPerSecond"]
        return found

    async def finish(*names: str) -> None:
        await queen.push("q", *names)
        for _ in names:
            await queen.ack((await queen.pop("q", consumerGroup="g"))[0])

    await finish("a")
    assert await rate() is None  # nobody can say yet
    await finish("b", "c", "d")
    assert await rate(25) is None  # so short a time says little
    assert 0.09 < (await rate(30) or 0) <= 0.1  # three in thirty seconds
    await finish("e")
    assert 0.09 < (await rate() or 0) <= 0.1  # until the next thirty seconds are over
    assert 0 < (await rate(50) or 0) <= 0.02
    await sql.execute("UPDATE queen.partition_consumers SET last_consumed_at = now() - interval '3 minutes'")
    assert await rate() == 0  # whatever it was before
    # Partitions that were deleted have taken their counts with them.
    await sql.execute("UPDATE queen.group_statistics SET rate_consumed = rate_consumed + 1000")
    await finish("f")
    assert await rate(60) is None
    await finish("g")
    assert 0 < (await rate(60) or 0) < 0.02


async def test_the_status_names_failing_heads(http: httpx.AsyncClient, troubled: None) -> None:
    expected = [{"queue": "q", "consumerGroup": "g", "partitions": 2, "mostAttempts": 2}]
    assert (await get(http, "/api/v1/status"))["failingHeads"] == expected
    assert (await get(http, "/api/v1/status", queue="q"))["failingHeads"] == expected
    assert (await get(http, "/api/v1/status", queue="other"))["failingHeads"] == []


async def test_errors_of_one_cause_are_one(http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.configure("q", retryLimit=0)
    errors = [
        'order 312: card "4242" was declined by 0af3c2d1-1111-4222-8333-944455566677',
        'order 9: card "17" was declined by 1bf3c2d1-1111-4222-8333-944455566677',
        "timeout after 30 s",
        "timeout after 31 s",
        "timeout after 5 s",
        "no such customer",
    ]
    for number, error in enumerate(errors):
        await queen.push("q", f"m{number}", partition=f"p{number}")
        await fail(queen, f"p{number}", error=error)
    found = (await get(http, "/api/v1/status"))["deadLetterQueue"]["topErrors"]
    assert [(one["fingerprint"], one["count"]) for one in found] == [
        ("timeout after * s", 3),
        ("order *: card * was declined by *", 2),
        ("no such customer", 1),
    ]
    assert found[0]["error"] == "timeout after 5 s"
    letters = await get(http, "/api/v1/dlq", fingerprint="timeout after * s", queue="q")
    assert (letters["total"], {one["errorMessage"] for one in letters["messages"]}) == (3, set(errors[2:5]))
    assert (await get(http, "/api/v1/dlq", fingerprint="other"))["total"] == 0
