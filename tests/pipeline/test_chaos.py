"""`kill -9` of the driver and of Python workers in the middle of a stream from queue to queue: nothing lost, nothing
doubled, order kept. Batches are committed in two parts, and the first kill of a driver comes between the two.

`QUEEN_LONG=1` copies 200,000 messages and kills a dozen times.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.cluster import cluster
from pipeline.db import Db
from pipeline.supervision import HALF_DONE, held, until

LONG = bool(os.environ.get("QUEEN_LONG"))
PARTITIONS = 50
MESSAGES = 200_000 if LONG else 5_000
PER_TRIGGER = 4_000 if LONG else 500
KILLS = 12 if LONG else 2
PATIENCE_S = 300
SCRIPT = Path(__file__).with_name("copy_stream.py")


class Driver:
    """The process, its JVM and its Python workers: a group of its own."""

    def __init__(self, url: str, checkpoint: Path) -> None:
        arguments = [sys.executable, str(SCRIPT), url, str(checkpoint), str(PER_TRIGGER)]
        log = checkpoint.with_suffix(".log").open("ab")
        self.process = subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)
        log.close()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """Everything at once, as when the machine goes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill_worker(self, chance: random.Random) -> bool:
        """One Python worker; False if none runs just now."""
        workers = [p for p in psutil.Process(self.process.pid).children(recursive=True) if is_worker(p)]
        if not workers:
            return False
        chance.choice(workers).kill()
        return True


def is_worker(process: psutil.Process) -> bool:
    try:
        return any(part.startswith("pyspark") for part in process.cmdline())
    except psutil.Error:
        return False


@pytest.mark.timeout(1800 if LONG else 600)
def test_kills_lose_nothing_and_double_nothing(db: Db, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    db.fill("orders", PARTITIONS, MESSAGES // PARTITIONS, padding=150)
    db.fill("copy", PARTITIONS, 0)
    checkpoint = tmp_path / "checkpoint"
    kills = workers = starts = 0
    deadline = time.monotonic() + (1700 if LONG else 540)
    driver = Driver(db.url, checkpoint)
    try:
        with held(db.url, "copy"):
            until(lambda: db.one(HALF_DONE), lambda: f"{driver.process.poll()}", PATIENCE_S)
            driver.kill()
        kills += 1
        while db.count("copy") < MESSAGES:
            assert time.monotonic() < deadline, f"not done in time, seed {seed}, {kills} kills"
            if driver.ended():
                driver = Driver(db.url, checkpoint)
                starts += 1
            if kills < KILLS and moved(db, chance, driver):
                if kills % 3 == 1 and driver.kill_worker(chance):
                    workers += 1
                else:
                    driver.kill()
                kills += 1
    finally:
        driver.kill()
    left = db.one("SELECT count(*) FROM queen.pipeline_chunks")
    told = f"seed {seed}: {kills} kills, {workers} of them of a worker, {starts} restarts, {left} chunks left staged"
    (tmp_path / "told").write_text(told)
    if LONG:
        sys.stderr.write(f"\n{told}\n")
    assert kills == KILLS, told
    db.assert_copied("orders", "copy")


def moved(db: Db, chance: random.Random, driver: Driver) -> bool:
    """Wait until the stream has committed something, and a random moment more; False if it ended by itself."""
    before = db.one("SELECT count(*) FROM queen.pipeline_commits")
    until = time.monotonic() + PATIENCE_S
    while db.one("SELECT count(*) FROM queen.pipeline_commits") == before:
        if driver.ended() or time.monotonic() > until:
            return False
        time.sleep(0.02)
    time.sleep(chance.uniform(0, 0.6))
    return not driver.ended() and db.count("copy") < MESSAGES


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """Two workers, each on a host of its own: Spark speculates only on another one."""
    with cluster(tmp_path, ["127.0.0.2", "127.0.0.3"], {"PYSPARK_PYTHON": sys.executable}) as url:
        yield url


@pytest.mark.skipif(not LONG, reason="starts a small cluster: QUEEN_LONG=1")
@pytest.mark.timeout(600)
def test_speculative_tasks_do_not_double(db: Db, master: str, tmp_path: Path) -> None:
    """The first attempt of a task has written its rows when another one is started, and wins."""
    marker = tmp_path / "second"
    arguments = [sys.executable, str(SCRIPT.with_name("speculate.py")), master, db.url, "4000", str(marker)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert marker.exists(), "Spark has not speculated"
    partitions = db.partitions("orders")
    assert {name: [one["id"] for one in partition] for name, partition in partitions.items()} == {
        f"p{n}": list(range(n, 4000, 3)) for n in range(3)
    }
    db.assert_healthy("orders")
