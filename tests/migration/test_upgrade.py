"""Upgrades without a stop: servers of the version before and of this one on one database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest
from server_settings import settings_with

import queenmq
from migration import previous
from migration.rolling import Load, Process, Rotation
from queenmq.storage.database import Database
from queenmq.storage.migrations import contract

if TYPE_CHECKING:
    from conftest import Postgres

THIS = Path(queenmq.__file__).parents[1]


@pytest.fixture
async def empty_url(postgres: Postgres) -> AsyncIterator[str]:
    """A database in which Queen has never been."""
    url = await postgres.create("template1")
    yield url
    await postgres.drop(url)


@pytest.fixture
async def sql(empty_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(empty_url, server_settings={"timezone": "UTC"})
    yield connection
    await connection.close()


@pytest.fixture
def old_source(tmp_path: Path) -> Path:
    found = previous.source(tmp_path)
    if found is None:
        pytest.skip(f"the repository does not have revision {previous.REVISION}: fetch its whole history")
    return found


@asynccontextmanager
async def database_at(url: str) -> AsyncIterator[Database]:
    database = Database(settings_with().database, url)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


async def test_old_servers_are_replaced_under_load_and_come_back(
    empty_url: str, old_source: Path, tmp_path: Path, sql: asyncpg.Connection
) -> None:
    rotation = Rotation()

    async def start(source: Path, name: str) -> Process:
        server = await Process(source, empty_url, tmp_path, name).start()
        rotation.servers.append(server)
        return server

    started: list[Process] = []
    try:
        old = [await start(old_source, f"old-{n}") for n in range(2)]
        started += old
        load = Load(rotation)
        load.start()
        await load.grow(300)
        new = [await start(THIS, "new-0")]
        started += new
        await load.grow(500)
        await rotation.take_out(old[0])
        # Back one version, while the contract step has not run.
        again = await start(old_source, "old-again")
        started.append(again)
        await load.grow(300)
        await rotation.take_out(new[0])
        await load.grow(300)
        new = [await start(THIS, f"new-again-{n}") for n in range(2)]
        started += new
        await load.grow(300)
        for server in (old[1], again):
            await rotation.take_out(server)
        await sql.execute(
            "UPDATE queen.servers s SET seen_at = '-infinity' WHERE NOT EXISTS ("
            "SELECT 1 FROM queen.server_versions v WHERE v.server_id = s.id AND v.epoch = s.epoch)"
        )
        async with database_at(empty_url) as database:
            await contract(database)
        await load.grow(300)
        await load.end()
        await load.audit()
        late = Process(old_source, empty_url, tmp_path, "too-late")
        started.append(late)
        assert "run a newer Queen" in await late.refused()
    finally:
        for server in started:
            await server.stop()
        await rotation.client.aclose()
