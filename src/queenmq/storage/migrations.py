"""Creates and upgrades the schema `queen`.

Numbered migrations run once each, in order; the functions are replaced as a whole whenever their text changed. All
of it happens in one transaction under an advisory lock, so several servers may start at once and a failed
upgrade leaves the old schema. A database with a newer schema than this code knows is refused.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Literal

import asyncpg

from queenmq.errors import DatabaseUnavailable, HttpError, StartupError
from queenmq.storage.database import Database
from queenmq.storage.statements import sql_files

log = logging.getLogger(__name__)

_LOCK = 0x5175_6565_6E  # "Queen"


@dataclass(frozen=True)
class Migration:
    version: int
    name: str
    sql: str


@cache
def migrations() -> tuple[Migration, ...]:
    found = []
    for numbered, file in sql_files("migrations").items():
        number, _, name = numbered.partition("_")
        found.append(Migration(int(number), name, file.read_text("utf-8")))
    return tuple(found)


@cache
def functions() -> str:
    """All of them in one text. Bodies are not checked when a function is made, so any order will do: it is by name."""
    return "\n".join(file.read_text("utf-8") for file in sql_files("functions").values())


async def migrate(database: Database, upto: int | None = None) -> int:
    """Bring the schema to the newest version (or to `upto`, for tests). Returns the version.

    Raises StartupError if the database is newer than this code, or cannot be changed; DatabaseUnavailable if the
    connection was lost meanwhile, so that nothing was changed and it may succeed later.
    """
    try:
        async with database.connection(bounded=False) as connection, connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            return await _upgrade(connection, upto)
    except DatabaseUnavailable:
        raise
    except HttpError as error:
        raise StartupError(f"the schema queen cannot be created or upgraded: {error.__cause__ or error}") from error


async def require_newest(database: Database) -> None:
    """Raise StartupError unless the schema is the one that this code knows."""
    newest = migrations()[-1].version
    async with database.connection() as connection:
        exists = await connection.fetchval("SELECT to_regclass('queen.schema_migrations') IS NOT NULL")
        version = await connection.fetchval("SELECT max(version) FROM queen.schema_migrations") if exists else None
    if version != newest:
        raise StartupError(
            f"the database has schema version {version or 'none'}, this command needs {newest}: "
            "start a server of this version on it first"
        )


@dataclass(frozen=True)
class Known:
    """A migration, and whether a database has it: `applied`, `pending`, or `unknown` to this code."""

    version: int
    name: str
    state: Literal["applied", "pending", "unknown"]
    applied_at: datetime | None


@dataclass(frozen=True)
class SchemaState:
    """What a database has of the schema of this code."""

    migrations: tuple[Known, ...]
    functions_up_to_date: bool

    @property
    def up_to_date(self) -> bool:
        return self.functions_up_to_date and all(one.state == "applied" for one in self.migrations)


async def schema_state(database: Database) -> SchemaState:
    """Every migration that this code or the database knows, by version. Changes nothing."""
    async with database.connection() as connection:
        exists = await connection.fetchval("SELECT to_regclass('queen.schema_migrations') IS NOT NULL")
        rows = await connection.fetch("SELECT * FROM queen.schema_migrations ORDER BY version") if exists else []
        digest = await connection.fetchval("SELECT digest FROM queen.schema_functions") if exists else None
    ours = {migration.version: migration.name for migration in migrations()}
    there = {row["version"]: row for row in rows}
    known = []
    for version in sorted(ours.keys() | there.keys()):
        if version not in there:
            known.append(Known(version, ours[version], "pending", None))
        else:
            row = there[version]
            known.append(Known(version, row["name"], "applied" if version in ours else "unknown", row["applied_at"]))
    return SchemaState(tuple(known), digest == _digest())


async def _upgrade(connection: asyncpg.Connection[asyncpg.Record], upto: int | None) -> int:
    newest = upto or migrations()[-1].version
    version = await _current_version(connection)
    if version > newest:
        raise StartupError(
            f"the database has schema version {version}, this Queen knows only up to {newest}: run a newer Queen"
        )
    for migration in migrations():
        if version < migration.version <= newest:
            log.info("migrating the schema to version %d (%s)", migration.version, migration.name)
            await connection.execute(migration.sql)
            await connection.execute(
                "INSERT INTO queen.schema_migrations (version, name) VALUES ($1, $2)", migration.version, migration.name
            )
    if upto is None:
        await _replace_functions(connection)
    return newest


async def _current_version(connection: asyncpg.Connection[asyncpg.Record]) -> int:
    if not await connection.fetchval("SELECT to_regclass('queen.schema_migrations') IS NOT NULL"):
        # Not IF NOT EXISTS, for which PostgreSQL demands the right to create schemas in any case.
        if not await connection.fetchval("SELECT to_regnamespace('queen') IS NOT NULL"):
            await connection.execute("CREATE SCHEMA queen")
        await connection.execute(
            "CREATE TABLE queen.schema_migrations (version integer PRIMARY KEY, name text NOT NULL, "
            "applied_at timestamptz NOT NULL DEFAULT clock_timestamp());"
            "CREATE TABLE queen.schema_functions "
            "(one boolean PRIMARY KEY DEFAULT true CHECK (one), digest text NOT NULL)"
        )
    version: int = await connection.fetchval("SELECT coalesce(max(version), 0) FROM queen.schema_migrations")
    return version


async def _replace_functions(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    digest = _digest()
    if await connection.fetchval("SELECT digest FROM queen.schema_functions") == digest:
        return
    await _drop_functions(connection)
    await connection.execute("SET LOCAL check_function_bodies = off")
    await connection.execute(functions())
    await connection.execute(
        "INSERT INTO queen.schema_functions (digest) VALUES ($1) "
        "ON CONFLICT (one) DO UPDATE SET digest = excluded.digest",
        digest,
    )


def _digest() -> str:
    return hashlib.sha256(functions().encode()).hexdigest()


async def _drop_functions(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """A function whose result type changed cannot be replaced, so all go first, with their triggers."""
    signatures = await connection.fetch(
        "SELECT p.oid::regprocedure::text AS signature FROM pg_proc p WHERE p.pronamespace = 'queen'::regnamespace"
    )
    for row in signatures:
        await connection.execute(f"DROP FUNCTION IF EXISTS {row['signature']} CASCADE")
