"""`queen verify`: record what clients see of real servers, and check that every promise was kept."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from queenmq.cli import exits
from queenmq.cli.arguments import COUNT, Kind, as_json
from queenmq.cli.group import group, under
from queenmq.cli.remote import failure, server, servers, token, trusted_context
from queenmq.cli.show import Column, listing, note, plural, print_json, table

if TYPE_CHECKING:
    from queenmq.verify import History, Verdict
    from queenmq.verify.clients import Load
    from queenmq.verify.history import Fault
    from queenmq.verify.recorder import Recorder

_SHOWN = 5
_NAMES = (
    "log",
    "lease",
    "transaction",
    "pipeline",
    "deduplication",
    "dead-letters",
    "seek",
    "timers",
    "take",
    "connection",
)
_OWN = ("overload", "journal")
_FAULTS = ("kill", "pause", "restart", "failover", "cut", "forge", "clock", "horizon", "full-disk", "slow-disk")


def _faults(raw: str) -> tuple[str, ...]:
    named = tuple(name.strip() for name in raw.split(",") if name.strip())
    if named in (("all",), ("none",)):
        return _FAULTS if named == ("all",) else ()
    if unknown := [name for name in named if name not in _FAULTS] or ([] if named else [raw]):
        raise ValueError(f"{unknown[0]!r} is not a fault; there are {', '.join(_FAULTS)}; or all, or none")
    return named


@group(
    "verify",
    "queen verify",
    "queen verify run --workload lease --seconds 60",
    "queen verify check history.jsonl",
    default="run",
)
def command() -> None:
    """Check that servers keep their promises. Without a subcommand, run all workloads."""


@under(
    command,
    "run",
    "queen verify run --seconds 30 --histories .",
    "queen verify run --workload log --seed 7",
    "queen verify run --faults all --seconds 60 --histories .",
)
@click.option(
    "--workload",
    "workloads",
    type=click.Choice((*_NAMES, *_OWN)),
    multiple=True,
    help="Workload to run; all of them if none is named. Can be given more than once. overload and journal disturb "
    "others: they run only on a cluster of their own, with --faults.",
)
@click.option(
    "--faults",
    type=Kind("NAMES", _faults),
    help=f"Start two servers and a PostgreSQL of their own in a temporary folder, and harm them meanwhile: names "
    f"separated by commas ({', '.join(_FAULTS)}), all, or none.",
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
    help="Folder to write the histories to, as one JSON document a line, and a plot of each as SVG.",
)
@as_json
@server
def run(
    workloads: tuple[str, ...],
    faults: tuple[str, ...] | None,
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
    these. With --faults it does not touch them at all. The exit status is 1 if a promise was broken, or if something
    could not be judged: the report says what, and why.
    """
    from queenmq.verify import check, workload, write_history
    from queenmq.verify.plot import plot

    # The client logs what it could not do; here it is in the history.
    logging.getLogger("queenmq.client").addHandler(logging.NullHandler())
    if faults is None and (alone := [name for name in workloads if name in _OWN]):
        raise exits.Failed(
            f"the workload {alone[0]} would disturb other users of the servers; run it on a cluster of its own, with "
            "--faults none or with faults",
            exits.USAGE,
        )
    source = click.get_current_context().get_parameter_source("server")
    if faults is not None and source is ParameterSource.COMMANDLINE:
        raise exits.Failed("--faults starts servers of its own; leave out --server", exits.USAGE)
    load = workload.Load(
        seconds=seconds, producers=producers, consumers=consumers, partitions=partitions, lease_s=lease, seed=seed
    )
    chosen = workloads or (_NAMES if faults is None else (*_NAMES, *_OWN))
    tell = (lambda text: None) if as_json else note
    results: list[tuple[str, Verdict, History]] = []

    def judge(name: str, history: History, why: str) -> None:
        verdict = check(history)
        if why:
            verdict = replace(verdict, unjudged=[why, *verdict.unjudged])
        results.append((name, verdict, history))
        if histories is not None:
            write_history(histories / f"{name}.jsonl", history)
            title = f"{name}, seed {seed}: {plural(len(verdict.violations), 'violation')}"
            (histories / f"{name}.svg").write_text(plot(title, history, verdict))

    if faults is None:
        asyncio.run(_on_servers(server, chosen, load, prefix, keep, tell, judge))
    else:
        asyncio.run(_on_own_cluster(faults, chosen, load, prefix, tell, judge))
    return _report(results, as_json)


async def _on_servers(
    server: str,
    names: Sequence[str],
    load: Load,
    prefix: str,
    keep: bool,
    tell: Callable[[str], None],
    judge: Callable[[str, History, str], None],
) -> None:
    from queenmq.verify import workload

    for number, name in enumerate(names):
        queue = _queue(prefix, name, load, tell)
        running = partial(
            workload.run,
            servers(server),
            name,
            queue,
            load,
            keep=keep,
            bearer_token=token(),
            ssl_context=trusted_context(),
        )
        judge(name, *await _as_far_as_it_goes(running, server, is_first=number == 0))


