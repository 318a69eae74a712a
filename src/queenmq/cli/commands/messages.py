"""`queen messages`: list, show, retry, bury and delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from queenmq.cli.arguments import COUNT, MOMENT, as_json, consent
from queenmq.cli.group import group, under
from queenmq.cli.places import partition_id
from queenmq.cli.remote import connected, queue_option, require_queue, server
from queenmq.cli.show import Column, compact, confirm, facts, listing, moment, note, print_json

if TYPE_CHECKING:
    from datetime import datetime

STATES = ("pending", "processing", "completed", "dead_letter")


@group("messages", "queen messages --queue orders", "queen messages show orders/customer-7 order-17", default="list")
def command() -> None:
    """List, show, retry, bury and delete messages. Without a further word they are listed.

    Where one message is meant, PARTITION is queue/partition, or the id of the partition.
    """


@under(
    command, "list", "queen messages --queue orders --status pending", "queen messages --since 2026-01-02T03:00 --json"
)
@queue_option
@click.option("-p", "--partition", metavar="NAME", help="Only of this partition.")
@click.option("--status", type=click.Choice(STATES), help="Only in this state.")
@click.option("--since", type=MOMENT, metavar="TIME", help="Pushed at or after this moment (default: an hour ago).")
@click.option("--until", type=MOMENT, metavar="TIME", help="Pushed before the end of the minute of this moment.")
@click.option("--payload", is_flag=True, help="With their payloads.")
@click.option("--limit", type=COUNT, default=50, show_default=True, metavar="N", help="At most so many.")
@as_json
@server
def list_(
    queue: str | None,
    partition: str | None,
    status: str | None,
    since: datetime | None,
    until: datetime | None,
    payload: bool,
    limit: int,
    as_json: bool,
    server: str,
) -> None:
    """List the newest messages, newest first."""
    with connected(server) as queen:
        if queue is not None:
            require_queue(queen, queue)
        rows = queen.admin.list_messages(
            queue=queue,
            partition=partition,
            status=status,
            from_=since and since.isoformat(),
            to=until and until.isoformat(),
            payload=payload,
            limit=limit,
        )["messages"]
    listing(
        rows,
        "no such messages" if since else "no such messages in the last hour; --since looks further back",
        Column("createdAt", "pushed", written=moment),
        Column("queue"),
        Column("partition"),
        Column("transactionId", "transaction id"),
        Column("status"),
        *((Column("payload", written=compact),) if payload else ()),
        as_json=as_json,
    )


@under(command, "show", "queen messages show orders/customer-7 order-17")
@click.argument("partition")
@click.argument("transaction_id")
@as_json
@server
def show(partition: str, transaction_id: str, as_json: bool, server: str) -> None:
    """Show one message with its payload, and how far each group has come with it."""
    with connected(server) as queen:
        found: dict[str, Any] = queen.admin.get_message(partition_id(queen, partition), transaction_id)
    if as_json:
        print_json(found)
        return
    groups = [f"{one['name']}: {'done' if one['consumed'] else 'not yet'}" for one in found["consumerGroups"]]
    facts(
        [
            ("message", found["id"]),
            ("transaction id", found["transactionId"]),
            ("where", f"{found['queue']}/{found['partition']}"),
            ("partition id", found["partitionId"]),
            ("pushed", moment(found["createdAt"])),
            ("status", found["status"]),
            ("attempts failed", found["retryCount"]),
            ("error", found["errorMessage"]),
            ("groups", ", ".join(groups)),
            ("trace id", found["traceId"]),
            ("producer", found["producerSub"]),
            ("payload", compact(found["payload"])),
        ]
    )
    if found["undecryptable"]:
        note("The payload is encrypted with a key that this server does not have.")


@under(command, "retry", "queen messages retry orders/customer-7 order-17")
@click.argument("partition")
@click.argument("transaction_id")
@as_json
@server
def retry(partition: str, transaction_id: str, as_json: bool, server: str) -> None:
    """Take a message out of the dead letters and deliver it again to the groups that gave it up."""
    with connected(server) as queen:
        answer = queen.admin.retry_message(partition_id(queen, partition), transaction_id)
    print_json(answer) if as_json else print(answer["message"])


@under(command, "bury", "queen messages bury orders/customer-7 order-17")
@click.argument("partition")
@click.argument("transaction_id")
@as_json
@server
def bury(partition: str, transaction_id: str, as_json: bool, server: str) -> None:
    """Put a message to the dead letters of every group that has not finished it."""
    with connected(server) as queen:
        answer = queen.admin.move_message_to_dlq(partition_id(queen, partition), transaction_id)
    print_json(answer) if as_json else print(answer["message"])


@under(command, "delete", "queen messages delete orders/customer-7 order-17 --yes")
@click.argument("partition")
@click.argument("transaction_id")
@consent
@as_json
@server
def delete(partition: str, transaction_id: str, yes: bool, as_json: bool, server: str) -> None:
    """Delete a message, with its traces and dead letters."""
    with connected(server) as queen:
        place = partition_id(queen, partition)
        queen.admin.get_message(place, transaction_id)
        confirm(f"Delete message {transaction_id} of {partition} for good?", yes)
        answer = queen.admin.delete_message(place, transaction_id)
    print_json(answer) if as_json else print(answer["message"])
