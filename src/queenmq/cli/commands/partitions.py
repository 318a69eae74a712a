"""`queen partitions`: the partitions of queues and their numbers of messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from queenmq.cli.arguments import COUNT, as_json
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, queue_names, require_queue, server
from queenmq.cli.show import Column, attempt, listing, moment

if TYPE_CHECKING:
    from queenmq.client import BlockingQueen

_LIST: Final = "list"  # the subcommand of other listings; here it may also be the name of a queue
_STATES = ("failing", "leased", "waiting", "dead_letters", "unread")


@command_of(
    "partitions",
    "queen partitions orders",
    "queen partitions list orders",
    "queen partitions orders --state failing",
    "queen partitions --limit 1000 --json",
)
@click.argument("words", metavar="[QUEUE]", nargs=-1, shell_complete=queue_names)
@click.option(
    "--state",
    type=click.Choice(_STATES),
    help="List only partitions of QUEUE in this state, the worst first, with each of their groups.",
)
@click.option("--limit", type=COUNT, default=100, show_default=True, metavar="N", help="Maximum number of partitions.")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Number of partitions to skip.")
@as_json
@server
def command(words: tuple[str, ...], state: str | None, limit: int, offset: int, as_json: bool, server: str) -> None:
    """List partitions with their current numbers of messages: those of QUEUE by name, or those of all queues.

    The states: the next message of a group has failed (failing), a group holds a lease (leased), has waited longest
    (waiting), has given messages up (dead_letters) or has not finished something (unread).

    `list` before QUEUE changes nothing, so that this is called like other listings.
    """
    queue = _named(words)
    with connected(server) as queen:
        if words == (_LIST,) and not _exists(queen, _LIST):
            queue = None
        if state is not None and queue is None:
            raise click.UsageError("--state needs a queue")
        if queue is not None:
            require_queue(queen, queue)
        if queue is not None and state is not None:
            found = queen.admin.get_partition_heads(queue, state=state, limit=limit, offset=offset)["partitions"]
            _show_heads(found, state, as_json)
            return
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


def _named(words: tuple[str, ...]) -> str | None:
    queues = words[1:] if len(words) > 1 and words[0] == _LIST else words
    if len(queues) > 1:
        raise click.UsageError(f"one queue at a time, and {' and '.join(queues)} are named")
    return queues[0] if queues else None


def _exists(queen: BlockingQueen, queue: str) -> bool:
    from queenmq.client import NotFound

    try:
        queen.admin.get_queue_detail(queue, includePartitions=False)
    except NotFound:
        return False
    return True


def _show_heads(found: Iterable[Mapping[str, Any]], state: str, as_json: bool) -> None:
    rows = [
        {"partition": one["name"], "dead": one["deadLetters"]}
        | group
        | {"last": attempt(group["lastAttempt"]) if group["lastAttempt"] else None}
        for one in found
        for group in one["groups"]
    ]
    listing(
        rows,
        f"no partition is in the state {state}",
        Column("partition"),
        Column("name", "group"),
        Column("state"),
        Column("unread", number=True),
        Column("attempts", "failed", number=True),
        Column("dead", "dead letters", number=True),
        Column("last", "last failure"),
        as_json=as_json,
        whole=found,
    )
