"""Two versions that differ in their functions only: which one leads, and which functions stay."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from migration.conftest import database_at
from migration.test_migrations import NEWEST
from queenmq.errors import StartupError
from queenmq.storage import functions
from queenmq.storage.database import Database
from queenmq.storage.migrations import contract, migrate
from queenmq.storage.statements import FunctionSet, function_set, versioned

OTHER = "CREATE OR REPLACE FUNCTION queen.uuid7() RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid';"


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> FunctionSet:
    ours = function_set()
    made = FunctionSet(dict(ours.files) | {"uuid7": f"-- Public: another.\n{OTHER}"})
    monkeypatch.setattr(functions, "function_set", lambda: made)
    return made


async def leader(sql: asyncpg.Connection) -> str:
    return await sql.fetchval("SELECT name FROM queen.function_sets WHERE leads")


async def test_the_newer_leads_and_the_older_finds_its_own(
    empty_url: str, sql: asyncpg.Connection, other: FunctionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = function_set()
    async with database_at(empty_url) as database, database_at(empty_url) as neighbour:
        monkeypatch.setattr(functions, "function_set", lambda: ours)
        await migrate(database)
        monkeypatch.setattr(functions, "function_set", lambda: other)
        await migrate(neighbour)
        assert await leader(sql) == other.name
        assert await sql.fetchval("SELECT queen.uuid7()") is None
        there = {row[0] for row in await sql.fetch("SELECT proname FROM pg_proc")}
        assert {f"push_{ours.name}", f"push_{other.name}"} <= there
        # Back to the older one, while a server of the newer one runs, and when none does.
        await sql.execute("INSERT INTO queen.servers (id, epoch) VALUES ('s', 1)")
        await sql.execute(
            "INSERT INTO queen.server_versions VALUES ('s', 1, '1', $1, $2, '1 hour')", NEWEST, other.name
        )
        monkeypatch.setattr(functions, "function_set", lambda: ours)
        await migrate(database)
        assert await leader(sql) == other.name
        # Not seen for some minutes: the database was away, and it may come back before that server does.
        await sql.execute("UPDATE queen.servers SET seen_at = seen_at - interval '10 minutes'")
        await sql.execute("UPDATE queen.server_versions SET alive_for = '3 minutes'")
        await migrate(database)
        assert await leader(sql) == other.name
        await sql.execute("UPDATE queen.server_versions SET has_stopped = true")
        await migrate(database)
        assert await leader(sql) == ours.name
        assert await sql.fetchval("SELECT queen.uuid7()") is not None


async def test_functions_that_nobody_uses_any_more_are_removed(
    empty_url: str, sql: asyncpg.Connection, other: FunctionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = function_set()
    async with database_at(empty_url) as database:
        await migrate(database)
        monkeypatch.setattr(functions, "function_set", lambda: ours)
        await migrate(database)
        await sql.execute("CREATE VIEW queen.mine AS SELECT queen.unit_" + other.name + "('push') AS kind")
        await sql.execute("UPDATE queen.function_sets SET used_at = used_at - interval '2 hours'")
        await contract(database)
        names = "SELECT proname FROM pg_proc WHERE proname LIKE '%\\_' || $1"
        assert [row[0] for row in await sql.fetch(names, other.name)] == [f"unit_{other.name}"]
        assert await leader(sql) == ours.name


TRIGGER = """
CREATE OR REPLACE FUNCTION queen.on_something() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM queen.something(count(*)) FROM some_messages;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER something AFTER INSERT ON queen.messages
REFERENCING NEW TABLE AS some_messages FOR EACH STATEMENT EXECUTE FUNCTION queen.on_something();
"""
SOMETHING = """
CREATE OR REPLACE FUNCTION queen.something(p_count bigint) RETURNS void LANGUAGE sql AS $$ SELECT $$;
"""
PUSH = "INSERT INTO queen.messages (partition_id, payload) SELECT id, '1' FROM queen.partitions"
TRIGGERS = "SELECT count(*) FROM pg_trigger WHERE tgname = 'something'"


@pytest.fixture
async def interrupted(
    empty_url: str, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Database, FunctionSet]]:
    """A newer version with a trigger of its own was killed while it came to lead, hours ago. Ours leads."""
    ours = function_set()
    newer = FunctionSet(dict(ours.files) | {"on_something": TRIGGER, "something": SOMETHING})
    lead = functions._lead

    async def die(*_: object) -> None:
        raise StartupError("killed")

    async with database_at(empty_url) as database:
        await migrate(database)
        monkeypatch.setattr(functions, "function_set", lambda: newer)
        monkeypatch.setattr(functions, "_lead", die)
        with pytest.raises(StartupError, match="killed"):
            await migrate(database)
        monkeypatch.setattr(functions, "function_set", lambda: ours)
        monkeypatch.setattr(functions, "_lead", lead)
        assert await leader(sql) == ours.name
        yield database, newer


async def hours_pass(sql: asyncpg.Connection) -> None:
    await sql.execute("UPDATE queen.function_sets SET used_at = used_at - interval '2 hours'")


@pytest.mark.parametrize("later", [False, True])
async def test_a_lead_that_was_not_completed_breaks_nothing_for_the_version_that_goes_on(
    interrupted: tuple[Database, FunctionSet], sql: asyncpg.Connection, later: bool
) -> None:
    """Its triggers stay, and so does what they call, whatever the older version does."""
    database, _ = interrupted
    await sql.execute(versioned("SELECT queen.ensure_partitions(ARRAY['orders'], ARRAY['Default'])"))
    await sql.execute(PUSH)
    if later:
        await hours_pass(sql)
    await contract(database)
    await sql.execute(PUSH)
    await migrate(database)
    await sql.execute(PUSH)
    assert await sql.fetchval("SELECT count(*) FROM queen.messages") == 3


async def test_a_lead_that_was_not_completed_is_taken_back_when_nobody_uses_the_newer_version(
    interrupted: tuple[Database, FunctionSet], sql: asyncpg.Connection
) -> None:
    database, newer = interrupted
    await migrate(database)
    assert await sql.fetchval(TRIGGERS) == 1, "it may only just have been started"
    await hours_pass(sql)
    await migrate(database)
    assert await sql.fetchval(TRIGGERS) == 0
    await contract(database)
    await sql.execute(versioned("SELECT queen.ensure_partitions(ARRAY['orders'], ARRAY['Default'])"))
    await sql.execute(PUSH)
    assert not await sql.fetchval("SELECT count(*) FROM pg_proc WHERE proname LIKE '%\\_' || $1", newer.name)


async def test_a_lead_that_was_not_completed_is_completed_by_the_next_server(
    interrupted: tuple[Database, FunctionSet], sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, newer = interrupted
    monkeypatch.setattr(functions, "function_set", lambda: newer)
    await migrate(database)
    assert await leader(sql) == newer.name
