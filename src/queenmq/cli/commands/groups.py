"""`queen groups`: who reads what, and how far they are."""

from __future__ import annotations

import click

from queenmq.cli.arguments import COUNT, as_json, consent
from queenmq.cli.group import group, under
from queenmq.cli.remote import connected, queue_option, require_group, require_queue, server
from queenmq.cli.show import Column, confirm, listing, moment, plural, print_json, seconds
from queenmq.core.names import QUEUE_MODE

_MOST = 10_000
_LAG = (Column("offsetLag", "unread", number=True), Column("timeLagSeconds", "lag", number=True, written=seconds))


@group("groups", "queen groups", "queen groups show billing", "queen groups lagging --least 300", default="list")
def command() -> None:
    """List, show and forget consumer groups. Without a further word they are listed."""


@under(command, "list", "queen groups --queue orders")
@queue_option
@as_json
@server
def list_(queue: str | None, as_json: bool, server: str) -> None:
    """List the groups, a line for each queue that they read. __QUEUE_MODE__ are readers without a group."""
    with connected(server) as queen:
        if queue is not None:
            require_queue(queen, queue)
        rows = [row for row in queen.admin.list_consumer_groups(limit=_MOST) if queue in (None, row["queueName"])]
    listing(
        rows,
        "no groups; the first pop makes one",
        Column("name", "group"),
        Column("queueName", "queue"),
        Column("state"),
        Column("members", "leases", number=True),
        Column("totalLag", "unread", number=True),
        Column("partitionsWithLag", "partitions behind", number=True),
        Column("maxTimeLag", "lag", number=True, written=seconds),
        Column("subscriptionMode", "starts at"),
        as_json=as_json,
    )


@under(command, "show", "queen groups show billing --queue orders")
@click.argument("group")
@queue_option
@click.option("--limit", type=COUNT, default=100, show_default=True, metavar="N", help="At most so many partitions.")
@as_json
@server
def show(group: str, queue: str | None, limit: int, as_json: bool, server: str) -> None:
    """Show where a group stands in each partition, those that have waited longest first."""
    with connected(server) as queen:
        require_group(queen, group)
        found = queen.admin.get_consumer_group(group, limit=limit)
    found = {name: standing for name, standing in found.items() if queue in (None, name)}
    rows = [{"queue": name} | row for name, standing in found.items() for row in standing["partitions"]]
    listing(
        rows,
        f"{group} has no place in any partition",
        Column("queue"),
        Column("partition"),
        *_LAG,
        Column("leaseActive", "leased"),
        Column("totalConsumed", "consumed", number=True),
        Column("lastConsumedAt", "last consumed", written=moment),
        as_json=as_json,
        whole=found,
    )


@under(command, "lagging", "queen groups lagging --least 300")
@click.option("--least", type=click.IntRange(min=0), default=60, show_default=True, metavar="S", help="Seconds of lag.")
@as_json
@server
def lagging(least: int, as_json: bool, server: str) -> None:
    """List partitions whose oldest unread message is old, the oldest first."""
    with connected(server) as queen:
        rows = queen.admin.get_lagging_consumers(least)
    listing(
        rows,
        f"nothing has waited for {seconds(least)}",
        Column("consumer_group", "group"),
        Column("queue_name", "queue"),
        Column("partition_name", "partition"),
        Column("offset_lag", "unread", number=True),
        Column("time_lag_seconds", "lag", number=True, written=seconds),
        Column("last_consumed_at", "last consumed", written=moment),
        as_json=as_json,
    )


@under(command, "delete", "queen groups delete billing --queue orders --yes")
@click.argument("group")
@queue_option
@consent
@as_json
@server
def delete(group: str, queue: str | None, yes: bool, as_json: bool, server: str) -> None:
    """Forget a group, everywhere or in one queue: its next pop starts as a new group."""
    with connected(server) as queen:
        require_group(queen, group)
        where = f"in {queue}" if queue else "everywhere"
        shown = "the readers without a group" if group == QUEUE_MODE else f"group {group}"
        confirm(f"Forget where {shown} stands {where}?", yes)
        if queue is None:
            answer = queen.admin.delete_consumer_group(group)
        else:
            require_queue(queen, queue)
            answer = queen.admin.delete_consumer_group_for_queue(group, queue)
    forgotten = plural(answer.get("deletedPartitions", 0), "partition")
    print_json(answer) if as_json else print(f"{group} is forgotten in {forgotten}")
