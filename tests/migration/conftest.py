"""A database for tests that make and upgrade the schema by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
import pytest
from server_settings import settings_with

from queenmq.storage.database import Database

if TYPE_CHECKING:
    from conftest import Postgres


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


@asynccontextmanager
async def database_at(url: str) -> AsyncIterator[Database]:
    database = Database(settings_with().database, url)
    await database.open()
    try:
        yield database
    finally:
        await database.close()
