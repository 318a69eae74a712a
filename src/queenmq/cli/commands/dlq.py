"""`queen dlq`: list, redrive and purge dead letters."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from queenmq.cli.arguments import COUNT, MOMENT, as_json, consent
from queenmq.cli.group import group, under
from queenmq.cli.operation import followed
from queenmq.cli.remote import connected, queue, queue_names, require_queue, server
from queenmq.cli.show import Column, compact, confirm, listing, moment, note, plural, print_json, working

if TYPE_CHECKING:
    from queenmq.client import BlockingQueen

_group = click.option("-g", "--group", metavar="NAME", help="Only dead letters of this consumer group.")
_partition = click.option("-p", "--partition", metavar="NAME", help="Only dead letters of this partition.")
_error = click.option("--error", metavar="TEXT", help="Only dead letters with this text in their error, in any case.")
_fingerprint = click.option(
    "--fingerprint",
    metavar="TEXT",
    help="Only dead letters with this error, which has * for every number, id and quoted text.",
)
_from = click.option("--from", "since", type=MOMENT, help="Only dead letters that failed at or after this time.")
_to = click.option("--to", "until", type=MOMENT, help="Only dead letters that failed at or before this time.")


@group("dlq", "queen dlq list orders", "queen dlq redrive orders --group billing", default="list")
def command() -> None:
    """List, redrive and purge dead letters. Without a subcommand, list them."""


@under(command, "list", "queen dlq list orders --group billing", "queen dlq --json | jq '.messages[].errorMessage'")
@click.argument("queue", required=False, shell_complete=queue_names)
@_group
@_partition
@_error
@_fingerprint
@_from
@_to
@click.option("--limit", type=COUNT, default=50, show_default=True, metavar="N", help="Maximum number of dead letters.")
@as_json
@server
def list_(
    queue: str | None,
    group: str | None,
    partition: str | None,
    error: str | None,
    fingerprint: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    as_json: bool,
    server: str,
) -> None:
    """List dead letters of QUEUE, or of all queues, the newest failure first."""
    which = {"partition": partition, **_narrowed(error, fingerprint, since, until)}
    with connected(server) as queen:
        if queue is not None:
            require_queue(queen, queue)
        found = queen.admin.list_dead_letters(queue=queue, consumerGroup=group, **which, limit=limit)
    rows = found["messages"]
    listing(
        rows,
        "no dead letters",
        Column("failedAt", "failed", written=moment),
        *(() if queue else (Column("queue"),)),
        Column("partition"),
        Column("consumerGroup", "group"),
        Column("transactionId", "transaction id"),
        Column("errorMessage", "error"),
        Column("data", "payload", written=compact),
        as_json=as_json,
        whole=found,
    )
    if not as_json and found["total"] > len(rows):
        note(f"{found['total']:,} in all; these are the newest {len(rows)}")


def _narrowed(
    error: str | None, fingerprint: str | None, since: datetime | None, until: datetime | None
) -> dict[str, str]:
    """What is given of this, as the client takes it."""
    times = {name: value.isoformat() for name, value in (("from_", since), ("to", until)) if value is not None}
    texts = {name: value for name, value in (("error", error), ("fingerprint", fingerprint)) if value is not None}
    return texts | times


def _counted(queen: BlockingQueen, queue: str, group: str | None, **which: Any) -> int:
    require_queue(queen, queue)
    total: int = queen.admin.list_dead_letters(queue=queue, consumerGroup=group, **which, limit=1)["total"]
    return total


def _whose(queue: str, group: str | None, partition: str | None) -> str:
    where = f", partition {partition}," if partition else ""
    return f"{queue}{where} for group {group}" if group else f"{queue}{where}"


def _purge(queen: BlockingQueen, which: dict[str, Any], total: int) -> int:
    """Repeat a bounded step until nothing is left that had failed when it began. Returns how many it took."""
    purged = 0
    with working("dead letters purged", total) as advance:
        while True:
            answer = queen.admin.purge_dead_letters(**which)
            count = int(answer["purged"])
            purged += count
            advance(count)
            # Messages that fail during the purge stay.
            which["to"] = answer["to"]
            if not answer["more"] or not count:
                return purged


@under(
    command,
    "redrive",
    "queen dlq redrive orders --group billing",
    "queen dlq redrive orders --error timeout --from 2026-11-18T08:00Z",
    "queen dlq redrive orders --fingerprint 'timeout after * s'",
)
@queue
@_group
@_partition
@_error
@_fingerprint
@_from
@_to
@consent
@as_json
@server
def redrive(
    queue: str,
    group: str | None,
    partition: str | None,
    error: str | None,
    fingerprint: str | None,
    since: datetime | None,
    until: datetime | None,
    yes: bool,
    as_json: bool,
    server: str,
) -> None:
    """Deliver dead letters of QUEUE again, each only to the groups in which it failed, or only to --group.

    A message that is no longer stored is pushed again, for every group.
    """
    narrowed = _narrowed(error, fingerprint, since, until)
    with connected(server) as queen:
        total = _counted(queen, queue, group, partition=partition, **narrowed)
        taken = 0
        if total:
            confirm(f"Deliver {plural(total, 'dead letter')} of {_whose(queue, group, partition)} again?", yes)
            taken = int(followed(queen, queen.admin.redrive(queue, partition, group, **narrowed)).get("redriven", 0))
    print_json({"redriven": taken}) if as_json else print(f"{plural(taken, 'dead letter')} redriven")


@under(command, "purge", "queen dlq purge orders --group billing --yes")
@queue
@_group
@_partition
@consent
@as_json
@server
def purge(queue: str, group: str | None, partition: str | None, yes: bool, as_json: bool, server: str) -> None:
    """Permanently delete dead letters of QUEUE. Messages that are still stored stay."""
    with connected(server) as queen:
        total = _counted(queen, queue, group, partition=partition)
        taken = 0
        if total:
            confirm(f"Permanently delete {plural(total, 'dead letter')} of {_whose(queue, group, partition)}?", yes)
            which = {"queue": queue, "group": group, "partition": partition}
            taken = _purge(queen, which, total)
    print_json({"purged": taken}) if as_json else print(f"{plural(taken, 'dead letter')} purged")
