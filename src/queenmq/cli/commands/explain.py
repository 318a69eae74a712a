"""`queen explain`: why a group gets no messages, in sentences."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import click

from queenmq.cli import exits
from queenmq.cli.arguments import as_json
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, no_queue, queue, server
from queenmq.cli.show import moment, note, plural, print_json
from queenmq.core.names import QUEUE_MODE

_UNKNOWN = ("queue_unknown", "partition_unknown")


@command_of("explain", "queen explain orders --partition customer-7 --group billing")
@queue
@click.option("-p", "--partition", metavar="NAME", help="Explain only this partition.")
@click.option(
    "-g",
    "--group",
    metavar="NAME",
    help="Consumer group to explain (default: the only one, or that of pops without a group).",
)
@as_json
@server
def command(queue: str, partition: str | None, group: str | None, as_json: bool, server: str) -> int:
    """Explain why a group gets no messages from QUEUE, and what to do about it.

    The exit status is 3 if the queue or partition does not exist.
    """
    with connected(server) as queen:
        found: dict[str, Any] = queen.admin.explain(queue, partition, group)
        if as_json:
            print_json(found)
        elif found["reason"] == "queue_unknown":
            no_queue(queen, queue)
        else:
            _tell(found, group)
    return exits.NOT_FOUND if found["reason"] in _UNKNOWN else exits.OK


def _tell(found: dict[str, Any], asked: str | None) -> None:
    print(exits.plain(found["explanation"]))
    if found["advice"]:
        print(exits.plain(found["advice"]))
    if found["until"]:
        print(f"This ends by itself at {moment(found['until'])}.")
    if (
        asked is not None
        and found["reason"] == "group_never_started"
        and (near := get_close_matches(asked, found["groups"], 1))
    ):
        print(f"Did you mean group {near[0]!r}?")
    if len(found["partitions"]) > 1:
        print()
        for place in found["partitions"]:
            print(exits.plain(f"- {place['partition']}: {place['explanation']}"))
    waiting = plural(found["waiters"], "long poll")
    who = "pops without a group" if found["consumerGroup"] == QUEUE_MODE else f"group {found['consumerGroup']}"
    note(f"({who}; {waiting} of the queue on this server)")
