"""`queen partitions`: the partitions of queues and their numbers of messages."""

from __future__ import annotations

import click

from queenmq.cli.arguments import COUNT, as_json
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, queue_names, require_queue, server
from queenmq.cli.show import Column, listing, moment


@command_of("partitions", "queen partitions orders", "queen partitions --limit 1000 --json")
@click.argument("queue", required=False, shell_complete=queue_names)
@click.option("--limit", type=COUNT, default=100, show_default=True, metavar="N", help="Maximum number of partitions.")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Number of partitions to skip.")
@as_json
@server
def command(queue: str | None, limit: int, offset: int, as_json: bool, server: str) -> None:
    """List partitions with their current numbers of messages: those of QUEUE by name, or those of all queues."""
    with connected(server) as queen:
        if queue is not None:
            require_queue(queen, queue)
        rows = queen.admin.get_partitions(queue=queue, limit=limit, offset=offset)["partitions"]
    listing(
        rows,
        "no partitions; the first push creates one",
        *(() if queue else (Column("queue"),)),
        Column("name", "partition"),
        Column("messages.total", "messages", number=True),
        Column("messages.pending", "pending", number=True),
        Column("messages.processing", "processing", number=True),
        Column("createdAt", "created", written=moment, minor=True),
        Column("id", minor=True),
        as_json=as_json,
    )
