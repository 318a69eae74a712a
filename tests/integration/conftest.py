"""What the tests over HTTP share beyond the fixtures of every level."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import asyncpg
import httpx
import pytest

from integration.queen import Queen

if TYPE_CHECKING:
    from conftest import Postgres

SWEEP = """
    DELETE FROM queen.queues; DELETE FROM queen.consumer_groups; DELETE FROM queen.partition_subscriptions;
    DELETE FROM queen.activity; DELETE FROM queen.server_samples; DELETE FROM queen.ready_floors;
    DELETE FROM queen.stream_queries; DELETE FROM queen.timers; DELETE FROM queen.kv;
    DELETE FROM queen.outbox; DELETE FROM queen.outbox_commits; DELETE FROM queen.outbox_held;
    DELETE FROM queen.maintenance; DELETE FROM queen.operation_queue;
    DELETE FROM queen.dead_letter_counts; DELETE FROM queen.quotas; DELETE FROM queen.pipelines
"""
OBJECTS = """
    SELECT concat_ws(' ', (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc),
                          (SELECT count(*) FROM pg_trigger), (SELECT count(*) FROM pg_constraint))
"""


@pytest.fixture
def queen(http: httpx.AsyncClient) -> Queen:
    """The verbs of the contract, spoken to the server of this test."""
    return Queen(http)


@pytest.fixture(scope="session")
def swept() -> dict[str, str]:
    """Databases that a test has left and that are empty again, with what they are made of."""
    return {}


@pytest.fixture
async def database_url(request: pytest.FixtureRequest, postgres: Postgres, swept: dict[str, str]) -> AsyncIterator[str]:
    """An empty database with the newest schema.

    A new one costs more than most tests, so those that speak through `queen` hand theirs on, unless they changed
    the schema.
    """
    if "queen" not in request.fixturenames:
        url = await postgres.create()
        yield url
        await postgres.drop(url)
        return
    url, objects = swept.popitem() if swept else await _new(postgres)
    yield url
    if await _sweep(url) == objects:
        swept[url] = objects
    else:
        await postgres.drop(url)


@pytest.fixture
def own_database(postgres: Postgres) -> Iterator[str]:
    """The same, new, for a test that is not asynchronous because it runs loops of its own."""
    with asyncio.Runner() as runner:
        url = runner.run(postgres.create())
        yield url
        runner.run(postgres.drop(url))


async def _new(postgres: Postgres) -> tuple[str, str]:
    url = await postgres.create()
    return url, await _sweep(url)


async def _sweep(url: str) -> str:
    """Empty the database. Returns what it is made of."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(SWEEP)
        return await connection.fetchval(OBJECTS)
    finally:
        await connection.close()
