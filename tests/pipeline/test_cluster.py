"""Every job on a standalone cluster of separate processes, whose executors have another current folder than the driver
and an environment without anything of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cluster import cluster
from pipeline.db import Db
from pipeline.driver import Driver

WINDOW = """
source: orders
target: stats
window: {tumbling: 1 day}
by: [partition]
aggregates: {orders: count}
emit: updates
"""


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
