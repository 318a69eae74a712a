"""`queen outbox`: tables of applications whose changes are sent to queues."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from queenmq.cli import exits
from queenmq.cli.arguments import as_json, data_dir
from queenmq.cli.group import group, under
from queenmq.cli.show import Column, listing, plural

if TYPE_CHECKING:
    from queenmq.storage.database import Database


@group("outbox", "queen outbox attach public.orders --queue orders.changes", "queen outbox list", default="list")
def command() -> None:
    """Attach tables of an application to queues, so that each change of a row is sent as a message.

    DATABASE_URL names the database, unless it is the bundled one; its role must be allowed to make triggers on the
    table. Without a subcommand, list what is attached.
    """


table = click.argument("table")


@under(command, "list", "queen outbox list --json")
@as_json
@data_dir
def list_(as_json: bool, data_dir: Path | None) -> int:
    """List the tables that are attached, with their queues."""

    async def action(database: Database) -> int:
        from queenmq.storage.statements import statement

        rows = [_row(dict(row)) for row in await database.fetch(statement("attached_tables"))]
        listing(
            rows,
            "no table is attached",
            Column("table"),
            Column("queue"),
            Column("partitions", number=True),
            Column("exclude", "columns left out", written=", ".join),
            Column("isDisabled", "disabled"),
            as_json=as_json,
        )
        return exits.OK

    return _run(data_dir, action)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    queue, partitions, *excluded = [one.decode() for one in row["arguments"].split(b"\0")[:-1]]
    return {
        "table": row["table"],
        "queue": queue,
        "partitions": int(partitions),
        "exclude": excluded,
        "isDisabled": row["is_disabled"],
    }


@under(
    command,
    "attach",
    "queen outbox attach public.orders --queue orders.changes",
    "queen outbox attach public.users --queue users.changes --partitions 8 --exclude password",
)
@table
@click.option("--queue", required=True, metavar="QUEUE", help="Queue to which the changes are sent.")
@click.option(
    "--partitions",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Number of partitions. All changes of a key are in one of them, in order.",
)
@click.option("--exclude", multiple=True, metavar="COLUMN", help="Column that is not sent; may be repeated.")
@click.option(
    "--grant",
    "grant_writers",
    is_flag=True,
    help="Grant EXECUTE on queen.send to the roles that write to the table. Without it, the command names them.",
)
@data_dir
def attach(
    table: str, queue: str, partitions: int, exclude: tuple[str, ...], grant_writers: bool, data_dir: Path | None
) -> int:
    """Send each change of a row of TABLE to a queue, in the transaction that makes it.

    TABLE is a name as in SQL: public.orders, or '"My Schema"."Orders"'. It needs a primary key. Rows that are there
    already are not sent. Attach it again to change the options.
    """

    async def action(database: Database) -> int:
        await _call(database, "attach_table", table, queue, partitions, list(exclude), grant_writers)
        print(f"attached: changes of {table} are sent to {queue}")
        return exits.OK

    return _run(data_dir, action)


@under(command, "detach", "queen outbox detach public.orders --queue orders.changes")
@table
@click.option("--queue", metavar="QUEUE", help="Queue from which it is detached. Without it, from all.")
@data_dir
def detach(table: str, queue: str | None, data_dir: Path | None) -> int:
    """Send no more changes of TABLE. What was sent before is delivered."""

    async def action(database: Database) -> int:
        queues = await _call(database, "detach_table", table, queue)
        if not queues:
            raise exits.Failed(f"{table} is attached to no {'queue' if queue is None else queue}", exits.NOT_FOUND)
        print(f"detached: {table}, from {plural(queues, 'queue')}")
        return exits.OK

    return _run(data_dir, action)


def _run(data_dir: Path | None, action: Any) -> int:
    from queenmq.cli.database import run  # what it needs is not there in an installation of the client

    return run(data_dir, action)


async def _call(database: Database, name: str, *arguments: object) -> int:
    """What the statement returns. Raises Failed with what PostgreSQL refused, and why."""
    import asyncpg

    from queenmq.storage import sqlstates
    from queenmq.storage.statements import statement

    refused: asyncpg.PostgresError
    async with database.connection() as connection:
        try:
            async with connection.transaction():
                # Writers wait behind this lock, so it must not wait for long.
                await connection.execute("SET LOCAL lock_timeout = '5s'")
                found: int = await connection.fetchval(statement(name), *arguments)
                return found
        except asyncpg.PostgresError as error:
            refused = error
    if refused.sqlstate == sqlstates.LOCK_NOT_AVAILABLE:
        raise exits.Failed(
            f"another transaction has had {arguments[0]} locked for 5 s: try again when it has ended", exits.UNAVAILABLE
        )
    hint = getattr(refused, "hint", None)
    raise exits.Failed(f"{refused.args[0]}{'. ' + hint if hint else ''}")
