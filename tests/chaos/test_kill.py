"""`kill -9` of the server and of PostgreSQL under load: what was accepted is there, once and in order."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chaos.harness import Queen, audit, drain, producing

ROUNDS = int(os.environ.get("QUEEN_CHAOS_ROUNDS", "2"))
PUSHES_BETWEEN_KILLS = 150


@pytest.fixture
async def queen(tmp_path: Path) -> AsyncIterator[Queen]:
    (tmp_path / "data").mkdir()
    running = Queen(tmp_path / "data")
    await running.start()
    yield running
    await running.stop()


async def test_the_server_is_killed_under_load(queen: Queen) -> None:
    async with producing(queen.url) as load:
        for _ in range(ROUNDS):
            await load.more(PUSHES_BETWEEN_KILLS)
            await queen.kill()
            await queen.start()
        await load.more(PUSHES_BETWEEN_KILLS)
    audit(load, await drain(queen.url))


async def test_postgres_is_killed_under_load(queen: Queen) -> None:
    """The server stays up, pushes wait or go to the journal, and PostgreSQL is started again by itself."""
    async with producing(queen.url) as load:
        for _ in range(ROUNDS):
            await load.more(PUSHES_BETWEEN_KILLS)
            queen.kill_postgres()
        await load.more(PUSHES_BETWEEN_KILLS)
    audit(load, await drain(queen.url))


async def test_both_are_killed_under_load(queen: Queen) -> None:
    async with producing(queen.url) as load:
        for _ in range(ROUNDS):
            await load.more(PUSHES_BETWEEN_KILLS)
            queen.kill_postgres()
            await queen.kill()
            await queen.start()
        await load.more(PUSHES_BETWEEN_KILLS)
    audit(load, await drain(queen.url))
