"""`queen leases`: who holds what was delivered, and how to take it back from a consumer that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from queenmq.cli import exits
from queenmq.cli.arguments import COUNT, as_json, consent
from queenmq.cli.group import group, under
from queenmq.cli.remote import connected, queue, queue_option, require_queue, server
from queenmq.cli.show import Column, confirm, consumer, listing, moment, plural, print_json
from queenmq.core.names import QUEUE_MODE

if TYPE_CHECKING:
    from queenmq.client import BlockingQueen

_REASON = "The lease was released by `queen leases release`"


@group(
    "leases",
    "queen leases list orders",
    "queen leases release --queue orders --partition customer-7 --group billing",
)
def command() -> None:
    """List who holds messages of a queue, and release leases of consumers that are gone."""


@under(command, "list", "queen leases list orders", "queen leases list orders --group billing")
@queue
@click.option("-g", "--group", metavar="NAME", help="List only leases of this group.")
@click.option("--limit", type=COUNT, default=100, show_default=True, metavar="N", help="Maximum number of partitions.")
@as_json
@server
def list_(queue: str, group: str | None, limit: int, as_json: bool, server: str) -> None:
    """List the partitions of QUEUE that a group holds under a lease, and by whom; the one held longest comes first."""
    with connected(server) as queen:
        require_queue(queen, queue)
        found = queen.admin.get_partition_heads(queue, state="leased", group=group, limit=limit)["partitions"]
    rows = [
        {"partition": place["name"], "who": consumer(one["heldBy"])} | one
        for place in found
        for one in place["groups"]
        if one["leaseId"]
    ]
    listing(
        rows,
        f"no lease is open in {queue}",
        Column("partition"),
        Column("name", "group"),
        Column("who", "held by"),
        Column("leasedAt", "since", written=moment),
        Column("leaseExpiresAt", "until", written=moment),
        Column("leased", "messages", number=True),
        Column("leaseId", "lease"),
        as_json=as_json,
    )


@under(
    command,
    "release",
    "queen leases release --queue orders --partition customer-7 --group billing",
    "queen leases release 01890a5d-ac96-774b-bcce-b302099a8057 --yes",
)
@click.argument("leases", nargs=-1, metavar="[LEASE]...")
@queue_option
@click.option("-p", "--partition", metavar="NAME", help="Release the lease on this partition of --queue.")
@click.option(
    "-g", "--group", metavar="NAME", help="Consumer group that holds the partition (default: pops without a group)."
)
@consent
@as_json
@server
def release(
    leases: tuple[str, ...],
    queue: str | None,
    partition: str | None,
    group: str | None,
    yes: bool,
    as_json: bool,
    server: str,
) -> None:
    """End leases by their ids, or the one that a group holds on a partition: its consumer is gone.

    What was delivered under a lease and is not finished, in all of its partitions, is delivered again to the consumer
    that pops next, and does not count as failed. If its own consumer is still at work, that is done twice, and its
    acknowledgements are refused. The exit status is 3 if there is no such lease any more.
    """
    if bool(leases) == (queue is not None and partition is not None) or (leases and (queue or partition or group)):
        raise click.UsageError("give the ids of leases, or --queue and --partition, and --group if there is one")
    with connected(server) as queen:
        if queue is not None and partition is not None:
            leases = (_held(queen, queue, partition, group or QUEUE_MODE),)
        confirm(f"Release {plural(len(leases), 'lease')}? What they hold is delivered again.", yes)
        released = [queen.admin.release_lease(lease, error=_REASON) for lease in leases]
    if as_json:
        print_json(released)
        return
    for one in released:
        print(f"lease {one['leaseId']} has ended; {plural(one['messages'], 'message')} will be delivered again")


def _held(queen: BlockingQueen, queue: str, partition: str, group: str) -> str:
    """The live lease of the group on the partition."""
    require_queue(queen, queue)
    found: Any = queen.admin.explain(queue, partition, group)
    if found["reason"] == "partition_unknown":
        raise exits.Failed(found["explanation"], exits.NOT_FOUND)
    [place] = found["partitions"] or [None]
    if place is None or not place["leaseId"]:
        who = "a pop without a group" if group == QUEUE_MODE else f"group {group}"
        raise exits.Failed(
            f"{who} holds no lease on {partition}; `queen leases list {queue}` says who does", exits.NOT_FOUND
        )
    return str(place["leaseId"])
