"""PostgreSQL stopped, restarted, cut off, its pool exhausted, under load: nothing accepted is lost or doubled.

Order per partition holds, the server stays up, and full speed is back within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncpg
import httpx
import pytest

from chaos.harness import Load, Queen, audit, drain, producing, replayed

LONG = os.environ.get("QUEEN_LONG") == "1"
PAUSE_S = 20.0 if LONG else 3.0
BEFORE = 150
BACK_WITHIN_S = 10.0


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, **variables: str) -> AsyncIterator[Queen]:
    (tmp_path / "data").mkdir()
    running = Queen(tmp_path / "data", **variables)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def rate(load: Load, seconds: float) -> float:
    """Answers a second."""
    before = load.answers
    await asyncio.sleep(seconds)
    return (load.answers - before) / seconds


async def recover(queen: Queen, load: Load, usual: float) -> float:
    """How long it takes until pushes are stored directly again, half as fast as before or faster."""
    started = time.monotonic()
    async with asyncio.timeout(BACK_WITHIN_S), httpx.AsyncClient(base_url=queen.url, timeout=30) as client:
        await replayed(client)
        while True:
            deferred = load.deferred
            if await rate(load, 0.5) > usual / 2 and load.deferred == deferred:
                return time.monotonic() - started - 0.5


async def suffer(tmp_path: Path, harm: Callable[[Queen], Awaitable[None]], **variables: str) -> Load:
    async with serving(tmp_path, **variables) as queen:
        async with producing(queen.url) as load:
            await load.more(BEFORE)
            usual = await rate(load, 1.0)
            await harm(queen)
            took = await recover(queen, load, usual)
        print(f"usual {usual:.0f}/s, back after {took:.1f} s, {load.deferred} of {load.answers} deferred")  # noqa: T201
        audit(load, await drain(queen.url))
        return load


async def test_postgres_hangs(tmp_path: Path) -> None:
    """As under SIGSTOP, a frozen virtual machine, or a network that swallows everything."""

    async def harm(queen: Queen) -> None:
        queen.signal_postgres(signal.SIGSTOP)
        await asyncio.sleep(PAUSE_S)
        queen.signal_postgres(signal.SIGCONT)

    load = await suffer(tmp_path, harm, QUEEN_OUTAGE_AFTER_MS="1000")
    assert load.deferred > 0, "pushes went to the journal meanwhile"


@pytest.mark.skipif(not LONG, reason="QUEEN_LONG=1; test_kill has the harsher form")
async def test_postgres_is_restarted(tmp_path: Path) -> None:
    async def harm(queen: Queen) -> None:
        queen.restart_postgres()
        await asyncio.sleep(1)

    await suffer(tmp_path, harm)


@pytest.mark.skipif(not LONG, reason="QUEEN_LONG=1; the integration tests cut them through a relay")
async def test_connections_are_cut(tmp_path: Path) -> None:
    async def harm(queen: Queen) -> None:
        sql = await asyncpg.connect(queen.database_url())
        cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        for _ in range(100):
            await sql.execute(cut + " AND backend_type = 'client backend'")
            await asyncio.sleep(0.1)
        await sql.close()

    await suffer(tmp_path, harm)


async def test_the_pool_is_exhausted(tmp_path: Path) -> None:
    """By a session that keeps every other one waiting for its lock."""

    async def harm(queen: Queen) -> None:
        sql = await asyncpg.connect(queen.database_url())
        async with sql.transaction():
            await sql.execute("LOCK TABLE queen.messages")
            await asyncio.sleep(PAUSE_S)
        await sql.close()

    await suffer(tmp_path, harm, DB_POOL_SIZE="2")


async def test_the_worker_of_the_operation_queue_is_killed_in_the_middle(tmp_path: Path) -> None:
    """With thresholds that queue almost every push, `kill -9` of the server that runs the operations."""
    limits = {"QUEEN_PUSH_LOOP_THRESHOLD_MS": "1", "QUEEN_PUSH_WAIT_THRESHOLD_MS": "1"}
    async with serving(tmp_path, **limits) as queen:
        async with producing(queen.url) as load:
            for _ in range(5 if LONG else 1):
                await load.more(2 * BEFORE)
                await queen.kill()
                await queen.start()
            await load.more(BEFORE)
        print(f"{load.deferred} of {load.answers} deferred")  # noqa: T201
        assert load.deferred > 0
        audit(load, await drain(queen.url))
