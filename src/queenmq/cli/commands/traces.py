"""`queen traces`: the traces that consumers recorded for messages."""

from __future__ import annotations

import click

from queenmq.cli.arguments import COUNT, as_json
from queenmq.cli.group import group, under
from queenmq.cli.places import partition_id
from queenmq.cli.remote import connected, server
from queenmq.cli.show import Column, compact, listing, moment

_ABOUT = (
    Column("created_at", "at", written=moment),
    Column("event_type", "event"),
    Column("consumer_group", "group"),
    Column("data", written=compact),
)


@group(
    "traces", "queen traces", "queen traces show order-17", "queen traces of orders/customer-7 order-17", default="list"
)
def command() -> None:
    """Show the traces that consumers recorded for messages. Without a subcommand, list the trace names."""


@under(command, "list", "queen traces")
@click.option("--limit", type=COUNT, default=50, show_default=True, metavar="N", help="Maximum number of names.")
@as_json
@server
def list_(limit: int, as_json: bool, server: str) -> None:
    """List the trace names, with the number of traces and messages of each."""
    with connected(server) as queen:
        rows = queen.admin.get_trace_names(limit=limit)["trace_names"]
    listing(
        rows,
        "no traces",
        Column("trace_name", "name"),
        Column("trace_count", "traces", number=True),
        Column("message_count", "messages", number=True),
        Column("last_seen", "last", written=moment),
        as_json=as_json,
    )


@under(command, "show", "queen traces show order-17")
@click.argument("name")
@click.option("--limit", type=COUNT, default=100, show_default=True, metavar="N", help="Maximum number of traces.")
@as_json
@server
def show(name: str, limit: int, as_json: bool, server: str) -> None:
    """Show the traces with a name, newest first, and the message of each."""
    with connected(server) as queen:
        rows = queen.admin.get_traces_by_name(name, limit=limit)["traces"]
    where = (Column("queue_name", "queue"), Column("partition_name", "partition"))
    columns = (*where, Column("transaction_id", "transaction id"))
    listing(rows, f"there are no traces with the name {name!r}", *_ABOUT, *columns, as_json=as_json)


@under(command, "of", "queen traces of orders/customer-7 order-17")
@click.argument("partition")
@click.argument("transaction_id")
@as_json
@server
def of(partition: str, transaction_id: str, as_json: bool, server: str) -> None:
    """Show the traces of one message, oldest first. PARTITION is queue/partition, or the id of a partition."""
    with connected(server) as queen:
        rows = queen.admin.get_traces_for_message(partition_id(queen, partition), transaction_id)["traces"]
    listing(
        rows, "this message has no traces", *_ABOUT, Column("trace_names", "names", written=", ".join), as_json=as_json
    )
