"""Every job on a standalone cluster of separate processes, whose executors have another current folder than the driver
and an environment without anything of its own.
"""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

import pyspark_queen
import queenmq
from pipeline.cluster import cluster
from pipeline.db import Db
from pipeline.driver import Driver
from pipeline.test_tables import assert_equal

STREAMS = Path(__file__).parents[2] / "docs" / "tutorial" / "streams.py"

WINDOW = """
source: orders
target: stats
window: {tumbling: 1 day}
by: [partition]
aggregates: {orders: count}
emit: updates
"""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster"), ["127.0.0.2"], {}, cores=1) as started:
        yield started


@contextmanager
def driven(master: str, db: Db, folder: Path, *settings: str) -> Iterator[Driver]:
    started = Driver(master, db.url, folder, settings=settings)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def driver(master: str, db: Db, tmp_path: Path) -> Iterator[Driver]:
    with driven(master, db, tmp_path / "driver") as started:
        yield started


@pytest.mark.timeout(900)
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
    for kind in ("delta", "iceberg"):
        archive = ("archive", "--queue", "orders", "--lake", str(tmp_path / kind), "--format", kind)
        assert driver.summary(*archive)["messages"] == 120
        assert_equal(db, tmp_path / kind, kind)
    copy = ("copy", "--queue", "orders", "--into", "copied", "--checkpoint", str(tmp_path / "copied"))
    driver.summary(*copy, "--available-now")
    db.assert_copied("orders", "copied")
    query = "SELECT data.n * 2 AS double, partition FROM STREAM(orders) WHERE data.n > 30"
    sql = ("sql", query, "--to", "doubled", "--schema", "orders=n INT", "--checkpoint", str(tmp_path / "doubled"))
    driver.summary(*sql, "--available-now")
    assert db.partitions("doubled") == {f"p{n}": [{"double": 2 * one} for one in range(31, 41)] for n in range(3)}
    upsert = (
        "upsert",
        "--queue",
        "orders",
        "--table",
        str(tmp_path / "newest"),
        "--key",
        "p",
        "--schema",
        "p INT, n INT",
    )
    driver.summary(*upsert, "--schema", "p INT, n INT", "--checkpoint", str(tmp_path / "upserted"), "--available-now")
    newest = DeltaTable(str(tmp_path / "newest")).to_pyarrow_table().select(["p", "n"]).sort_by("p").to_pydict()
    assert newest == {"p": [0, 1, 2], "n": [40, 40, 40]}
    inferred = driver.summary("schema", "infer", "orders")["schema"]["properties"]
    assert {name: one["type"] for name, one in inferred.items()} == {"n": "integer", "p": "integer", "pad": "string"}
    # What Java and Spark themselves have to say: nothing.
    assert (tmp_path / "driver" / "stderr").read_text() == ""


@pytest.mark.timeout(1200)
def test_joins_and_state_by_key_on_a_cluster(driver: Driver, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 3, 40)
    db.fill("again", 3, 40)
    join = """
        SELECT o.data.n + a.data.n AS sum, o.partition
        FROM STREAM(orders) WATERMARK timestamp DELAY OF INTERVAL 1 HOUR AS o
        JOIN STREAM(again) WATERMARK timestamp DELAY OF INTERVAL 1 HOUR AS a
          ON o.partition = a.partition AND o.data.n = a.data.n
          AND a.timestamp BETWEEN o.timestamp AND o.timestamp + INTERVAL 1 HOUR
        WHERE o.data.n = 40
    """
    schemas = ("--schema", "orders=n INT", "--schema", "again=n INT")
    driver.summary("sql", join, "--to", "joined", *schemas, "--checkpoint", str(tmp_path / "join"), "--available-now")
    assert db.partitions("joined") == {f"p{n}": [{"sum": 80}] for n in range(3)}
    # State by key with timers, and a table of a database with foreachBatch.
    for customer, minutes in (("ann", 60), ("bob", 0)):
        db.sql("SELECT queen.ensure_partitions(ARRAY['tutorial-orders'], ARRAY[%s])", customer)
        db.sql(
            'INSERT INTO queen.messages (partition_id, "offset", transaction_id, payload, created_at) '
            "SELECT id, 1, 'a', convert_to(%s, 'UTF8'), now() - make_interval(mins => %s) "
            "FROM queen.partitions WHERE name = %s",
            *(json.dumps({"customer": customer, "state": "begun"}), minutes, customer),
        )
    status, _, err = driver.run("script", str(STREAMS), db.url, str(tmp_path / "streams"))
    assert status == 0, err
    assert {name: [one["customer"] for one in found] for name, found in db.partitions("tutorial-unpaid").items()} == {
        "ann": ["ann"]
    }
    assert db.one("SELECT count(*) FROM tutorial_orders") == 2


