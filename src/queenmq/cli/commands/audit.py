"""`queen audit`: the audit log."""

from __future__ import annotations

from datetime import datetime

import click

from queenmq.cli.arguments import COUNT, MOMENT, as_json
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, server
from queenmq.cli.show import Column, listing, moment


@command_of("audit", "queen audit", "queen audit --action DELETE --from 2026-11-01", "queen audit --status 403 --json")
@click.option("--subject", help="Show only entries of this subject: of a token, its name.")
@click.option("--action", help="Show only actions that contain this text, such as DELETE or seek.")
@click.option("--status", type=COUNT, metavar="CODE", help="Show only entries with this status.")
@click.option("--from", "since", type=MOMENT, help="Show only entries at or after this time.")
@click.option("--to", "until", type=MOMENT, help="Show only entries at or before this time.")
@click.option("--limit", type=COUNT, default=100, show_default=True, metavar="N", help="Maximum number of entries.")
@as_json
@server
def command(
    subject: str | None,
    action: str | None,
    status: int | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    as_json: bool,
    server: str,
) -> None:
    """Show who has changed or was refused what, newest first. Refusals (401 and 403) appear after a minute."""
    wanted = {"subject": subject, "action": action, "status": status, "limit": limit}
    times = {name: value.isoformat() for name, value in (("from_", since), ("to", until)) if value is not None}
    with connected(server) as queen:
        rows = queen.admin.get_audit_log(**wanted, **times)["entries"]
    listing(
        rows,
        "no entries",
        Column("at", written=moment),
        Column("subject"),
        Column("role"),
        Column("address"),
        Column("action"),
        Column("target"),
        Column("status"),
        Column("count", number=True),
        Column("error"),
        as_json=as_json,
    )
