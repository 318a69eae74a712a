"""`queen queues`: list, show, create, set, pause, resume, clear and delete them."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Any, NoReturn

import click

from queenmq.cli.arguments import COUNT, PAIR, Function, as_json, consent
from queenmq.cli.group import group, under
from queenmq.cli.operation import followed
from queenmq.cli.remote import connected, no_queue, note_new_group, queue, require_queue, server
from queenmq.cli.show import (
    Column,
    confirm,
    console,
    facts,
    listing,
    moment,
    note,
    plural,
    print_json,
    rate,
    seconds,
    table,
)

_FIGURES = (
    Column("messages.total", "messages", number=True),
    Column("messages.pending", "pending", number=True),
    Column("messages.processing", "processing", number=True),
)


@group("queues", "queen queues", "queen queues show orders", default="list")
def command() -> None:
    """List, show, create, set, pause, resume, clear and delete queues. Without a subcommand, list them."""


@under(command, "list", "queen queues --search order", "queen queues --json | jq -r '.[].name'")
@click.option("--namespace", help="List only queues of this namespace.")
@click.option("--task", help="List only queues of this task.")
@click.option("--search", metavar="TEXT", help="List only queues whose name contains this text.")
@click.option(
    "--sort",
    type=click.Choice(("pending", "leased", "failing", "dead_letters", "lag")),
    help="List the worst first, instead of by name.",
)
@click.option(
    "--only",
    type=click.Choice(("unread", "due", "leased", "failing", "dead_letters")),
    help="List only queues of which this is true.",
)
@click.option("--limit", type=COUNT, default=1000, show_default=True, metavar="N", help="Maximum number of queues.")
@as_json
@server
def list_(
    namespace: str | None,
    task: str | None,
    search: str | None,
    sort: str | None,
    only: str | None,
    limit: int,
    as_json: bool,
    server: str,
) -> None:
    """List the queues by name, with their numbers of messages.

    failing counts groups in partitions whose next message has failed. lag is how long the oldest unread message has
    been due. Rates are of the last whole minute.
    """
    with connected(server) as queen:
        rows = queen.admin.list_queues(
            namespace=namespace, task=task, search=search, sort=sort, only=only, limit=limit
        )["queues"]
    columns = (
        Column("name", "queue"),
        Column("partitions", number=True),
        *_FIGURES,
        Column("lagSeconds", "lag", number=True, written=seconds),
        Column("leases", number=True, minor=True),
        Column("failing", number=True),
        Column("deadLetters", "dead letters", number=True),
        Column("pushedPerSecond", "pushed/s", number=True, written=rate, minor=True),
        Column("poppedPerSecond", "popped/s", number=True, written=rate, minor=True),
    )
    more = (
        Column("namespace", minor=True),
        Column("task", minor=True),
        Column("createdAt", "created", written=moment, minor=True),
    )
    narrowed = namespace or task or search or only
    none = "no such queues; `queen queues` lists all" if narrowed else "no queues; the first push creates one"
    listing(rows, none, *columns, *more, as_json=as_json)


@under(command, "show", "queen queues show orders")
@queue
@click.option(
    "--partitions", type=COUNT, default=20, show_default=True, metavar="N", help="Maximum number of partitions to show."
)
@as_json
@server
def show(queue: str, partitions: int, as_json: bool, server: str) -> None:
    """Show the options, totals and partitions of a queue."""
    with connected(server) as queen:
        require_queue(queen, queue)
        found = queen.admin.get_queue_detail(queue, limit=partitions)
    if as_json:
        print_json(found)
        return
    about, totals = found["queue"], found["totals"]
    facts(
        [
            ("queue", about["name"]),
            ("namespace", about["namespace"]),
            ("task", about["task"]),
            ("created", moment(about["createdAt"])),
            (
                "messages",
                f"{totals['total']:,} stored, {totals['pending']:,} pending, {totals['processing']:,} processing",
            ),
            ("dead letters", f"{totals['deadLetter']:,}"),
            *((name, _written(name, value)) for name, value in about["options"].items()),
        ]
    )
    console().print()
    table(
        found["partitions"],
        Column("name", "partition"),
        *_FIGURES,
        Column("messages.deadLetter", "dead letters", number=True),
        Column("oldestMessage", "oldest", written=moment, minor=True),
        Column("newestMessage", "newest", written=moment, minor=True),
    )
    if len(found["partitions"]) == partitions:
        note(f"These are the first {partitions} by name; `queen partitions {queue}` lists more.")


def _written(name: str, value: Any) -> Any:
    return "none" if name == "ttl" and value is None else value


def _options(function: Function) -> Function:
    """Options of the queue, as arguments behind its name or each with --option."""
    named = click.option(
        "--option",
        "options",
        type=PAIR,
        multiple=True,
        metavar="NAME=VALUE",
        help="The same as an argument NAME=VALUE; may be repeated.",
    )
    return click.argument("arguments", type=PAIR, nargs=-1, metavar="[NAME=VALUE]...")(named(function))


@under(command, "create", "queen queues create orders leaseTime=60 retryLimit=5")
@queue
@click.option("--namespace", default="", help="Namespace of the queue; a pop can read all queues of a namespace.")
@click.option("--task", default="", help="Task of the queue within its namespace; a pop can read all queues of a task.")
@_options
@as_json
@server
def create(
    queue: str,
    arguments: tuple[tuple[str, str], ...],
    namespace: str,
    task: str,
    options: tuple[tuple[str, str], ...],
    as_json: bool,
    server: str,
) -> None:
    """Create a queue, or configure an existing one. Options that are not given are reset to their defaults.

    docs/queue-options.md lists the options.
    """
    given = _given(arguments + options)
    with connected(server) as queen:
        answer = queen.queue(queue).namespace(namespace).task(task).config(given).create()
    print_json(answer) if as_json else print(f"{queue} is configured")


@under(command, "set", "queen queues set orders leaseTime=60", "queen queues set orders ttl=null")
@queue
@_options
@as_json
@server
def set_(
    queue: str,
    arguments: tuple[tuple[str, str], ...],
    options: tuple[tuple[str, str], ...],
    as_json: bool,
    server: str,
) -> None:
    """Change options of an existing queue. Options that are not given keep their values.

    docs/queue-options.md lists the options.
    """
    given = _given(arguments + options)
    if not given:
        raise click.UsageError("there is nothing to set: give options as NAME=VALUE")
    with connected(server) as queen:
        require_queue(queen, queue)
        answer = queen.queue(queue).config(given).create(replace=False)
    print_json(answer) if as_json else print(f"{queue} is configured")


def _given(options: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """The options by name. Unknown names are refused here, because the server ignores them."""
    from queenmq.core.options import QueueOptions

    known = QueueOptions.__struct_encode_fields__
    for name, _ in options:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise click.UsageError(f"there is no option {name!r}; {meant}")
    return {name: _value(value) for name, value in options}


def _value(raw: str) -> Any:
    """Numbers and flags as such, everything else as text."""
    try:
        return json.loads(raw, parse_constant=_not_json)
    except ValueError:
        return raw


def _not_json(word: str) -> NoReturn:
    """Refuse NaN and the infinities, which Python parses but JSON does not have."""
    raise ValueError(word)


@under(command, "clear", "queen queues clear orders --partition customer-7 --yes")
@queue
@click.option("-p", "--partition", metavar="NAME", help="Delete only the messages of this partition.")
@consent
@as_json
@server
def clear(queue: str, partition: str | None, yes: bool, as_json: bool, server: str) -> None:
    """Delete every message of a queue. Its options, groups and dead letters stay."""
    with connected(server) as queen:
        found = require_queue(queen, queue)
        what = f"partition {partition} of {queue}" if partition else f"{queue}, which has {found['totals']['total']:,},"
        confirm(f"Permanently delete every message of {what}?", yes)
        answer = followed(queen, queen.admin.clear_queue(queue, partition))
    print_json(answer) if as_json else print(f"{plural(answer.get('deleted', 0), 'message')} deleted")


@under(command, "delete", "queen queues delete orders --yes")
@queue
@consent
@as_json
@server
def delete(queue: str, yes: bool, as_json: bool, server: str) -> None:
    """Delete a queue with its messages, groups and dead letters."""
    with connected(server) as queen:
        found = require_queue(queen, queue)
        confirm(f"Permanently delete {queue} with {plural(found['totals']['total'], 'message')} and its groups?", yes)
        answer = followed(queen, queen.queue(queue).delete())
        if answer.get("existed") is False:
            no_queue(queen, queue)
    print_json(answer) if as_json else print(f"{queue} is deleted")


_GROUP = click.option("-g", "--group", metavar="NAME", help="Only for this consumer group.")
_PARTITION = click.option("-p", "--partition", metavar="NAME", help="Only this partition; it needs --group.")


@under(
    command,
    "pause",
    "queen queues pause orders --group billing --reason 'the bank is down'",
    "queen queues pause orders --group billing --partition customer-7",
)
@queue
@_GROUP
@_PARTITION
@click.option("--reason", metavar="TEXT", help="Why it is paused; `queen explain` shows it.")
@as_json
@server
def pause(queue: str, group: str | None, partition: str | None, reason: str | None, as_json: bool, server: str) -> None:
    """Deliver nothing more of a queue until it is resumed. Leases that are out can be acknowledged."""
    _check_place(group, partition)
    with connected(server) as queen:
        require_queue(queen, queue)
        answer = queen.admin.pause(queue, group=group, partition=partition, reason=reason)
        if as_json:
            print_json(answer)
            return
        where, since = _place(queue, group, partition), moment(answer["pausedAt"])
        print(f"{where} is paused" if answer["changed"] else f"{where} has been paused since {since}")
        note_new_group(queen, queue, group)


@under(command, "resume", "queen queues resume orders --group billing")
@queue
@_GROUP
@_PARTITION
@as_json
@server
def resume(queue: str, group: str | None, partition: str | None, as_json: bool, server: str) -> None:
    """End a pause of exactly this queue, group and partition; other pauses stay."""
    _check_place(group, partition)
    with connected(server) as queen:
        require_queue(queen, queue)
        answer = queen.admin.resume(queue, group=group, partition=partition)
        left = queen.admin.list_pauses(queue)["pauses"]
    if as_json:
        print_json(answer)
    else:
        print(f"{_place(queue, group, partition)} {'is resumed' if answer['changed'] else 'was not paused'}")
    if left:
        note(f"{plural(len(left), 'pause')} of {queue} left; `queen queues pauses` lists them.")


@under(command, "pauses", "queen queues pauses")
@as_json
@server
def pauses(as_json: bool, server: str) -> None:
    """List what is paused, by whom and since when."""
    with connected(server) as queen:
        rows = queen.admin.list_pauses()["pauses"]
    listing(
        rows,
        "nothing is paused",
        Column("queue"),
        Column("consumerGroup", "group"),
        Column("partition"),
        Column("pausedAt", "since", written=moment),
        Column("pausedBy", "by", minor=True),
        Column("reason"),
        Column("probeAt", "tried at", written=moment, minor=True),
        as_json=as_json,
    )


def _check_place(group: str | None, partition: str | None) -> None:
    if partition is not None and group is None:
        raise click.UsageError("--partition needs --group: a partition is paused for one group")


def _place(queue: str, group: str | None, partition: str | None) -> str:
    where = queue if partition is None else f"{queue}/{partition}"
    return where if group is None else f"{where} for group {group}"
