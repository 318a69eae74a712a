"""`make soak`: two servers and their PostgreSQL for hours, at 70 % of what they can do, while everything around fails.

It measures first how much the servers answer, then runs all workloads of `queen verify` but `overload` at once, with
faults, in rounds: `--round` seconds of load, then what is left is read and the checker judges. `--minutes` is all of
the time; what passes from the first request of a load to its last is reported as minutes under load. After each round a
line is printed and written to `soak.jsonl`: memory, descriptors, connections, sizes of tables, latencies. At the end,
however it comes, they are plotted.

A finding is a broken promise or what could not be judged: a workload that failed, a group that did not come to the end
of its messages, a partition that could not be read, faults that did not end. The histories of such a round, and what
the servers and PostgreSQL said in it, are kept. If the faults did not end, the next round has a new cluster.

The workloads are those of `queen verify` but overload, which also finish and take, and consume over connections. Left
out are `autoAck`, keys and locks, limits, fairness, servers of several workers, and Spark.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from typing import Any

import msgspec
import psutil

from queenmq.clock import SYSTEM
from queenmq.faults.cluster import Cluster, started
from queenmq.faults.injection import FAULTS, harm
from queenmq.faults.postgres import BROKEN
from queenmq.verify import BadHistory, History, check, lines, write_history
from queenmq.verify.history import Fault, operations
from queenmq.verify.recorder import Recorder
from queenmq.verify.shrink import minimal
from queenmq.verify.workload import WORKLOADS, Load, run

SHARE = 0.7
# The servers are made to take little, so that pushes are deferred: floods would only measure that.
CHOSEN = [name for name in WORKLOADS if name != "overload"]
TABLES = """
    SELECT relname, pg_total_relation_size(c.oid) AS bytes FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'queen' AND relkind = 'r' ORDER BY bytes DESC
