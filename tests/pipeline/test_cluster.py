"""Every job on a standalone cluster of separate processes, whose executors have another current folder than the driver
and an environment without anything of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.cluster import cluster
from pipeline.db import Db

SCRIPT = Path(__file__).with_name("cluster_jobs.py")
SETTINGS = (
    "spark.executor.memory=512m",
    "spark.driver.memory=512m",
    "spark.driver.bindAddress=127.0.0.1",
    "spark.driver.host=127.0.0.1",
    "spark.sql.shuffle.partitions=1",
)
WINDOW = """
source: orders
target: stats
window: {tumbling: 1 day}
by: [partition]
aggregates: {orders: count}
emit: updates
"""


class Driver:
    """Runs jobs of `queen pipeline` in a process of its own, in a folder of its own."""

    def __init__(self, master: str, url: str, folder: Path) -> None:
        folder.mkdir()
        kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
        with (folder / "stderr").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), master, url, *SETTINGS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=kept | {"PATH": "/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"},
                cwd=folder,
                text=True,
            )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        status, out, err = json.loads(self._process.stdout.readline())
        return status, out, err

    def summary(self, *arguments: str) -> dict[str, Any]:
        status, out, err = self.run(*arguments, "--json")
        assert status == 0, err
        found: dict[str, Any] = json.loads(out)["summary"]
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def driver(db: Db, tmp_path: Path) -> Iterator[Driver]:
    with cluster(tmp_path, ["127.0.0.2"], {}, cores=1) as master:
        started = Driver(master, db.url, tmp_path / "driver")
        try:
            yield started
        finally:
            started.stop()


@pytest.mark.timeout(600)
def test_every_job_on_a_cluster(driver: Driver, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 3, 40)
    # A folder that is another one for every process: nothing may be published.
    status, _, err = driver.run("archive", "--queue", "orders", "--lake", "file:///proc/self/cwd/own")
    assert (status, "is not the one on the driver's machine" in err) == (1, True), err
    assert db.one("SELECT count(*) FROM queen.archive_files") == 0
    assert db.one("SELECT count(*) FROM queen.archive_positions") == 0
    # A relative one is that of the driver, and shared here, because the machine is one.
    assert driver.summary("archive", "--queue", "orders", "--lake", "lake")["messages"] == 120
    assert len(list((tmp_path / "driver" / "lake").rglob("*.parquet"))) >= 1
    verdict = driver.summary("audit", "--queue", "orders", "--lake", "lake")
    assert (verdict["findings"], verdict["archived messages"]) == ([], 120)
    assert driver.summary("replay", "--queue", "orders", "--lake", "lake", "--into", "again")["messages written"] == 120
    db.assert_copied("orders", "again")
    (tmp_path / "rows.json").write_text('{"a": 1}\n{"a": 2}\n')
    backfill = ("--queue", "filled", "--format", "json", "--path", str(tmp_path / "rows.json"), "--order-by", "a")
    assert driver.summary("backfill", *backfill)["messages written"] == 2
    assert driver.summary("analytics", "--queue", "orders")["samples"] == 1
    (tmp_path / "window.yaml").write_text(WINDOW)
    window = ("--file", str(tmp_path / "window.yaml"), "--checkpoint", str(tmp_path / "checkpoint"))
    assert driver.summary("window", *window, "--available-now")["messages read"] == 120
    assert {name: [one["orders"] for one in found] for name, found in db.partitions("stats").items()} == {
        f"p{n}": [40] for n in range(3)
    }
    # What Java and Spark themselves have to say: nothing.
    assert (tmp_path / "driver" / "stderr").read_text() == ""
