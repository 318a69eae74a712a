"""`make soak`: the whole product for hours, at 70 % of what it can do, while everything around it fails.

It measures first how much the servers answer, then runs all workloads of `queen verify` at once in rounds, with faults,
on one cluster. Each round is judged by the checker. Memory, descriptors, connections, sizes of tables and latencies are
printed after each, and plotted at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import Sequence
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
from queenmq.verify import History, check, lines, write_history
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
    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self._cluster = cluster
        self._folder = folder
        self._seed = seed
        self._rates: dict[str, float] = {}
        self.rows: list[dict[str, Any]] = []
        self.broken: list[str] = []
        self.totals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    async def measure(self, seconds: float) -> None:
        """How many calls a second each workload gets answered, while all run at once and nothing fails."""
        histories = await self._workloads("measure", Load(seconds=seconds, seed=self._seed))
        for name, history in histories.items():
            done = [one for one in operations(history) if one.process != "end"]
            self._rates[name] = len(done) / seconds * SHARE
        say(f"rates ({SHARE:.0%}): " + ", ".join(f"{name} {rate:.0f}/s" for name, rate in self._rates.items()))

    async def round(self, number: int, seconds: float, begun: float) -> None:
        recorder = Recorder(SYSTEM)
        harming = asyncio.create_task(harm(self._cluster, list(FAULTS), seconds, self._seed + number, recorder.note))
        histories = await self._workloads(
            f"round-{number}",
            Load(seconds=seconds, seed=self._seed + number, settle_s=180, drain_s=180),
            harming,
            self._rates,
        )
        faults = [event for event in recorder.history if isinstance(event, Fault)]
        self.faults.update(fault.name for fault in faults)
        row: dict[str, Any] = {"round": number, "minutes": round((SYSTEM.monotonic() - begun) / 60, 2)}
        row |= self._judge(number, histories, faults) | _latencies(histories.values()) | await self._resources()
        row["faults"] = len(faults)
        self.rows.append(row)
        say(json.dumps(row), flush=True)

    async def _workloads(
        self,
        prefix: str,
        load: Load,
        beside: asyncio.Task[None] | None = None,
        rates: dict[str, float] | None = None,
    ) -> dict[str, History]:
        async def one(name: str) -> History:
            own = replace(load, rate=(rates or {}).get(name, 0), producers=2, consumers=2)
            # The switch of maintenance is for all queues: the others see the journal as well.
            return await run(
                self._cluster.urls, name, f"soak.{prefix}.{name}", own, beside=None if beside is None else waited
            )

        async def waited(recorder: Recorder) -> None:
            assert beside is not None
            await asyncio.shield(beside)

        found = await asyncio.gather(*(one(name) for name in CHOSEN))
        return dict(zip(CHOSEN, found, strict=True))

    def _judge(self, number: int, histories: dict[str, History], faults: Sequence[Fault]) -> dict[str, Any]:
        figures: Counter[str] = Counter()
        for name, history in histories.items():
            history += faults  # the checker knows by them which leases a crash may have forgotten
            verdict = check(history)
            figures["operations"] += verdict.operations
            figures["checks"] += sum(verdict.checked.values())
            figures["unknown"] += verdict.outcomes.get("info", 0)
            figures["violations"] += len(verdict.violations)
            if verdict.violations:
                write_history(self._folder / f"round-{number}-{name}.jsonl", history)
            for violation in verdict.violations[:3]:
                self.broken.append(f"round {number}, {name}, {violation.rule}: {violation.text}")
                say(self.broken[-1], *lines(minimal(history, violation)), sep="\n    ", flush=True)
        self.totals.update(figures)
        return dict(figures)

    async def _resources(self) -> dict[str, Any]:
        servers = [psutil.Process(server.pid) for server in self._cluster.servers if server.pid is not None]
        family = [psutil.Process(pid) for pid in self._cluster.databases.primary.pids]
        sizes: dict[str, int] = {}
        connections = 0
        with contextlib.suppress(*BROKEN):
            sql = await self._cluster.databases.primary.connect()
            try:
                sizes = {row["relname"]: row["bytes"] for row in await sql.fetch(TABLES)}
                connections = await sql.fetchval(CONNECTIONS)
            finally:
                await sql.close()
        return {
            "servers_mb": [round(one.memory_info().rss / 1e6, 1) for one in servers],
            "servers_fds": [one.num_fds() for one in servers],
            "postgres_mb": round(sum(_unique_mb(one) for one in family), 1),
            "connections": connections,
            "tables_mb": round(sum(sizes.values()) / 1e6, 2),
            "largest_mb": {name: round(size / 1e6, 2) for name, size in list(sizes.items())[:4]},
        }


def say(*parts: object, sep: str = " ", flush: bool = True) -> None:
    print(*parts, sep=sep, flush=flush)  # noqa: T201


def _unique_mb(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return float(process.memory_full_info().uss) / 1e6
    return 0.0


def _latencies(histories: Any) -> dict[str, float]:
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
    # What is done is forgotten soon, so that the sizes of tables can be seen to stay.
    variables = {"QUEEN_PUSH_QUEUE_DEPTH": "10000", "QUEEN_OPERATION_KEEP_S": "300"}
    async with started(standby=True, variables=variables) as cluster:
        running = Soak(cluster, folder, seed)
        await running.measure(min(round_s, 15))
        begun = SYSTEM.monotonic()
        number = 0
        while SYSTEM.monotonic() - begun < minutes * 60:
            number += 1
            await running.round(number, round_s, begun)
        hours = (SYSTEM.monotonic() - begun) / 3600
    totals = running.totals
    verdict = "every promise was kept" if not running.broken else f"{totals['violations']} violations"
    title = (
        f"seed {seed}: {hours:.2f} h, {totals['operations']:,} operations, {totals['checks']:,} checks, "
        f"{running.faults.total()} faults: {verdict}"
    )
    (folder / "soak.jsonl").write_text("".join(json.dumps(row) + "\n" for row in running.rows))
    plot(running.rows, folder / "soak.svg", title)
    say(dict(running.faults))
    say(f"{title}\n{folder / 'soak.svg'}")
    return 1 if running.broken else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--round", type=float, default=60, help="seconds for which a round pushes")
    parser.add_argument("--seed", type=int, default=random.randrange(2**16))
    parser.add_argument("--folder", type=Path, default=Path("build/soak"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    # The client logs what it could not do; here it is in the histories.
    logging.getLogger("queenmq.client").addHandler(logging.NullHandler())
    return asyncio.run(soak(given.minutes, given.round, given.seed, given.folder))


if __name__ == "__main__":
    sys.exit(main())
