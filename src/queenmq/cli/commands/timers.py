"""`queen timers`: messages that are pushed at a later moment."""

from __future__ import annotations

from datetime import datetime

import click
import msgspec

from queenmq.cli import exits, lines
from queenmq.cli.arguments import COUNT, DURATION, MOMENT, as_json, headers
from queenmq.cli.group import group, under
from queenmq.cli.remote import connected, queue, server
from queenmq.cli.show import Column, listing, moment, print_json


@group("timers", "queen timers list orders", "queen timers cancel orders expire-17")
def command() -> None:
    """List, set and cancel timers of a queue."""


@under(command, "list", "queen timers list orders")
@queue
@click.option("--limit", type=COUNT, default=100, show_default=True, metavar="N", help="Maximum number of timers.")
@as_json
@server
def list_(queue: str, limit: int, as_json: bool, server: str) -> None:
    """List the timers of QUEUE that wait for their moment, by key."""
    with connected(server) as queen:
        rows = [msgspec.to_builtins(timer) for timer in queen.queue(queue).timers(limit)]
    listing(
        rows,
        f"no timers wait in {queue}",
        Column("timerKey", "key"),
        Column("partition"),
        Column("deliverAt", "due", written=moment),
        Column("schedule"),
        Column("timeZone", "time zone"),
        Column("attempts", "failed attempts", number=True),
        Column("lastError", "last error"),
        as_json=as_json,
    )


@under(
    command,
    "set",
    """queen timers set orders expire-17 '{"order": 17}' --in 30m""",
    """queen timers set reports daily '{}' --cron '0 9 * * 1-5' --time-zone Europe/Rome""",
)
@queue
@click.argument("key")
@click.argument("payload", metavar="JSON")
@click.option("-p", "--partition", default="Default", show_default=True, help="Partition to push to.")
@headers
@click.option("--in", "delay", type=DURATION, help="Push it after this time, such as 90s or 2h.")
@click.option("--at", type=MOMENT, help="Push it at this time (ISO 8601; UTC if it has no offset).")
@click.option("--cron", "schedule", metavar="SCHEDULE", help="Push it repeatedly: a cron expression, or '@every 10m'.")
@click.option(
    "--time-zone", metavar="NAME", help="Time zone of the cron expression, such as Europe/Rome; UTC if it is not given."
)
@as_json
@server
def set_(
    queue: str,
    key: str,
    payload: str,
    partition: str,
    headers: tuple[tuple[str, str], ...],
    delay: float | None,
    at: datetime | None,
    schedule: str | None,
    time_zone: str | None,
    as_json: bool,
    server: str,
) -> None:
    """Have the JSON pushed to QUEUE later. A timer that has the same KEY is replaced."""
    if sum(given is not None for given in (delay, at, schedule)) != 1:
        raise exits.Failed("say when: one of --in, --at and --cron", exits.USAGE)
    lines.check_json(payload, "the payload")
    with connected(server) as queen:
        timer = (
            queen.queue(queue)
            .partition(partition)
            .schedule(
                msgspec.Raw(payload.encode()),
                key=key,
                delay=delay,
                at=at,
                schedule=schedule,
                time_zone=time_zone,
                headers=dict(headers),
            )
        )
    if as_json:
        print_json(msgspec.to_builtins(timer))
    else:
        print(f"{timer.status}: {key} is pushed to {queue} at {timer.deliver_at}")


@under(command, "cancel", "queen timers cancel orders expire-17")
@queue
@click.argument("key")
@as_json
@server
def cancel(queue: str, key: str, as_json: bool, server: str) -> None:
    """Cancel the timer KEY of QUEUE."""
    with connected(server) as queen:
        timer = queen.queue(queue).cancel(key)
    if as_json:
        print_json(msgspec.to_builtins(timer))
    if timer.status == "absent":
        raise exits.Failed(f"{queue} has no timer {key}: it was pushed or cancelled before", exits.NOT_FOUND)
    if not as_json:
        print(f"cancelled: {key}")
