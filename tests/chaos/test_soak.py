"""`make soak` without servers: what its report says when something does not come to its end."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos import soak
from queenmq.client import OperationTimeout
from queenmq.clock import SYSTEM
from queenmq.errors import StartupError
from queenmq.verify import read_history
from queenmq.verify.history import Done, Drain, Push
from queenmq.verify.recorder import Recorder

Run = Callable[..., Awaitable[object]]


def _round(queue: str) -> int:
    kind = queue.split(".")[1]
    return int(kind.removeprefix("round-")) if kind.startswith("round-") else 0


class Pretended:
    """The cluster and its workloads: each is well but for what a test says of a round."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.clusters = 0
        self.ill: dict[tuple[int, str], Exception] = {}
        self.endless: set[tuple[int, str]] = set()
        self.faulty: set[int] = set()
        self._rounds = rounds
        self._round = 0
        log = folder / "log"
        log.write_text("before\n")
        self._databases = [SimpleNamespace(name=name, log_file=log, connect=self._connect, pids=[]) for name in "ab"]
        self.servers = [SimpleNamespace(name="one", lines=deque(["before"]), pid=None)]

    @asynccontextmanager
    async def started(self, **_: Any) -> AsyncIterator[Any]:
        self.clusters += 1
        primary, standby = self._databases
        databases = SimpleNamespace(primary=primary, standby=standby)
        yield SimpleNamespace(urls=[], servers=self.servers, databases=databases)

    async def _connect(self) -> None:
        raise OSError("gone")

    async def harm(self, cluster: Any, names: list[str], seconds: float, seed: int, note: Any) -> None:
        self._round += 1
        note("kill", SYSTEM.monotonic(), SYSTEM.monotonic())
        self.servers[0].lines.append(f"round {self._round}")
        if self._round in self.faulty:
            raise StartupError("the server one is not well")

    async def run(self, urls: Any, name: str, queue: str, load: Any, *, beside: Any, recorder: Recorder) -> None:
        op = recorder.invoke("producer", Push(queue, "p0", ["a"]))
        recorder.complete(op, "fail")
        if beside is not None:
            await beside(recorder)
        if error := self.ill.get((_round(queue), name)):
            raise error
        op = recorder.invoke("end", Drain(queue, "readers"))
        recorder.complete(op, "info" if (_round(queue), name) in self.endless else "ok", Done())

    def has_time(self, running: Any) -> float:
        return 0.0 if len(running._rows) < self._rounds else 3600.0


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    (tmp_path / "cluster").mkdir()
    pretended = Pretended(tmp_path / "cluster", 3)
    for name in ("started", "harm", "run"):
        monkeypatch.setattr(soak, name, getattr(pretended, name))
    monkeypatch.setattr(soak, "plot", lambda rows, path, title: path.write_text(title))
    monkeypatch.setattr(soak.Soak, "_elapsed_s", property(pretended.has_time))
    return pretended


async def _soaked(folder: Path) -> tuple[int, list[dict[str, Any]], str]:
    status = await soak.soak(1, 1, 7, folder)
    rows = [json.loads(line) for line in (folder / "soak.jsonl").read_text().splitlines()]
    return status, rows, (folder / "soak.svg").read_text()


async def test_all_is_well(pretended: Pretended, tmp_path: Path) -> None:
    status, rows, title = await _soaked(tmp_path)
    assert (status, [row["not_judged"] for row in rows]) == (0, [0, 0, 0])
    assert title.endswith("3 faults: every promise was kept")
    assert "under load), 3 rounds, " in title
    assert not (tmp_path / "seed-7-round-1").exists()


async def test_a_workload_that_fails_is_a_finding(pretended: Pretended, tmp_path: Path) -> None:
    pretended.ill[2, "lease"] = OperationTimeout("not done", "1")
    status, rows, title = await _soaked(tmp_path)
    assert (status, [row["not_judged"] for row in rows]) == (1, [0, 1, 0])
    assert title.endswith("0 violations, 1 not judged")
    kept = tmp_path / "seed-7-round-2"
    assert {path.stem for path in kept.glob("*.jsonl")} == set(soak.CHOSEN)
    assert list(read_history(kept / "lease.jsonl"))
    assert (kept / "one.log").read_text() == "round 2\n"
    assert (kept / "postgres-a.log").read_text() == ""


async def test_what_did_not_come_to_its_end_is_a_finding(pretended: Pretended, tmp_path: Path) -> None:
    pretended.endless |= {(1, "log"), (1, "seek")}
    status, rows, title = await _soaked(tmp_path)
    assert (status, [row["not_judged"] for row in rows]) == (1, [2, 0, 0])
    assert title.endswith("0 violations, 2 not judged")


async def test_after_faults_that_did_not_end_there_is_a_new_cluster(pretended: Pretended, tmp_path: Path) -> None:
    pretended.faulty.add(2)
    status, rows, _ = await _soaked(tmp_path)
    assert (status, [row["not_judged"] for row in rows]) == (1, [0, 1, 0])
    assert pretended.clusters == 2


async def test_a_soak_that_is_broken_off_has_its_plot(
    pretended: Pretended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended.faulty.add(1)
    begin = pretended.started

    @asynccontextmanager
    async def once(**variables: Any) -> AsyncIterator[Any]:
        if pretended.clusters:
            raise StartupError("no more")
        async with begin(**variables) as cluster:
            yield cluster

    monkeypatch.setattr(soak, "started", once)
    status, rows, title = await _soaked(tmp_path)
    assert (status, len(rows)) == (1, 1)
    assert title.endswith("0 violations, 2 not judged")


async def test_a_soak_that_is_interrupted_has_its_plot(
    pretended: Pretended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(*_: Any) -> bool:
        raise asyncio.CancelledError

    monkeypatch.setattr(soak.Soak, "_rounds", cancelled)
    with pytest.raises(asyncio.CancelledError):
        await soak.soak(1, 1, 7, tmp_path)
    assert (tmp_path / "soak.svg").read_text().endswith("nothing was judged")


def test_a_plot_has_gaps_where_nothing_was_answered(tmp_path: Path) -> None:
    rows = [{"minutes": 1, "servers_mb": [60, 61], "push_p50_ms": 1}, {"minutes": 2, "servers_mb": [60, 0]}]
    soak.plot(rows, tmp_path / "soak.svg", "two rounds")
    soak.plot([], tmp_path / "none.svg", "none")
    assert (tmp_path / "soak.svg").stat().st_size > 1000
