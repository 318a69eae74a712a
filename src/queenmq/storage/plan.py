"""What an upgrade of the schema would do, step by step. Changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace

import asyncpg

from queenmq.storage import functions
from queenmq.storage.database import Database
from queenmq.storage.migrations import LivingServer, SchemaState, older_servers, schema_state
from queenmq.storage.statements import function_set
from queenmq.storage.steps import Phase, Step, migrations

_SHOWN = 70
_SIZES = """
    SELECT c.relname AS name, greatest(c.reltuples, 0)::bigint AS rows, pg_total_relation_size(c.oid) AS bytes
    FROM pg_class c WHERE c.relnamespace = to_regnamespace('queen') AND c.relkind IN ('r', 'p')
"""


@dataclass(frozen=True)
class PlannedStep:
    """`lock` is taken on `table`, for a moment; `rows` is what PostgreSQL last estimated. None: it has no table yet."""

    phase: Phase
    migration: str
    does: str
    table: str | None = None
    lock: str | None = None
    rows: int | None = field(default=None, kw_only=True)
    bytes: int | None = field(default=None, kw_only=True)

    @property
    def old_servers_go_on(self) -> bool:
        return self.phase == "expand"


@dataclass(frozen=True)
class Plan:
    """`expand` is what a server does when it starts, `contract` what waits until no server of `older` runs."""

    is_new: bool
    refusing: int | None
    newest: int
    expand: tuple[PlannedStep, ...]
    contract: tuple[PlannedStep, ...]
    older: tuple[LivingServer, ...]


async def plan(database: Database) -> Plan:
    state = await schema_state(database)
    newest = migrations()[-1].version
    if not state.applied or state.refusing is not None:
        return Plan(not state.applied, state.refusing, newest, (), (), ())
    async with database.connection() as connection:
        sizes = {row["name"]: row for row in await connection.fetch(_SIZES)}
        leads = await functions.are_complete(connection, newest)
        old_functions = await functions.without_version(connection) if state.functions_up_to_date else []
    expand = [*_steps(state, "expand"), *([] if leads else [one async for one in _functions(database, state)])]
    contract = list(_steps(state, "contract"))
    if contract or state.expansions or expand:
        contract.append(_ages("contract"))
    if state.has_old_functions or not state.functions_up_to_date:
        number = f"{len(old_functions)} functions" if old_functions else "the functions"
        contract.append(PlannedStep("contract", "functions", f"remove {number} of versions without names of their own"))
    if contract or state.expansions or expand:
        contract.append(PlannedStep("contract", "records", f"refuse servers that do not know schema version {newest}"))
    sized = [[_sized(step, sizes) for step in steps] for steps in (expand, contract)]
    return Plan(False, None, newest, tuple(sized[0]), tuple(sized[1]), tuple(await older_servers(database)))


def _steps(state: SchemaState, phase: Phase) -> Iterator[PlannedStep]:
    for migration in state.pending(phase):
        for step in state.steps_left(migration):
            yield PlannedStep(phase, f"{migration.version} {migration.name}", _described(step), step.table, step.lock)


def _described(step: Step) -> str:
    short = step.plain if len(step.plain) <= _SHOWN else step.plain[: _SHOWN - 1] + "…"
    return f"{short} (in batches)" if step.is_batch else short


async def _functions(database: Database, state: SchemaState) -> AsyncIterator[PlannedStep]:
    ours = function_set()
    if not state.functions_up_to_date:
        made = f"make the {len(ours.own)} functions of this version (their names end with _{ours.name})"
        yield PlannedStep("expand", "functions", made)
    yield PlannedStep("expand", "functions", f"replace the {len(ours.public)} public functions and those of triggers")
    async with database.connection() as connection:
        changed = await functions.tables_with_changed_triggers(connection)
    for table in changed:
        yield PlannedStep("expand", "functions", "set the triggers", table, "SHARE ROW EXCLUSIVE")
    yield _ages("expand")


def _ages(phase: Phase) -> PlannedStep:
    does = "note the ages of partitions that have none, or too young ones (in batches)"
    return PlannedStep(phase, "functions", does, "partition_ages", "ROW EXCLUSIVE")


def _sized(step: PlannedStep, sizes: dict[str, asyncpg.Record]) -> PlannedStep:
    found = sizes.get(step.table or "")
    return step if found is None else replace(step, rows=found["rows"], bytes=found["bytes"])
