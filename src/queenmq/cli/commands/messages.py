"""`queen messages`: list, show, retry, dead-letter and delete messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from queenmq.cli import exits
from queenmq.cli.arguments import COUNT, MOMENT, as_json, consent
from queenmq.cli.group import group, under
from queenmq.cli.places import partition_id, queue_and_partition
from queenmq.cli.remote import connected, queue_names, queue_option, require_queue, server
from queenmq.cli.show import (
    Column,
    attempt,
    compact,
    confirm,
    consumer,
    facts,
    listing,
    moment,
    note,
    plural,
    print_json,
    table,
)

if TYPE_CHECKING:
    from datetime import datetime

    from queenmq.client import StoredMessage

STATES = ("pending", "processing", "completed", "dead_letter")
_TOLD = {"processing": "leased", "dead_letter": "dead letter"}


@group("messages", "queen messages list orders", "queen messages show orders/customer-7 order-17", default="list")
def command() -> None:
    """List, show, retry, dead-letter (bury) and delete messages. Without a subcommand, list them.

    PARTITION is queue/partition, or the id of a partition.
    """


@under(command, "list", "queen messages list orders --status pending", "queen messages --since 2026-01-02T03:00 --json")
@click.argument("named", metavar="[QUEUE]", required=False, shell_complete=queue_names)
@queue_option
@click.option("-p", "--partition", metavar="NAME", help="List only messages of this partition.")
@click.option("--status", type=click.Choice(STATES), help="List only messages with this status.")
@click.option(
    "--since", type=MOMENT, metavar="TIME", help="List messages pushed at or after this time (default: an hour ago)."
)
@click.option(
    "--until", type=MOMENT, metavar="TIME", help="List messages pushed up to the end of the minute of this time."
)
@click.option("--header", metavar="NAME:VALUE", help="List only messages with this header.")
@click.option("--payload", is_flag=True, help="Show the payloads too.")
@click.option("--limit", type=COUNT, default=50, show_default=True, metavar="N", help="Maximum number of messages.")
@as_json
@server
def list_(
    named: str | None,
    queue: str | None,
    partition: str | None,
    status: str | None,
    since: datetime | None,
    until: datetime | None,
    header: str | None,
    payload: bool,
    limit: int,
    as_json: bool,
    server: str,
) -> None:
    """List messages of QUEUE, or of all queues, the newest first."""
    if named is not None and queue not in (None, named):
        raise exits.Failed(f"two queues are named, {named} and {queue}: list them one after the other", exits.USAGE)
    queue = named or queue
    with connected(server) as queen:
        if queue is not None:
            require_queue(queen, queue)
        rows = queen.admin.list_messages(
            queue=queue,
            partition=partition,
            status=status,
            from_=since and since.isoformat(),
            to=until and until.isoformat(),
            header=header,
            payload=payload,
            limit=limit,
        )["messages"]
    listing(
        rows,
        "no such messages" if since else "no such messages in the last hour; use --since for older ones",
        Column("createdAt", "pushed", written=moment),
        Column("queue"),
        Column("partition"),
        Column("transactionId", "transaction id"),
        Column("status"),
        *((Column("payload", written=compact),) if payload else ()),
        as_json=as_json,
    )
    if any(row.get("omitted") for row in rows):
        note("Some payloads were left out because the answer would be too large; `queen messages show` prints one.")


@under(command, "show", "queen messages show orders/customer-7 order-17")
@click.argument("partition")
@click.argument("transaction_id")
@as_json
@server
def show(partition: str, transaction_id: str, as_json: bool, server: str) -> None:
    """Show one message with its payload, its state in each group, and how its last deliveries failed."""
    with connected(server) as queen:
        found = queen.admin.get_message(partition_id(queen, partition), transaction_id)
    if as_json:
        print_json(found)
        return
    groups = [_progress(one) for one in found["consumerGroups"]]
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
            ("headers", compact(found["headers"]) if "headers" in found else None),
            ("payload", compact(found["payload"])),
        ]
    )
    if found["attempts"]:
        print()
        rows = [{"what": attempt(one), "who": consumer(one["consumer"])} | one for one in found["attempts"]]
        table(
            rows,
            Column("endedAt", "failed", written=moment),
            Column("consumerGroup", "group"),
            Column("what", "error"),
            Column("who", "consumer"),
        )
    if found["undecryptable"]:
        note("The payload is encrypted with a key that this server does not have.")


@under(
    command,
    "read",
    "queen messages read orders/customer-7",
    "queen messages read orders/customer-7 --since 2026-01-02T03:00 --json",
)
@click.argument("partition")
@click.option("--offset", type=click.IntRange(0), metavar="N", help="Read from this offset (default: the first one).")
@click.option("--since", type=MOMENT, metavar="TIME", help="Read messages pushed at or after this time.")
@click.option("--limit", type=COUNT, default=100, show_default=True, metavar="N", help="Maximum number of messages.")
@as_json
@server
def read(partition: str, offset: int | None, since: datetime | None, limit: int, as_json: bool, server: str) -> None:
    """Read messages of a partition in their order, without a group: no lease, no position.

    PARTITION is queue/partition.
    """
    queue, name = queue_and_partition(partition)
    rows: list[dict[str, Any]] = []
    with connected(server) as queen:
        require_queue(queen, queue)
        source = queen.queue(queue).partition(name)
        found = source.read(offset, since=since, limit=limit)
        while found.messages and len(rows) < limit:
            rows += [_as_row(message) for message in found]
            found = source.read(found.next_offset, limit=limit)
    listing(
        rows[:limit],
        "no messages from there on",
        Column("offset", number=True),
        Column("createdAt", "pushed", written=moment),
        Column("transactionId", "transaction id"),
        Column("payload", written=compact),
        as_json=as_json,
    )


def _as_row(message: StoredMessage) -> dict[str, Any]:
    return {
        "offset": message.offset,
        "id": message.id,
        "transactionId": message.transaction_id,
        "createdAt": message.created_at,
        "headers": message.headers,
        "payload": message.data,
    }


def _progress(group: Mapping[str, Any]) -> str:
    failed = f", {plural(group['attempts'], 'attempt')} failed" if group["attempts"] else ""
    # A server of the version before has no `status`.
    told = _TOLD.get(group.get("status", ""), "done" if group["consumed"] else "not yet")
    return f"{group['name']}: {told}{failed}"


@under(command, "retry", "queen messages retry orders/customer-7 order-17")
@click.argument("partition")
@click.argument("transaction_id")
@as_json
@server
def retry(partition: str, transaction_id: str, as_json: bool, server: str) -> None:
    """Remove a message from the dead letters and deliver it again to the groups in which it failed."""
    with connected(server) as queen:
        answer = queen.admin.retry_message(partition_id(queen, partition), transaction_id)
    print_json(answer) if as_json else print(answer["message"])


@under(command, "bury", "queen messages bury orders/customer-7 order-17")
@click.argument("partition")
@click.argument("transaction_id")
@as_json
@server
def bury(partition: str, transaction_id: str, as_json: bool, server: str) -> None:
    """Make a message a dead letter of every group that has not finished it."""
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
        confirm(f"Permanently delete message {transaction_id} of {partition}?", yes)
        answer = queen.admin.delete_message(place, transaction_id)
    print_json(answer) if as_json else print(answer["message"])
