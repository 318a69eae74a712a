"""The clock of the database is set back: what could be read is not hidden, and what has to wait is not hurried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import httpx
import pytest
from server_settings import settings_with

from integration.queen import Queen, data, until
from queenmq.config import Settings
from queenmq.server import Server

STEP_S = 40
# Much less than the step, much more than is needed.
PATIENCE_S = 20
# Functions of ours that ask for the time find this one before PostgreSQL's own.
CLOCK = """
    CREATE SCHEMA stepped;
    CREATE TABLE stepped.back (seconds double precision NOT NULL);
    INSERT INTO stepped.back VALUES (0);
    CREATE FUNCTION stepped.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
        'SELECT pg_catalog.clock_timestamp() - make_interval(secs => seconds) FROM stepped.back';
"""

SetBack = Callable[[], Awaitable[Any]]


@pytest.fixture
def settings() -> Settings:
    return settings_with(database={"ping_ms": 50})


@pytest.fixture
async def set_back(database_url: str, sql: asyncpg.Connection) -> AsyncIterator[SetBack]:
    """Sets the clock back, for every session that is opened from now on."""
    await sql.execute(CLOCK)
    name = await sql.fetchval("SELECT current_database()")
    await sql.execute(f"ALTER DATABASE {name} SET search_path = stepped, pg_catalog, public")
    yield lambda: sql.execute("UPDATE stepped.back SET seconds = seconds + $1", STEP_S)


@pytest.fixture
async def server(database_url: str, settings: Settings, set_back: SetBack) -> AsyncIterator[Server]:
    running = Server(settings, database_url)
    await running.start()
    await until(lambda: running.database.is_listening)
    yield running
    await running.stop()


async def fill(queen: Queen, queue: str, **options: Any) -> None:
    """Three partitions that a group has read, and that have become readable again, one after the other."""
    await queen.configure(queue, **options)
    for partition in "abc":
        await queen.push_items({"queue": queue, "partition": partition, "payload": "first"})
    await queen.drain(queue)
    for partition in "abc":
        await queen.push_items({"queue": queue, "partition": partition, "payload": partition})


async def read(queen: Queen, queue: str, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += data(await queen.pop(queue, wait=True, timeout=1000, autoAck=True))
    return found


async def test_a_backlog_is_not_hidden_and_keeps_its_order(server: Server, queen: Queen, set_back: SetBack) -> None:
    await fill(queen, "q")
    await set_back()
    assert await read(queen, "q", 3) == ["a", "b", "c"]
    assert server.database.clock.steps == 1
    await queen.push("q", "later", partition="a")
    assert await read(queen, "q", 1) == ["later"]


async def test_what_has_to_wait_is_not_hurried(
    server: Server, queen: Queen, sql: asyncpg.Connection, set_back: SetBack
) -> None:
    await fill(queen, "plain")
    await fill(queen, "leased", leaseTime=60)
    [leased] = await queen.pop("leased", "a")
    await fill(queen, "failed", retryDelay=30_000)
    [failed] = await queen.pop("failed", "a")
    await queen.ack(failed, "failed")
    await queen.configure("delayed", delayedProcessing=1)
    await queen.pop("delayed", consumerGroup="g")
    await queen.push("delayed", "soon")
    waits = "SELECT ready_at, lease_expires_at, retry_at FROM queen.partition_consumers WHERE ready_at > $1 ORDER BY 1"
    before = await sql.fetch(waits, await sql.fetchval("SELECT pg_catalog.clock_timestamp()"))
    await set_back()
    assert await read(queen, "plain", 3) == ["a", "b", "c"]
    assert await read(queen, "leased", 2) == ["b", "c"]
    assert await read(queen, "failed", 2) == ["b", "c"]
    for queue in ("leased", "failed", "delayed"):
        assert await queen.pop(queue) == []
    assert await queen.pop("delayed", consumerGroup="g") == []
    after = await sql.fetch(waits, await sql.fetchval("SELECT pg_catalog.clock_timestamp() - interval '30 s'"))
    assert {tuple(row) for row in before} <= {tuple(row) for row in after}
    assert (await queen.ack(leased))["success"]


async def test_a_server_that_starts_afterwards_finds_it_too(
    database_url: str, settings: Settings, server: Server, queen: Queen, set_back: SetBack
) -> None:
    await fill(queen, "q")
    await server.stop()
    await set_back()
    again = Server(settings, database_url)
    await again.start()
    try:
        host, port = again.address
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as http:
            assert await read(Queen(http), "q", 3) == ["a", "b", "c"]
    finally:
        await again.stop()
