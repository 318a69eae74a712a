"""The functions in the database: makes those of this version, and removes those that no version needs.

Each version has functions of its own (`statements`), so making them changes nothing for servers of other versions.
Triggers and public functions are there once: the newest version leads, and they are its own. Older servers go on with
them, so they do what the functions of the version before expect. They are replaced in steps before a version leads: if
it is killed between two of them, the older one leads still, and has to leave everything that they call in place.
"""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import UUID

import asyncpg

from queenmq.storage.database import Database
from queenmq.storage.slices import Connection, Report, in_slice
from queenmq.storage.statements import FunctionSet, function_set, statement

log = logging.getLogger(__name__)

# A set that nobody uses is kept for that long: its server may only be away, or be about to register.
_KEPT: Final = timedelta(hours=1)
_STEP: Final = 1000
# How often triggers and public functions are made, if another version makes its own meanwhile.
_TURNS: Final = 3

_LEADER = "SELECT name, schema_version, made_at FROM queen.function_sets WHERE leads"
# A server that has not said that it stops may only be cut off from the database: triggers of a newer version serve an
# older one, not the other way round.
_MAY_RUN = """
    SELECT EXISTS (
        SELECT 1 FROM queen.servers s JOIN queen.server_versions v ON v.server_id = s.id AND v.epoch = s.epoch
        WHERE v.function_set = $1 AND NOT v.has_stopped AND s.seen_at > clock_timestamp() - $2::interval
    )
"""
_NAMES = """
    SELECT p.oid::regprocedure::text AS signature, p.proname AS name, EXISTS (
        SELECT 1 FROM pg_depend d WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid AND d.deptype = 'n'
    ) AS is_needed, p.xmin = pg_current_xact_id_if_assigned()::xid AS is_fresh
    FROM pg_proc p WHERE p.pronamespace = 'queen'::regnamespace ORDER BY 1
"""
# The sets that functions without a version in their names call: those with names of $1, or all.
_CALLED = r"""
    SELECT s.name, s.schema_version, s.used_at > clock_timestamp() - $2::interval AS is_fresh FROM queen.function_sets s
    WHERE EXISTS (
        SELECT 1 FROM pg_proc p
        WHERE p.pronamespace = 'queen'::regnamespace AND p.prosrc LIKE '%\_' || s.name || '(%'
          AND ($1::text[] IS NULL OR p.proname = ANY ($1))
          AND NOT EXISTS (SELECT 1 FROM queen.function_sets o WHERE p.proname LIKE '%\_' || o.name)
    )
"""
_TRIGGERS = """
    SELECT c.relname AS table_name, t.tgname AS name, pg_get_triggerdef(t.oid) AS definition
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE NOT t.tgisinternal AND c.relnamespace = 'queen'::regnamespace AND p.pronamespace = 'queen'::regnamespace
"""


async def are_made(connection: Connection) -> bool:
    """Whether the database has the functions of this version."""
    if not await connection.fetchval("SELECT to_regclass('queen.function_sets') IS NOT NULL"):
        return False
    found: bool = await connection.fetchval(
        "SELECT EXISTS (SELECT 1 FROM queen.function_sets WHERE name = $1)", function_set().name
    )
    return found


async def are_complete(connection: Connection, schema_version: int) -> bool:
    """Whether this version finds everything as it needs it: it leads, or one with a newer schema does."""
    if not await are_made(connection):
        return False
    leader = await connection.fetchrow(_LEADER)
    if leader is None:
        return False
    if leader["name"] == function_set().name:
        return not await _can_be_taken_back(connection, schema_version)
    return bool(leader["schema_version"] > schema_version)


async def use(connection: Connection, schema_version: int) -> bool:
    """The same, for a server: then the database knows that this version is used."""
    if not await are_complete(connection, schema_version):
        return False
    touched = "UPDATE queen.function_sets SET used_at = clock_timestamp() WHERE name = $1"
    return bool(await connection.execute(touched, function_set().name) == "UPDATE 1")


