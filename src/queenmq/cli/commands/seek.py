"""`queen seek`: move a consumer group, to replay or to skip."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import click

from queenmq.cli import exits
from queenmq.cli.arguments import MOMENT, Kind, as_json, consent
from queenmq.cli.group import command as command_of
from queenmq.cli.operation import followed
from queenmq.cli.remote import connected, queue, require_group, require_queue, server
from queenmq.cli.show import confirm, plural, print_json
from queenmq.core.names import iso_micros

BEGINNING: Final = "1970-01-01T00:00:00Z"
_WORDS: Final = ("beginning", "end")


def _target(raw: str) -> str:
    if raw in _WORDS:
        return raw
    try:
        at: datetime = MOMENT.convert(raw, None, None)
    except click.BadParameter:
        raise ValueError(f"{raw!r} is neither beginning nor end nor an ISO 8601 timestamp") from None
    return iso_micros(at)


@command_of(
    "seek",
    "queen seek orders --group billing --to beginning",
    "queen seek orders --group billing --to 2026-01-02T03:04:05Z --partition customer-7 --yes",
)
@queue
@click.option("-g", "--group", required=True, metavar="NAME", help="Consumer group to move.")
@click.option(
    "--to",
    required=True,
    type=Kind("TARGET", _target),
    metavar="beginning|end|TIME",
    help="New position of the group; TIME is ISO 8601, in UTC unless it has an offset.",
)
@click.option("-p", "--partition", metavar="NAME", help="Move the group only in this partition.")
@consent
@as_json
@server
def command(queue: str, group: str, to: str, partition: str | None, yes: bool, as_json: bool, server: str) -> None:
    """Move a group in QUEUE to a time: messages pushed later are delivered (again), earlier ones are not.

    The leases of the group end.
    """
    with connected(server) as queen:
        require_queue(queen, queue)
        timestamp = None if to == "end" else BEGINNING if to == "beginning" else to
        target = f"{'the ' if to in _WORDS else ''}{to}"
        if not yes:
            effect = queen.admin.seek_effect(group, queue, timestamp=timestamp, to_end=to == "end", partition=partition)
            target += f", which {_effect(effect)}"
        confirm(f"Move group {group} in {partition or queue} to {target}?", yes)
        if partition is None:
            answer = followed(
                queen, queen.admin.seek_consumer_group(group, queue, timestamp=timestamp, to_end=to == "end")
            )
            moved = answer.get("partitionsUpdated", 0)
        else:
            answer = followed(
                queen, queen.admin.seek_partition(group, queue, partition, timestamp=timestamp, to_end=to == "end")
            )
            moved = int(answer.get("updated", False))
        if not moved:
            # Only now: a group that reads a partition by its name is not listed before the statistics know it.
            require_group(queen, group)
            raise exits.Failed(f"group {group} has no position in {partition or queue} yet", exits.NOT_FOUND)
    print_json(answer) if as_json else print(f"{group} is moved in {plural(moved, 'partition')} of {queue}")


def _effect(effect: Mapping[str, Any]) -> str:
    least = "at least " if effect["more"] else ""
    again, skipped = (plural(effect[name], "message") for name in ("deliveredAgain", "skipped"))
    return f"delivers {least}{again} again and skips {least}{skipped} unread"
