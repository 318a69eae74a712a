"""A database that answers and cannot be written to is away, as one that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest
from ports import free_port
from server_settings import settings_with

from integration.proxy import Proxy, relayed
from integration.queen import Queen, data, until
from integration.test_outage import buffered, drained, item, push
from queenmq.config import DatabaseSettings, Settings
from queenmq.server import Server
from queenmq.storage.database import Database
from queenmq.storage.failures import DatabaseAway, NotTheWriter

if TYPE_CHECKING:
    from conftest import Postgres

REFUSES = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE SQLSTATE '25006' USING MESSAGE = 'cannot execute INSERT in a read-only transaction'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON queen.messages FOR EACH STATEMENT EXECUTE FUNCTION refuse();
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_with(
        journal={"folder": tmp_path / "journal", "replay_interval_ms": 10},
        database={"ping_ms": 50, "connection_timeout_ms": 2000},
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


async def set_read_only(sql: asyncpg.Connection, on: bool) -> None:
    """For sessions from now on."""
    name = await sql.fetchval("SELECT current_database()")
    await sql.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {'on' if on else 'off'}")


async def test_a_read_only_database_is_away_until_it_can_be_written_to(
    server: Server, http: httpx.AsyncClient, sql: asyncpg.Connection, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    queen = Queen(http, patience_s=30)
    await queen.push_items(item(0))
    await set_read_only(sql, True)
    proxy.cut()
    await until(lambda: not server.database.is_open)
    for number in range(1, 4):
        [result] = await buffered(http, item(number))
        assert result["reason"] == "database_unavailable"
    pop = await http.get("/api/v1/pop/queue/q")
    assert (pop.status_code, pop.json()["code"]) == (503, "database_unavailable")
    assert (await http.get("/health")).status_code == 503
    tried = 0
    find = server.database._connector.find

    async def count() -> None:
        nonlocal tried
        tried += 1
        await find()

    monkeypatch.setattr(server.database._connector, "find", count)
    await until(lambda: tried > 2)
    assert not server.database.is_open, "it answers, and that is not enough"
    await set_read_only(sql, False)
    await drained(server)
    await until(lambda: server.database.is_open)
    assert data(await queen.drain("q", "p")) == [0, 1, 2, 3]


async def test_the_probe_asks_whether_it_can_write(server: Server, sql: asyncpg.Connection) -> None:
    """With sessions that stay where they are, as on a standby that was a primary."""
    await until(lambda: server.database.is_listening)
    lifeline, closed = server.database._lifeline, asyncio.Event()
    assert lifeline is not None
    lifeline.add_termination_listener(lambda _: closed.set())
    await lifeline.execute("SET default_transaction_read_only = on")
    async with asyncio.timeout(30):
        await closed.wait()
    await until(lambda: server.database.is_open)
    assert server.database.opened > 1


async def test_a_refused_write_closes_every_connection_and_is_answered_like_a_lost_one(
    server: Server, http: httpx.AsyncClient, sql: asyncpg.Connection
) -> None:
    queen = Queen(http, patience_s=30)
    await queen.push_items(item(0))
    before = server.database.opened
    await sql.execute(REFUSES)
    await buffered(http, item(1), item(2))
    await sql.execute("DROP FUNCTION refuse CASCADE")
    assert server.database.opened > before or not server.database.is_open
    await drained(server)
    answer = await push(http, item(3))
    assert answer.status_code in (201, 202)
    await drained(server)
    assert data(await queen.drain("q", "p")) == [0, 1, 2, 3]


async def test_a_server_that_starts_on_a_read_only_database_waits_for_it(
    settings: Settings, database_url: str, sql: asyncpg.Connection
) -> None:
    await set_read_only(sql, True)
    server = Server(settings, database_url)
    await server.start()
    try:
        assert not server.database.is_open
        await set_read_only(sql, False)
        await until(lambda: server.database.is_open)
    finally:
        await server.stop()


# Several hosts


def several(url: str, *hosts: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@{','.join(hosts)}").geturl()


def host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


async def test_hosts_that_refuse_or_are_silent_or_read_only_are_passed_over(
    database_url: str, sql: asyncpg.Connection
) -> None:
    name = await sql.fetchval("SELECT current_database()")
    async with relayed(database_url) as silent:
        silent.pause()
        hosts = (f"127.0.0.1:{free_port()}", host(silent.url), host(database_url))
        database = Database(DatabaseSettings(connection_timeout_ms=5000), several(database_url, *hosts))
        async with asyncio.timeout(4):
            await database.open()
        assert await database.fetchval("SELECT current_database()") == name
        await database.close()
    await set_read_only(sql, True)
    database = Database(DatabaseSettings(), several(database_url, f"127.0.0.1:{free_port()}", host(database_url)))
    with pytest.raises(DatabaseAway, match=r"Connect call failed.*read-only"):
        await database.open()


async def test_a_wrong_password_is_not_taken_for_an_outage(database_url: str) -> None:
    parts = urlsplit(database_url)
    wrong = parts._replace(netloc=f"{parts.username}:wrong@{host(database_url)}").geturl()
    with pytest.raises(Exception, match="password") as caught:
        await Database(DatabaseSettings(), wrong).open()
    assert not isinstance(caught.value, DatabaseAway)


# Which PostgreSQL it is


async def test_another_timeline_ends_every_connection_and_an_older_one_is_never_used(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(DatabaseSettings(), database_url)
    await database.open()
    connector = database._connector
    real = connector._lineage
    shift = 1

    async def shifted(connection: asyncpg.Connection) -> object:
        found = await real(connection)
        assert found is not None
        return type(found)(found.system, found.timeline + shift)

    monkeypatch.setattr(connector, "_lineage", shifted)
    assert not await database.is_alive(30)
    assert not database.is_open
    await database.open()
    assert await database.is_alive(30)
    shift = 0
    with pytest.raises(NotTheWriter):
        await connector.connect()
    assert not await database.is_alive(30)
    with pytest.raises(DatabaseAway, match="replaced by a newer one"):
        await database.open()


async def test_an_ordinary_role_may_ask_which_one_it_is_and_one_that_may_not_is_not_refused(
    postgres: Postgres, database_url: str
) -> None:
    administrator = await asyncpg.connect(postgres.administrator_of(database_url))
    try:
        database = Database(DatabaseSettings(), database_url)
        await database.open()
        assert not database._connector._refused
        await database.close()
        await administrator.execute("REVOKE EXECUTE ON FUNCTION pg_control_system FROM PUBLIC")
        database = Database(DatabaseSettings(), database_url)
        await database.open()
        assert database._connector._refused
        assert await database.is_alive(30)
        await database.close()
    finally:
        await administrator.execute("GRANT EXECUTE ON FUNCTION pg_control_system TO PUBLIC")
        await administrator.close()