async def make_all(connection: Connection, schema_version: int) -> None:
    """Make everything in the caller's transaction: for a database that no server uses yet."""
    ours = function_set()
    await _make_own(connection, ours, schema_version)
    await _make_public(connection, ours)
    for table in ours.triggers:
        await _set_triggers(connection, ours, table)
    await _lead(connection, ours)


async def make(database: Database, schema_version: int, report: Report) -> None:
    """Make what is missing, in slices. A newer version that leads is left alone."""
    ours = function_set()
    if not await in_slice(database, "functions", lambda connection: _has_to_lead(connection, schema_version), report):
        return
    report(f"functions: those of this version (…_{ours.name}) lead; triggers and public functions are replaced")
    for _ in range(_TURNS):
        await in_slice(database, "public functions", lambda connection: _make_public(connection, ours), report)
        async with database.connection() as connection:
            tables = await _tables_with_triggers(connection)
        for table in tables:
            await in_slice(
                database,
                f"triggers of queen.{table}",
                lambda connection, table=table: _set_triggers(connection, ours, table),  # type: ignore[misc]
                report,
            )
        await complete_ages(database, report)
        if await in_slice(database, "functions", _lead_with_all, report):
            return
        report("functions: another version has replaced triggers or public functions meanwhile; they are made again")
    await in_slice(database, "functions", lambda connection: _lead(connection, ours), report)


async def complete_ages(database: Database, report: Report) -> None:
    """Make up for what servers of the version before wrote while the triggers were not there yet, in slices."""
    after: UUID | None = None
    while True:
        after = await in_slice(database, "ages of partitions", partial(_complete_ages, after=after), report)
        if after is None:
            return


async def _complete_ages(connection: Connection, after: UUID | None) -> UUID | None:
    found: UUID | None = await connection.fetchval(statement("complete_ages"), after, _STEP)
    return found


async def _has_to_lead(connection: Connection, schema_version: int) -> bool:
    """Make the functions of this version, and say whether the triggers and public ones have to be made, too."""
    ours = function_set()
    await _make_own(connection, ours, schema_version)
    leader = await connection.fetchrow(_LEADER)
    if leader is None or leader["schema_version"] < schema_version:
        return True
    if leader["name"] == ours.name:
        return await _can_be_taken_back(connection, schema_version)
    if leader["schema_version"] > schema_version:
        return False
    made_at = await connection.fetchval("SELECT made_at FROM queen.function_sets WHERE name = $1", ours.name)
    return made_at > leader["made_at"] or not await connection.fetchval(_MAY_RUN, leader["name"], _KEPT)


async def _displaced_by(connection: Connection) -> list[asyncpg.Record]:
    """The sets whose versions have replaced public functions of ours and may not have come to lead."""
    ours = function_set()
    rows = await connection.fetch(_CALLED, list(ours.public), _KEPT)
    return [row for row in rows if row["name"] != ours.name]


async def _can_be_taken_back(connection: Connection, schema_version: int) -> bool:
    """Whether public functions are of a version that did not come to lead, and that nobody uses."""
    displaced_by = await _displaced_by(connection)
    for row in displaced_by:
        may_run = row["is_fresh"] or await connection.fetchval(_MAY_RUN, row["name"], _KEPT)
        if may_run or row["schema_version"] > schema_version:
            return False
    return bool(displaced_by)


async def _make_own(connection: Connection, ours: FunctionSet, schema_version: int) -> None:
    there = {row["name"] for row in await connection.fetch(_NAMES)}
    if not {f"{name}_{ours.name}" for name in ours.own} <= there:
        await connection.execute("SET LOCAL check_function_bodies = off")
        await connection.execute(ours.own_text)
    await connection.execute(
        "INSERT INTO queen.function_sets (name, schema_version) VALUES ($1, $2) "
        "ON CONFLICT (name) DO UPDATE SET used_at = clock_timestamp()",
        ours.name,
        schema_version,
    )


async def _make_public(connection: Connection, ours: FunctionSet) -> None:
    await connection.execute("SET LOCAL check_function_bodies = off")
    await connection.execute(ours.public_text)


async def _tables_with_triggers(connection: Connection) -> list[str]:
    """Those that have some, and those that get some."""
    there = {row["table_name"] for row in await connection.fetch(_TRIGGERS)}
    return sorted(there | function_set().triggers.keys())


