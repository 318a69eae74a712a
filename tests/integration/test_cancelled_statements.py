"""Statements that are cancelled leave no connection behind on which the next one fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from queenmq.server import Server


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancelled_statement_leaves_its_connection_clean(server: Server, turns: int) -> None:
    """Cancelled in every step: while it is prepared, PostgreSQL has begun a transaction that nobody knows of."""
    database = server.database
    for number in range(20):
        task = asyncio.create_task(database.fetch(f"SELECT {number} AS never_the_same_{turns}, now(), pg_sleep(0.002)"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        async with (
            database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            assert await connection.fetchval("SELECT 1") == 1
