"""Without the database, or with pushes switched off: accepted pushes are on disk, and come in once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from integration.proxy import Proxy, relayed
from integration.queen import Queen, data, until
from queenmq.config import Settings
from queenmq.server import Server

KEY = bytes(range(32))

Json = dict[str, Any]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        port=0,
        shutdown_grace_s=2,
        file_buffer_dir=tmp_path / "journal",
        encryption_key=KEY,
        database_ping_ms=50,
        outage_after_ms=500,
        file_buffer_flush_ms=10,
        db_connection_timeout_ms=500,
    )


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with relayed(database_url) as running:
        yield running


@pytest.fixture
async def server(proxy: Proxy, settings: Settings) -> AsyncIterator[Server]:
    running = Server(settings, proxy.url)
    await running.start()
    yield running
    await running.stop()


def item(number: int, partition: str = "p", queue: str = "q", **fields: Any) -> Json:
    return {"queue": queue, "partition": partition, "transactionId": str(number), "payload": number} | fields


async def push(http: httpx.AsyncClient, *items: Json) -> httpx.Response:
    return await http.post("/api/v1/push", json={"items": items})


async def buffered(http: httpx.AsyncClient, *items: Json) -> list[Json]:
    """Push, and expect that all of it is in the journal."""
    answer = await push(http, *items)
    assert answer.status_code == 202, answer.text
    results = answer.json()
    assert [result["status"] for result in results] == ["buffered"] * len(items)
    return results


async def maintain(http: httpx.AsyncClient, on: bool) -> Json:
    answer = await http.post("/api/v1/system/maintenance", json={"enabled": on})
    assert answer.status_code == 200
    return answer.json()


async def state(http: httpx.AsyncClient) -> Json:
    return (await http.get("/api/v1/system/maintenance")).json()


async def drained(server: Server) -> None:
    buffer = server.engine.buffer
    assert buffer is not None
    await until(lambda: not buffer.pending)


# Maintenance


async def test_maintenance_keeps_pushes_in_the_journal_and_lets_them_in_afterwards(
    server: Server, http: httpx.AsyncClient, queen: Queen
) -> None:
    await queen.push_items(item(1))
    assert "journal" in (await maintain(http, True))["message"]
    [two, three] = await buffered(http, item(2), item(3))
    assert two["reason"] == "maintenance"
    assert (two["queue"], two["partition"], two["transactionId"]) == ("q", "p", "2")
    assert two["operationId"] == three["operationId"]
    for verb in ("cancel", "retry"):
        refusal = await http.post(f"/api/v1/operations/{two['operationId']}/{verb}")
        assert (refusal.status_code, "in the journal" in refusal.json()["error"]) == (409, True)
    await buffered(http, item(3), item(4))
    assert data(await queen.drain("q", "p")) == [1]
    shown = await state(http)
    assert (shown["maintenanceMode"], shown["bufferedMessages"], shown["bufferHealthy"]) == (True, 4, True)
    assert shown["bufferStats"]["pendingCount"] == 4
    await maintain(http, False)
    await drained(server)
    assert data(await queen.drain("q", "p")) == [2, 3, 4]
    assert (await state(http))["bufferedMessages"] == 0


async def test_a_push_waits_behind_the_journalled_ones_of_its_partition(
    server: Server, http: httpx.AsyncClient, queen: Queen
) -> None:
    await maintain(http, True)
    for number in range(200):
        await buffered(http, item(number))
    await maintain(http, False)
    answer = await push(http, item(200))
    assert answer.status_code == 201
    assert data(await queen.drain("q", "p")) == list(range(201))


async def test_a_transaction_waits_behind_them_too(server: Server, http: httpx.AsyncClient, queen: Queen) -> None:
    await maintain(http, True)
    refused = await http.post("/api/v1/transaction", json={"operations": [{"type": "push", "items": [item(9)]}]})
    assert (refused.status_code, refused.json()["code"]) == (503, "maintenance")
    for number in range(50):
        await buffered(http, item(number))
    await maintain(http, False)
    assert (await queen.transact({"type": "push", "items": [item(50)]}))["success"]
    assert data(await queen.drain("q", "p")) == list(range(51))


async def test_the_journal_survives_a_restart(
    server: Server, http: httpx.AsyncClient, queen: Queen, settings: Settings, proxy: Proxy
) -> None:
    await maintain(http, True)
    for number in range(5):
        await buffered(http, item(number))
    await server.stop()
    again = Server(replace(settings, file_buffer_max_batch=2), proxy.url)
    await again.start()
    try:
        host, port = again.address
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as other:
            assert (await state(other))["bufferedMessages"] == 5
            await maintain(other, False)
            await drained(again)
            assert data(await Queen(other).drain("q", "p")) == list(range(5))
    finally:
        await again.stop()


# Outage


async def test_pushes_go_to_the_journal_while_the_database_refuses(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy
) -> None:
    await queen.push_items(item(0))
    await proxy.close()
    for number in range(1, 6):
        [result] = await buffered(http, item(number))
        assert result["reason"] == "database_unavailable"
    await until(lambda: not server.database.is_open)
    pop = await http.get("/api/v1/pop/queue/q")
    assert pop.status_code == 503
    assert "connection" in pop.json()["error"]
    assert "ECONNREFUSED" in pop.json()["error"]
    assert (await http.get("/health")).status_code == 503
    await proxy.open()
    await drained(server)
    assert data(await queen.drain("q", "p")) == list(range(6))
    assert (await http.get("/health")).status_code == 200


async def test_a_database_that_hangs_is_given_up_and_found_again(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy
) -> None:
    await queen.push_items(item(0))
    proxy.pause()
    async with asyncio.timeout(10):
        [result] = await buffered(http, item(1))
        await buffered(http, item(2))
    assert result["reason"] == "database_unavailable"
    proxy.resume()
    await drained(server)
    assert (await push(http, item(3))).status_code == 201
    assert data(await queen.drain("q", "p")) == [0, 1, 2, 3]


async def test_connections_that_are_cut_again_and_again_lose_and_double_nothing(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy
) -> None:
    async def produce(partition: str) -> None:
        for number in range(40):
            answer = await push(http, item(number, partition))
            assert answer.status_code in (201, 202), answer.text

    async def cut() -> None:
        while True:
            await asyncio.sleep(0.03)
            proxy.cut()

    cutting = asyncio.create_task(cut())
    await asyncio.gather(*[produce(f"p{number}") for number in range(4)])
    cutting.cancel()
    await drained(server)
    for number in range(4):
        assert data(await queen.drain("q", f"p{number}")) == list(range(40))


async def test_an_exhausted_pool_loses_nothing(server: Server, http: httpx.AsyncClient, queen: Queen) -> None:
    pool = server.database._pool
    assert pool is not None
    taken = [await pool.acquire() for _ in range(pool.get_max_size())]
    pushing = asyncio.create_task(push(http, item(1)))
    await asyncio.sleep(1)
    assert server.database.is_open, "a busy pool is no outage"
    for connection in taken:
        await pool.release(connection)
    assert (await pushing).status_code == 201
    assert data(await queen.drain("q", "p")) == [1]


async def test_the_server_starts_without_its_database(settings: Settings, database_url: str) -> None:
    async with relayed(database_url) as proxy:
        await proxy.close()
        server = Server(settings, proxy.url)
        await server.start()
        try:
            host, port = server.address
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as http:
                await buffered(http, item(1), item(2))
                for method, path in (
                    ("GET", "/api/v1/pop/queue/q?wait=true&timeout=100"),
                    ("GET", "/api/v1/dlq"),
                    ("POST", "/api/v1/configure"),
                    ("GET", "/api/v1/system/shared-state"),
                ):
                    answer = await http.request(method, path, json={"queue": "q"} if method == "POST" else None)
                    assert answer.status_code == 503, (path, answer.text)
                    assert "ECONNREFUSED" in answer.json()["error"]
                await proxy.open()
                await drained(server)
                await until(lambda: server.database.is_open)
                assert data(await Queen(http).drain("q", "p")) == [1, 2]
        finally:
            await server.stop()


async def test_a_full_journal_answers_429_and_keeps_nothing(settings: Settings, database_url: str) -> None:
    async with relayed(database_url) as proxy:
        await proxy.close()
        server = Server(replace(settings, journal_max_records=2), proxy.url)
        await server.start()
        try:
            host, port = server.address
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as http:
                await buffered(http, item(1))
                await buffered(http, item(2))
                refused = await push(http, item(3))
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) >= 1
                await proxy.open()
                await drained(server)
                assert data(await Queen(http).drain("q", "p")) == [1, 2]
        finally:
            await server.stop()


async def test_the_journal_never_has_a_payload_in_clear_when_there_is_a_key(
    server: Server, http: httpx.AsyncClient, queen: Queen, settings: Settings
) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    await maintain(http, True)
    await buffered(http, item(1, queue="secret", payload="do not tell"))
    assert settings.file_buffer_dir is not None
    files = list(settings.file_buffer_dir.rglob("*.journal"))
    assert files
    assert not [file for file in files if b"do not tell" in file.read_bytes()]
    await maintain(http, False)
    await drained(server)
    assert data(await queen.drain("secret", "p")) == ["do not tell"]


async def test_a_record_that_the_database_refuses_is_set_aside_and_the_rest_goes_on(
    server: Server, http: httpx.AsyncClient, queen: Queen, monkeypatch: pytest.MonkeyPatch
) -> None:
    await maintain(http, True)
    await buffered(http, item(1))
    await buffered(http, item(2, traceId="00000000-0000-4000-8000-000000000000"))
    await buffered(http, item(3))
    store = server.engine.pusher.store

    async def choosy(requests: Any) -> Any:
        for request in requests:
            for message in request:
                if message.trace_id is not None:
                    message.trace_id = "no uuid"
        return await store(requests)

    monkeypatch.setattr(server.engine.pusher, "store", choosy)
    await maintain(http, False)
    await drained(server)
    assert data(await queen.drain("q", "p")) == [1, 3]
    shown = await state(http)
    assert shown["bufferStats"]["failedFiles"]["count"] == 1
    assert shown["bufferStats"]["failedFiles"]["totalBytes"] > 0
