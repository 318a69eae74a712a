"""`queen verify`: record what clients see of real servers, and check that every promise was kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from queenmq.cli import exits
from queenmq.cli.arguments import COUNT, Kind, as_json
from queenmq.cli.group import group, under
from queenmq.cli.remote import failure, server, servers, token, trusted_context
from queenmq.cli.show import Column, listing, note, plural
from queenmq.cli.verdicts import report

if TYPE_CHECKING:
    from queenmq.faults.cluster import Cluster
    from queenmq.verify import History, Verdict
    from queenmq.verify.clients import Load
    from queenmq.verify.recorder import Recorder

_RATE = 200
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
@click.option(
    "--rate",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Requests a second of all clients of a workload together; 0 for as many as the servers answer. By default "
    f"{_RATE} on your servers, and 0 with --faults.",
)
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
    rate: int | None,
    lease: int,
    seed: int,
    prefix: str,
    keep: bool,
    histories: Path | None,
    as_json: bool,
    server: str,
) -> int:
    """Run workloads on new queues, record every request and answer, and check the histories.

    It is safe beside other users of the servers: it creates queues whose names begin with the prefix, deletes only
    these, and asks no more often than --rate says. With --faults it does not touch them at all. The exit status is 1 if
    a promise was broken, or if something could not be judged: the report says what, and why.
    """
    from queenmq.verify import check, workload, write_history
    from queenmq.verify.clients import DRAIN_S
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
        seconds=seconds,
        producers=producers,
        consumers=consumers,
        partitions=partitions,
        lease_s=lease,
        seed=seed,
        rate=rate if rate is not None else 0 if faults is not None else _RATE,
        # What was pushed faster than it was read takes its time.
        drain_s=DRAIN_S + 5 * seconds,
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
    return report(results, as_json)


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
    """After a workload that has not come to its end, the next one has a new cluster: nobody knows what is left."""
    from queenmq.errors import StartupError
    from queenmq.faults.cluster import started

    left = list(names)
    while left:
        tell("starting two servers and PostgreSQL" + (" with a standby" if "failover" in faults else ""))
        try:
            async with started(standby="failover" in faults) as cluster:
                why = ""
                while left and not why:
                    name = left.pop(0)
                    queue = _queue(prefix, name, load, tell)
                    history, why = await _harmed(cluster, faults, name, queue, load)
                    judge(name, history, why)
        except StartupError as error:
            if len(left) == len(names):
                raise
            for name in left:
                judge(name, [], str(error))
            return


async def _harmed(cluster: Cluster, faults: Sequence[str], name: str, queue: str, load: Load) -> tuple[History, str]:
    from queenmq.errors import StartupError
    from queenmq.faults.injection import harm
    from queenmq.faults.postgres import BROKEN
    from queenmq.verify import workload

    async def harming(recorder: Recorder) -> None:
        try:
            await harm(cluster, faults, load.seconds, load.seed, recorder.note)
        except BROKEN as error:
            raise StartupError(f"PostgreSQL is not what it was before the faults: {error!r}") from error

    beside = harming if faults else None
    running = partial(workload.run, cluster.urls, name, queue, load, keep=True, beside=beside)
    return await _as_far_as_it_goes(running, cluster.urls[0])


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
    return report(results, as_json)


@under(
    command,
    "export",
    "queen verify export history.jsonl > history.edn",
    "queen verify export --elle history.jsonl > appends.edn",
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--elle", is_flag=True, help="Write only what is stored and read, as transactions of Elle's list-append.")
def export(file: Path, elle: bool) -> None:
    """Write a history in EDN, in the shape of Jepsen's histories."""
    from queenmq.verify import BadHistory, read_history
    from queenmq.verify.edn import to_edn, to_elle

    try:
        for line in (to_elle if elle else to_edn)(read_history(file)):
            print(line)
    except BadHistory as error:
        raise exits.Failed(str(error), exits.USAGE) from None


@under(command, "self-test", "queen verify self-test")
@as_json
def self_test(as_json: bool) -> int:
    """Corrupt good histories in many ways, and check that the checker finds and names each of them."""
    from queenmq.verify.self_test import self_test

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
