"""`queen policies`: what queues and groups do with messages that fail, and how much they get."""

from __future__ import annotations

import json
from typing import Any

import click

from queenmq.cli.arguments import COUNT, as_json
from queenmq.cli.group import group, under
from queenmq.cli.remote import connected, note_new_group, queue, require_queue, server
from queenmq.cli.show import Column, listing, moment, print_json

_GROUP = click.option("-g", "--group", metavar="NAME", help="Only for this consumer group.")
_MS = click.IntRange(min=0)


@group("policies", "queen policies", "queen policies set orders --group billing --poison skip", default="list")
def command() -> None:
    """List, set and remove retry policies and limits, and list messages that wait because of one. Without a subcommand,
    list."""


@under(command, "list", "queen policies list")
@as_json
@server
def list_(as_json: bool, server: str) -> None:
    """List the policies of queues and groups."""
    with connected(server) as queen:
        rows = queen.admin.list_policies()["policies"]
    listing(
        rows,
        "there are no policies",
        Column("queue"),
        Column("consumerGroup", "group"),
        Column("retry", written=_shown),
        Column("breaker", written=_shown),
        Column("limits", written=_shown),
        Column("fairness", written=_shown),
        Column("changedAt", "since", written=moment, minor=True),
        Column("changedBy", "by", minor=True),
        as_json=as_json,
    )


@under(
    command,
    "set",
    "queen policies set orders --group billing --poison skip --exponential 1000 --limit 10",
    "queen policies set orders --delays 1000,10000,60000 --poison park",
    "queen policies set orders --group billing --breaker 50/100 --breaker-pause 60",
    "queen policies set orders --group billing --leases 10 --rate 100 --burst 200",
    "queen policies set orders --fair-by : --weight acme=3",
    "queen policies set orders --fair-by : --key-leases 5 --key-rate 20",
)
@queue
@_GROUP
@click.option("--fixed", type=_MS, metavar="MS", help="Wait this long after each failure.")
@click.option("--exponential", type=_MS, metavar="MS", help="Wait this long after the first failure, then longer.")
@click.option("--factor", type=float, help="By how much each delay of --exponential is longer; 2 unless it is given.")
@click.option("--max-delay", type=_MS, metavar="MS", help="Longest delay of --exponential; an hour unless it is given.")
@click.option("--delays", metavar="MS,…", help="Wait this long after the first failure, the second, …")
@click.option("--jitter", type=float, metavar="PART", help="Part by which a delay may be shorter at random, 0 to 1.")
@click.option("--limit", type=COUNT, metavar="N", help="How often a message may fail before it is given up.")
@click.option(
    "--poison",
    type=click.Choice(["block", "skip", "park"]),
    help="What a partition does: wait for the message, go on without it, or wait until the message is settled by hand.",
)
@click.option("--breaker", metavar="N/M", help="Pause a group when more than N of the last M messages failed.")
@click.option("--breaker-pause", type=click.IntRange(1), metavar="S", help="Seconds until a batch is let through; 30.")
@click.option("--leases", type=click.IntRange(1), metavar="N", help="How many leases may be open at once.")
@click.option("--rate", type=float, metavar="N", help="How many messages are delivered a second.")
@click.option("--fair-by", metavar="SEPARATOR", help="Let keys take turns: what partitions' names have before it.")
@click.option(
    "--weight", "weights", multiple=True, metavar="KEY=N", help="Give a key N shares (--fair-by); repeatable."
)
@click.option("--burst", type=click.IntRange(1), metavar="N", help="How many at once after a pause; a second's worth.")
@click.option("--key-leases", type=click.IntRange(1), metavar="N", help="How many leases of each key (--fair-by).")
@click.option("--key-rate", type=float, metavar="N", help="How many messages of each key a second.")
@click.option("--key-burst", type=click.IntRange(1), metavar="N", help="How many of each key at once after a pause.")
@as_json
@server
def set_(
    queue: str,
    group: str | None,
    breaker: str | None,
    breaker_pause: int | None,
    leases: int | None,
    rate: float | None,
    burst: int | None,
    key_leases: int | None,
    key_rate: float | None,
    key_burst: int | None,
    fair_by: str | None,
    weights: tuple[str, ...],
    as_json: bool,
    server: str,
    **given: Any,
) -> None:
    """Set what QUEUE does with messages that fail, or one group of it, and how much it gets. Retries, breaker,
    limits and fairness are set apart."""
    per_key = _given({"leases": key_leases, "rate": key_rate, "burst": key_burst})
    limits = {"leases": leases, "rate": rate, "burst": burst, "perKey": per_key or None}
    parts: dict[str, dict[str, Any] | None] = {
        "retry": _retry(**given),
        "breaker": _breaker(breaker, breaker_pause),
        "limits": _given(limits),
        "fairness": _fairness(fair_by, weights),
    }
    parts = {name: part for name, part in parts.items() if part}
    if not parts:
        raise click.UsageError("say what to set, for example --poison skip, --breaker 5/10 or --leases 10")
    with connected(server) as queen:
        require_queue(queen, queue)
        answer = queen.admin.set_policy(queue, group=group, **parts)
        if as_json:
            print_json(answer)
            return
        print(f"the policy of {_place(queue, group)} is {'set' if answer['changed'] else 'as it was'}")
        note_new_group(queen, queue, group)


