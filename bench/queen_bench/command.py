"""`queen bench`: put load on servers, audit every message, and report what was measured.

The exit status is 1 if a message was lost, doubled or reordered, or if a scenario could not be finished.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from types import SimpleNamespace as Given
from typing import TYPE_CHECKING, Any, Final

import click

from queen_bench.errors import BenchError, PeerMissing
from queen_bench.options import Options
from queenmq.cli.arguments import AMOUNT, COUNT, FOLDER, NAMES, Kind
from queenmq.cli.exits import TERMINATED
from queenmq.cli.group import command as command_of

if TYPE_CHECKING:
    from queen_bench.report import Report
    from queen_bench.scenarios.scenario import Scenario
    from queen_bench.subject import Contender

OUT: Final = Path("bench-results")
PEERS: Final = ("rabbitmq", "nats", "procrastinate")
# A busy run needs few files beside its connections.
MORE_FILES: Final = 2
USUAL: Final = Options()


def _peers(raw: str) -> list[str]:
    names: list[str] = NAMES.convert(raw, None, None)
    if unknown := [name for name in names if name not in PEERS]:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(PEERS)}")
    return names


def _counts(raw: str) -> tuple[int, ...]:
    return tuple(COUNT.convert(name, None, None) for name in NAMES.convert(raw, None, None))


@command_of("bench", "queen bench --list", "queen bench --only 'push-*' --seconds 10")
@click.option("--list", is_flag=True, help="List the scenarios and exit.")
@click.option(
    "--only",
    type=NAMES,
    default="",
    metavar="NAMES",
    help="Run only these scenarios, such as push-1,pop-ack-10 or 'push-*'.",
)
@click.option("--repeat", type=COUNT, default=1, metavar="N", help="Run every scenario N times.")
@click.option(
    "--url", metavar="URL[,postgres=PID]", help="Measure this server instead of starting one for each scenario."
)
@click.option(
    "--against",
    multiple=True,
    metavar="URL[,postgres=PID]",
    help="Run each scenario on this server too and print the ratios; may be repeated.",
)
@click.option(
    "--peers",
    type=Kind("NAMES", _peers),
    default="",
    metavar="NAMES",
    help=f"Compare with other brokers that are installed: {', '.join(PEERS)}.",
)
@click.option("--keep-server", is_flag=True, help="Use one server for all scenarios instead of a fresh one for each.")
@click.option(
    "--scratch",
    type=FOLDER,
    metavar="FOLDER",
    help="Folder for the databases (default: the folder for temporary files).",
)
@click.option(
    "--seconds", type=AMOUNT, default=USUAL.seconds, show_default=True, help="Duration of each measurement, in seconds."
)
@click.option(
    "--connections",
    type=COUNT,
    default=USUAL.connections,
    show_default=True,
    help="Number of connections to the server.",
)
@click.option(
    "--partitions", type=COUNT, default=USUAL.partitions, show_default=True, help="Number of partitions of the queue."
)
@click.option(
    "--payload", type=COUNT, default=USUAL.payload, show_default=True, help="Size of a payload, in bytes of JSON."
)
@click.option("--spread", is_flag=True, help="Push each item of a request to a different partition.")
@click.option(
    "--rate",
    type=AMOUNT,
    default=USUAL.rate,
    show_default=True,
    help="Messages a second, in scenarios with a fixed rate.",
)
@click.option(
    "--groups", type=COUNT, default=USUAL.groups, show_default=True, help="Number of groups in the scenarios groups-*."
)
@click.option(
    "--partition-counts",
    type=Kind("N,N", _counts),
    default=",".join(map(str, USUAL.partition_counts)),
    show_default=True,
    metavar="N,N",
    help="Numbers of partitions in the scenarios partitions-*.",
)
@click.option(
    "--age-partitions",
    type=COUNT,
    default=USUAL.age_partitions,
    show_default=True,
    metavar="N",
    help="Number of partitions in the scenario age.",
)
@click.option(
    "--rounds",
    type=COUNT,
    default=USUAL.rounds,
    show_default=True,
    help="Number of wake-ups to measure in the scenario wakeup.",
)
@click.option(
    "--parked",
    type=COUNT,
    default=USUAL.parked,
    show_default=True,
    metavar="N",
    help="Number of waiting long polls in the scenario parked.",
)
@click.option(
    "--pending",
    type=COUNT,
    default=USUAL.pending,
    show_default=True,
    metavar="N",
    help="Number of timers that wait for another day in the scenario timers.",
)
@click.option(
    "--idle-seconds",
    type=AMOUNT,
    default=USUAL.idle_seconds,
    show_default=True,
    metavar="S",
    help="Duration of the scenario parked, and of the idle phases of timers, in seconds.",
)
@click.option(
    "--held-seconds",
    type=AMOUNT,
    default=USUAL.held_seconds,
    show_default=True,
    metavar="S",
    help="Time for which the scenarios held-horizon and held-beside keep old row versions, in each form, in seconds.",
)
@click.option(
    "--share",
    type=AMOUNT,
    default=USUAL.share,
    show_default=True,
    help="Share of the full rate in the scenarios shape-*; 1 is in full.",
)
@click.option(
    "--out", type=FOLDER, default=OUT, show_default=True, metavar="FOLDER", help="Folder for the JSON and the plot."
)
def command(**given: Any) -> int:
    """Measure throughput and latency under load, and audit every message."""
    return run(Given(**given))


def run(given: Given) -> int:
    from queen_bench.scenarios.catalogue import chosen, scenarios

    options = Options(**{name: getattr(given, name) for name in Options.__dataclass_fields__})
    try:
        known = chosen(scenarios(options), given.only)
        if given.list:
            print("\n".join(f"{scenario.name:26s} {scenario.about}" for scenario in known))
            return 0
        return _measure(given, options, known)
    except BenchError as error:
        print(f"queen bench: {error}", file=sys.stderr)
        return 1


def _measure(given: Given, options: Options, scenarios: list[Scenario]) -> int:
    import uvloop

    from queen_bench import report

    contenders = _contenders(given)
    _prepare(given, options)
    try:
        found = uvloop.run(_run(given, options, scenarios, contenders))
    except asyncio.CancelledError:
        return TERMINATED
    print(report.text(found), flush=True)
    _write(found, given.out)
    return 0 if found.ok else 1


def _contenders(given: Given) -> list[Contender]:
    """Ours first, then those to compare with; a peer that cannot run here is left out with a word about it."""
    from queen_bench.server import OwnServer
    from queen_bench.subject import GivenServer

    ours: Contender = GivenServer(given.url) if given.url else OwnServer(given.scratch)
    contenders = [ours, *(GivenServer(url) for url in given.against)]
    for name in given.peers:
        try:
            contenders.append(_peer(name, given))
        except PeerMissing as missing:
            print(f"queen bench: without {name}: {missing}", file=sys.stderr)
    return contenders


def _peer(name: str, given: Given) -> Contender:
    from queen_bench.peers import find

    return find(name, given.scratch)


def _prepare(given: Given, options: Options) -> None:
    from queen_bench import machine

    if not machine.allow_open_files(MORE_FILES * options.connections + options.parked):
        print("queen bench: the limit of open files is low (ulimit -n); long polls may be refused", file=sys.stderr)
    if machine.file_system(given.scratch) in machine.MEMORY_FILE_SYSTEMS:
        print(
            "queen bench: the database would lie in memory, where fsync costs nothing; see --scratch", file=sys.stderr
        )


async def _run(given: Given, options: Options, scenarios: list[Scenario], contenders: list[Contender]) -> Report:
    from queen_bench import machine, report, summary
    from queen_bench.runner import Runner

    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - we are in one
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    facts = machine.facts(given.scratch)
    runner = Runner(contenders, options, keep=given.keep_server)
    results = await runner.run(scenarios, given.repeat, lambda result: print(report.line(result), file=sys.stderr))
    short = summary.summarise(results)
    servers = {contender.name: contender.facts() for contender in contenders}
    return report.make(facts, servers, options, results, short, summary.compare(short))


def _write(found: Report, folder: Path) -> None:
    from queen_bench import plot, report

    stem = f"bench-{found.machine['date']}".replace(":", "").replace("+0000", "Z")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{stem}.json").write_bytes(report.encode(found))
    except OSError as error:
        raise BenchError(f"the results cannot be written to {folder}: {error.strerror}") from None
    print(f"Written: {folder / stem}.json", flush=True)
    try:
        plot.write(folder / f"{stem}.png", found.summary)
        print(f"Written: {folder / stem}.png", flush=True)
        for result in found.results:
            if result.series:
                lines = folder / f"{stem}-{result.scenario}-{result.repeat}.svg"
                plot.write_series(lines, f"{result.scenario} ({result.server}), MB over time", result.series)
                print(f"Written: {lines}", flush=True)
    except BenchError as error:
        print(f"queen bench: {error}", file=sys.stderr)
