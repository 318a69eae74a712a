"""`queen bench`: put load on servers, audit every message, and report what was measured.

The exit status is 1 if a message was lost, doubled or reordered, or if a scenario could not be finished.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from queenmq.bench.errors import BenchError, PeerMissing
from queenmq.bench.options import Options

if TYPE_CHECKING:
    from queenmq.bench.report import Report
    from queenmq.bench.scenarios.scenario import Scenario
    from queenmq.bench.subject import Contender

Number = TypeVar("Number", int, float)

OUT: Final = Path("bench-results")
PEERS: Final = ("rabbitmq", "nats", "procrastinate")
# A busy run needs few files beside its connections.
MORE_FILES: Final = 2
TERMINATED: Final = 143


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser(
        "bench", help="measure throughput and latency", description="Measure under load, with every message audited."
    )
    _add_choice(bench)
    _add_servers(bench)
    _add_load(bench)
    bench.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help=f"for JSON and plot (default {OUT}/)")


def _add_choice(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("--list", action="store_true", help="show the scenarios and end")
    bench.add_argument(
        "--only", type=_names, default=[], metavar="NAMES", help="scenarios, such as push-1,pop-ack-10 or 'push-*'"
    )
    bench.add_argument("--repeat", type=_positive(int), default=1, metavar="N", help="run all of them N times")


def _add_servers(bench: argparse.ArgumentParser) -> None:
    bench.add_argument(
        "--url", metavar="URL[,postgres=PID]", help="measure this server instead of starting one for each scenario"
    )
    bench.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="URL[,postgres=PID]",
        help="alternate with this server and print ratios; may be repeated",
    )
    bench.add_argument(
        "--peers", type=_peers, default=[], metavar="NAMES", help=f"compare with {', '.join(PEERS)}, where possible"
    )
    bench.add_argument(
        "--keep-server", action="store_true", help="one server for all scenarios, not a fresh one for each"
    )
    bench.add_argument(
        "--scratch",
        type=Path,
        metavar="FOLDER",
        help="where databases are made (default: where temporary files are)",
    )


def _add_load(bench: argparse.ArgumentParser) -> None:
    usual = Options()
    count, amount = _positive(int), _positive(float)
    bench.add_argument(
        "--seconds", type=amount, default=usual.seconds, help="of each measurement (default %(default)s)"
    )
    bench.add_argument("--connections", type=count, default=usual.connections, help="default %(default)s")
    bench.add_argument("--partitions", type=count, default=usual.partitions, help="default %(default)s")
    bench.add_argument("--payload", type=count, default=usual.payload, help="bytes of JSON (default %(default)s)")
    bench.add_argument("--spread", action="store_true", help="put each item of a push into another partition")
    bench.add_argument("--rate", type=amount, default=usual.rate, help="msg/s of paced producers (default %(default)s)")
    bench.add_argument("--groups", type=count, default=usual.groups, help="of groups-* (default %(default)s)")
    bench.add_argument(
        "--partition-counts",
        type=_counts,
        default=usual.partition_counts,
        metavar="N,N",
        help=f"of partitions-* (default {','.join(map(str, usual.partition_counts))})",
    )
    bench.add_argument(
        "--age-partitions", type=count, default=usual.age_partitions, metavar="N", help="of age (default %(default)s)"
    )
    bench.add_argument("--rounds", type=count, default=usual.rounds, help="of wakeup (default %(default)s)")
    bench.add_argument("--parked", type=count, default=usual.parked, metavar="N", help="polls (default %(default)s)")
    bench.add_argument(
        "--idle-seconds", type=amount, default=usual.idle_seconds, metavar="S", help="of parked (default %(default)s)"
    )


def run(given: argparse.Namespace) -> int:
    from queenmq.bench.scenarios.catalogue import chosen, scenarios

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


def _measure(given: argparse.Namespace, options: Options, scenarios: list[Scenario]) -> int:
    import uvloop

    from queenmq.bench import report

    contenders = _contenders(given)
    _prepare(given, options)
    try:
        found = uvloop.run(_run(given, options, scenarios, contenders))
    except asyncio.CancelledError:
        return TERMINATED
    print(report.text(found), flush=True)
    _write(found, given.out)
    return 0 if found.ok else 1


def _contenders(given: argparse.Namespace) -> list[Contender]:
    """Ours first, then those to compare with; a peer that cannot run here is left out with a word about it."""
    from queenmq.bench.server import OwnServer
    from queenmq.bench.subject import GivenServer

    ours: Contender = GivenServer(given.url) if given.url else OwnServer(given.scratch)
    contenders = [ours, *(GivenServer(url) for url in given.against)]
    for name in given.peers:
        try:
            contenders.append(_peer(name, given))
        except PeerMissing as missing:
            print(f"queen bench: without {name}: {missing}", file=sys.stderr)
    return contenders


def _peer(name: str, given: argparse.Namespace) -> Contender:
    from queenmq.bench.peers import find

    return find(name, given.scratch)


def _prepare(given: argparse.Namespace, options: Options) -> None:
    from queenmq.bench import machine

    if not machine.allow_open_files(MORE_FILES * options.connections + options.parked):
        print("queen bench: the limit of open files is low (ulimit -n); long polls may be refused", file=sys.stderr)
    if machine.file_system(given.scratch) in machine.MEMORY_FILE_SYSTEMS:
        print(
            "queen bench: the database would lie in memory, where fsync costs nothing; see --scratch", file=sys.stderr
        )


async def _run(
    given: argparse.Namespace, options: Options, scenarios: list[Scenario], contenders: list[Contender]
) -> Report:
    from queenmq.bench import machine, report, summary
    from queenmq.bench.runner import Runner

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
    from queenmq.bench import plot, report

    stem = f"bench-{found.machine['date']}".replace(":", "").replace("+0000", "Z")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{stem}.json").write_bytes(report.encode(found))
    except OSError as error:
        raise BenchError(f"the results cannot be written to {folder}: {error.strerror}") from None
    print(f"Written: {folder / stem}.json", flush=True)
    try:
        plot.write(folder / f"{stem}.png", found.summary)
    except BenchError as error:
        print(f"queen bench: {error}", file=sys.stderr)
    else:
        print(f"Written: {folder / stem}.png", flush=True)


def _names(raw: str) -> list[str]:
    return [name.strip() for name in raw.split(",") if name.strip()]


def _peers(raw: str) -> list[str]:
    names = _names(raw)
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(PEERS)}")
    return names


def _counts(raw: str) -> tuple[int, ...]:
    return tuple(map(_positive(int), _names(raw)))


def _positive(kind: Callable[[str], Number]) -> Callable[[str], Number]:
    def parse(raw: str) -> Number:
        try:
            value = kind(raw)
        except ValueError:
            value = kind("0")
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{raw!r} is not a number above 0")
        return value

    return parse
