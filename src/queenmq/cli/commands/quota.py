"""`queen quota`: limit what the queues of a namespace may store, and how much may be asked for of them."""

from __future__ import annotations

import re
from typing import Final

import click

from queenmq.cli import exits
from queenmq.cli.arguments import COUNT, Kind, as_json, consent
from queenmq.cli.group import group, under
from queenmq.cli.remote import connected, server
from queenmq.cli.show import Column, confirm, count, listing, print_json

_UNITS: Final = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def _size(raw: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15}) ?([kMGT]?B|)", raw.strip())
    if found is None or int(found[1]) < 1:
        raise ValueError(f"{raw!r} is not a size such as 500MB, 20GB or 1000000")
    return int(found[1]) * _UNITS[found[2]]


SIZE: Final = Kind("SIZE", _size)


@group("quota", "queen quota set tenant-7 --messages 1000000 --bytes 20GB", "queen quota list", default="list")
def command() -> None:
    """Limit what the queues of a namespace may store, and how much may be asked for of them. Without a subcommand, list
    the quotas.

    A quota is for the queue that is called like the namespace, and for all whose names begin with it and a dot. What
    would exceed it gets 429."""


@under(
    command,
    "set",
    "queen quota set tenant-7 --messages 1000000 --bytes 20GB",
    "queen quota set tenant-7 --bytes 5GB --messages-per-second 1000 --long-polls 50",
)
@click.argument("namespace")
@click.option("--messages", type=COUNT, metavar="N", help="Messages, dead letters and timers that may be stored.")
@click.option("--bytes", "size", type=SIZE, help="Bytes that their payloads may take, such as 20GB.")
@click.option("--requests-per-second", type=COUNT, metavar="N", help="Requests that name its queues, at each worker.")
@click.option("--messages-per-second", type=COUNT, metavar="N", help="Messages that are pushed, at each worker.")
@click.option("--long-polls", type=COUNT, metavar="N", help="Long polls at a time, at each worker.")
@as_json
@server
def set_(
    namespace: str,
    messages: int | None,
    size: int | None,
    requests_per_second: int | None,
    messages_per_second: int | None,
    long_polls: int | None,
    as_json: bool,
    server: str,
) -> None:
    """Set the quota of a namespace, or replace it as a whole. What is stored already stays."""
    bounds = {
        "maxMessages": messages,
        "maxBytes": size,
        "requestsPerSecond": requests_per_second,
        "messagesPerSecond": messages_per_second,
        "longPolls": long_polls,
    }
    given = {key: value for key, value in bounds.items() if value is not None}
    if not given:
        raise exits.Failed("say how much, for example --messages or --bytes", exits.USAGE)
    with connected(server) as queen:
        answer = queen.admin.set_quota(namespace, **given)
    if as_json:
        print_json(answer)
    else:
        print(f"quota of {namespace} is set; {count(answer['messages'])} messages are stored")


@under(command, "list", "queen quota list")
@as_json
@server
def list_(as_json: bool, server: str) -> None:
    """List quotas, and how much of them is used. The figures are some seconds old; bytes are an estimate."""
    with connected(server) as queen:
        rows = queen.admin.list_quotas()["quotas"]
    listing(
        rows,
        "no quotas",
        Column("namespace"),
        Column("messages", number=True),
        Column("maxMessages", "of at most", number=True),
        Column("bytes", number=True),
        Column("maxBytes", "of at most", number=True),
        Column("requestsPerSecond", "requests/s", number=True),
        Column("messagesPerSecond", "messages/s", number=True),
        Column("longPolls", "long polls", number=True),
        as_json=as_json,
    )


@under(command, "remove", "queen quota remove tenant-7 --yes")
@click.argument("namespace")
@consent
@as_json
@server
def remove(namespace: str, yes: bool, as_json: bool, server: str) -> None:
    """Remove the quota of a namespace."""
    confirm(f"Remove the quota of {namespace}? Nothing limits its queues then but what limits all.", yes)
    with connected(server) as queen:
        answer = queen.admin.remove_quota(namespace)
    print_json(answer) if as_json else print(f"quota of {namespace} is removed")
