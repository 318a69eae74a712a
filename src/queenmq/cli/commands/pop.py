"""`queen pop`: print messages of a queue, one a line."""

from __future__ import annotations

import sys
from shlex import quote
from typing import TYPE_CHECKING

import click

from queenmq.cli import exits, lines
from queenmq.cli.arguments import AMOUNT, COUNT, as_json
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, queue, require_queue, server
from queenmq.cli.show import note, plural

if TYPE_CHECKING:
    from queenmq.client import BlockingQueen, Message


@command_of(
    "pop",
    "queen pop orders --group billing --ack",
    "queen pop orders --group billing --batch 100 --wait 30 --json > popped.ndjson && queen ack --file popped.ndjson",
)
@queue
@click.option(
    "-g",
    "--group",
    metavar="NAME",
    help="Consumer group to pop as (default: the group that all pops without a name share).",
)
@click.option("-p", "--partition", metavar="NAME", help="Pop only from this partition.")
@click.option("--batch", type=COUNT, default=1, show_default=True, metavar="N", help="Maximum number of messages.")
@click.option(
    "--partitions",
    type=COUNT,
    default=1,
    show_default=True,
    metavar="N",
    help="Maximum number of partitions to pop from.",
)
@click.option(
    "--wait", type=AMOUNT, metavar="S", help="Wait up to this many seconds for a message (default: do not wait)."
)
@click.option("--ack", is_flag=True, help="Acknowledge the messages as completed after printing them.")
@click.option(
    "--from-now",
    is_flag=True,
    help="If the group is new to the queue, start at new messages instead of the oldest one.",
)
@as_json
@server
def command(
    queue: str,
    group: str | None,
    partition: str | None,
    batch: int,
    partitions: int,
    wait: float | None,
    ack: bool,
    from_now: bool,
    as_json: bool,
    server: str,
) -> int:
    """Pop messages from QUEUE.

    The messages are leased. A message that is not acknowledged before its lease ends, with --ack or `queen ack`, is
    delivered again. The exit status is 4 if there was no message.
    """
    with connected(server) as queen:
        sentence = queen.queue(queue).batch(batch).partitions(partitions).wait(wait is not None)
        if wait is not None:
            sentence.timeout_millis(max(1, int(wait * 1000)))
        if group is not None:
            sentence.group(group)
        if partition is not None:
            sentence.partition(partition)
        if from_now:
            sentence.subscription_mode("new")
        messages = sentence.pop()
        if not messages:
            return _nothing(queen, queue, partition, group)
        for message in messages:
            print(lines.popped(message, as_json))
        sys.stdout.flush()
        if ack:
            return _acknowledge(queen, messages)
        if not as_json:
            _hint(messages)
    return exits.OK


def _nothing(queen: BlockingQueen, queue: str, partition: str | None, group: str | None) -> int:
    require_queue(queen, queue)
    if partition and queen.admin.explain(queue, partition, group)["reason"] == "partition_unknown":
        raise exits.Failed(
            f"{queue} has no partition {partition!r}; `queen partitions {quote(queue)}` lists them", exits.NOT_FOUND
        )
    told = f" --partition {quote(partition)}" if partition else ""
    told += f" --group {quote(group)}" if group else ""
    note(f"queen: no message to deliver; `queen explain {quote(queue)}{told}` says why")
    return exits.NOTHING_CAME


def _acknowledge(queen: BlockingQueen, messages: list[Message]) -> int:
    refused = [result for result in queen.ack(messages) if not result.success]
    if refused:
        raise exits.Failed(f"{plural(len(refused), 'acknowledgement')} refused: {refused[0].error}")
    return exits.OK


def _hint(messages: list[Message]) -> None:
    first = messages[0]
    group = f" --group {quote(first.consumer_group)}" if first.consumer_group else ""
    note(
        f"Leased. To acknowledge{' the first' if len(messages) > 1 else ''}: "
        f"queen ack {first.partition_id} {quote(first.transaction_id)} --lease {first.lease_id}{group}"
    )
