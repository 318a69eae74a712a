"""`queen pipeline bench --growth`: whether costs grow as messages and partitions do, and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from queen_bench.pipeline.jobs import Bench, Measured, Settings
from queenmq.pipeline.runs import Outcome, Run

# Of the messages and partitions, from the fewest on, and what is measured of each. The first trial only warms Java up.
SHARES: Final = (4, 4, 2, 1)
# A message may cost so many times as much among all as among a quarter of them, before the growth counts as more than
# linear: the same trial twice differs by as much on a machine with other work.
LINEAR: Final = 1.3
GROWING: Final = ("write", "read", "stream", "archive", "audit", "window", "replay")


def growth(spark: Any, settings: Settings, run: Run) -> Outcome:
    """Everything with a quarter, half and all of the messages and partitions: a message costs the same in all of them,
    if the cost grows as the number does."""
    trials: list[dict[str, Measured]] = []
    for share in SHARES:
        part = replace(
            settings,
            messages=max(1, settings.messages // share),
            partitions=max(1, settings.partitions // share),
            rounds=1,
            only=settings.only or GROWING,
        )
        trial = Bench(spark, part)
        try:
            trial.run()
        finally:
            trial.close()
        trials.append(trial.results)
    del trials[0]
    summary: dict[str, Any] = {}
    for name, whole in trials[-1].items():
        costs = [1e6 / trial[name].per_core for trial in trials]
        peaks = [trial[name].peak_kb / 1024 for trial in trials]
        each, memory = (" → ".join(f"{one:.{digits}f}" for one in ones) for ones, digits in ((costs, 1), (peaks, 0)))
        ratio = costs[-1] / costs[0]
        summary[name] = (
            f"{whole.rate:,.0f} rows/s, CPU {whole.cpu[0]:.1f} s + PostgreSQL {whole.postgres_cpu[0]:.1f} s; µs of CPU "
            f"a message {each} ({ratio:.2f}{', linear' if ratio <= LINEAR else ', MORE THAN LINEAR'}); "
            f"memory MB {memory}"
        )
    run.outcome.rows = settings.messages
    run.outcome.summary = summary
    return run.outcome
