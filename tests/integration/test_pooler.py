"""Behind PgBouncer in transaction mode, with fewer sessions than connections: every statement may get another one.

`make pooled` also runs the files of the most important verbs through it (QUEEN_TEST_POOLER=1).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import asyncpg
import pooler
import pytest
from pooler import Pooler, needs_pooler
from server_settings import settings_with

from integration.queen import Queen, another_server, data, until
from queenmq.config import DatabaseSettings
from queenmq.errors import StartupError
from queenmq.pipeline.connection import connect
from queenmq.pipeline.errors import PipelineError
from queenmq.services.vacuum import Vacuum
from queenmq.storage.database import Database
from queenmq.storage.migrations import migrate

if TYPE_CHECKING:
    from conftest import Postgres

pytestmark = [needs_pooler, pytest.mark.skipif(pooler.IS_ASKED_FOR, reason="has a pooler of its own")]

SESSIONS = 3


@pytest.fixture(scope="module")
def bouncer(postgres: Postgres) -> Iterator[Pooler]:
    with pooler.pooled(postgres.url_of("postgres"), SESSIONS) as running:
        yield running


@pytest.fixture
def pooled_url(bouncer: Pooler, database_url: str) -> str:
    url = bouncer.url(database_url)
    assert url != database_url
    return url


@pytest.fixture
async def queen(pooled_url: str) -> AsyncIterator[Queen]:
    async with another_server(settings_with(database={"vacuum_interval_ms": 100}), pooled_url) as queen:
        yield queen


async def opened(url: str, **settings: object) -> Database:
    database = Database(DatabaseSettings(**settings), url)  # type: ignore[arg-type]
    await database.open()
    return database


async def test_a_pooler_is_noticed(database_url: str, pooled_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "queenmq.storage"):
        direct = await opened(database_url)
        assert not direct.is_pooled
        await direct.close()
        assert "pooler" not in caplog.text
        database = await opened(pooled_url)
        assert database.is_pooled
        await database.close()
    assert "PostgreSQL is reached through a pooler" in caplog.text
    # What cannot be set is named, with the command that sets it.
    assert "ALTER ROLE" in caplog.text
    assert "SET plan_cache_mode = 'force_generic_plan'" in caplog.text


async def test_what_is_set_for_the_role_is_not_missed(
    postgres: Postgres, database_url: str, pooled_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = await opened(pooled_url)
    await database.close()
    [told] = [record.getMessage() for record in caplog.records if "ALTER ROLE" in record.getMessage()]
    commands = [command.strip() for command in told.partition("ALTER ROLE")[2].split(";") if command.strip()]
    administrator = await asyncpg.connect(postgres.administrator_of(database_url))
    try:
        name = database_url.rsplit("/", 1)[1]
        for command in commands:
            settings = command.removeprefix("ALTER ROLE ").partition(" ")[2]
            await administrator.execute(f"ALTER DATABASE {name} {settings}")
        # Sessions that the pooler has open have the old settings.
        await administrator.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()",
            name,
        )
    finally:
        await administrator.close()
    caplog.clear()
    database = await opened(pooled_url)
    await database.close()
    assert "ALTER ROLE" not in caplog.text


async def test_another_isolation_is_refused(postgres: Postgres, database_url: str, pooled_url: str) -> None:
    administrator = await asyncpg.connect(postgres.administrator_of(database_url))
    name = database_url.rsplit("/", 1)[1]
    await administrator.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    await administrator.close()
    with pytest.raises(StartupError, match=r"ALTER ROLE .* SET default_transaction_isolation = 'read committed'"):
        await opened(pooled_url)


async def test_the_setting_decides_if_it_says_so(database_url: str, pooled_url: str) -> None:
    careful = await opened(database_url, pooler="yes")
    assert careful.is_pooled
    assert await careful.fetchval("SELECT 1") == 1
    await careful.close()
    with pytest.raises(StartupError, match="unsupported startup parameter"):
        await opened(pooled_url, pooler="no")


async def test_every_message_once_and_in_order(queen: Queen) -> None:
    """Many requests of all kinds at once, on sessions that they share: no statement gets the values of another."""
    partitions, each = 12, 30

    async def produce(partition: int) -> None:
        for number in range(each):
            await queen.push("orders", f"{partition}:{number}", partition=f"p{partition}")

    got: list[str] = []

    async def consume() -> None:
        while len(got) < partitions * each:
            popped = await queen.pop("orders", wait=True, timeout=1000, batch=7)
            got.extend(data(popped))
            if popped:
                await queen.extend(popped[0]["leaseId"])
                assert all(result["success"] for result in await queen.ack_batch(popped))

    async def administer() -> None:
        for number in range(20):
            await queen.configure(f"other-{number}", leaseTime=number + 1)
            assert (await queen.http.get("/api/v1/resources/overview")).status_code == 200
            await queen.delete_queue(f"other-{number}")

    async with asyncio.timeout(120):
        await asyncio.gather(
            *(produce(number) for number in range(partitions)), *(consume() for _ in range(6)), administer()
        )
    assert set(Counter(got).values()) == {1}
    for partition in range(partitions):
        mine = [int(text.partition(":")[2]) for text in got if text.startswith(f"{partition}:")]
        assert mine == list(range(each))


async def test_nothing_is_left_in_the_sessions(queen: Queen, pooled_url: str) -> None:
    await queen.push("orders", "a", "b")
    await queen.ack_batch(await queen.pop("orders", batch=2))
    await queen.drain("orders")
    seen = set()
    state = """
        SELECT pg_backend_pid(), (SELECT count(*) FROM pg_prepared_statements),
               (SELECT count(*) FROM pg_listening_channels()),
               (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
               current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout')
    """
    connection = await asyncpg.connect(pooled_url, statement_cache_size=0)
    try:
        for _ in range(100):
            pid, *rest = await connection.fetchrow(state)
            assert rest == [0, 0, 0, "0", "0"]
            seen.add(pid)
    finally:
        await connection.close()
    assert seen


async def test_a_transaction_that_is_left_does_not_stay(pooled_url: str) -> None:
    database = await opened(pooled_url, pool_size=1)
    async with database.connection() as connection:
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO queen.queues (name) VALUES ('left')")
    assert await database.fetchval("SELECT count(*) FROM queen.queues") == 0
    await database.close()


async def test_what_no_server_has_written_is_heard_on_a_direct_connection(
    database_url: str, pooled_url: str, sql: asyncpg.Connection
) -> None:
    database = await opened(pooled_url, listen_url=database_url)
    heard: list[str] = []
    database.on_notice("news", heard.append)

    async def listens() -> bool:
        assert await database.is_alive(30)
        return database.is_listening

    await until(listens)
    await sql.execute("NOTIFY news, 'first'")
    await until(lambda: heard == ["first"])
    listener = database._listener._on
    assert listener is not None
    await sql.execute("SELECT pg_terminate_backend($1)", listener.get_server_pid())
    await until(lambda: not database.is_listening)
    await until(listens)
    await sql.execute("NOTIFY news, 'second'")
    await until(lambda: heard == ["first", "second"])
    await database.close()
    assert not database.is_listening


async def test_without_a_direct_connection_it_is_found_all_the_same(pooled_url: str, sql: asyncpg.Connection) -> None:
    async with another_server(settings_with(), pooled_url) as queen:
        await queen.push("orders", "known")
        await queen.drain("orders")
        waiting = asyncio.create_task(queen.wait("orders"))
        await sql.execute(
            "INSERT INTO queen.messages (id, partition_id, transaction_id, payload) "
            "SELECT gen_random_uuid(), id, 'by hand', '\"by hand\"' FROM queen.partitions"
        )
        async with asyncio.timeout(60):
            assert data(await waiting) == ["by hand"]


async def test_a_listening_url_that_leads_to_the_pooler_is_told(
    pooled_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = await opened(pooled_url, listen_url=pooled_url)
    assert await database.is_alive(30)
    await until(lambda: "cannot listen at QUEEN_DB_LISTEN_URL" in caplog.text)
    assert not database.is_listening
    await database.close()


async def test_the_pooler_goes_and_comes_back(postgres: Postgres, database_url: str) -> None:
    settings = settings_with(database={"ping_ms": 50, "outage_after_ms": 500})
    with pooler.pooled(postgres.url_of("postgres"), SESSIONS) as bouncer:
        async with another_server(settings, bouncer.url(database_url)) as running:
            queen = Queen(running.http, patience_s=60)
            await queen.push("orders", "before")
            bouncer.restart()
            await queen.push("orders", "after")
            assert data(await queen.drain("orders")) == ["before", "after"]


async def test_the_schema_is_made_through_it(postgres: Postgres, bouncer: Pooler) -> None:
    url = await postgres.create("template1")
    try:
        database = await opened(bouncer.url(url))
        await asyncio.gather(migrate(database), migrate(database))
        await database.close()
    finally:
        await postgres.drop(url)


async def test_one_of_two_servers_vacuums(pooled_url: str, sql: asyncpg.Connection) -> None:
    settings = DatabaseSettings(vacuum_interval_ms=3_600_000)
    database = await opened(pooled_url)
    one, other = Vacuum(database, settings), Vacuum(database, settings)
    count = "SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = 'partition_lookup'"

    async def vacuumed() -> bool:
        await sql.execute("SELECT pg_stat_clear_snapshot()")
        return await sql.fetchval(count) == 1

    await one.work()
    await until(vacuumed)
    await other.work()
    await one.work()
    assert await vacuumed()
    await database.close()


async def test_the_pipeline_says_that_it_needs_a_direct_connection(pooled_url: str) -> None:
    with pytest.raises(PipelineError, match="without the pooler"):
        await asyncio.to_thread(connect, pooled_url)
