"""Upgrades without a stop: servers of the version before and of this one on one database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from integration.queen import another_server
from integration.session import glued_messages
from server_settings import settings_with

from migration import previous
from migration.conftest import database_at
from migration.test_migrations import NEWEST, catalog, catalog_of
from queenmq.errors import StartupError
from queenmq.storage import functions, slices
from queenmq.storage import migrations as module
from queenmq.storage.database import Database
from queenmq.storage.migrations import contract, migrate, older_servers
from queenmq.storage.slices import Report
from queenmq.storage.statements import statement, versioned
from queenmq.storage.steps import Migration, migrations

# A fence is passed at the earliest after so long.
FENCE_S = 0.06


@pytest.fixture
async def database(empty_url: str, sql: asyncpg.Connection) -> AsyncIterator[Database]:
    """A database with the schema of the version before."""
    async with database_at(empty_url) as opened:
        await previous.make_schema(opened, sql)
        yield opened


def says() -> tuple[list[str], Report]:
    said: list[str] = []
    return said, said.append


async def version_rows(sql: asyncpg.Connection) -> list[int]:
    rows = await sql.fetch("SELECT version FROM queen.schema_migrations ORDER BY version")
    return [row["version"] for row in rows]


async def test_functions_of_the_version_before_work_until_the_contract_step(
    database: Database, sql: asyncpg.Connection
) -> None:
    """What its server sees: the schema version and the digest that it knows, and every function that it calls."""
    named = "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'queen'::regnamespace"
    before = {row[0] for row in await sql.fetch(named)}
    digest = await sql.fetchval("SELECT digest FROM queen.schema_functions")
    await migrate(database)
    assert before <= {row[0] for row in await sql.fetch(named)}
    assert await sql.fetchval("SELECT digest FROM queen.schema_functions") == digest
    assert await version_rows(sql) == list(range(1, previous.SCHEMA_VERSION + 1))
    await sql.execute("SELECT queen.ensure_partitions(ARRAY['orders'], ARRAY['Default'])")
    await sql.execute("SELECT queen.subscribe('orders', NULL, 'g', 'all', NULL)")
    await sql.execute("SELECT queen.subscribe('orders', 'Default', 'g', 'all', NULL)")
    assert await sql.fetchval("SELECT count(*) FROM queen.partition_consumers") == 1
    await sql.execute(
        "INSERT INTO queen.messages (partition_id, transaction_id, payload) "
        "SELECT id, 'a', convert_to('1', 'UTF8') FROM queen.partitions"
    )
    assert await sql.fetchval("SELECT last_offset FROM queen.partition_lookup") == 1
    assert await sql.fetch("SELECT * FROM queen.resync_lookup(NULL, 10)")
    await contract(database)
    assert await version_rows(sql) == [migration.version for migration in migrations()]
    assert not await sql.fetchval("SELECT to_regprocedure('queen.resync_lookup(uuid, integer)') IS NOT NULL")


KEYS = """
    SELECT conrelid::regclass::text AS name, pg_get_constraintdef(oid) AS columns FROM pg_constraint
    WHERE contype = 'p' AND conrelid = ANY (ARRAY['queen.partition_lookup', 'queen.partition_consumers']::regclass[])
