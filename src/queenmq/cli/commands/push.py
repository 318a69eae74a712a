"""`queen push`: messages from the command line, from a file or from standard input."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click
from msgspec import UNSET, Raw

from queenmq.cli import exits, lines
from queenmq.cli.arguments import COUNT, DURATION, MOMENT, as_json, headers
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, queue, server
from queenmq.cli.show import note, plural, print_json, pushing

if TYPE_CHECKING:
    from queenmq.client import BlockingQueen, Item, PushResult

_BATCH: Final = 500
_MOST_BYTES: Final = 4 * 1024 * 1024
_ATTEMPTS: Final = 8
_STATUSES: Final = ("queued", "duplicate", "accepted", "buffered", "scheduled")


@command_of(
    "push",
    """queen push orders '{"id": 1}' --partition customer-7""",
    """queen push reminders '{"order": 17}' --delay 30m""",
    "queen push orders --file orders.ndjson --once import-17",
    "queen tail orders --last 100 --limit 100 --json | queen push copy --file - --messages",
)
@queue
@click.argument("payloads", nargs=-1, metavar="[JSON]...")
@click.option("-p", "--partition", default="Default", show_default=True, help="Partition to push to.")
@click.option("--transaction-id", metavar="ID", help="Key of the message: a partition stores each key once.")
@click.option(
    "--expect-last-offset",
    "expected",
    type=click.IntRange(0),
    metavar="N",
    help="Push only if this is the last offset of the partition; 0 if it must be new.",
)
@headers
@click.option("--delay", type=DURATION, help="Push after this time, such as 90s or 2h: until then it is a timer.")
@click.option("--deliver-at", "at", type=MOMENT, help="Push at this time (ISO 8601; UTC if it has no offset).")
@click.option("--text", is_flag=True, help="Push the arguments as plain text instead of JSON.")
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Push each line of this file as one message (NDJSON); - reads standard input.",
)
@click.option(
    "--messages", is_flag=True, help="Read lines as messages in the form that pop and tail print with --json."
)
@click.option(
    "--once", metavar="NAME", help="Name of this import: repeating the command with the same name stores nothing twice."
)
@click.option(
    "--batch",
    type=COUNT,
    default=_BATCH,
    show_default=True,
    metavar="N",
    help="Maximum number of lines in one request.",
)
@as_json
@server
def command(
    queue: str,
    payloads: tuple[str, ...],
    partition: str,
    transaction_id: str | None,
    expected: int | None,
    headers: tuple[tuple[str, str], ...],
    delay: float | None,
    at: datetime | None,
    text: bool,
    file: Path | None,
    messages: bool,
    once: str | None,
    batch: int,
    as_json: bool,
    server: str,
) -> int:
    """Push messages to QUEUE. The first push creates the queue.

    Each JSON argument is one message. Without arguments, messages are read from --file or standard input, one a line.
    If an answer is lost, the push is repeated with the same transactionIds, so nothing is stored twice. If a file
    cannot be pushed to its end, the error says how to resume. What is pushed later (--delay, --deliver-at) waits as a
    timer: `queen timers list` shows it, `queen timers set` makes one with a key or a schedule.
    """
    if delay is not None and at is not None:
        raise click.UsageError("say when to push with --delay or with --deliver-at, not with both")
    if payloads:
        if file is not None or messages or once:
            raise click.UsageError("give messages as arguments or with --file, not both")
        items = _items(_parsed(payloads, text), transaction_id, dict(headers))
        given = [replace(item, delay=delay, at=at) for item in items]
        return _push_arguments(server, queue, partition, given, expected, as_json)
    if transaction_id or text or headers or expected is not None:
        raise click.UsageError(
            "--transaction-id, --expect-last-offset, --header and --text apply only to messages given as arguments"
        )
    if file is None and sys.stdin.isatty():
        raise click.UsageError("there is nothing to push: give JSON arguments or --file")
    return _push_file(
        server,
        _File(
            queue=queue,
            partition=partition,
            path=file,
            are_messages=messages,
            once=once,
            batch=batch,
            delay=delay,
            at=at,
        ),
        as_json,
    )


def _parsed(payloads: Iterable[str], text: bool) -> list[Any]:
    if text:
        return list(payloads)
    for payload in payloads:
        try:
            lines.check_json(payload, repr(payload))
        except exits.Failed as error:
            raise exits.Failed(f"{error.message}; use --text to push plain text", error.status) from None
    return [Raw(payload.encode()) for payload in payloads]


def _items(payloads: list[Any], transaction_id: str | None, headers: dict[str, str]) -> list[Item]:
    from queenmq.client import Item

    if transaction_id is not None and len(payloads) > 1:
        raise click.UsageError("--transaction-id can be used with one message only")
    return [Item(payload, transaction_id=transaction_id, headers=headers) for payload in payloads]


def _push_arguments(
    server: str, queue: str, partition: str, items: list[Item], expected: int | None, as_json: bool
) -> int:
    with connected(server, retry_attempts=_ATTEMPTS if items[0].transaction_id else 3) as queen:
        results = queen.queue(queue).partition(partition).push(items, expected_last_offset=expected)
    if as_json:
        print_json([_as_json(result) for result in results])
    else:
        print(_summary(Counter(result.status for result in results), queue))
    return exits.OK


def _as_json(result: PushResult) -> dict[str, Any]:
    fields = {
        "transactionId": result.transaction_id,
        "status": result.status,
        "messageId": result.message_id,
        "partitionId": result.partition_id,
        "offset": result.offset,
        "operationId": result.operation_id,
        "timerKey": result.timer_key,
        "deliverAt": result.deliver_at,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _summary(statuses: Counter[str], queue: str) -> str:
    """The numbers of messages by status, as one sentence."""
    parts = []
    if statuses["queued"] or not statuses["scheduled"]:
        parts.append(f"{plural(statuses['queued'], 'message')} pushed to {queue}")
    if statuses["scheduled"]:
        parts.append(f"{plural(statuses['scheduled'], 'message')} to be pushed later (`queen timers list {queue}`)")
    if statuses["duplicate"]:
        parts.append(f"{plural(statuses['duplicate'], 'message')} had been pushed before")
    if later := statuses["accepted"] + statuses["buffered"]:
        parts.append(f"{plural(later, 'message')} accepted on disk and stored later (`queen operations`)")
    return "; ".join(parts)


@dataclass(frozen=True, kw_only=True)
class _File:
    queue: str
    partition: str
    path: Path | None
    are_messages: bool
    once: str | None
    batch: int
    delay: float | None
    at: datetime | None

    @property
    def name(self) -> str:
        return "standard input" if self.path is None or str(self.path) == "-" else str(self.path)

    def open(self) -> IO[bytes]:
        if self.path is None or str(self.path) == "-":
            return sys.stdin.buffer
        try:
            return self.path.open("rb")
        except OSError as error:
            raise exits.Failed(f"{self.path} cannot be read: {error.strerror}", exits.USAGE) from None

    def size(self) -> int | None:
        """In bytes, if it is known before it is read."""
        return self.path.stat().st_size if self.path is not None and self.path.is_file() else None


def _push_file(server: str, file: _File, as_json: bool) -> int:
    from queenmq.client import QueenError
    from queenmq.ids import uuid7_text

    run = file.once or uuid7_text()
    statuses: Counter[str] = Counter()

    def stopped() -> str:
        done = plural(statuses.total(), "message")
        return f"stopped after {done} of {file.name}; repeat the command with --once {run} to resume without duplicates"

    try:
        with (
            file.open() as opened,
            connected(server, retry_attempts=_ATTEMPTS) as queen,
            pushing(file.size()) as advance,
        ):
            for batch in _batches(lines.read(opened), file.batch):
                _push_lines(queen, file, run, batch, statuses)
                advance(len(batch), sum(len(line.text) + 1 for line in batch))
    except exits.Failed as error:
        # Say how to resume only if the server has, or may have, stored a part of the file.
        unsent = not statuses and not isinstance(error.__cause__, QueenError)
        raise exits.Failed(error.message if unsent else f"{error.message}; {stopped()}", error.status) from None
    except KeyboardInterrupt:
        note(f"queen: {stopped()}")
        raise
    if as_json:
        done = {"queue": file.queue, "lines": statuses.total(), "once": run}
        print_json(
            done | {name: statuses[name] for name in ("queued", "duplicate", "accepted", "buffered", "scheduled")}
        )
    else:
        print(_summary(statuses, file.queue))
    return exits.OK


def _batches(given: Iterator[lines.Line], most: int) -> Iterator[list[lines.Line]]:
    batch: list[lines.Line] = []
    size = 0
    for line in given:
        if batch and (len(batch) == most or size + len(line.text) > _MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line.text)
    if batch:
        yield batch


def _push_lines(queen: BlockingQueen, file: _File, run: str, batch: list[lines.Line], statuses: Counter[str]) -> None:
    """Parse the whole batch, then push it: one request for each partition, in the order of its lines."""
    by_partition: dict[str, list[Item]] = {}
    for line in batch:
        partition, item = _item(file, run, line)
        by_partition.setdefault(partition, []).append(replace(item, delay=file.delay, at=file.at))
    for partition, items in by_partition.items():
        results = queen.queue(file.queue).partition(partition).push(items)
        statuses.update(result.status for result in results)


def _item(file: _File, run: str, line: lines.Line) -> tuple[str, Item]:
    from queenmq.client import Item

    own = f"{run}-{line.number}"
    if not file.are_messages:
        lines.check_json(line.text, f"line {line.number} of {file.name}")
        return file.partition, Item(Raw(line.text), transaction_id=own)
    message = lines.message(line, file.name)
    if message.data is UNSET:
        raise exits.Failed(f"line {line.number} of {file.name} has no data", exits.USAGE)
    item = Item(message.data, transaction_id=message.transaction_id or own, headers=message.headers)
    return message.partition or file.partition, item
