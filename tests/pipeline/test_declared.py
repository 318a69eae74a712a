"""Declared pipelines in the database: applying files, leases, generations, and what the figures say. No Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from pipeline.db import Db
from queenmq.cli.main import main
from queenmq.pipeline import generation
from queenmq.pipeline.connection import connect, connection, database_errors, rows
from queenmq.pipeline.declared import listed
from queenmq.pipeline.driver import DriverRun
from queenmq.pipeline.errors import Superseded
from queenmq.pipeline.generation import GENERATION, hold_generation
from queenmq.pipeline.leases import Leases
from queenmq.pipeline.options import WriteOptions
from queenmq.pipeline.promotion import promote
from queenmq.pipeline.runs import Batch
from queenmq.pipeline.sink import stage

COPY: dict[str, Any] = {"kind": "copy", "source": "orders", "target": "copies", "checkpoint": "/data/copy"}
WINDOW: dict[str, Any] = {
    "kind": "window",
    "checkpoint": "/data/stats",
    "window": {
        "source": "orders",
        "target": "stats",
        "window": {"tumbling": "1 minute"},
        "aggregates": {"orders": "count"},
    },
}

Apply = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(db: Db, capsys: pytest.CaptureFixture[str]) -> Apply:
    """Run `queen pipeline`; status, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["pipeline", *arguments, "--url", db.url])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def apply(db: Db, command: Apply, tmp_path: Path) -> Apply:
    def call(pipelines: dict[str, Any], *options: str) -> tuple[int, str, str]:
        db.make("orders")
        file = tmp_path / "pipelines.yaml"
        file.write_text(yaml.safe_dump({"pipelines": pipelines}))
        return command("apply", str(file), *options)

    return call


def test_a_file_is_shown_first_and_then_applied(apply: Apply, command: Apply, db: Db) -> None:
    status, out, _ = apply({"copy": COPY, "stats": WINDOW}, "--dry-run")
    assert (status, out) == (0, "+ copy is new\n+ stats is new\nnothing was applied (--dry-run)\n")
    assert db.one("SELECT count(*) FROM queen.pipelines") == 0
    assert apply({"copy": COPY, "stats": WINDOW})[0] == 0
    status, out, _ = apply({"copy": COPY | {"where": "true", "target": "elsewhere"}})
    assert (status, out.splitlines()) == (
        0,
        [
            "~ copy changes",
            "    target: copies → elsewhere",
            "    where: (not there) → true",
            "? stats is not in the file and stays; --prune removes it",
            "applied",
        ],
    )
    assert [(one["name"], one["version"], one["state"]) for one in listed(db.url)] == [
        ("copy", 2, "unsupervised"),
        ("stats", 1, "unsupervised"),
    ]
    assert apply({"copy": COPY}, "--prune")[1].splitlines()[-2:] == ["- stats is removed", "applied"]
    assert [one["name"] for one in listed(db.url)] == ["copy"]
    status, out, _ = command("show", "copy", "--json")
    found = json.loads(out)
    assert [one["version"] for one in found["versions"]] == [3, 2, 1]
    assert found["versions"][1]["declaration"]["where"] == "true"
    assert command("show", "stats")[::2] == (
        3,
        "queen: there is no pipeline 'stats': queen pipeline list has them all\n",
    )


def test_one_problem_and_nothing_is_applied(apply: Apply, db: Db) -> None:
    wrong = COPY | {"source": "orderz", "checkpoint": "/data/other"}
    status, _, err = apply({"copy": COPY, "wrong": wrong})
    assert status == 2
    assert "wrong: there is no queue 'orderz' to read" in err
    assert "1 problem: nothing was applied" in err
    assert db.one("SELECT count(*) FROM queen.pipelines") == 0
    assert apply({"copy": COPY})[0] == 0
    assert "checkpoint /data/copy is that of copy" in apply({"other": COPY})[2]


