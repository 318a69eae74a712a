"""`queen explain`: why a group gets no messages, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import click

from queenmq.cli import exits
from queenmq.cli.arguments import as_json
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, no_queue, queue, server
from queenmq.cli.show import attempt, consumer, moment, note, plural, print_json
from queenmq.core.names import QUEUE_MODE

if TYPE_CHECKING:
    from queenmq.client import BlockingQueen

_UNKNOWN = ("queue_unknown", "partition_unknown")
_MOST_GROUPS: Final = 50
# What nobody but a person ends comes first, what ends by itself later, and last where there is nothing to do.
_WORST_FIRST: Final = (
    *_UNKNOWN,
    "parked",
    "exhausted",
    "paused",
    "retry_pause",
    "backpressure",
    "filtered",
    "deliverable",
    "limited",
    "leased",
    "expired",
    "delayed",
    "window_open",
    "group_never_started",
    "end_reached",
)


@command_of("explain", "queen explain orders", "queen explain orders --partition customer-7 --group billing")
@queue
@click.option("-p", "--partition", metavar="NAME", help="Explain only this partition.")
@click.option("-g", "--group", metavar="NAME", help="Consumer group to explain (default: all, the worst first).")
@as_json
@server
def command(queue: str, partition: str | None, group: str | None, as_json: bool, server: str) -> int:
    """Explain why a group gets no messages from QUEUE, and what to do about it.

    Without --group, each group of the queue is explained, the worst first, and --json prints a list. The exit status is
    3 if the queue or partition does not exist.
    """
    with connected(server) as queen:
        found = _explained(queen, queue, partition, group)
        if as_json:
            print_json(found if group is None else found[0])
        elif found[0]["reason"] == "queue_unknown":
            no_queue(queen, queue)
        else:
            for number, one in enumerate(found):
                if number:
                    print()
                if len(found) > 1:
                    print(exits.plain(f"{_who(one).capitalize()}: {one['state'].lower()}"))
                _tell(one, group)
            if len(found) == _MOST_GROUPS:
                note(f"There are more groups than these {_MOST_GROUPS}; `queen groups --queue {queue}` lists all.")
    return exits.NOT_FOUND if found[0]["reason"] in _UNKNOWN else exits.OK


def _explained(
    queen: BlockingQueen, queue: str, partition: str | None, group: str | None
) -> Sequence[Mapping[str, Any]]:
    """What the server says of this group; without one, of each group that reads the queue, the worst first."""
    likeliest = queen.admin.explain(queue, partition, group)
    if group is not None or len(likeliest["groups"]) < 2:
        return [likeliest]
    found = [queen.admin.explain(queue, partition, name) for name in likeliest["groups"][:_MOST_GROUPS]]
    return sorted(found, key=_rank)


def _rank(one: Mapping[str, Any]) -> tuple[int, int]:
    """By reason, then by unread messages. A reason of a newer server comes first."""
    place = _WORST_FIRST.index(one["reason"]) if one["reason"] in _WORST_FIRST else -1
    return place, -sum(partition["unread"] for partition in one["partitions"])


def _tell(found: Mapping[str, Any], asked: str | None) -> None:
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
    places = found["partitions"]
    if len(places) == 1:
        for sentence in _seen(places[0]):
            print(exits.plain(sentence))
    elif places:
        print()
        for place in places:
            print(exits.plain(" ".join([f"- {place['partition']}: {place['explanation']}", *_seen(place)])))
    waiting = plural(found["waiters"], "long poll")
    note(f"({_who(found)}; {waiting} of the queue on this server)")


def _who(found: Mapping[str, Any]) -> str:
    return "pops without a group" if found["consumerGroup"] == QUEUE_MODE else f"group {found['consumerGroup']}"


def _seen(place: Mapping[str, Any]) -> list[str]:
    """Who holds the partition, and how its head failed last."""
    told = []
    if place["leaseId"]:
        since = f" since {moment(place['leasedAt'])}" if place["leasedAt"] else ""
        told.append(f"The lease is held by {consumer(place['heldBy'])}{since}.")
    if last := place["lastAttempt"]:
        told.append(f"Last failure: {attempt(last)} ({consumer(last['consumer'])}, {moment(last['endedAt'])}).")
    return told