BASE = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
OWN = f'exec {sys.executable} "$@"'
AUDIT = ("audit", "--queue", "orders")  # begins with tasks
PLANS = ("schema", "infer", "orders")  # begins with a plan, which Spark makes beside the driver


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("job", "python", "script", "told"),
    [
        (PLANS, "/nowhere/python", None, "the machine of the driver has no Python at /nowhere/python"),
        (AUDIT, "./python", OWN, "the executors have no Python at ./python"),
        (
            AUDIT,
            "{folder}/python",
            f'case "$PWD" in {{folder}}) {OWN};; esac\nexec {BASE} "$@"',
            "the Python of the executors lacks the package queenmq",
        ),
    ],
)
def test_what_is_lacking_is_told(
    master: str, db: Db, tmp_path: Path, job: tuple[str, ...], python: str, script: str | None, told: str
) -> None:
    db.fill("orders", 1, 2)
    folder = tmp_path / "driver"
    folder.mkdir()
    if script is not None:
        (folder / "python").write_text(f"#!/bin/sh\n{script.replace('{folder}', str(folder))}\n")
        (folder / "python").chmod(0o755)
    with driven(master, db, folder, f"spark.pyspark.python={python.replace('{folder}', str(folder))}") as driver:
        status, _, err = driver.run(*job)
    assert (status, err.splitlines()[-1].startswith(f"queen: {told}: ")) == (1, True), err


def environment(folder: Path, *packages: Path) -> Path:
    """A virtual environment with what the package demands, and with these packages."""
    base = Path(BASE).resolve()
    home = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    home.mkdir(parents=True)
    # As a path, so that the editable installation there does not count: Python reads no further .pth files in it.
    (home / "demanded.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    for package in packages:
        shutil.copytree(package, home / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    return folder


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", ["archive", "files"])
def test_the_package_comes_along(master: str, db: Db, tmp_path: Path, way: str) -> None:
    """Executors have none: it is in an archive with its Python, or in a file beside a Python that has the rest."""
    db.fill("orders", 2, 20)
    folder = tmp_path / "driver"
    folder.mkdir()
    ours = [Path(str(package.__file__)).parent for package in (queenmq, pyspark_queen)]
    if way == "archive":
        made = environment(folder / "env", *ours)  # the driver needs it, too
        with tarfile.open(tmp_path / "env.tar.gz", "w:gz", compresslevel=1) as packed:
            packed.add(made, ".")
        settings = [f"spark.archives={tmp_path}/env.tar.gz#env", "spark.pyspark.python=./env/bin/python"]
    else:
        made = environment(tmp_path / "env")
        for package in ours:
            shutil.copytree(package, tmp_path / "ours" / package.name)
        file = shutil.make_archive(str(tmp_path / "queenmq"), "zip", tmp_path / "ours")
        settings = [f"spark.submit.pyFiles={file}", f"spark.pyspark.python={made}/bin/python"]
    with driven(master, db, folder, *settings) as driver:
        assert driver.summary("archive", "--queue", "orders", "--lake", "lake")["messages"] == 40
        assert driver.summary("audit", "--queue", "orders", "--lake", "lake")["findings"] == []
        assert (
            driver.summary("replay", "--queue", "orders", "--lake", "lake", "--into", "again")["messages written"] == 40
        )
    db.assert_copied("orders", "again")
