"""`queen pipeline` as a person runs it: tables, JSON, exit status, sentences, and the record of runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.db import Db
from queenmq import pipeline
from queenmq.cli import exits
from queenmq.cli.main import main
from queenmq.pipeline import session as session_module

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(spark: Any, db: Db, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in the session of the tests; status, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["pipeline", *arguments, "--url", db.url])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_archive_replay_audit_and_the_runs(run: Run, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 3, 20)
    lake = str(tmp_path / "lake")
    status, out, _ = run("archive", "--queue", "orders", "--lake", lake)
    assert status == 0
    assert "messages  " in out
    assert "60" in out
    status, out, _ = run("replay", "--queue", "orders", "--lake", lake, "--into", "again", "--json")
    answer = json.loads(out)
    assert (status, answer["ok"], answer["summary"]["messages written"]) == (0, True, 60)
    status, out, _ = run("audit", "--queue", "again", "--plot", str(tmp_path / "plot.png"))
    assert (status, "nothing is lost or doubled" in out, (tmp_path / "plot.png").exists()) == (0, True, True)
    db.sql('DELETE FROM queen.messages WHERE "offset" = 7')
    status, out, _ = run("audit", "--queue", "again", "--json")
    assert (status, len(json.loads(out)["summary"]["findings"])) == (1, 3)
    status, out, _ = run("runs")
    assert [line.split()[2:5:2] for line in out.splitlines()] == [
        ["audit", "failed"],
        ["audit", "finished"],
        ["replay", "finished"],
        ["archive", "finished"],
    ]
    recorded = db.sql("SELECT options, offsets, ended_at > started_at FROM queen.pipeline_runs WHERE job = 'archive'")
    assert recorded[0][1:] == ({"partitions": 3, "messages": 60}, True)
    assert "url" not in recorded[0][0]
    assert run("archive", "--queue", "orders", "--lake", lake, "--forget")[0] == 0
    assert db.one("SELECT count(*) FROM queen.archive_lakes") == 0


def test_what_goes_wrong_is_a_sentence_and_is_recorded(run: Run, db: Db, tmp_path: Path) -> None:
    status, _, err = run("archive", "--queue", "nope", "--lake", str(tmp_path))
    assert (status, err.strip()) == (3, "queen: there is no queue 'nope'")
    assert db.sql("SELECT state, error FROM queen.pipeline_runs") == [("failed", "there is no queue 'nope'")]
    (tmp_path / "w.yaml").write_text("source: a\n")
    status, _, err = run("window", "--file", str(tmp_path / "w.yaml"), "--checkpoint", str(tmp_path / "c"))
    assert (status, err.startswith("queen: window must be")) == (1, True)
    status, _, err = run("backfill", "--queue", "q", "--format", "json", "--option", "nonsense")
    assert (status, err.strip()) == (1, "queen: 'nonsense' is not NAME=VALUE")


def test_a_misspelt_name_is_found_before_spark_starts(
    db: Db, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session_module, "session", started)
    (tmp_path / "w.yaml").write_text("source: nope\ntarget: t\nwindow: {tumbling: 1 day}\naggregates: {n: count}\n")
    window = ["window", "--file", str(tmp_path / "w.yaml"), "--checkpoint", str(tmp_path / "c")]
    archive = ["archive", "--queue", "nope", "--lake", str(tmp_path)]
    for job in (archive, ["audit", "--queue", "nope"], ["analytics", "--queue", "nope"], window):
        assert main(["pipeline", *job, "--url", db.url]) == 3
        assert capsys.readouterr().err.strip() == "queen: there is no queue 'nope'"
    assert main(["pipeline", "replay", "--queue", "nope", "--lake", str(tmp_path), "--url", db.url]) == 1
    assert "has no published file of queue 'nope'" in capsys.readouterr().err
    assert set(db.sql("SELECT state FROM queen.pipeline_runs")) == {("failed",)}


def test_sigterm_ends_the_run(db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db.fill("orders", 1, 1)

    def terminated(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(session_module, "session", terminated)
    assert main(["pipeline", "audit", "--queue", "orders", "--url", db.url]) == exits.INTERRUPTED
    assert db.sql("SELECT state, error FROM queen.pipeline_runs") == [("failed", "it was interrupted")]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_unreachable_database_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["pipeline", "runs", "--url", "postgresql://u:secret@127.0.0.1:1/d"])
    told = capsys.readouterr().err
    assert (status, told.startswith("queen: cannot connect to PostgreSQL"), "secret" in told) == (1, True, False)


def test_without_the_extra_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None if name == "pyspark" else object())
    assert main(["pipeline", "runs", "--url", "postgresql://h/d"]) == 1
    assert "needs pyspark: pip install 'queenmq[pipeline]'" in capsys.readouterr().err


def test_the_server_needs_none_of_it() -> None:
    """What `queen serve` imports does not reach Spark."""
    names = "any(name.startswith(('pyspark', 'pyarrow')) for name in sys.modules)"
    code = f"import queenmq.server, queenmq.cli.main, sys; sys.exit({names})"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_gaps_are_accepted(run: Run, db: Db) -> None:
    db.fill("orders", 2, 10)
    db.sql("DELETE FROM queen.messages WHERE transaction_id IN ('3', '4', '7')")
    db.delete_message("p1", "9")
    status, out, _ = run("accept-gaps", "--queue", "orders", "--partition", "p1")
    assert (status, out.splitlines()) == (
        0,
        ["p1: offsets 3 to 4", "p1: offset 7", "3 missing messages of orders are accepted"],
    )
    assert run("accept-gaps", "--queue", "orders")[1].splitlines()[-1].startswith("3 missing messages")
    assert run("accept-gaps", "--queue", "orders")[1] == "nothing is missing\n"
    assert run("accept-gaps", "--queue", "no-such")[0] != 0


SCRIPT = """
import sys
from pyspark.sql import SparkSession
from queenmq import pipeline
local = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master("local[1]").config(map=local).getOrCreate()
pipeline.register(spark)
orders = spark.read.format("queen").option("url", sys.argv[1]).option("subscribe", "orders").load()
print("found", orders.count())
"""


def test_a_script_needs_no_activated_environment(db: Db, tmp_path: Path) -> None:
    """Spark's workers run on the interpreter of the script, whatever `python3` is in the path."""
    db.fill("orders", 1, 3)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
    bare = kept | {"PATH": "/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(script), db.url], env=bare, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == "found 3", done.stderr[-2000:]
