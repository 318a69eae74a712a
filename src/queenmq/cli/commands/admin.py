"""`queen admin`: check and repair the tables of the database, while servers run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from queenmq.cli.arguments import Kind, as_json, data_dir
from queenmq.cli.group import group, under
from queenmq.ids import is_uuid

if TYPE_CHECKING:
    from queenmq.storage.database import Database

_STEP: Final = 1000
_MOST_SHOWN: Final = 100


def _place(raw: str) -> tuple[str, int]:
    partition, _, offset = raw.rpartition(":")
    if not is_uuid(partition) or not offset.isdecimal():
        raise ValueError(f"{raw!r} is not PARTITION:OFFSET, the id of a partition and a number")
    return partition, int(offset)


@group("admin", "queen admin check-lookup", "queen admin reencrypt", "queen admin migrations")
def command() -> None:
    """Check and repair the tables of the database, while servers run.

    DATABASE_URL names the database, unless it is the bundled one."""


@under(command, "check-lookup", "queen admin check-lookup")
@data_dir
def check_lookup(data_dir: Path | None) -> int:
    """List stale rows of the table partition_lookup. The exit status is 1 if there are any."""
    return _run(data_dir, _check_lookup)


@under(command, "resync-lookup", "queen admin resync-lookup")
@data_dir
def resync_lookup(data_dir: Path | None) -> int:
    """Rebuild the table partition_lookup from the messages."""
    return _run(data_dir, _resync_lookup)


@under(command, "reencrypt", "queen admin reencrypt", "queen admin reencrypt --step 200")
@click.option(
    "--step", type=click.IntRange(1, 100_000), default=_STEP, show_default=True, help="Messages examined in one step."
)
@click.option(
    "--after",
    type=Kind("PLACE", _place),
    metavar="PARTITION:OFFSET",
    help="Continue after this message; an interrupted run prints it.",
)
@data_dir
def reencrypt(step: int, after: tuple[str, int] | None, data_dir: Path | None) -> int:
    """Encrypt payloads anew that were encrypted with a previous key, or before payloads were bound to their message.

    Uses the keys in QUEEN_ENCRYPTION_KEY and QUEEN_ENCRYPTION_KEYS_PREVIOUS, as a server does. Servers may run
    meanwhile, so everything is examined at least twice: until nothing is found. What is done already is passed over,
    and the command may be repeated. The exit status is 0 when nothing is left that needs a previous key, and 1 if
    something could not be decrypted, or is still to be stored by a server or a pipeline.
    """
    return _run(data_dir, lambda database: _reencrypt(database, step, after))


@under(command, "migrations", "queen admin migrations --json")
@as_json
@data_dir
def migrations(as_json: bool, data_dir: Path | None) -> int:
    """Show which schema migrations are applied and which are pending. The exit status is 1 if any is pending.

    The next server of this version that starts applies them.
    """
    return _run(data_dir, lambda database: _migrations(database, as_json))


def _run(data_dir: Path | None, action: Callable[[Database], Awaitable[int]]) -> int:
    from queenmq.cli.database import run  # what it needs is not there in an installation of the client

    return run(data_dir, action)


async def _check_lookup(database: Database) -> int:
    """Status 1 if anything is stale."""
    from queenmq.storage.migrations import require_newest
    from queenmq.storage.statements import statement

    await require_newest(database)
    rows = await database.fetch(statement("stale_lookup"), _MOST_SHOWN + 1)
    for row in rows[:_MOST_SHOWN]:
        print(f"{row['queue_name']}/{row['partition_name']}: {row['problem']}")
    count = f"more than {_MOST_SHOWN}" if len(rows) > _MOST_SHOWN else str(len(rows))
    print(f"stale rows: {count}")
    return 1 if rows else 0


async def _resync_lookup(database: Database) -> int:
    from queenmq.cli.show import working
    from queenmq.storage.migrations import require_newest
    from queenmq.storage.statements import statement

    await require_newest(database)
    changed, after = 0, None
    with working("partitions checked") as advance:
        while True:
            row = await database.fetchrow(statement("resync_lookup"), after, _STEP)
            if row is None:
                break
            advance(_STEP)
            changed += row["changed"]
            after = row["next"]
            if after is None:
                break
    print(f"rows changed: {changed}")
    return 0


async def _reencrypt(database: Database, step: int, after: tuple[str, int] | None) -> int:
    """Status 1 if something is left."""
    from queenmq import config
    from queenmq.cli.reencryption import Progress, Reencryption
    from queenmq.cli.show import working
    from queenmq.core.encryption import PayloadKeys
    from queenmq.errors import StartupError
    from queenmq.storage.migrations import require_newest
    from queenmq.storage.statements import statement

    keys = config.load().server.encryption_keys
    if not keys:
        raise StartupError("there is no key to encrypt with: set QUEEN_ENCRYPTION_KEY, as for the servers")
    await require_newest(database)
    done = Progress() if after is None else Progress(partition=after[0], offset=after[1])
    total: float = await database.fetchval(statement("estimated_messages"))
    finished = False
    try:
        with working("examined", total=total or None) as advance:
            await Reencryption(database, PayloadKeys(keys), step, done).run(advance)
        finished = True
    finally:
        print(
            f"examined: {done.examined}; encrypted anew: {done.replaced} messages, "
            f"{done.letters_replaced} dead letters, {done.timers_replaced} timers, {done.pushes_replaced} queued pushes"
        )
        for sentence in done.named:
            print(f"not decrypted: {sentence}")
        if done.unreadable > len(done.named):
            print(f"not decrypted: {done.unreadable - len(done.named)} more")
        if not finished:
            print(f"not finished; continue with --after {done.place}")
    if done.waiting_pushes:
        print(f"queued pushes with payloads of a previous key: {done.waiting_pushes}; repeat this when they are done")
    if done.waiting_rows:
        print(
            f"rows with payloads of a previous key that pipelines have staged: {done.waiting_rows}; "
            "repeat this when they are written, or were swept away"
        )
    if done.complete:
        print(f"examined again: {done.checked}; nothing is left that needs a previous key")
    elif not (done.unreadable or done.waiting_pushes or done.waiting_rows):
        print("payloads of a previous key still move from place to place: repeat this")
    return 0 if done.complete else 1


async def _migrations(database: Database, as_json: bool) -> int:
    from queenmq.cli.show import Column, print_json, table
    from queenmq.core.names import iso_millis
    from queenmq.storage.migrations import schema_state

    found = await schema_state(database)
    rows = [
        {
            "version": one.version,
            "name": one.name,
            "state": one.state,
            "appliedAt": None if one.applied_at is None else iso_millis(one.applied_at),
        }
        for one in found.migrations
    ]
    if as_json:
        print_json({"migrations": rows, "functionsUpToDate": found.functions_up_to_date})
    else:
        table(rows, Column("version", number=True), Column("name"), Column("state"), Column("appliedAt", "applied at"))
        if not found.functions_up_to_date:
            print("The functions of this version are missing; the next server of this version that starts makes them.")
        if found.is_upgrading:
            print("The last upgrade is not completed: `queen db plan` shows what is left.")
    return 0 if found.up_to_date else 1
