"""`queen groups`: consumer groups, their queues and their lag."""

from __future__ import annotations

import click

from queenmq.cli.arguments import COUNT, as_json, consent
from queenmq.cli.group import group, under
from queenmq.cli.remote import connected, note_new_group, queue, queue_option, require_group, require_queue, server
from queenmq.cli.show import Column, confirm, consumer, listing, moment, note, plural, print_json, rate, seconds
from queenmq.cli.standing import unlisted
from queenmq.core.names import QUEUE_MODE

_MOST = 10_000
_LAG = (
    Column("state"),
    Column("unread", number=True),
    Column("offsetLag", "due", number=True),
    Column("timeLagSeconds", "lag", number=True, written=seconds),
)


@group("groups", "queen groups", "queen groups show billing", "queen groups lagging --least 300", default="list")
def command() -> None:
    """List, show and delete consumer groups. Without a subcommand, list them."""


@under(command, "list", "queen groups --queue orders", "queen groups --only behind --sort lag")
@queue_option
@click.option(
    "--only",
    type=click.Choice(("unread", "due", "behind", "leased", "failing", "dead_letters")),
    help="List only groups of which this is true.",
)
@click.option(
    "--sort",
    type=click.Choice(("lag", "unread", "leased", "failing", "dead_letters")),
    help="List the worst first, instead of by name.",
)
@as_json
@server
def list_(queue: str | None, only: str | None, sort: str | None, as_json: bool, server: str) -> None:
    """List the groups, one line for each queue that they read. __QUEUE_MODE__ is the group of pops without a group.

    unread counts messages that the group has not finished. due counts those of them that no delay or window holds
    back. lag is how long the oldest of these has been due. A group is idle if it has messages due, holds no lease and
    has finished nothing for a minute; it is paused if it gets nothing because somebody, its breaker or maintenance has
    stopped it. failing counts partitions whose next message has failed. finished/s is the rate of the last half minute
    or more, once the group has been measured for so long.
    """
    with connected(server) as queen:
        if queue is not None:
            require_queue(queen, queue)
        rows = queen.admin.list_consumer_groups(queue=queue, only=only, sort=sort, limit=_MOST)
    listing(
        rows,
        "no such groups" if only else "no groups; the first pop creates one",
        Column("name", "group"),
        Column("queueName", "queue"),
        Column("standing", "state"),
        Column("members", "leases", number=True, minor=True),
        Column("unread", number=True),
        Column("totalLag", "due", number=True),
        Column("partitionsWithLag", "partitions behind", number=True, minor=True),
        Column("maxTimeLag", "lag", number=True, written=seconds),
        Column("finishedPerSecond", "finished/s", number=True, written=rate, minor=True),
        Column("failing", number=True),
        Column("deadLetters", "dead letters", number=True, minor=True),
        Column("subscriptionMode", "starts at", minor=True),
        as_json=as_json,
    )
    if more := unlisted(rows):
        note(f"{more:,} more; --queue, --only and --sort choose which are listed.")


@under(command, "show", "queen groups show billing --queue orders")
@click.argument("group")
@queue_option
@click.option("--limit", type=COUNT, default=100, show_default=True, metavar="N", help="Maximum number of partitions.")
@as_json
@server
def show(group: str, queue: str | None, limit: int, as_json: bool, server: str) -> None:
    """Show the position of a group in each partition, the longest waiting first."""
    with connected(server) as queen:
        require_group(queen, group)
        found = queen.admin.get_consumer_group(group, limit=limit)
    found = {name: state for name, state in found.items() if queue in (None, name)}
    rows = [{"queue": name} | row for name, state in found.items() for row in state["partitions"]]
    listing(
        rows,
        f"{group} has no position in any partition",
        Column("queue"),
        Column("partition"),
        *_LAG,
        Column("leaseActive", "leased"),
        Column("totalConsumed", "consumed", number=True, minor=True),
        Column("lastConsumedAt", "last consumed", written=moment, minor=True),
        as_json=as_json,
        whole=found,
    )


