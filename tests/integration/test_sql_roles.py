"""Roles of applications that may call a function of their own transactions can do nothing else, by no trick."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from conftest import Postgres

from integration.queen import Queen, data, until
from queenmq.server import Server
from queenmq.storage.statements import versioned

CALLS = {
    "send": "SELECT queen.send('q', 'p', '1')",
    "send_with_headers": "SELECT queen.send_with_headers('q', 'p', '1', '{}')",
    "finish": "SELECT queen.finish(gen_random_uuid())",
}
OF_THE_OWNER = {*CALLS, "on_outbox_insert"}  # run with the rights of the owner, whoever calls them

MAY = """
    WITH relations AS (
        SELECT oid, relkind = 'S' AS is_sequence FROM pg_class
        WHERE relnamespace = 'queen'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
    )
    SELECT oid::regclass::text FROM relations
    WHERE NOT is_sequence
      AND has_table_privilege($1, oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
    UNION ALL
    SELECT oid::regclass::text FROM relations
    WHERE NOT is_sequence AND has_any_column_privilege($1, oid, 'SELECT, INSERT, UPDATE, REFERENCES')
    UNION ALL
    SELECT oid::regclass::text FROM relations
    WHERE is_sequence AND has_sequence_privilege($1, oid, 'USAGE, SELECT, UPDATE')
    UNION ALL
    SELECT 'create' WHERE has_schema_privilege($1, 'queen', 'CREATE')
    UNION ALL
    SELECT proname FROM pg_proc
    WHERE pronamespace = 'queen'::regnamespace AND prosecdef AND has_function_privilege($1, oid, 'EXECUTE')
"""

# Of functions and operators that the public functions use under a plain name. They note who runs them.
IMPOSTORS = """
    CREATE TABLE {schema}.notes (who text);
    GRANT ALL ON {schema}.notes TO PUBLIC;
    CREATE FUNCTION {schema}.note() RETURNS void LANGUAGE sql AS 'INSERT INTO {schema}.notes VALUES (current_user)';
    CREATE FUNCTION {schema}.length(text) RETURNS integer LANGUAGE sql AS 'SELECT {schema}.note(); SELECT 1';
    CREATE FUNCTION {schema}.length(bytea) RETURNS integer LANGUAGE sql AS 'SELECT {schema}.note(); SELECT 1';
    CREATE FUNCTION {schema}.convert_to(text, name) RETURNS bytea LANGUAGE sql
        AS $$ SELECT {schema}.note(); SELECT '\\x31'::bytea $$;
    CREATE FUNCTION {schema}.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql
        AS $$ SELECT {schema}.note(); SELECT 'object' $$;
    CREATE FUNCTION {schema}.octet_length(text) RETURNS integer LANGUAGE sql AS 'SELECT {schema}.note(); SELECT 1';
    CREATE FUNCTION {schema}.current_setting(text) RETURNS text LANGUAGE sql
        AS $$ SELECT {schema}.note(); SELECT '1' $$;
    CREATE FUNCTION {schema}.nextval(regclass) RETURNS bigint LANGUAGE sql
        AS 'SELECT {schema}.note(); SELECT 1::bigint';
    CREATE FUNCTION {schema}.format(text, text) RETURNS text LANGUAGE sql AS 'SELECT {schema}.note(); SELECT $1';
    CREATE FUNCTION {schema}.uuid7() RETURNS uuid LANGUAGE sql
        AS $$ SELECT {schema}.note(); SELECT '00000000-0000-7000-8000-000000000000'::uuid $$;
    CREATE FUNCTION {schema}.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT {schema}.note()';
    CREATE FUNCTION {schema}.same(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT {schema}.note(); SELECT true';
    CREATE OPERATOR {schema}.= (LEFTARG = text, RIGHTARG = text, FUNCTION = {schema}.same);
    CREATE FUNCTION {schema}.same(uuid, uuid) RETURNS boolean LANGUAGE sql AS 'SELECT {schema}.note(); SELECT true';
    CREATE OPERATOR {schema}.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = {schema}.same);
    CREATE TABLE {schema}.outbox (sending bigint);
    CREATE TABLE {schema}.queues (name text, encryption_enabled boolean);
"""

REFUSED = (
    "SELECT * FROM queen.outbox",
    "INSERT INTO queen.outbox_commits (sending) VALUES (1)",
    "SELECT * FROM queen.messages",
    "COPY queen.messages TO STDOUT",
    "LOCK TABLE queen.outbox IN ACCESS SHARE MODE",
    "TRUNCATE queen.outbox",
    "SELECT nextval('queen.outbox_sendings')",
    "CREATE TABLE queen.mine (id integer)",
    "CREATE OR REPLACE FUNCTION queen.uuid7() RETURNS uuid LANGUAGE sql AS 'SELECT gen_random_uuid()'",
    "CREATE TRIGGER mine AFTER INSERT ON queen.outbox EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE TABLE mine.reference (id uuid REFERENCES queen.queues (id))",
    "CREATE POLICY mine ON queen.messages USING (true)",
    "ALTER FUNCTION queen.send RESET search_path",
    "ALTER FUNCTION queen.finish SECURITY INVOKER",
    versioned("SELECT queen.forget_sends(ARRAY['q'])"),
)


@asynccontextmanager
async def role(postgres: Postgres, database_url: str, function: str) -> AsyncIterator[asyncpg.Connection]:
    """A session of a role with EXECUTE on one function, and a schema of its own to play tricks with."""
    administrator = await asyncpg.connect(postgres.administrator_of(database_url))
    session: asyncpg.Connection | None = None
    try:
        await administrator.execute("DROP ROLE IF EXISTS app; CREATE ROLE app LOGIN PASSWORD 'app'")
        await administrator.execute("CREATE SCHEMA mine AUTHORIZATION app; GRANT USAGE ON SCHEMA queen TO app")
        await administrator.execute(f"GRANT EXECUTE ON FUNCTION queen.{function} TO app")
        session = await asyncpg.connect(database_url, user="app", password="app")
        yield session
    finally:
        if session is not None:
            await session.close()
        await administrator.execute("DROP OWNED BY app CASCADE; DROP ROLE app")
        await administrator.close()


@pytest.mark.parametrize("function", CALLS)
async def test_it_may_do_nothing_else(
    queen: Queen, sql: asyncpg.Connection, database_url: str, postgres: Postgres, function: str
) -> None:
    """Neither read nor write anything itself; and of what runs with the rights of the owner only the one function."""
    secdef = await sql.fetch("SELECT proname FROM pg_proc WHERE pronamespace = 'queen'::regnamespace AND prosecdef")
    assert {row["proname"] for row in secdef} == OF_THE_OWNER
    async with role(postgres, database_url, function) as session:
        assert [row[0] for row in await sql.fetch(MAY, "app")] == [function]
        owner = await sql.fetchval("SELECT current_user")
        others = [call for name, call in CALLS.items() if name != function]
        for refused in (*REFUSED, *others, f"SET ROLE {owner}"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with session.transaction():
                    await session.execute(refused)


@pytest.mark.parametrize("schema", ["mine", "pg_temp"])
async def test_what_it_puts_in_the_way_is_not_used(
    queen: Queen, sql: asyncpg.Connection, database_url: str, postgres: Postgres, schema: str, server: Server
) -> None:
    """A search_path with functions, operators and tables of its own, also when the commit runs the deferred trigger."""
    await queen.push("q", 1, partition="p")
    [message] = await queen.pop("q", "p")
    async with role(postgres, database_url, "send, queen.send_with_headers, queen.finish") as session:
        await session.execute(IMPOSTORS.replace("{schema}", schema))
        await session.execute(f"SET search_path = {schema}, pg_catalog, queen")
        async with session.transaction():
            sent = await session.fetchval("SELECT queen.send('sent', 'p', '2', 'a key')")
            await session.execute("SELECT queen.send_with_headers('with headers', 'p', '3', '{\"a\": \"b\"}')")
            assert await session.fetchval("SELECT queen.finish($1)", message["leaseId"]) == 1
        assert str(sent) != "00000000-0000-7000-8000-000000000000"

        async def is_pushed() -> bool:
            return not await sql.fetchval("SELECT EXISTS (SELECT FROM queen.outbox)")

        await until(is_pushed)
        assert await session.fetch(f"SELECT who FROM {schema}.notes") == []
        assert await session.fetchval(f"SELECT count(*) OPERATOR(pg_catalog.+) 0 FROM {schema}.outbox") == 0
    assert data(await queen.pop("sent", "p")) == [2]
    [headed] = await queen.pop("with headers", "p")
    assert (headed["data"], headed["headers"]) == (3, {"a": "b"})
    assert await queen.pop("q", "p") == []
