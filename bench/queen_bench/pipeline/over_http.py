"""For `queen pipeline bench --server`: reads and writes through a server beside the same ones with PostgreSQL.

A tenth of the messages, because it takes longer. The two alternate, and the CPU of the server is counted by itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from queen_bench.errors import BenchError
from queen_bench.processes import Watch, listener
from queenmq.pipeline.frames import read, write

if TYPE_CHECKING:
    from queen_bench.pipeline.jobs import Bench, Settings

SHARE: Final = 10
_DIRECT, _SERVER = "a tenth", "a tenth over HTTP"


def compare(spark: Any, settings: Settings, trial: Bench) -> dict[str, str]:
    """Measure, and say how the two ways compare and what the server used. Raises BenchError if rows are missing."""
    server = str(settings.server)
    watch = Watch(listener(urlsplit(server).port or 6632))
    count = max(1, settings.messages // SHARE)
    ways = {_DIRECT: settings.url, _SERVER: server}
    used: dict[str, list[float]] = {"write": [], "read": []}

    def measure(verb: str, way: str, work: Callable[[], None]) -> None:
        before = watch.usage().server_cpu_s
        trial.measure(f"{verb} {way}", work, count)
        after = watch.usage().server_cpu_s
        if way == _SERVER and before is not None and after is not None:
            used[verb].append(after - before)

    for turn in range(settings.rounds):
        for way, url in ways.items():
            queue = trial.queue(f"{way.replace(' ', '-')}-{turn}")
            measure("write", way, partial(write, trial.frame(count), url, queue))
    for _ in range(settings.rounds):
        for way, url in ways.items():
            measure("read", way, partial(_read, spark, url, trial.queue("a-tenth-0")))
    # What was pushed is there.
    found = read(spark, settings.url, trial.queue("a-tenth-over-HTTP-0")).count()
    if found != count:
        raise BenchError(f"{count} rows were written over HTTP, and {found} are there")
    return {f"{verb} over HTTP": _compared(trial, verb, cpu_s) for verb, cpu_s in used.items()}


def _read(spark: Any, url: str, queue: str) -> None:
    read(spark, url, queue).write.format("noop").mode("overwrite").save()


def _compared(trial: Bench, verb: str, server_s: list[float]) -> str:
    direct, http = (trial.results[f"{verb} {way}"] for way in (_DIRECT, _SERVER))
    told = f"{http.rate / direct.rate:.3f} of the rate with PostgreSQL"
    # Not known of a server on another machine.
    return f"{told}; CPU of the server {statistics.median(server_s):.1f} s" if server_s else told
