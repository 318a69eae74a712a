"""GET /api/v1/resources/queues/{queue}/partitions and GET /api/v1/pipeline/runs"""

from __future__ import annotations

import uuid
from typing import Any

import asyncpg
import httpx
import pytest

from integration.queen import Queen


async def heads(http: httpx.AsyncClient, queue: str, **params: Any) -> list[dict[str, Any]]:
    answer = await http.get(f"/api/v1/resources/queues/{queue}/partitions", params=params)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["partitions"]
    return found


async def test_a_partition_shows_its_head_and_its_leases(queen: Queen, http: httpx.AsyncClient) -> None:
    await queen.push("orders", "a", "b", "c", partition="eu")
    [message] = await queen.pop("orders", "eu", consumerGroup="billing", batch=1)
    await queen.ack(message)
    leased = await queen.pop("orders", "eu", consumerGroup="billing", batch=2)
    await queen.drain("orders", "eu", consumerGroup="audit")
    [head] = await heads(http, "orders")
    assert (head["name"], head["firstOffset"], head["lastOffset"], head["stored"]) == ("eu", 1, 3, 3)
    assert head["groupCount"] == 2
    billing, audit = head["groups"]
    assert (billing["name"], billing["position"], billing["unread"], billing["leased"]) == ("billing", 1, 2, 2)
    assert billing["leaseId"] == leased[0]["leaseId"]
    assert billing["leaseExpiresAt"]
    assert (audit["name"], audit["position"], audit["unread"], audit["leaseId"]) == ("audit", 3, 0, None)


async def test_a_failing_head_shows_its_attempts_and_pause(queen: Queen, http: httpx.AsyncClient) -> None:
    await queen.configure("orders", retryDelay=600_000)
    await queen.push("orders", "a", partition="eu")
    [message] = await queen.pop("orders", "eu", consumerGroup="billing")
    await queen.ack(message, "failed", error="no")
    [head] = await heads(http, "orders", partition="eu")
    [group] = head["groups"]
    assert group["attempts"] == 1
    assert group["retryAt"]
    assert group["leaseId"] is None


async def test_pages_search_and_names(queen: Queen, http: httpx.AsyncClient) -> None:
    for name in ("Alpha-1", "alpha-2", "beta", "gamma%"):
        await queen.push("orders", 1, partition=name)
    assert [head["name"] for head in await heads(http, "orders", limit=2)] == ["Alpha-1", "alpha-2"]
    assert [head["name"] for head in await heads(http, "orders", limit=2, offset=2)] == ["beta", "gamma%"]
    assert [head["name"] for head in await heads(http, "orders", search="ALPHA")] == ["Alpha-1", "alpha-2"]
    assert [head["name"] for head in await heads(http, "orders", search="%")] == ["gamma%"]
    assert [head["name"] for head in await heads(http, "orders", partition="beta")] == ["beta"]
    assert await heads(http, "orders", partition="bet") == []


async def test_a_group_is_found_behind_the_leases_of_others(queen: Queen, http: httpx.AsyncClient) -> None:
    for name in ("eu", "us"):
        await queen.push("orders", 1, partition=name)
    await queen.pop("orders", "eu", consumerGroup="audit")
    [leased] = await queen.pop("orders", "us", consumerGroup="billing")
    assert [head["name"] for head in await heads(http, "orders", state="leased", limit=1)] == ["eu"]
    [head] = await heads(http, "orders", state="leased", group="billing", limit=1)
    assert [(group["name"], group["leaseId"]) for group in head["groups"]] == [("billing", leased["leaseId"])]
    assert await heads(http, "orders", state="leased", group="nobody") == []


@pytest.mark.parametrize("state", ["leased", "failing"])
async def test_the_groups_that_put_a_partition_in_a_state_are_shown(
    state: str, queen: Queen, http: httpx.AsyncClient
) -> None:
    """Also if twenty others are further behind."""
    await queen.push("orders", 1, 2, partition="eu")
    for number in range(21):
        await queen.ack(*await queen.pop("orders", "eu", consumerGroup=f"g{number:02}", batch=1))
    await queen.drain("orders", "eu", consumerGroup="z")
    await queen.push("orders", 3, partition="eu")
    [message] = await queen.pop("orders", "eu", consumerGroup="z")
    if state == "failing":
        await queen.ack(message, "failed")
    [head] = await heads(http, "orders", state=state)
    assert head["groupCount"] == 22
    assert head["groups"][0]["name"] == "z"
    assert (head["groups"][0]["leaseId"] is not None, head["groups"][0]["attempts"] > 0)[state == "failing"]


async def test_an_unknown_queue_is_not_found(queen: Queen, http: httpx.AsyncClient) -> None:
    answer = await http.get("/api/v1/resources/queues/nowhere/partitions")
    assert answer.status_code == 404


async def test_pipeline_runs_newest_first(queen: Queen, http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    await sql.execute("DELETE FROM queen.pipeline_runs")
    for job, state, minutes in (("archive", "finished", 30), ("window", "running", 20), ("audit", "failed", 10)):
        await sql.execute(
            "INSERT INTO queen.pipeline_runs (id, job, queue_name, master, state, started_at, seen_at, rows, error) "
            "SELECT $1, $2, 'orders', 'local[2]', $3, at, at, 7, $4 "
            "FROM (SELECT now() - make_interval(mins => $5)) t (at)",
            uuid.uuid4(),
            job,
            state,
            "broken" if state == "failed" else None,
            minutes,
        )
    runs = (await http.get("/api/v1/pipeline/runs")).json()["runs"]
    assert [(run["job"], run["state"]) for run in runs] == [
        ("audit", "failed"),
        ("window", "lost"),
        ("archive", "finished"),
    ]
    assert runs[0]["error"] == "broken"
    assert [run["job"] for run in (await http.get("/api/v1/pipeline/runs?job=window")).json()["runs"]] == ["window"]
    await sql.execute("DELETE FROM queen.pipeline_runs")


class TestDepth:
    async def depth(self, queen: Queen, group: str | None = None) -> Any:
        answer = await queen.http.get("/api/v1/resources/queues/orders/depth", params={"group": group} if group else {})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def test_of_a_group_and_of_the_one_that_is_furthest_behind(self, queen: Queen) -> None:
        await queen.push("orders", 1, 2, 3, partition="a")
        await queen.push("orders", 4, partition="b")
        found = await queen.pop("orders", "a", consumerGroup="quick", batch=3)
        await queen.ack(found[2])
        await queen.drain("orders", "a", consumerGroup="other", batch=1)
        told = await self.depth(queen, "quick")
        assert (told["pending"], told["partitionsPending"], told["effectivePending"]) == (3, 2, 3)
        assert told["partitions"] == [{"partition": "a", "pending": 2}, {"partition": "b", "pending": 1}]
        assert (await self.depth(queen, "other"))["pending"] == 1
        assert (await self.depth(queen, "unknown"))["pending"] == 4
        assert (await self.depth(queen))["pending"] == 3

    async def test_nothing_and_nowhere(self, queen: Queen) -> None:
        assert (await queen.http.get("/api/v1/resources/queues/orders/depth")).status_code == 404
        await queen.configure("orders")
        told = await self.depth(queen, "g")
        assert (told["pending"], told["partitions"], told["conflation"]) == (0, [], False)


async def test_a_binary_push_is_refused_with_a_sentence(queen: Queen) -> None:
    for body in (b"QPB1\x00\xff", b"QTB1"):
        answer = await queen.http.post("/api/v1/push", content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_json")
        assert "binary bodies are not supported" in answer.json()["error"]
