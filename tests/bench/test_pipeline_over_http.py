"""The comparison of HTTP with PostgreSQL in `queen pipeline bench`, with a stand-in for Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queen_bench.errors import BenchError

pytest.importorskip("pyspark")

from queen_bench.pipeline import over_http
from queen_bench.pipeline.jobs import Measured, Settings

SERVER, POSTGRES = "http://127.0.0.1:1", "postgresql://h/d"


class Frame:
    """Rows of a queue that are written nowhere, and counted."""

    def __init__(self, rows: int, log: list[str], told: str) -> None:
        self._rows, self._log, self._told = rows, log, told

    def count(self) -> int:
        return self._rows

    @property
    def write(self) -> Any:
        saved = SimpleNamespace(save=lambda: self._log.append(self._told))
        return SimpleNamespace(format=lambda _: SimpleNamespace(mode=lambda _: saved))


@pytest.mark.parametrize("lost", [0, 1])
def test_both_ways_alternate_and_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    log: list[str] = []
    results: dict[str, Measured] = {}

    def measure(name: str, work: Callable[[], None], count: int) -> None:
        work()
        one = results.setdefault(name, Measured(name, count))
        one.seconds.append(8.0 if "HTTP" in name else 2.0)

    monkeypatch.setattr(over_http, "write", lambda frame, url, queue: log.append(f"write {frame} {url} {queue}"))
    monkeypatch.setattr(over_http, "read", lambda _, url, queue: Frame(10 - lost, log, f"read {url} {queue}"))
    trial: Any = SimpleNamespace(
        queue=lambda name: f"bench-{name}", frame=lambda n: n, measure=measure, results=results
    )
    settings = Settings(url=POSTGRES, server=SERVER, messages=100, rounds=2)
    if lost:
        with pytest.raises(BenchError, match="10 rows were written over HTTP, and 9 are there"):
            over_http.compare(None, settings, trial)
        return
    told = over_http.compare(None, settings, trial)
    assert log == [
        f"write 10 {POSTGRES} bench-a-tenth-0",
        f"write 10 {SERVER} bench-a-tenth-over-HTTP-0",
        f"write 10 {POSTGRES} bench-a-tenth-1",
        f"write 10 {SERVER} bench-a-tenth-over-HTTP-1",
        *[f"read {POSTGRES} bench-a-tenth-0", f"read {SERVER} bench-a-tenth-0"] * 2,
    ]
    assert told == {f"{verb} over HTTP": "0.250 of the rate with PostgreSQL" for verb in ("write", "read")}