@under(command, "consumers", "queen groups consumers orders", "queen groups consumers orders --group billing")
@queue
@click.option("-g", "--group", metavar="NAME", help="List only consumers of this group.")
@click.option(
    "--within",
    type=click.IntRange(min=1),
    default=120,
    show_default=True,
    metavar="S",
    help="List only consumers that have popped within so many seconds.",
)
@as_json
@server
def consumers(queue: str, group: str | None, within: int, as_json: bool, server: str) -> None:
    """List who reads QUEUE: the consumers that have popped not long ago, and their leases."""
    with connected(server) as queen:
        require_queue(queen, queue)
        found = queen.admin.list_consumers(queue, group=group, within_s=within)
    listing(
        [{"who": consumer(row)} | row for row in found["consumers"]],
        f"nobody has popped from {queue} in the last {seconds(within)}",
        Column("consumerGroup", "group"),
        Column("who", "consumer"),
        Column("address"),
        Column("since", written=moment),
        Column("lastPopAt", "last pop", written=moment),
        Column("leases", number=True),
        Column("oldestLeaseAt", "oldest lease", written=moment),
        as_json=as_json,
        whole=found,
    )


@under(command, "lagging", "queen groups lagging --least 300")
@click.option(
    "--least", type=click.IntRange(min=0), default=60, show_default=True, metavar="S", help="Minimum lag in seconds."
)
@as_json
@server
def lagging(least: int, as_json: bool, server: str) -> None:
    """List partitions whose oldest unread message has been due for at least --least seconds, the oldest first."""
    with connected(server) as queen:
        rows = queen.admin.get_lagging_consumers(least)
    listing(
        rows,
        f"nothing has waited for {seconds(least)}",
        Column("consumer_group", "group"),
        Column("queue_name", "queue"),
        Column("partition_name", "partition"),
        Column("unread", number=True),
        Column("offset_lag", "due", number=True),
        Column("time_lag_seconds", "lag", number=True, written=seconds),
        Column("last_consumed_at", "last consumed", written=moment, minor=True),
        as_json=as_json,
    )


@under(
    command,
    "filter",
    "queen groups filter orders billing",
    """queen groups filter orders billing "headers.country = 'IT' AND payload.total > 100\"""",
    "queen groups filter orders billing --remove",
)
@queue
@click.argument("group")
@click.argument("expression", required=False)
@click.option("--remove", is_flag=True, help="Remove the filter.")
@as_json
@server
def filter_(queue: str, group: str, expression: str | None, remove: bool, as_json: bool, server: str) -> None:
    """Show or set which messages of QUEUE a GROUP gets: those for which EXPRESSION is true.

    What it does not let through is passed over and counted, never delivered.
    """
    if remove and expression is not None:
        raise click.UsageError("give an expression or --remove, not both")
    with connected(server) as queen:
        if expression is None and not remove:
            found = queen.admin.get_filter(queue, group)
        else:
            found = queen.admin.set_filter(queue, group, expression)
        if as_json:
            print_json(found)
            return
        told = "gets every message" if found["filter"] is None else f"gets what fits {found['filter']}"
        print(f"{group} {told}; {plural(found['passedOver'], 'message')} passed over")
        note_new_group(queen, queue, group)


@under(
    command,
    "conflation",
    "queen groups conflation prices screens",
    "queen groups conflation prices screens on",
)
@queue
@click.argument("group")
@click.argument("switch", required=False, type=click.Choice(["on", "off"]))
@as_json
@server
def conflation(queue: str, group: str, switch: str | None, as_json: bool, server: str) -> None:
    """Show or set whether a GROUP gets only the newest message of each partition of QUEUE.

    Older ones are passed over and counted, never delivered.
    """
    with connected(server) as queen:
        if switch is None:
            found = queen.admin.get_conflation(queue, group)
        else:
            found = queen.admin.set_conflation(queue, group, switch == "on")
        if as_json:
            print_json(found)
            return
        gets = "only the newest message of each partition" if found["enabled"] else "every message"
        print(f"{group} gets {gets}; {plural(found['passedOver'], 'message')} passed over")
        note_new_group(queen, queue, group)


@under(command, "delete", "queen groups delete billing --queue orders --yes")
@click.argument("group")
@queue_option
@consent
@as_json
@server
def delete(group: str, queue: str | None, yes: bool, as_json: bool, server: str) -> None:
    """Delete the positions of a group, in all queues or in one. Its next pop starts as a new group."""
    with connected(server) as queen:
        require_group(queen, group)
        where = f"in {queue}" if queue else "in all queues"
        shown = "pops without a group" if group == QUEUE_MODE else f"group {group}"
        confirm(f"Delete the positions of {shown} {where}?", yes)
        if queue is None:
            answer = queen.admin.delete_consumer_group(group)
        else:
            require_queue(queen, queue)
            answer = queen.admin.delete_consumer_group_for_queue(group, queue)
    forgotten = plural(answer.get("deletedPartitions", 0), "partition")
    print_json(answer) if as_json else print(f"{group} is deleted in {forgotten}")
