"""`queen find`: queues, groups, partitions and messages by what is remembered of them."""

from __future__ import annotations

import click

from queenmq.cli import exits
from queenmq.cli.arguments import COUNT, as_json
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, server
from queenmq.cli.show import Column, note, print_json, table


@command_of("find", "queen find order-312", "queen find webhooks.out/customer-7", "queen find country:IT")
@click.argument("text")
@click.option("--limit", type=COUNT, default=20, show_default=True, metavar="N", help="Maximum results of each kind.")
@as_json
@server
def command(text: str, limit: int, as_json: bool, server: str) -> int:
    """Find what has TEXT in its name: queues, groups and partitions; and messages whose transactionId begins with TEXT,
    or that have the header TEXT, as NAME:VALUE.

    Partitions are also found as QUEUE/PARTITION. The exit status is 3 if nothing is found.
    """
    with connected(server) as queen:
        found = queen.admin.find(text, limit=limit)
    rows = [
        *({"kind": "queue", "name": one["name"]} for one in found["queues"]),
        *({"kind": "group", "name": one["name"], "where": one["queue"]} for one in found["groups"]),
        *({"kind": "partition", "name": one["name"], "where": one["queue"]} for one in found["partitions"]),
        *(
            {"kind": "message", "name": one["transactionId"], "where": f"{one['queue']}/{one['partition']}"}
            for one in found["messages"]
        ),
    ]
    if as_json:
        print_json(found)
    elif rows:
        table(rows, Column("kind"), Column("name"), Column("where", "in"))
    if not rows:
        note(f"nothing was found for {text!r}")
    if not found["complete"]:
        note("Not every message was examined; `queen db index` makes an index with which they are.")
    return exits.OK if rows else exits.NOT_FOUND