def test_a_change_that_does_not_fit_the_state_needs_consent(apply: Apply, db: Db) -> None:
    """Also after the pipeline was removed: its checkpoint is still there."""
    assert apply({"stats": WINDOW})[0] == 0
    db.sql("""UPDATE queen.pipeline_states SET positions = '{"018f0000-0000-7000-8000-000000000000": 5}'""")
    changed = WINDOW | {"window": WINDOW["window"] | {"window": {"tumbling": "5 minutes"}}}
    status, _, err = apply({"stats": changed})
    assert (status, "size: 1 minute → 5 minutes" in err, "--reset-state stats" in err) == (2, True, True)
    assert main(["pipeline", "remove", "stats", "--yes", "--url", db.url]) == 0
    assert apply({"stats": changed})[0] == 2
    assert apply({"stats": changed}, "--reset-state", "nope")[0] == 2
    status, out, _ = apply({"stats": changed}, "--reset-state", "stats")
    assert (status, "its state is given up" in out) == (0, True)
    assert db.sql("SELECT version, state_number, wanted FROM queen.pipelines") == [(2, 2, "running")]
    assert db.one("SELECT positions FROM queen.pipeline_states") == {}


def test_one_supervisor_has_a_pipeline_until_its_lease_ends(apply: Apply, db: Db) -> None:
    apply({"copy": COPY, "stats": WINDOW})
    first, second, third = Leases(db.url), Leases(db.url), Leases(db.url, ["stats"])
    assert [one.name for one in first.hold(take=True)] == ["copy", "stats"]
    assert second.hold(take=True) == []
    generation = first.begin("copy", 1)
    assert generation == 2
    assert second.begin("copy", 1) is None
    assert listed(db.url, "copy")[0]["state"] == "starting"
    db.sql("UPDATE queen.pipeline_leases SET held_until = clock_timestamp() - interval '1 second'")
    assert listed(db.url, "copy")[0]["state"] == "unsupervised"
    assert [one.name for one in third.hold(take=True)] == ["stats"]
    assert [one.name for one in second.hold(take=True)] == ["copy"]
    assert first.hold(take=True) == []
    second.say("copy", "waiting", 3, 5.0, "it broke")
    first.say("copy", "running", 0, None, None)  # it has nothing to say any more
    found = listed(db.url, "copy")[0]
    assert (found["state"], found["failures"], found["error"]) == ("waiting", 3, "it broke")
    second.release(["copy"])
    assert [one.name for one in first.hold(take=True)] == ["copy"]
    for one in (first, second, third):
        one.close()


def test_a_stopped_pipeline_is_nobodys(apply: Apply, command: Apply, db: Db) -> None:
    apply({"copy": COPY})
    assert command("stop", "copy")[0] == 0
    leases = Leases(db.url)
    assert leases.hold(take=True) == []
    assert listed(db.url, "copy")[0]["state"] == "stopped"
    assert command("status")[0] == 0
    assert command("start", "copy")[0] == 0
    assert command("status")[0] == 1
    [held] = leases.hold(take=True)
    assert held.asked == 2
    leases.close()