async def _set_triggers(connection: Connection, ours: FunctionSet, table: str) -> None:
    for text in await _changes_of_triggers(connection, ours, table):
        await connection.execute(text)


async def _changes_of_triggers(connection: Connection, ours: FunctionSet, table: str) -> list[str]:
    """Make those that are missing or differ, and drop those that this version does not have."""
    wanted = ours.triggers.get(table, {})
    there = {row["name"]: row["definition"] for row in await connection.fetch(_TRIGGERS) if row["table_name"] == table}
    differ = {name for name, text in wanted.items() if name not in there or _plain(there[name]) != _plain(text)}
    # PostgreSQL replaces no constraint trigger.
    replaced = {name for name in differ & there.keys() if wanted[name].startswith("CREATE CONSTRAINT ")}
    dropped = [f'DROP TRIGGER "{name}" ON queen."{table}"' for name in (there.keys() - wanted.keys()) | replaced]
    return dropped + [wanted[name] for name in wanted if name in differ]


async def tables_with_changed_triggers(connection: Connection) -> list[str]:
    """The tables whose triggers would be made anew if this version came to lead now."""
    tables = await _tables_with_triggers(connection)
    return [table for table in tables if await _changes_of_triggers(connection, function_set(), table)]


def _plain(definition: str) -> str:
    """The same for what a file says and for what PostgreSQL makes of it, which names no schema of the search path."""
    return re.sub(r"[\s();\"]", "", definition).lower().replace("orreplace", "", 1).replace("queen.", "")


async def _lead_with_all(connection: Connection) -> bool:
    """Lead, unless another version has set some of its own since this one did."""
    if await _displaced_by(connection) or await tables_with_changed_triggers(connection):
        return False
    await _lead(connection, function_set())
    return True


async def _lead(connection: Connection, ours: FunctionSet) -> None:
    await connection.execute("UPDATE queen.function_sets SET leads = (name = $1) WHERE leads <> (name = $1)", ours.name)


async def unused(connection: Connection) -> list[str]:
    """The names of sets whose functions nobody calls any more."""
    used = {row["function_set"] for row in await connection.fetch(statement("living_servers"))}
    rows = await connection.fetch(
        "SELECT name FROM queen.function_sets WHERE NOT leads AND name <> $1 "
        "AND used_at < clock_timestamp() - $2::interval",
        function_set().name,
        _KEPT,
    )
    called = {row["name"] for row in await connection.fetch(_CALLED, None, _KEPT)}
    return [row["name"] for row in rows if row["name"] not in used | called]


async def drop_unused(connection: Connection) -> None:
    """Remove the functions of versions that no server has used for long."""
    for name in await unused(connection):
        await _drop(connection, [row for row in await connection.fetch(_NAMES) if row["name"].endswith(f"_{name}")])
        await connection.execute("DELETE FROM queen.function_sets WHERE name = $1", name)


async def without_version(connection: Connection) -> list[asyncpg.Record]:
    """The functions that a version before these sets has left."""
    endings = tuple(f"_{row['name']}" for row in await connection.fetch("SELECT name FROM queen.function_sets"))
    public = function_set().public
    rows = await connection.fetch(_NAMES)
    return [row for row in rows if row["name"] not in public and not row["name"].endswith(endings)]


async def drop_without_version(connection: Connection) -> None:
    """Remove them, and public ones with parameters that they do not have any more, if all is as this version set it."""
    leader = await connection.fetchrow(_LEADER)
    if leader is None or leader["name"] != function_set().name or await _displaced_by(connection):
        return
    await _drop(connection, await without_version(connection))
    await _make_public(connection, function_set())
    rows = await connection.fetch(_NAMES)
    await _drop(connection, [row for row in rows if row["name"] in function_set().public and not row["is_fresh"]])


async def _drop(connection: Connection, found: list[asyncpg.Record]) -> None:
    """Not those that somebody has built something on, such as a view."""
    for row in found:
        if row["is_needed"]:
            log.warning("the function %s stays, because something else in the database uses it", row["signature"])
        else:
            await connection.execute(f"DROP FUNCTION {row['signature']}")