"""
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"


class Soak:
    def __init__(self, folder: Path, seed: int, minutes: float, round_s: float) -> None:
        self._folder = folder
        self._seed = seed
        self._end_s = minutes * 60
        self._round_s = round_s
        self._rates: dict[str, float] = {}
        self._begun = SYSTEM.monotonic()
        self._rows: list[dict[str, Any]] = []
        self._totals: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self.findings: list[str] = []

    async def run(self) -> None:
        (self._folder / "soak.jsonl").write_text("")
        # What is done is forgotten soon, so that the sizes of tables can be seen to stay.
        variables = {"QUEEN_PUSH_QUEUE_DEPTH": "10000", "QUEEN_OPERATION_KEEP_S": "300"}
        is_over = False
        while not is_over:
            async with started(standby=True, variables=variables) as cluster:
                if not self._rates:
                    await self._measure(cluster)
                is_over = await self._rounds(cluster)

    async def _measure(self, cluster: Cluster) -> None:
        """How many calls a second each workload gets answered, while all run at once and nothing fails."""
        load = Load(seconds=min(self._round_s, 15), seed=self._seed)
        for name, (history, why) in (await _workloads(cluster, "measure", load)).items():
            done = [one for one in operations(history) if one.process != "end"]
            if why:
                say(f"{name}, while it was measured: {why}")
            if not done:
                raise RuntimeError(f"{name} could not be measured: {why}")
            self._rates[name] = len(done) / load.seconds * SHARE
        say(f"rates ({SHARE:.0%}): " + ", ".join(f"{name} {rate:.0f}/s" for name, rate in self._rates.items()))
        self._begun = SYSTEM.monotonic()

    async def _rounds(self, cluster: Cluster) -> bool:
        """Until the time is over, or the cluster is of no use any more: False."""
        while self._elapsed_s < self._end_s:
            if not await self._round(cluster, len(self._rows) + 1):
                return self._elapsed_s >= self._end_s
        return True

    @property
    def _elapsed_s(self) -> float:
        return SYSTEM.monotonic() - self._begun

    async def _round(self, cluster: Cluster, number: int) -> bool:
        """Whether all faults are over, so that another round can follow."""
        logs = Logs(cluster)
        recorder = Recorder(SYSTEM)
        seed = self._seed + number
        harming = asyncio.create_task(harm(cluster, list(FAULTS), self._round_s, seed, recorder.note))
        load = Load(seconds=self._round_s, seed=seed, settle_s=180, drain_s=180)
        try:
            recorded = await _workloads(cluster, f"round-{number}", load, harming, self._rates)
            await asyncio.wait({harming})
        finally:
            harming.cancel()
            await asyncio.gather(harming, return_exceptions=True)
        faults = [event for event in recorder.history if isinstance(event, Fault)]
        figures: Counter[str] = Counter(operations=0, checks=0, unknown=0, violations=0, not_judged=0)
        already = len(self.findings)
        if (error := harming.exception()) is not None:
            self._unjudged(figures, f"round {number}, faults", _told(error))
        for name, (history, why) in recorded.items():
            history += faults  # the checker knows by them which leases a crash may have forgotten
            self._judge(figures, f"round {number}, {name}", history, why)
        if len(self.findings) > already:
            kept = self._folder / f"seed-{self._seed}-round-{number}"
            kept.mkdir(exist_ok=True)
            for name, (history, _) in recorded.items():
                write_history(kept / f"{name}.jsonl", history)
            logs.write(kept)
            say(f"histories and logs of the round: {kept}")
        histories = [history for history, _ in recorded.values()]
        load_s = _under_load_s(histories)
        row: dict[str, Any] = {"round": number, "minutes": round(self._elapsed_s / 60, 2), "load_s": round(load_s, 1)}
        row |= figures | _latencies(histories) | await _resources(cluster) | {"faults": len(faults)}
        self._totals.update(figures)
        self._totals["load_s"] += round(load_s)
        self._faults.update(fault.name for fault in faults)
        self._rows.append(row)
        with (self._folder / "soak.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        say(json.dumps(row))
        return error is None

    def _judge(self, figures: Counter[str], where: str, history: History, why: str) -> None:
        try:
            verdict = check(history)
        except BadHistory as error:
            self._unjudged(figures, where, str(error))
            return
        figures["operations"] += verdict.operations
        figures["checks"] += sum(verdict.checked.values())
        figures["unknown"] += verdict.outcomes.get("info", 0)
        figures["violations"] += len(verdict.violations)
        for text in [*([why] if why else []), *verdict.unjudged]:
            self._unjudged(figures, where, text)
        for violation in verdict.violations[:3]:
            self._found(f"{where}, {violation.rule}: {violation.text}", *lines(minimal(history, violation)))

    def _unjudged(self, figures: Counter[str], where: str, why: str) -> None:
        figures["not_judged"] += 1
        self._found(f"{where} could not be judged: {why}")

    def _found(self, text: str, *more: str) -> None:
        self.findings.append(text)
        say(text, *more, sep="\n    ")

    def failed(self, error: BaseException) -> None:
        self._totals["not_judged"] += 1
        self._found(f"the soak has ended early: {_told(error)}", *traceback.format_exception(error))

    def report(self) -> None:
        """Say and plot what there is."""
        totals = self._totals
        verdict = "every promise was kept" if self._rows else "nothing was judged"
        if self.findings:
            verdict = f"{totals['violations']} violations, {totals['not_judged']} not judged"
        title = (
            f"seed {self._seed}: {self._elapsed_s / 60:.0f} minutes ({totals['load_s'] / 60:.1f} under load), "
            f"{len(self._rows)} rounds, {totals['operations']:,} operations ({totals['unknown']:,} unknown), "
            f"{totals['checks']:,} checks, {self._faults.total()} faults: {verdict}"
        )
        say(dict(self._faults))
        say(title)
        plot(self._rows, self._folder / "soak.svg", title)
        say(self._folder / "soak.svg")


async def _workloads(
    cluster: Cluster,
    prefix: str,
    load: Load,
    beside: asyncio.Task[None] | None = None,
    rates: Mapping[str, float] | None = None,
) -> dict[str, tuple[History, str]]:
    """The history of each, and why that is not all of it."""

    async def one(name: str) -> tuple[History, str]:
        own = replace(load, rate=(rates or {}).get(name, 0), producers=2, consumers=2)
        recorder = Recorder(SYSTEM)
        queue = f"soak.{prefix}.{name}"
        waiting = None if beside is None else waited
        try:
            await run(cluster.urls, name, queue, own, beside=waiting, recorder=recorder)
        except Exception as error:
            return recorder.history, _told(error)
        return recorder.history, ""

    async def waited(recorder: Recorder) -> None:
        assert beside is not None
        await asyncio.wait({beside})

    # The switch of maintenance is for all queues: the others see the journal as well.
    found = await asyncio.gather(*(one(name) for name in CHOSEN))
    return dict(zip(CHOSEN, found, strict=True))


class Logs:
    """What the servers and PostgreSQL say from now on."""

    def __init__(self, cluster: Cluster) -> None:
        self._servers = cluster.servers
        for server in self._servers:
            server.lines.clear()
        databases = (cluster.databases.primary, cluster.databases.standby)
        files = {one.name: one.log_file for one in databases}
        self._files = {name: (file, file.stat().st_size if file.exists() else 0) for name, file in files.items()}

    def write(self, folder: Path) -> None:
        for server in self._servers:
            (folder / f"{server.name}.log").write_text("".join(f"{line}\n" for line in server.lines))
        for name, (file, begun) in self._files.items():
            with contextlib.suppress(OSError), file.open("rb") as log:
                log.seek(begun)
                (folder / f"postgres-{name}.log").write_bytes(log.read())


async def _resources(cluster: Cluster) -> dict[str, Any]:
    sizes: dict[str, int] = {}
    connections = 0
    with contextlib.suppress(*BROKEN):
        sql = await cluster.databases.primary.connect()
        try:
            sizes = {row["relname"]: row["bytes"] for row in await sql.fetch(TABLES)}
            connections = await sql.fetchval(CONNECTIONS)
        finally:
            await sql.close()
    servers = [server.pid for server in cluster.servers]
    return {
        "servers_mb": [_of_process(pid, lambda one: one.memory_info().rss / 1e6) for pid in servers],
        "servers_fds": [_of_process(pid, lambda one: one.num_fds()) for pid in servers],
        "postgres_mb": round(sum(_of_process(pid, _unique_mb) for pid in cluster.databases.primary.pids), 1),
        "connections": connections,
        "tables_mb": round(sum(sizes.values()) / 1e6, 2),
        "largest_mb": {name: round(size / 1e6, 2) for name, size in list(sizes.items())[:4]},
    }


def _of_process(pid: int | None, figure: Callable[[psutil.Process], float]) -> float:
    """0 if it is gone."""
    with contextlib.suppress(psutil.Error):
        return round(figure(psutil.Process(pid)), 1) if pid is not None else 0
    return 0


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def say(*parts: object, sep: str = " ", flush: bool = True) -> None:
    print(*parts, sep=sep, flush=flush)  # noqa: T201


def _unique_mb(process: psutil.Process) -> float:
    return float(process.memory_full_info().uss) / 1e6


def _under_load_s(histories: Iterable[History]) -> float:
    """From the first request to the last one, without those that read what is left."""
    begun = [one.begun for history in histories for one in operations(history) if one.process != "end"]
    return max(begun) - min(begun) if begun else 0.0


def _latencies(histories: Iterable[History]) -> dict[str, float]:
    """In ms, of what was answered, faults included."""
    by_verb: dict[str, list[float]] = {}
    for history in histories:
        for one in operations(history):
            verb = str(msgspec.to_builtins(one.request)["f"])
            if one.outcome == "ok" and verb in ("push", "ack", "transact"):
                by_verb.setdefault(verb, []).append((one.ended - one.begun) * 1000)
    figures: dict[str, float] = {}
    for verb, times in by_verb.items():
        if len(times) > 1:
            cuts = quantiles(times, n=100)
            figures |= {f"{verb}_p50_ms": round(cuts[49], 1), f"{verb}_p99_ms": round(cuts[98], 1)}
    return figures


def plot(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    panels = {
        "memory of servers (MB)": ("servers_mb",),
        "descriptors of servers": ("servers_fds",),
        "connections, faults": ("connections", "faults"),
        "PostgreSQL: memory, tables (MB)": ("postgres_mb", "tables_mb"),
        "latency (ms, p50 and p99)": ("push_p50_ms", "push_p99_ms", "ack_p50_ms", "ack_p99_ms"),
        "operations": ("operations",),
    }
    figure, axes = pyplot.subplots(3, 2, figsize=(11, 9), sharex=True, layout="constrained")
    for axis, (name, keys) in zip(axes.flat, panels.items(), strict=True):
        for key in keys:
            axis.plot([row["minutes"] for row in rows], [row.get(key) for row in rows], label=key)
        axis.set_title(name, fontsize=9)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7)
    axes[-1][0].set_xlabel("minutes")
    figure.suptitle(title)
    figure.savefig(path)


async def soak(minutes: float, round_s: float, seed: int, folder: Path) -> int:
    running = Soak(folder, seed, minutes, round_s)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await running.run()
    except Exception as error:
        running.failed(error)
    finally:
        running.report()
    return 1 if running.findings else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--round", type=float, default=60, help="seconds of load of a round")
    parser.add_argument("--seed", type=int, default=random.randrange(2**16))
    parser.add_argument("--folder", type=Path, default=Path("build/soak"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    # The client logs what it could not do; here it is in the histories.
    logging.getLogger("queenmq.client").addHandler(logging.NullHandler())
    return asyncio.run(soak(given.minutes, given.round, given.seed, given.folder))


if __name__ == "__main__":
    sys.exit(main())