def _retry(
    fixed: int | None,
    exponential: int | None,
    delays: str | None,
    factor: float | None,
    max_delay: int | None,
    **rest: Any,
) -> dict[str, Any]:
    named = {"fixed": fixed, "exponential": exponential, "list": delays}
    chosen = [name for name, value in named.items() if value is not None]
    if len(chosen) > 1:
        raise click.UsageError("--fixed, --exponential and --delays exclude each other")
    policy: dict[str, Any] = {"factor": factor, "maxDelayMs": max_delay, **rest}
    if delays is not None:
        try:
            policy["delaysMs"] = [int(delay) for delay in delays.split(",")]
        except ValueError:
            raise click.BadParameter(f"{delays!r} is not a list such as 1000,10000", param_hint="'--delays'") from None
    elif chosen:
        policy["delayMs"] = named[chosen[0]]
    policy["strategy"] = chosen[0] if chosen else None
    return _given(policy)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _breaker(given: str | None, pause_s: int | None) -> dict[str, Any] | None:
    if given is None:
        if pause_s is not None:
            raise click.UsageError("--breaker-pause needs --breaker")
        return None
    failures, _, of = given.partition("/")
    if not (failures.isdecimal() and of.isdecimal()):
        raise click.BadParameter(f"{given!r} is not like 5/10", param_hint="'--breaker'")
    breaker = {"failures": int(failures), "of": int(of)}
    return breaker if pause_s is None else breaker | {"pauseSeconds": pause_s}


def _fairness(separator: str | None, given: tuple[str, ...]) -> dict[str, Any] | None:
    if separator is None:
        if given:
            raise click.UsageError("--weight needs --fair-by")
        return None
    weights = {}
    for one in given:
        key, _, weight = one.rpartition("=")
        try:
            weights[key] = float(weight)
        except ValueError:
            raise click.BadParameter(f"{one!r} is not like acme=3", param_hint="'--weight'") from None
    return {"separator": separator, "weights": weights} if weights else {"separator": separator}


def _shown(part: Any) -> str:
    return "" if part is None else json.dumps(part)


@under(command, "remove", "queen policies remove orders --group billing")
@queue
@_GROUP
@as_json
@server
def remove(queue: str, group: str | None, as_json: bool, server: str) -> None:
    """Remove policy and limits of QUEUE, or of one group of it. Messages that wait because of it stay as they are."""
    with connected(server) as queen:
        require_queue(queen, queue)
        parts = dict.fromkeys(("retry", "breaker", "limits") if group else ("retry", "breaker", "limits", "fairness"))
        answer = queen.admin.set_policy(queue, group=group, **parts)
    if as_json:
        print_json(answer)
    else:
        print(f"{_place(queue, group)} {'has no policy any more' if answer['changed'] else 'had no policy'}")


@under(command, "skipped", "queen policies skipped orders")
@queue
@_GROUP
@as_json
@server
def skipped(queue: str, group: str | None, as_json: bool, server: str) -> None:
    """List the messages of QUEUE that failed and wait by themselves, or keep their partition waiting."""
    with connected(server) as queen:
        require_queue(queen, queue)
        rows = queen.admin.list_skipped(queue, group=group)["messages"]
    listing(
        rows,
        f"no message of {queue} is skipped or parks its partition",
        Column("partition"),
        Column("consumerGroup", "group"),
        Column("transactionId", "message"),
        Column("offset", number=True, minor=True),
        Column("retryCount", "failed attempts", number=True),
        Column("until", "again at", written=moment),
        Column("parked"),
        as_json=as_json,
    )


def _place(queue: str, group: str | None) -> str:
    return queue if group is None else f"{queue} for group {group}"
