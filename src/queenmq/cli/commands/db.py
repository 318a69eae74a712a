"""`queen db`: the schema of the database, its upgrades, and how to connect to the bundled PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click

from queenmq.cli.arguments import as_json, data_dir
from queenmq.cli.group import group, under

if TYPE_CHECKING:
    from queenmq.storage.database import Database
    from queenmq.storage.plan import Plan, PlannedStep


@group("db", 'eval "$(queen db env)" && psql', "queen db plan", "queen db upgrade")
def command() -> None:
    """Upgrade the schema of the database, or show how to connect to the bundled PostgreSQL.

    DATABASE_URL names the database, unless it is the bundled one."""


@under(command, "url", 'DATABASE_URL="$(queen db url)" PORT=6633 queen serve')
@data_dir
@click.option("--administrator", is_flag=True, help="Print the URL of the administrator, who is superuser.")
def url(data_dir: Path | None, administrator: bool) -> None:
    """Print the connection URL of the bundled PostgreSQL that runs on the data folder.

    Its role is the server's: an ordinary one that owns the database. The URL has the password in it: give it to
    programs in a variable, not as an argument, which every user of the machine can see.
    """
    print(_url(data_dir, administrator))


@under(command, "env", 'eval "$(queen db env)" && psql')
@data_dir
@click.option("--administrator", is_flag=True, help="Print the variables of the administrator, who is superuser.")
def env(data_dir: Path | None, administrator: bool) -> None:
    """Print the same as shell commands that set the variables of psql, pg_dump and all other programs with libpq."""
    parts = urlsplit(_url(data_dir, administrator))
    variables = {
        "PGHOST": parts.hostname or "",
        "PGPORT": str(parts.port or ""),
        "PGUSER": unquote(parts.username or ""),
        "PGPASSWORD": unquote(parts.password or ""),
        "PGDATABASE": unquote(parts.path.removeprefix("/")),
    }
    for name, value in variables.items():
        print(f"export {name}={quote(value)}")


def _url(data_dir: Path | None, administrator: bool) -> str:
    from queenmq import config
    from queenmq.storage.embedded import default_data_dir, running_url

    settings = config.load(flags={"QUEEN_DATA_DIR": data_dir})
    return running_url(settings.server.data_dir or default_data_dir(), administrator=administrator)


@under(command, "plan", "queen db plan", "queen db plan --json")
@as_json
@data_dir
def plan(as_json: bool, data_dir: Path | None) -> int:
    """Show what an upgrade of the schema to this version would do, and change nothing.

    Each step is listed with its table, the size of that, and the lock that it takes. Servers of the version before go
    on during the steps that expand; those that contract wait until none of them runs. The exit status is 1 if there is
    anything to do.
    """
    return _run(data_dir, lambda database: _plan(database, as_json))


@under(command, "upgrade", "queen db upgrade", "queen db upgrade --contract")
@click.option(
    "--contract",
    is_flag=True,
    help="Complete the upgrade: remove what only servers of the version before use. They are refused from then on.",
)
@data_dir
def upgrade(contract: bool, data_dir: Path | None) -> int:
    """Upgrade the schema to this version, while servers run, and show the progress.

    A server does the same when it starts. Servers of the version before can go on, and be started again, until
    `queen db upgrade --contract`, which does nothing as long as one of them runs.
    """
    return _run(data_dir, lambda database: _upgrade(database, contract))


@under(command, "index", "queen db index", "queen db index transactions", "queen db index transactions headers --drop")
@click.argument("kinds", nargs=-1, type=click.Choice(("transactions", "headers")))
@click.option("--drop", is_flag=True, help="Remove the indexes instead.")
@data_dir
def index(kinds: tuple[str, ...], drop: bool, data_dir: Path | None) -> int:
    """Make indexes over all messages, with which `queen find` finds every message: by transactionId, or by headers.

    Without them it examines the 5,000 partitions that were written last, and for headers only their newest messages.
    Every push pays for them, so they are not there unless you ask for them. They are made while servers run. Without
    KINDS, list those that there are.
    """
    return _run(data_dir, lambda database: _index(database, kinds, drop))


def _run(data_dir: Path | None, action: Callable[[Database], Awaitable[int]]) -> int:
    from queenmq.cli.database import run  # what it needs is not there in an installation of the client

    return run(data_dir, action)


async def _index(database: Database, kinds: tuple[str, ...], drops: bool) -> int:
    from queenmq.cli.show import note
    from queenmq.storage import finding_indexes

    for kind in kinds:
        await (finding_indexes.drop if drops else finding_indexes.make)(database, kind, note)
    found = await finding_indexes.existing(database)
    print(f"indexes over all messages: {', '.join(found) or 'none'}")
    return 0


async def _plan(database: Database, as_json: bool) -> int:
    from queenmq.cli.show import print_json
    from queenmq.storage.plan import plan

    found = await plan(database)
    if as_json:
        print_json(_as_json(found))
    else:
        _show(found)
    return 1 if found.is_new or found.refusing is not None or found.expand or found.contract else 0


def _as_json(found: Plan) -> dict[str, object]:
    return {
        "newest": found.newest,
        "isNew": found.is_new,
        "tooOldFor": found.refusing,
        "expand": [_step(step) for step in found.expand],
        "contract": [_step(step) for step in found.contract],
        "olderServers": [
            {"id": one.id, "release": one.release, "schemaVersion": one.schema_version, "seenSecondsAgo": one.seen_s}
            for one in found.older
        ],
    }


def _step(step: PlannedStep) -> dict[str, object]:
    return {
        "phase": step.phase,
        "migration": step.migration,
        "does": step.does,
        "table": step.table,
        "rows": step.rows,
        "bytes": step.bytes,
        "lock": step.lock,
        "oldServersGoOn": step.old_servers_go_on,
    }


def _show(found: Plan) -> None:
    from queenmq.cli.show import Column, table

    if found.is_new:
        print(f"There is no schema yet: it is made in one transaction, as version {found.newest}.")
        return
    if found.refusing is not None:
        print(
            f"This Queen knows schema version {found.newest}, and the database has {found.refusing}: run a newer Queen."
        )
        return
    if not found.expand and not found.contract:
        print(f"Nothing is to be done: the schema has version {found.newest}.")
        return
    rows = [_step(step) for step in (*found.expand, *found.contract)]
    table(
        rows,
        Column("phase"),
        Column("migration"),
        Column("does"),
        Column("table"),
        Column("rows", number=True),
        Column("bytes", number=True),
        Column("lock"),
        Column("oldServersGoOn", "old servers go on"),
    )
    print("Each lock is waited for in short attempts, and held for one step.")
    if found.expand:
        print("To expand: `queen db upgrade`, or start a server of this version.")
    if found.older:
        print("The contract step waits for these servers:")
        for server in found.older:
            print(f"  {server}")
    elif found.contract:
        print("To contract, when servers of the version before are not needed any more: `queen db upgrade --contract`.")


async def _upgrade(database: Database, is_contract: bool) -> int:
    from queenmq.cli.show import note
    from queenmq.storage.migrations import contract, migrate, schema_state

    version = await migrate(database, report=note)
    if is_contract:
        await contract(database, report=note)
        print(f"the upgrade to schema version {version} is completed")
        return 0
    print(f"the schema has version {version}")
    if (await schema_state(database)).is_upgrading:
        note("servers of the version before can go on; `queen db upgrade --contract` completes the upgrade")
    return 0
