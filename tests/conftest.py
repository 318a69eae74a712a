"""Fixtures that every level shares: one real PostgreSQL a session, one fresh database a test, one server on it."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from queenmq.config import Settings
from queenmq.server import Server
from queenmq.storage.database import Database
from queenmq.storage.embedded import EmbeddedPostgres
from queenmq.storage.migrations import migrate

_numbers = itertools.count(1)
_TEMPLATE = "queen_template"


class Postgres:
    """A running PostgreSQL whose template database has the newest schema."""

    def __init__(self, url: str) -> None:
        self.url = url

    def url_of(self, database: str) -> str:
        return self.url.rsplit("/", 1)[0] + "/" + database

    async def create(self, template: str = _TEMPLATE) -> str:
        """A new database made from `template`; its URL."""
        name = f"test_{next(_numbers)}"
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url_of(name)

    async def drop(self, url: str) -> None:
        await self._execute(f"DROP DATABASE IF EXISTS {url.rsplit('/', 1)[1]} WITH (FORCE)")

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """The bundled PostgreSQL in a folder of its own, or the one that QUEEN_TEST_POSTGRES names."""
    given = os.environ.get("QUEEN_TEST_POSTGRES")
    if given:
        with asyncio.Runner() as runner:
            server = Postgres(given)
            runner.run(_make_template(server))
            yield server
        return
    folder: Path = tmp_path_factory.mktemp("postgres")
    with asyncio.Runner() as runner:
        bundled = EmbeddedPostgres(folder)
        server = Postgres(runner.run(bundled.start()))
        try:
            runner.run(_make_template(server))
            yield server
        finally:
            runner.run(bundled.stop())


async def _make_template(server: Postgres) -> None:
    await server._execute(f"DROP DATABASE IF EXISTS {_TEMPLATE}")
    await server._execute(f"CREATE DATABASE {_TEMPLATE}")
    database = Database(Settings(), server.url_of(_TEMPLATE))
    await database.open()
    try:
        await migrate(database)
    finally:
        await database.close()


@pytest.fixture
async def database_url(postgres: Postgres) -> AsyncIterator[str]:
    """A fresh database with the newest schema."""
    url = await postgres.create()
    yield url
    await postgres.drop(url)


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    """The PostgreSQL's own database, in which there is no schema of ours."""
    return postgres.url


@pytest.fixture
async def sql(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain session on the same database, as psql would open it."""
    connection = await asyncpg.connect(database_url, server_settings={"timezone": "UTC"})
    yield connection
    await connection.close()


@pytest.fixture
def settings() -> Settings:
    """Override in a module or class to test with other settings."""
    return Settings(port=0, shutdown_grace_s=2)


@pytest.fixture
async def server(database_url: str, settings: Settings) -> AsyncIterator[Server]:
    """A server in this process, listening on a free port."""
    running = Server(settings, database_url)
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of that server."""
    host, port = server.address
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield client