"""
HAS_FLOOR = versioned("SELECT isfinite(queen.move_ready_floor(id, 'g')) FROM queen.queues")


async def test_floors_move_only_after_the_contract_step(database: Database, sql: asyncpg.Connection) -> None:
    """The version before gives a group rows that are ready in the past, and does not know that it has a floor."""
    insert = (
        "INSERT INTO queen.messages (partition_id, transaction_id, payload) SELECT id, $1, '1' FROM queen.partitions"
    )
    pop = statement("pop")
    asked = (["orders"], [None], ["g"], [10], [10], [True], [None], 2**24, 2**25, "20s")

    async def popped() -> list[str]:
        rows = [row for row in await sql.fetch(pop, *asked) if row["glued"] is not None]
        return [message["transaction_id"] for row in rows for message in glued_messages(row)]

    await sql.execute("SELECT queen.ensure_partitions(ARRAY['orders', 'orders'], ARRAY['a', 'b'])")
    await sql.execute(insert, "before")
    await migrate(database)
    await sql.execute("SELECT queen.subscribe('orders', 'a', 'g', 'all', NULL)")
    for _ in range(3):
        assert not await sql.fetchval(HAS_FLOOR)
        await asyncio.sleep(FENCE_S)
    assert await sql.fetchval("SELECT count(*) FROM queen.ready_floors") == 0
    await sql.execute("SELECT queen.subscribe('orders', NULL, 'g', 'all', NULL)")  # also in the partition b
    assert await popped() == ["before", "before"]
    # Through the triggers of this version, groups are woken that fell asleep in the other, and the other way round.
    await sql.execute(insert, "during")
    assert await popped() == ["during", "during"]

    await contract(database)
    assert {tuple(row) for row in await sql.fetch(KEYS)} == {
        ("queen.partition_lookup", "PRIMARY KEY (partition_id, generation)"),
        ("queen.partition_consumers", "PRIMARY KEY (partition_id, consumer_group, generation)"),
    }
    async with asyncio.timeout(60):
        while not await sql.fetchval(HAS_FLOOR):
            await asyncio.sleep(FENCE_S)
    await sql.execute(insert, "after")
    assert await popped() == ["after", "after"]


async def test_the_age_of_what_is_written_before_the_triggers_are_there_becomes_known(
    database: Database, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention finds partitions by it."""
    await sql.execute("SELECT queen.ensure_partitions(ARRAY['orders'], ARRAY['empty'])")
    make = functions.make

    async def late(database: Database, schema_version: int, report: Report) -> None:
        await sql.execute("SELECT queen.ensure_partitions(ARRAY['orders', 'orders'], ARRAY['full', 'new'])")
        await sql.execute(
            "INSERT INTO queen.messages (partition_id, transaction_id, payload) "
            "SELECT id, 'a', convert_to('1', 'UTF8') FROM queen.partitions WHERE name <> 'new'"
        )
        await make(database, schema_version, report)

    monkeypatch.setattr(functions, "make", late)
    monkeypatch.setattr(functions, "_STEP", 2)
    await migrate(database)
    known = (
        "SELECT p.name, a.oldest_at IS NULL AS is_empty FROM queen.partitions p "
        "JOIN queen.partition_ages a ON a.partition_id = p.id"
    )
    expected = {("empty", False), ("full", False), ("new", True)}
    assert {tuple(row) for row in await sql.fetch(known)} == expected
    await sql.execute("DELETE FROM queen.partition_ages")
    await contract(database)
    assert {tuple(row) for row in await sql.fetch(known)} == expected, "what was under way then, too"


async def test_a_completed_upgrade_equals_a_new_schema(
    database: Database, sql: asyncpg.Connection, database_url: str
) -> None:
    await migrate(database)
    await contract(database)
    assert await catalog(sql) == await catalog_of(database_url)
    assert await sql.fetchval("SELECT count(*) FROM queen.schema_expansions") == 0


async def test_the_contract_step_waits_for_older_servers_and_names_them(
    database: Database, sql: asyncpg.Connection
) -> None:
    await migrate(database)
    await sql.execute("INSERT INTO queen.servers (id, epoch) VALUES ('old:6632', 1)")
    with pytest.raises(StartupError, match=r"servers of an older version run: old:6632 \(of an older version, seen"):
        await contract(database)
    assert await version_rows(sql) == list(range(1, previous.SCHEMA_VERSION + 1))
    await sql.execute("UPDATE queen.servers SET seen_at = clock_timestamp() - interval '4 minutes'")
    await contract(database)
    assert NEWEST in await version_rows(sql)


async def test_servers_of_this_version_do_not_hold_up_the_contract_step(database: Database, empty_url: str) -> None:
    async with another_server(settings_with(), empty_url) as queen:
        await queen.push("orders", "a")
        assert not await older_servers(database)
        await contract(database)
        await queen.push("orders", "b")
        assert [message["data"] for message in await queen.pop("orders", batch=2)] == ["a", "b"]


async def test_a_stranger_who_holds_a_lock_is_named_and_nobody_waits_behind_the_upgrade(
    database: Database, sql: asyncpg.Connection, empty_url: str
) -> None:
    said, report = says()
    stranger = await asyncpg.connect(empty_url, server_settings={"application_name": "nightly dump"})
    try:
        transaction = stranger.transaction()
        await transaction.start()
        await stranger.execute("LOCK TABLE queen.operation_queue IN ACCESS SHARE MODE")
        upgrading = asyncio.create_task(migrate(database, report=report))
        async with asyncio.timeout(60):
            while not any("waiting for a lock" in one for one in said):
                await asyncio.sleep(0.05)
        [named] = [one for one in said if "waiting for a lock" in one]
        assert f"'nightly dump' (pid {stranger.get_server_pid()}, user" in named
        for _ in range(5):
            async with asyncio.timeout(5):
                await sql.fetch("SELECT * FROM queen.operation_queue LIMIT 1")
            await asyncio.sleep(0.1)
        assert not upgrading.done()
        await transaction.rollback()
        async with asyncio.timeout(60):
            assert await upgrading == NEWEST
    finally:
        await stranger.close()