def test_only_the_newest_generation_publishes(apply: Apply, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    apply({"copy": COPY})
    leases = Leases(db.url)
    leases.hold(take=True)
    old = leases.begin("copy", 1)
    monkeypatch.setenv(GENERATION, f"copy:{old}")
    options = WriteOptions(url=db.url, queue="copies")

    def write(epoch: int) -> tuple[int, int]:
        batch = pa.RecordBatch.from_pydict({"value": [str(epoch)]})
        return promote(options, "stream s", epoch, [stage(options, "stream s", epoch, iter([batch]))])

    assert write(0) == (1, 0)
    new = leases.begin("copy", 1)
    with pytest.raises(Superseded, match="another driver has taken the place"):
        write(1)
    with pytest.raises(Superseded), connection(db.url) as opened, opened.transaction():
        hold_generation(opened)
    monkeypatch.setenv(GENERATION, f"copy:{new}")
    assert write(1) == (1, 0)
    assert db.partitions("copies") == {"Default": [0, 1]}
    leases.close()


def test_nobody_takes_a_pipeline_over_in_the_middle_of_a_publication(
    apply: Apply, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply({"copy": COPY})
    first, second = Leases(db.url), Leases(db.url)
    first.hold(take=True)
    monkeypatch.setenv(GENERATION, f"copy:{first.begin('copy', 1)}")
    db.sql("UPDATE queen.pipeline_leases SET held_until = clock_timestamp() - interval '1 second'")
    with connection(db.url) as opened, opened.transaction():
        hold_generation(opened)
        assert second.hold(take=True) == []
        assert first.begin("copy", 1) is None
        assert [one.name for one in first.hold(take=True)] == ["copy"]  # renewing does not wait
        db.sql("UPDATE queen.pipeline_leases SET held_until = clock_timestamp() - interval '1 second'")
    assert [one.name for one in second.hold(take=True)] == ["copy"]
    with pytest.raises(Superseded), connection(db.url) as opened, opened.transaction():
        hold_generation(opened)
    first.close()
    second.close()


def test_who_stops_in_the_middle_of_a_publication_is_given_up(
    apply: Apply, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply({"copy": COPY})
    first, second = Leases(db.url), Leases(db.url)
    first.hold(take=True)
    monkeypatch.setenv(GENERATION, f"copy:{first.begin('copy', 1)}")
    monkeypatch.setattr(generation, "_MOST_IDLE", "100ms")
    db.sql("UPDATE queen.pipeline_leases SET held_until = clock_timestamp() - interval '1 second'")
    paused = connect(db.url)
    with database_errors():
        paused.autocommit = False
        hold_generation(paused)
    over = threading.Event()
    for _ in range(100):
        if second.hold(take=True) or over.wait(0.1):
            break
    assert [one.name for one in second.hold(take=True)] == ["copy"]
    paused.close()
    first.close()
    second.close()


def test_lag_and_throughput(apply: Apply, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lag is known whether the driver runs or not."""
    db.fill("orders", 2, 10)
    apply({"copy": COPY})
    leases = Leases(db.url)
    leases.hold(take=True)
    order = {"url": db.url, "name": "copy", "version": 1, "generation": leases.begin("copy", 1)}
    queue_id = str(db.one("SELECT id FROM queen.queues WHERE name = 'orders'"))
    found = listed(db.url, "copy")[0]
    assert (found["lag"], found["lag_seconds"], found["rate"]) == (None, None, None)
    with DriverRun(order, "copy", "orders", "local") as run:
        run.running()
        now = db.one("SELECT extract(epoch FROM clock_timestamp())::float8")
        run.batch(
            Batch(number=7, rows=12, seconds=0.5, ended=now, query="q", positions={queue_id: 12}, covered=now - 100)
        )
        assert run._report(None, "running")
        found = listed(db.url, "copy")[0]
        assert (found["lag"], found["state"], found["rows"], found["batch_number"]) == (8, "running", 12, 7)
        assert 99 < found["lag_seconds"] < 150
        assert found["rate"] > 0
        run.batch(Batch(number=8, rows=8, seconds=0.5, ended=now, query="q", positions={queue_id: 20}))
        assert run._report(None, "running")
        found = listed(db.url, "copy")[0]
        assert (found["lag"], found["lag_seconds"], found["batches"]) == (0, 0.0, 2)
        leases.begin("copy", 1)
        assert not run._report(None, "running")
        monkeypatch.setattr(run, "_report", lambda *_: True)
    db.fill("orders", 2, 1)
    found = listed(db.url, "copy")[0]
    assert found["lag"] == 2
    assert found["lag_seconds"] < 60
    assert db.sql("SELECT job, options ->> 'pipeline' FROM queen.pipeline_runs") == [("copy", "copy")]
    leases.close()


def test_a_fence_costs_nothing_without_a_supervisor(db: Db) -> None:
    with connection(db.url) as opened:
        hold_generation(opened)
        assert rows(opened, "pipelines_declared") == []
