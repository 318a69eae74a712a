"""The connection on which the database is asked whether it is there, and on which it tells of what no server wrote."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import asyncpg
import pytest

from integration.proxy import relayed
from integration.queen import until
from queenmq.broker.wake_ups import WRITTEN_ELSEWHERE
from queenmq.config import DatabaseSettings
from queenmq.storage.database import Database

PATIENCE_S = 30.0
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(DatabaseSettings(), database_url)
    await opened.open()
    yield opened
    await opened.close()


async def test_a_database_that_refuses_to_listen_is_there(database: Database) -> None:
    database.on_notice("", lambda _: None)  # a channel without a name is refused
    assert await database.is_alive(PATIENCE_S)
    assert not database.is_listening


@pytest.mark.parametrize("when", ["while it is asked", "while it begins to listen"])
async def test_what_the_driver_says_of_a_connection_that_was_cut(
    database: Database, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Whatever it is, the database did not answer on it."""

    async def cut(connection: asyncpg.Connection, *_: object) -> None:
        connection.terminate()
        raise AttributeError("'NoneType' object has no attribute 'bind_execute'")

    database.on_notice("news", lambda _: None)
    name = "fetchrow" if when == "while it is asked" else "add_listener"
    with monkeypatch.context() as patch:
        patch.setattr(asyncpg.Connection, name, cut)
        assert not await database._ask()
    assert await database.is_alive(PATIENCE_S)


@pytest.mark.filterwarnings("error::ResourceWarning")
async def test_many_who_ask_at_once_make_one_connection(database: Database, sql: asyncpg.Connection) -> None:
    database.on_notice("news", lambda _: None)
    assert all(await asyncio.gather(*(database.is_alive(PATIENCE_S) for _ in range(5))))
    gc.collect()
    assert database.is_listening
    assert await sql.fetchval(SESSIONS) == 1


async def test_nothing_is_heard_any_more_when_it_is_abandoned(database: Database, sql: asyncpg.Connection) -> None:
    heard: list[str] = []
    database.on_notice("news", heard.append)
    assert await database.is_alive(PATIENCE_S)
    await sql.execute("NOTIFY news, 'first'")
    await until(lambda: heard == ["first"])
    database.abandon()
    assert not database.is_listening
    await sql.execute("NOTIFY news, 'missed'")
    await database.open()
    assert await database.is_alive(PATIENCE_S)
    await sql.execute("NOTIFY news, 'second'")
    await until(lambda: heard == ["first", "second"])


async def test_writers_of_a_queue_do_not_wait_for_each_other_to_tell_of_it(
    database_url: str, database: Database, sql: asyncpg.Connection
) -> None:
    """One transaction at a time has a NOTIFY: their commits go one after the other."""
    heard: list[str] = []
    database.on_notice(WRITTEN_ELSEWHERE, heard.append)
    database.on_notice("end", heard.append)
    assert await database.is_alive(PATIENCE_S)
    await sql.execute("INSERT INTO queen.queues (name) VALUES ('orders')")
    for name in "ab":
        await sql.execute("INSERT INTO queen.partitions (queue_id, name) SELECT id, $1 FROM queen.queues", name)
    insert = "INSERT INTO queen.messages (partition_id, payload) SELECT id, '1' FROM queen.partitions WHERE name = $1"
    other = await asyncpg.connect(database_url)
    async with sql.transaction():
        await sql.execute(insert, "a")
        await other.execute(insert, "b")
        await other.execute("NOTIFY \"end\", 'of the other'")
    await until(lambda: heard == ["of the other", "orders"])
    await other.execute(insert, "b")
    await until(lambda: heard == ["of the other", "orders", "orders"])
    await other.close()


async def test_one_that_answers_late_is_no_second_one(database_url: str) -> None:
    """Whoever asked and was not waited for goes on connecting."""
    async with relayed(database_url) as proxy:
        database = Database(DatabaseSettings(connection_timeout_ms=60_000), proxy.url)
        await database.open()
        database.on_notice("news", lambda _: None)
        proxy.pause()
        assert not await database.is_alive(0.1)
        assert not await database.is_alive(0.1)
        proxy.resume()
        assert await database.is_alive(PATIENCE_S)
        await until(lambda: not any("Database._ask" in repr(task) for task in asyncio.all_tasks()))
        assert database.is_listening
        await database.close()