async def _on_own_cluster(
    faults: Sequence[str],
    names: Sequence[str],
    load: Load,
    prefix: str,
    tell: Callable[[str], None],
    judge: Callable[[str, History, str], None],
) -> None:
    from queenmq.errors import StartupError
    from queenmq.faults.cluster import started
    from queenmq.faults.injection import harm
    from queenmq.faults.postgres import BROKEN
    from queenmq.verify import workload

    tell("starting two servers and PostgreSQL" + (" with a standby" if "failover" in faults else ""))
    async with started(standby="failover" in faults) as cluster:

        async def harming(recorder: Recorder) -> None:
            try:
                await harm(cluster, faults, load.seconds, load.seed, recorder.note)
            except BROKEN as error:
                raise StartupError(f"PostgreSQL is not what it was before the faults: {error!r}") from error

        beside = harming if faults else None
        for name in names:
            queue = _queue(prefix, name, load, tell)
            running = partial(workload.run, cluster.urls, name, queue, load, keep=True, beside=beside)
            judge(name, *await _as_far_as_it_goes(running, cluster.urls[0]))


async def _as_far_as_it_goes(
    running: Callable[..., Awaitable[History]], server: str, *, is_first: bool = False
) -> tuple[History, str]:
    """What was recorded, and why that is not all: a workload that fails costs neither its history nor the others.

    If not even the first queue can be made, there is nothing to judge: that fails as any command does.
    """
    from queenmq.client import QueenError
    from queenmq.clock import SYSTEM
    from queenmq.errors import StartupError
    from queenmq.verify.recorder import Recorder

    recorder = Recorder(SYSTEM)
    try:
        await running(recorder=recorder)
    except QueenError as error:
        said = failure(error, server)
        if is_first and not recorder.history:
            raise said from error
        return recorder.history, said.message
    except StartupError as error:
        return recorder.history, str(error)
    return recorder.history, ""


def _queue(prefix: str, name: str, load: Load, tell: Callable[[str], None]) -> str:
    from queenmq.ids import uuid7_text

    queue = f"{prefix}.{name}.{uuid7_text()}"
    tell(f"{name}: {plural(int(load.seconds), 'second')} on the queue {queue}")
    return queue


@under(command, "check", "queen verify check history.jsonl", "queen verify check --json *.jsonl")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@as_json
def check_(files: tuple[Path, ...], as_json: bool) -> int:
    """Check histories that were recorded before, by `queen verify run --histories` or by programs of your own."""
    from queenmq.verify import BadHistory, check, read_history
    from queenmq.verify.history import Fault

    results = []
    for file in files:
        try:
            verdict = check(read_history(file))
            # Of a long one, no more is kept in memory than is shown.
            shown = [one for one in read_history(file) if verdict.violations or isinstance(one, Fault)]
            results.append((file.name, verdict, shown))
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
    from queenmq.verify import lines
    from queenmq.verify.shrink import minimal

    if as_json:
        print_json([_as_json(*result) for result in results])
    else:
        rows = [
            {
                "workload": name,
                "operations": verdict.operations,
                "checks": sum(verdict.checked.values()),
                "failed": verdict.outcomes.get("fail", 0),
                "unknown": verdict.outcomes.get("info", 0),
                "faults": len(_faults_of(history)),
                "violations": len(verdict.violations),
                "not judged": len(verdict.unjudged),
            }
            for name, verdict, history in results
        ]
        names = ("operations", "checks", "failed", "unknown", "faults", "violations", "not judged")
        table(rows, Column("workload"), *(Column(name, number=True) for name in names))
        counts = Counter(fault.name for _, _, history in results for fault in _faults_of(history))
        if counts:
            print("faults: " + ", ".join(f"{count} × {name}" for name, count in counts.most_common()))
        for name, verdict, history in results:
            for violation in verdict.violations[:_SHOWN]:
                print(f"\n{name} breaks {violation.rule}: {violation.text}")
                for line in lines(minimal(history, violation)):
                    print(f"    {line}")
            if len(verdict.violations) > _SHOWN:
                print(f"\n{name}: {len(verdict.violations) - _SHOWN} more; --json has all of them")
            for text in verdict.unjudged:
                print(f"\n{name} could not be judged: {text}")
    broken = [name for name, verdict, _ in results if not verdict.is_valid]
    unjudged = [name for name, verdict, _ in results if verdict.unjudged]
    if broken:
        print(f"promises were broken: {', '.join(broken)}", file=sys.stderr)
    if unjudged:
        print(f"could not be judged: {', '.join(unjudged)}", file=sys.stderr)
    if broken or unjudged:
        return exits.FAILED
    if not as_json:
        print("every promise was kept")
    return exits.OK


def _faults_of(history: History) -> list[Fault]:
    from queenmq.verify.history import Fault

    return [event for event in history if isinstance(event, Fault)]


def _as_json(name: str, verdict: Verdict, history: History) -> dict[str, Any]:
    """With the smallest history that shows it, of the first violations."""
    import msgspec

    from queenmq.verify.shrink import minimal

    return {
        "name": name,
        "valid": verdict.is_valid,
        "operations": verdict.operations,
        "outcomes": verdict.outcomes,
        "checked": verdict.checked,
        "faults": [msgspec.to_builtins(fault) for fault in _faults_of(history)],
        "unjudged": verdict.unjudged,
        "violations": [
            {
                "rule": one.rule,
                "text": one.text,
                "operations": list(one.ops),
                "history": msgspec.to_builtins(minimal(history, one)) if number < _SHOWN else [],
            }
            for number, one in enumerate(verdict.violations)
        ],
    }
