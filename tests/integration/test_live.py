"""GET /api/v1/live: one snapshot, or one a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from integration.queen import Queen
from queenmq.broker.live import Live
from queenmq.server import Server

EVENTS = {"Accept": "text/event-stream"}


async def snapshot(http: httpx.AsyncClient) -> dict[str, Any]:
    answer = await http.get("/api/v1/live")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    told: dict[str, Any] = answer.json()
    return told


@asynccontextmanager
async def watching(http: httpx.AsyncClient) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    async with http.stream("GET", "/api/v1/live", headers=EVENTS) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-store"

        async def beats() -> AsyncIterator[dict[str, Any]]:
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

        yield beats()


async def test_a_snapshot_tells_what_is(queen: Queen, http: httpx.AsyncClient, server: Server) -> None:
    await queen.push("orders", 1, 2, 3)
    [message] = await queen.pop("orders", batch=1)
    await queen.ack(message)
    await server.broker.statistics.refresh(everything=True)
    told = await snapshot(http)
    assert told["server"]["id"] == server.node.server_id
    assert (told["counts"]["pushed"], told["counts"]["popped"], told["counts"]["acked"]) == (3, 1, 1)
    backlog = told["backlog"]
    assert (backlog["queues"], backlog["partitions"], backlog["total"], backlog["pending"]) == (1, 1, 3, 2)
    assert (told["serversAlive"], told["serversDead"]) == (1, 0)
    assert told["problem"] is None
    assert told["popMaintenance"] is False


async def test_waiters_are_told_by_queue(queen: Queen, http: httpx.AsyncClient, server: Server) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queen.wait("quiet"))
        while not server.broker.long_polls.registry.total:
            await asyncio.sleep(0)
        told = await snapshot(http)
        await queen.push("quiet", 1)
        assert await waiting
    assert told["waiters"] == 1
    assert told["waitedFor"] == [{"queue": "quiet", "waiters": 1}]


async def test_the_stream_goes_on(queen: Queen, http: httpx.AsyncClient, server: Server) -> None:
    async with watching(http) as beats:
        assert (await anext(beats))["counts"]["pushed"] == 0
        await queen.push("orders", 1)
        async for told in beats:
            if told["counts"]["pushed"] == 1:
                break
        assert server.broker.live.watchers == 1
    while server.broker.live.watchers:
        await asyncio.sleep(0.01)


async def test_too_many_streams_are_refused(queen: Queen, http: httpx.AsyncClient, server: Server) -> None:
    server.broker.live = Live(most_watchers=1)
    async with watching(http) as beats:
        await anext(beats)
        refused = await http.get("/api/v1/live", headers=EVENTS)
        assert refused.status_code == 429
        assert "live streams are already open" in refused.json()["error"]
        assert refused.headers["retry-after"] == "5"


async def test_the_stop_ends_every_stream_at_once(http: httpx.AsyncClient, server: Server) -> None:
    async with watching(http) as beats:
        await anext(beats)
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(server.front.stop(grace_s=600))
            async for _ in beats:
                pass


async def test_without_its_database_it_says_so(queen: Queen, http: httpx.AsyncClient, server: Server) -> None:
    server.database.abandon()
    told = await snapshot(http)
    assert told["backlog"] is None
    assert told["problem"]
    await server.database.open()