async def test_batches_and_indexes_that_are_built_concurrently(
    empty_url: str, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database_at(empty_url) as database:
        await migrate(database)
        await sql.execute("CREATE TABLE queen.things AS SELECT n, NULL::int AS twice FROM generate_series(1, 25) n")
        later = Migration(
            NEWEST + 1,
            "things",
            "CREATE INDEX CONCURRENTLY things_n ON queen.things (n);\n-- In batches.\n"
            "UPDATE queen.things SET twice = n * 2 "
            "WHERE n IN (SELECT n FROM queen.things WHERE twice IS NULL LIMIT 10);",
        )
        extended(monkeypatch, later)
        said, report = says()
        await migrate(database, report=report)
        assert await sql.fetchval("SELECT sum(twice) FROM queen.things") == 650
        assert await sql.fetchval("SELECT indisvalid FROM pg_index WHERE indexrelid = 'queen.things_n'::regclass")
        assert [one.rpartition(": ")[2] for one in said if one.endswith("rows")] == ["10 rows", "10 rows", "5 rows"]


async def test_a_stranger_for_whose_snapshot_an_index_waits_is_named(
    empty_url: str, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has touched no table of ours, so no lock on a table shows it."""
    monkeypatch.setattr(slices, "_SAID_EVERY_S", 0.1)
    stranger = await asyncpg.connect(empty_url, server_settings={"application_name": "nightly report"})
    try:
        async with database_at(empty_url) as database:
            await migrate(database)
            await sql.execute("CREATE TABLE queen.things AS SELECT n FROM generate_series(1, 25) n")
            extended(
                monkeypatch, Migration(NEWEST + 1, "things", "CREATE INDEX CONCURRENTLY things_n ON queen.things (n);")
            )
            transaction = stranger.transaction(isolation="repeatable_read")
            await transaction.start()
            await stranger.fetch("SELECT * FROM pg_class LIMIT 1")
            said, report = says()
            upgrading = asyncio.create_task(migrate(database, report=report))
            async with asyncio.timeout(120):
                while not any("waiting for" in one for one in said):
                    await asyncio.sleep(0.05)
            named = next(one for one in said if "waiting for" in one)
            assert named.startswith(
                f"expand: migration {NEWEST + 1} (things), step 1 of 1: waiting for a transaction of "
            )
            assert f"'nightly report' (pid {stranger.get_server_pid()}, user" in named
            async with asyncio.timeout(60):
                await sql.execute("INSERT INTO queen.things VALUES (26)")
            assert not upgrading.done()
            await transaction.rollback()
            async with asyncio.timeout(120):
                assert await upgrading == NEWEST + 1
            assert await sql.fetchval("SELECT indisvalid FROM pg_index WHERE indexrelid = 'queen.things_n'::regclass")
    finally:
        await stranger.close()


async def test_an_upgrade_that_is_not_completed_is_completed_by_the_next(
    database: Database, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise three versions would run side by side."""
    await migrate(database)
    await sql.execute("INSERT INTO queen.servers (id, epoch) VALUES ('old:6632', 1)")
    extended(monkeypatch, Migration(NEWEST + 1, "next", "CREATE TABLE queen.next (a int);"))
    with pytest.raises(StartupError, match="old:6632"):
        await migrate(database)
    await sql.execute("DELETE FROM queen.servers")
    assert await migrate(database) == NEWEST + 1
    assert await version_rows(sql) == [migration.version for migration in migrations()]
    assert await sql.fetchval("SELECT array_agg(version) FROM queen.schema_expansions") == [NEWEST + 1]


@pytest.mark.parametrize("path", ["public", "queen, public"])
async def test_triggers_that_are_there_are_not_set_again(empty_url: str, sql: asyncpg.Connection, path: str) -> None:
    """However PostgreSQL shows them: the bundled database finds what is in the schema queen without its name."""
    await sql.execute(
        f"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = {path}', current_database()); END $$"
    )
    async with database_at(empty_url) as database:
        await migrate(database)
        async with database.connection() as connection:
            assert await functions.tables_with_changed_triggers(connection) == []


async def test_triggers_that_another_version_sets_meanwhile_are_set_again(
    database: Database, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages = functions.complete_ages
    drop = "DROP TRIGGER partition_consumers_back ON queen.partition_consumers"

    async def meanwhile(database: Database, report: Report) -> None:
        await ages(database, report)
        monkeypatch.setattr(functions, "complete_ages", ages)
        await sql.execute(drop)

    monkeypatch.setattr(functions, "complete_ages", meanwhile)
    said, report = says()
    await migrate(database, report=report)
    assert [one for one in said if "made again" in one]
    async with database.connection() as connection:
        assert await functions.tables_with_changed_triggers(connection) == []


def extended(monkeypatch: pytest.MonkeyPatch, *more: Migration) -> None:
    everything = (*migrations(), *more)
    monkeypatch.setattr(module, "migrations", lambda: everything)
