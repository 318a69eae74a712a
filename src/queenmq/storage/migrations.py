"""Creates and upgrades the schema `queen`, while servers of this version and the one before use it.

A new schema is made in one transaction. One that is there is expanded in slices (`slices`): the statements of the
migrations that expand, then the functions of this version (`functions`). Servers of the version before go on, and may
be started again, because `schema_migrations` still says what they know; `schema_expansions` has what came since. The
contract step, which an operator asks for, ends that: it removes what only they used, and refuses them from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from queenmq.errors import DatabaseUnavailable, HttpError, StartupError
from queenmq.storage import functions
from queenmq.storage.database import Database
from queenmq.storage.slices import Connection, Report, in_slice, keep_former_versions_out, outside_transaction
from queenmq.storage.statements import statement
from queenmq.storage.steps import Migration, Phase, Step, migrations

log = logging.getLogger(__name__)

State = Literal["applied", "expanded", "pending", "contract", "unknown"]


@dataclass(frozen=True)
class Known:
    """A migration, and what a database has of it.

    `applied`: servers that do not know it are refused. `expanded`: it is done, and servers of the version before may
    run. `pending`: the next server of this version does it. `contract`: the contract step does it. `unknown`: it comes
    from a newer version.
    """

    version: int
    name: str
    state: State
    applied_at: datetime | None


@dataclass(frozen=True)
class _Expansion:
    name: str
    steps_done: int
    is_done: bool
    upgrade: int
    changed_at: datetime


@dataclass(frozen=True)
class SchemaState:
    """What a database has of the schema of this code."""

    applied: dict[int, tuple[str, datetime]]
    expansions: dict[int, _Expansion]
    functions_up_to_date: bool
    has_old_functions: bool

    def lacks(self, migration: Migration) -> bool:
        found = self.expansions.get(migration.version)
        return migration.version not in self.applied and not (found and found.is_done)

    def pending(self, phase: Phase) -> list[Migration]:
        return [one for one in migrations() if one.phase == phase and self.lacks(one)]

    def steps_left(self, migration: Migration) -> tuple[Step, ...]:
        found = self.expansions.get(migration.version)
        return migration.steps[found.steps_done if found else 0 :]

    @property
    def migrations(self) -> tuple[Known, ...]:
        """Every migration that this code or the database knows, by version."""
        ours = {one.version: one for one in migrations()}
        return tuple(
            self._known(version, ours.get(version))
            for version in sorted(ours.keys() | self.applied.keys() | self.expansions.keys())
        )

    def _known(self, version: int, ours: Migration | None) -> Known:
        if version in self.applied:
            name, at = self.applied[version]
            return Known(version, name, "applied" if ours else "unknown", at)
        found = self.expansions.get(version)
        if ours is None and found is not None:
            return Known(version, found.name, "unknown", found.changed_at)
        if ours is not None and self.lacks(ours):
            # A new database gets all of them at once.
            waits = ours.phase == "contract" and self.applied
            return Known(version, ours.name, "contract" if waits else "pending", None)
        if found is None:
            raise AssertionError(f"nobody knows migration {version}")
        return Known(version, found.name, "expanded", found.changed_at)

    @property
    def refusing(self) -> int | None:
        """The schema version of which a server has to know, if this code does not."""
        newest = max(self.applied, default=0)
        return newest if newest > _newest() else None

    @property
    def is_upgrading(self) -> bool:
        """Whether the contract step has not been run since the last upgrade."""
        return bool(self.expansions) or bool(self.pending("contract")) or self.has_old_functions

    @property
    def up_to_date(self) -> bool:
        """Whether a server of this version would find nothing to do."""
        return self.functions_up_to_date and all(one.state not in ("pending", "unknown") for one in self.migrations)


def _newest() -> int:
    return migrations()[-1].version


async def schema_state(database: Database) -> SchemaState:
    """What the database has. Changes nothing."""
    async with database.connection() as connection:
        return await _state(connection)


async def _state(connection: Connection) -> SchemaState:
    if not await connection.fetchval("SELECT to_regclass('queen.schema_migrations') IS NOT NULL"):
        return SchemaState({}, {}, functions_up_to_date=False, has_old_functions=False)
    applied = {
        row["version"]: (row["name"], row["applied_at"])
        for row in await connection.fetch("SELECT version, name, applied_at FROM queen.schema_migrations")
    }
    expansions = {}
    if await connection.fetchval("SELECT to_regclass('queen.schema_expansions') IS NOT NULL"):
        rows = await connection.fetch("SELECT * FROM queen.schema_expansions")
        expansions = {
            row["version"]: _Expansion(
                row["name"], row["steps_done"], row["is_done"], row["upgrade"], row["changed_at"]
            )
            for row in rows
        }
    made = await functions.are_made(connection)
    return SchemaState(applied, expansions, made, made and bool(await functions.without_version(connection)))


async def require_newest(database: Database) -> None:
    """Raise StartupError unless the schema is the one that this code knows."""
    found = await schema_state(database)
    if not found.up_to_date:
        version = max((one.version for one in found.migrations if one.state in ("applied", "expanded")), default=None)
        raise StartupError(
            f"the database has schema version {version or 'none'}, this command needs {_newest()} and the functions of "
            "its own version: start a server of this version on it first, or run `queen db upgrade`"
        )


async def migrate(database: Database, upto: int | None = None, report: Report = log.info) -> int:
    """Make the schema, or expand it to the newest version. Returns the version.

    `upto` is for tests, which begin with an older one: everything up to it, at once and without functions.
    Raises StartupError if the database is newer than this code, or cannot be changed; DatabaseUnavailable if the
    connection was lost meanwhile, so that what is not done yet is done by the next call.
    """
    try:
        if upto is None and await _is_ready(database):
            return _newest()
        is_new = await in_slice(database, "schema", lambda connection: _make(connection, upto), report)
        if not is_new and upto is None:
            await _expand(database, report)
            await functions.make(database, _newest(), report)
            await in_slice(database, "unused functions", functions.drop_unused, report)
    except DatabaseUnavailable:
        raise
    except HttpError as error:
        raise StartupError(f"the schema queen cannot be created or upgraded: {error.__cause__ or error}") from error
    return upto or _newest()


async def _is_ready(database: Database) -> bool:
    """Whether there is nothing to do. Found out without waiting for a server that is just upgrading."""
    async with database.connection() as connection:
        state = await _state(connection)
        is_complete = state.refusing is None and bool(state.applied) and not state.pending("expand")
        return is_complete and await functions.use(connection, _newest())


async def _make(connection: Connection, upto: int | None) -> bool:
    """Whether it was made as a whole: if there was none. For tests, what is missing up to a version."""
    await keep_former_versions_out(connection)
    state = await _state(connection)
    if state.refusing is not None:
        raise StartupError(
            f"the database has schema version {state.refusing}, this Queen knows only up to {_newest()}: run a newer "
            "Queen; an upgrade was completed here, and there is no way back but a backup"
        )
    await _make_records(connection)
    if state.applied and upto is None:
        return False
    newest = upto or _newest()
    for migration in migrations():
        if migration.version <= newest and migration.version not in state.applied:
            await connection.execute(migration.sql_at_once)
            await _record(connection, [migration])
    if upto is None:
        await functions.make_all(connection, newest)
    return True


async def _make_records(connection: Connection) -> None:
    # Not IF NOT EXISTS, for which PostgreSQL demands the right to create schemas in any case.
    if not await connection.fetchval("SELECT to_regnamespace('queen') IS NOT NULL"):
        await connection.execute("CREATE SCHEMA queen")
    if not await connection.fetchval("SELECT to_regclass('queen.schema_migrations') IS NOT NULL"):
        await connection.execute(
            "CREATE TABLE queen.schema_migrations (version integer PRIMARY KEY, name text NOT NULL, "
            "applied_at timestamptz NOT NULL DEFAULT clock_timestamp());"
            # Only for versions that had no sets of functions: which ones they find.
            "CREATE TABLE queen.schema_functions "
            "(one boolean PRIMARY KEY DEFAULT true CHECK (one), digest text NOT NULL)"
        )
    if not await connection.fetchval("SELECT to_regclass('queen.schema_expansions') IS NOT NULL"):
        await connection.execute(
            "CREATE TABLE queen.schema_expansions (version integer PRIMARY KEY, name text NOT NULL, "
            "steps_done integer NOT NULL, is_done boolean NOT NULL, upgrade integer NOT NULL, "
            "changed_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )


async def _record(connection: Connection, done: Iterable[Migration]) -> None:
    await connection.executemany(
        "INSERT INTO queen.schema_migrations (version, name) VALUES ($1, $2)", [(one.version, one.name) for one in done]
    )


async def _expand(database: Database, report: Report) -> None:
    state = await schema_state(database)
    upgrades = {one.upgrade for one in state.expansions.values()}
    if state.pending("expand") and upgrades and max(upgrades) < _newest():
        # Two upgrades at once would be three versions side by side.
        report(f"the upgrade to schema version {max(upgrades)} is completed first")
        await contract(database, report, upto=max(upgrades))
    await _run(database, "expand", _newest(), report)


async def _run(database: Database, phase: Phase, upto: int, report: Report) -> None:
    while True:
        done = await in_slice(
            database, phase, lambda connection: _step(database, connection, phase, upto, report), report
        )
        if done is None:
            return
        report(done)


async def _step(database: Database, connection: Connection, phase: Phase, upto: int, report: Report) -> str | None:
    """Do the next step that is left, and say which. None if there is none."""
    state = await _state(connection)
    left = [one for one in state.pending(phase) if one.version <= upto]
    if not left:
        return None
    migration = left[0]
    number = len(migration.steps) - len(state.steps_left(migration))
    step = migration.steps[number]
    what = f"{phase}: migration {migration.version} ({migration.name}), step {number + 1} of {len(migration.steps)}"
    if step.is_concurrent:
        index = step.plain.split("CONCURRENTLY ")[1].split()[0]
        # In the simple protocol, which leaves no portal open, and with it no snapshot that the index would wait for.
        await connection.execute("SELECT 1")
        # An attempt that was interrupted leaves an index that is not valid.
        await outside_transaction(database, what, f"DROP INDEX CONCURRENTLY IF EXISTS queen.{index}", report)
        await outside_transaction(database, what, step.text, report)
        changed = 0
    else:
        tag = await connection.execute(step.text)
        changed = int(tag.rpartition(" ")[2]) if step.is_batch else 0
    if changed:
        return f"{what}: {changed} rows"
    await connection.execute(
        "INSERT INTO queen.schema_expansions (version, name, steps_done, is_done, upgrade) VALUES ($1, $2, $3, $4, $5) "
        "ON CONFLICT (version) DO UPDATE SET steps_done = excluded.steps_done, is_done = excluded.is_done, "
        "changed_at = clock_timestamp()",
        *(migration.version, migration.name, number + 1, number + 1 == len(migration.steps), upto),
    )
    return what


@dataclass(frozen=True)
class LivingServer:
    """A server that runs, or ran a moment ago. What it is is None for a version that does not say it."""

    id: str
    release: str | None
    schema_version: int | None
    seen_s: float
    counts_s: float

    def __str__(self) -> str:
        what = (
            "of an older version" if self.release is None else f"{self.release}, schema version {self.schema_version}"
        )
        return (
            f"{self.id} ({what}, seen {self.seen_s:.0f} s ago; if it has stopped, it counts for {self.counts_s:.0f} s)"
        )


async def older_servers(database: Database, than: int | None = None) -> list[LivingServer]:
    """The servers that run and do not know the schema version `than`, by default the newest of this code."""
    async with database.connection() as connection:
        return await _older(connection, than or _newest())


async def _older(connection: Connection, than: int) -> list[LivingServer]:
    if not await connection.fetchval("SELECT to_regclass('queen.server_versions') IS NOT NULL"):
        return []
    servers = [
        LivingServer(row["id"], row["release"], row["schema_version"], row["seen_s"], row["counts_s"])
        for row in await connection.fetch(statement("living_servers"))
    ]
    return [one for one in servers if one.schema_version is None or one.schema_version < than]


async def contract(database: Database, report: Report = log.info, upto: int | None = None) -> None:
    """End an upgrade: remove what only servers of the version before use. From now on they are refused.

    Raises StartupError, and changes nothing, while one of them runs.
    """
    newest = upto or _newest()
    state = await schema_state(database)
    if any(one.state == "unknown" for one in state.migrations):
        raise StartupError("a newer Queen has begun to upgrade this database: run its contract step, not this one's")
    await _run(database, "expand", newest, report)
    await in_slice(database, "contract", lambda connection: _refuse_older(connection, newest), report)
    await _run(database, "contract", newest, report)
    if await _is_ready(database):
        await functions.complete_ages(database, report)  # also what was under way when the triggers were set
    await in_slice(database, "contract", lambda connection: _close(connection, newest), report)
    report(f"contract: servers that do not know schema version {newest} are refused from now on")


async def _refuse_older(connection: Connection, newest: int) -> None:
    older = await _older(connection, newest)
    if older:
        raise StartupError(
            f"the upgrade cannot be completed while servers of an older version run: {'; '.join(map(str, older))}. "
            "Stop them, or replace them by this version, and try again"
        )
    await _apply_expanded(connection, newest)


async def _apply_expanded(connection: Connection, newest: int) -> None:
    state = await _state(connection)
    done = [one for one in migrations() if one.version <= newest and one.version not in state.applied]
    await _record(connection, (one for one in done if not state.lacks(one)))
    await connection.execute("DELETE FROM queen.schema_expansions WHERE is_done AND version <= $1", newest)


async def _close(connection: Connection, newest: int) -> None:
    await _apply_expanded(connection, newest)
    if await functions.are_made(connection):
        await functions.drop_without_version(connection)
        await functions.drop_unused(connection)
