"""`queen verify`: record what clients see of real servers, and check that every promise was kept."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from queenmq.cli import exits
from queenmq.cli.arguments import COUNT, as_json
from queenmq.cli.group import group, under
from queenmq.cli.remote import failure, server, servers, token, trusted_context
from queenmq.cli.show import Column, listing, note, plural, print_json, table

if TYPE_CHECKING:
    from queenmq.verify import History, Verdict

_SHOWN = 5
_NAMES = ("log", "lease", "transaction", "deduplication", "dead-letters", "seek")


@group(
    "verify",
    "queen verify",
    "queen verify run --workload lease --seconds 60",
    "queen verify check history.jsonl",
    default="run",
)
def command() -> None:
    """Check that servers keep their promises. Without a subcommand, run all workloads."""


@under(command, "run", "queen verify run --seconds 30 --histories .", "queen verify run --workload log --seed 7")
@click.option(
    "--workload",
    "workloads",
    type=click.Choice(_NAMES),
    multiple=True,
    help="Workload to run; all of them if none is named. Can be given more than once.",
)
@click.option("--seconds", type=COUNT, default=10, show_default=True, help="Time for which each workload pushes.")
@click.option("--partitions", type=COUNT, default=8, show_default=True, help="Number of partitions.")
@click.option("--producers", type=COUNT, default=4, show_default=True, help="Number of producers.")
@click.option("--consumers", type=COUNT, default=4, show_default=True, help="Number of consumers.")
@click.option("--lease", type=COUNT, default=2, show_default=True, metavar="S", help="Lease time of the queue.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the choices that clients make.")
@click.option(
    "--prefix", default="verify", show_default=True, help="Prefix of the names of the queues, which are deleted after."
)
@click.option("--keep", is_flag=True, help="Keep the queues.")
@click.option(
    "--histories",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder to write the histories to, as one JSON document a line.",
)
@as_json
@server
def run(
    workloads: tuple[str, ...],
    seconds: int,
    partitions: int,
    producers: int,
    consumers: int,
    lease: int,
    seed: int,
    prefix: str,
    keep: bool,
    histories: Path | None,
    as_json: bool,
    server: str,
) -> int:
    """Run workloads on new queues, record every request and answer, and check the histories.

    It is safe beside other users of the servers: it creates queues whose names begin with the prefix, and deletes only
    these. The exit status is 1 if a promise was broken.
    """
    from queenmq.client import QueenError
    from queenmq.ids import uuid7_text
    from queenmq.verify import check, workload, write_history

    load = workload.Load(
        seconds=seconds, producers=producers, consumers=consumers, partitions=partitions, lease_s=lease, seed=seed
    )
    options = {"bearer_token": token(), "ssl_context": trusted_context()}
    results = []
    for name in workloads or _NAMES:
        queue = f"{prefix}.{name}.{uuid7_text()}"
        if not as_json:
            note(f"{name}: {plural(seconds, 'second')} on the queue {queue}")
        try:
            history = asyncio.run(workload.run(servers(server), name, queue, load, keep=keep, **options))
        except QueenError as error:
            raise failure(error, server) from error
        if histories is not None:
            write_history(histories / f"{name}.jsonl", history)
        results.append((name, check(history), history))
    return _report(results, as_json)


@under(command, "check", "queen verify check history.jsonl", "queen verify check --json *.jsonl")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@as_json
def check_(files: tuple[Path, ...], as_json: bool) -> int:
    """Check histories that were recorded before, by `queen verify run --histories` or by programs of your own."""
    from queenmq.verify import BadHistory, check, read_history

    results = []
    for file in files:
        try:
            history = list(read_history(file))
            results.append((file.name, check(history), history))
        except BadHistory as error:
            raise exits.Failed(str(error), exits.USAGE) from None
    return _report(results, as_json)


@under(command, "export", "queen verify export history.jsonl > history.edn")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def export(file: Path) -> None:
    """Write a history in EDN, for Jepsen's checkers."""
    from queenmq.verify import BadHistory, read_history
    from queenmq.verify.edn import to_edn

    try:
        for line in to_edn(read_history(file)):
            print(line)
    except BadHistory as error:
        raise exits.Failed(str(error), exits.USAGE) from None


@under(command, "self-test", "queen verify self-test")
@as_json
def self_test(as_json: bool) -> int:
    """Corrupt good histories in many ways, and check that the checker finds and names each of them."""
    from queenmq.verify.corruptions import self_test

    tested = self_test()
    rows = [
        {"corruption": one.corruption, "rule": one.rule, "caught": one.is_caught, "found": ", ".join(one.found)}
        for one in tested
    ]
    listing(
        rows,
        "",
        Column("corruption"),
        Column("rule", "rule that must find it"),
        Column("caught", written=lambda caught: "yes" if caught else "NO"),
        as_json=as_json,
    )
    missed = sum(not one.is_caught for one in tested)
    if not as_json:
        print(f"{len(tested) - missed} of {len(tested)} corruptions were caught")
    return exits.FAILED if missed else exits.OK


def _report(results: Sequence[tuple[str, Verdict, History]], as_json: bool) -> int:
    from queenmq.verify import offending

    if as_json:
        print_json([_as_json(name, verdict) for name, verdict, _ in results])
    else:
        rows = [
            {
                "workload": name,
                "operations": verdict.operations,
                "checks": sum(verdict.checked.values()),
                "failed": verdict.outcomes.get("fail", 0),
                "unknown": verdict.outcomes.get("info", 0),
                "violations": len(verdict.violations),
            }
            for name, verdict, _ in results
        ]
        names = ("operations", "checks", "failed", "unknown", "violations")
        table(rows, Column("workload"), *(Column(name, number=True) for name in names))
        for name, verdict, history in results:
            for violation in verdict.violations[:_SHOWN]:
                print(f"\n{name} breaks {violation.rule}: {violation.text}")
                for line in offending(history, violation):
                    print(f"    {line}")
            if len(verdict.violations) > _SHOWN:
                print(f"\n{name}: {len(verdict.violations) - _SHOWN} more; --json has all of them")
    broken = [name for name, verdict, _ in results if not verdict.is_valid]
    if broken:
        print(f"promises were broken: {', '.join(broken)}", file=sys.stderr)
    elif not as_json:
        print("every promise was kept")
    return exits.FAILED if broken else exits.OK


def _as_json(name: str, verdict: Verdict) -> dict[str, Any]:
    return {
        "name": name,
        "valid": verdict.is_valid,
        "operations": verdict.operations,
        "outcomes": verdict.outcomes,
        "checked": verdict.checked,
        "violations": [{"rule": one.rule, "text": one.text, "operations": list(one.ops)} for one in verdict.violations],
    }
