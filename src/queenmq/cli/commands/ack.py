"""`queen ack`: acknowledge messages that were popped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import click

from queenmq.cli import exits, lines
from queenmq.cli.arguments import as_json
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, server
from queenmq.cli.show import plural, print_json

if TYPE_CHECKING:
    from queenmq.client import Message
    from queenmq.client.options import AckStatus

STATUSES: Final = ("completed", "success", "failed", "retry", "dlq")


@command_of(
    "ack",
    "queen ack --file popped.ndjson",
    "queen ack 01890a5d-ac96-774b-bcce-b302099a8057 order-17 --lease 01890a5d-… --group billing",
    "queen ack --file popped.ndjson --status failed --error 'the bank was closed'",
)
@click.argument("partition_id", required=False)
@click.argument("transaction_id", required=False)
@click.option("--lease", default="", metavar="ID", help="Lease under which the message was popped.")
@click.option("-g", "--group", metavar="NAME", help="Consumer group that popped the message.")
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, allow_dash=True),
    help="File with messages in the form that pop prints with --json; - reads standard input.",
)
@click.option(
    "--status",
    type=click.Choice(STATUSES),
    default="completed",
    show_default=True,
    help="Result to report for the messages.",
)
@click.option("--error", metavar="TEXT", help="Reason of the failure, stored with the message.")
@as_json
@server
def command(
    partition_id: str | None,
    transaction_id: str | None,
    lease: str,
    group: str | None,
    file: Path | None,
    status: AckStatus,
    error: str | None,
    as_json: bool,
    server: str,
) -> int:
    """Acknowledge one message by its ids, or all messages that `queen pop --json` wrote to a file.

    The exit status is 1 if the server refuses one of them, for example because its lease has expired.
    """
    from queenmq.client import Message

    if file is not None and partition_id is None:
        messages = _read(file)
    elif file is None and partition_id is not None and transaction_id is not None:
        messages = [Message(id="", transaction_id=transaction_id, partition_id=partition_id, lease_id=lease)]
    else:
        raise click.UsageError("give PARTITION_ID and TRANSACTION_ID, or --file")
    with connected(server) as queen:
        results = queen.ack(messages, status, group=group, error=error)
    refused = [result for result in results if not result.success]
    if as_json:
        print_json(
            [{"transactionId": r.transaction_id, "success": r.success, "error": r.error, "dlq": r.dlq} for r in results]
        )
    else:
        print(f"{plural(len(results) - len(refused), 'message')} acknowledged as {status}")
    if refused:
        raise exits.Failed(f"{plural(len(refused), 'acknowledgement')} refused: {refused[0].error}")
    return exits.OK


def _read(file: Path) -> list[Message]:
    if str(file) == "-":
        return _messages(sys.stdin.buffer, "standard input")
    try:
        with file.open("rb") as opened:
            return _messages(opened, str(file))
    except OSError as error:
        raise exits.Failed(f"{file} cannot be read: {error.strerror}", exits.USAGE) from None


def _messages(opened: IO[bytes], where: str) -> list[Message]:
    from queenmq.client import Message

    messages = []
    for line in lines.read(opened):
        told = lines.message(line, where)
        if not told.partition_id or not told.transaction_id:
            raise exits.Failed(f"line {line.number} of {where} has no partitionId and transactionId", exits.USAGE)
        messages.append(
            Message(
                id="",
                transaction_id=told.transaction_id,
                partition_id=told.partition_id,
                lease_id=told.lease_id,
                consumer_group=told.consumer_group,
            )
        )
    return messages
