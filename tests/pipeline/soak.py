"""A supervised pipeline under load for long, while everything around it is killed: `make pipeline-soak MINUTES=60`.

Killed in turn are its driver, its workers or executors, PostgreSQL and its supervisor.

Checked are: every message arrived once and in order, by id; `queen pipeline audit` finds nothing in either queue; and
after each kill the oldest message that had not arrived was less than five seconds old again within a minute. CLUSTER=1
runs the pipeline on a standalone cluster whose executors are killed; without it the Python workers are, which do the
work of executors on one machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import psycopg

from pipeline.cluster import cluster
from pipeline.db import Db
from pipeline.supervision import MARK, Site, until
from pipeline.test_outage import Restarted
from pipeline.test_supervised import COPY

LAG_S = 5.0
WITHIN_S = 60.0
# How long ago the oldest message was pushed that is not in the copy.
LAG = """
    SELECT coalesce(extract(epoch FROM clock_timestamp() - min(m.created_at)), 0)::float8
    FROM queen.queues q JOIN queen.partitions p ON p.queue_id = q.id
    LEFT JOIN queen.queues c ON c.name = 'copies'
    LEFT JOIN queen.partitions t ON t.queue_id = c.id AND t.name = p.name
    LEFT JOIN queen.partition_lookup l ON l.partition_id = t.id
    JOIN queen.messages m ON m.partition_id = p.id AND m."offset" = coalesce(l.last_offset, 0) + 1
    WHERE q.name = 'orders'
"""


class Producer(threading.Thread):
    """A few messages into every partition, several times a second, whenever PostgreSQL is there: in a batch of a second
    or more are several times `commitRows`, which is committed in two parts.
    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(psycopg.Error), psycopg.connect(self._url, autocommit=True) as connected:
                db = Db(self._url, connected)
                while not self._ending.wait(0.25):
                    db.fill("orders", 5, 2)

    def end(self) -> None:
        self._ending.set()
        self.join()


class Soak:
    def __init__(self, site: Site, chance: random.Random, cluster: bool) -> None:
        self._site = site
        self._chance = chance
        self._cluster = cluster
        self._running = [site.run(), site.run()]
        self.recoveries: list[tuple[str, float]] = []

    def lag(self) -> float | None:
        try:
            return float(self._site.postgres.ask(lambda db: db.one(LAG)))
        except psycopg.Error:
            return None

    def recovered(self) -> bool:
        found = self.lag()
        return found is not None and found < LAG_S

    def kill(self, kind: str) -> bool:
        """False if there is nothing of this kind just now, or if it was gone before it could be killed."""
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, IndexError, StopIteration):
            self._kill(kind)
            return True
        return False

    def _kill(self, kind: str) -> None:
        if kind == "PostgreSQL restarted":
            self._site.postgres.restart()
        elif kind == "PostgreSQL killed":
            self._site.postgres.crash()
        elif kind == "supervisor":
            holder = next(one for one in self._running if one.drivers())
            self._running.remove(holder)
            holder.kill()
            self._running.append(self._site.run())
        elif kind in ("driver", "driver with its JVM"):
            driver = next(driver for one in self._running for driver in one.drivers())
            if kind == "driver":
                driver.kill()
            else:
                os.killpg(os.getpgid(driver.pid), signal.SIGKILL)
        else:
            self._chance.choice([one for one in psutil.process_iter() if self._is_worker(one)]).kill()

    def _is_worker(self, process: psutil.Process) -> bool:
        """On a cluster an executor. Python processes of the driver, which plan, have the name of a worker, too."""
        with contextlib.suppress(psutil.Error):
            parts = process.cmdline()
            if self._cluster:
                backend = "org.apache.spark.executor.CoarseGrainedExecutorBackend" in parts
                return backend and str(self._site.folder) in process.cwd()
            return any(part.startswith("pyspark.daemon") for part in parts) and (
                process.environ().get(MARK) == str(self._site.log)
            )
        return False

    def round(self, kind: str) -> bool:
        """False if there was nothing to kill just now."""
        begun = time.monotonic()
        if not self.kill(kind):
            return False
        try:
            took = self._recover() - begun
        except BaseException:
            self.recoveries.append((kind, time.monotonic() - begun))
            raise
        self.recoveries.append((kind, took))
        say(f"{time.strftime('%H:%M:%S')}  {kind:<22} {took:6.1f} s")
        ended = [one.process.returncode for one in self._running if one.process.poll() is not None]
        assert not ended, f"a supervisor ended by itself, with status {ended[0]}: {self._site.said()}"
        return True

    def _recover(self) -> float:
        """When the lag was small again."""
        time.sleep(1.0)
        until(self.recovered, self._site.said, 600)
        # It must stay so for a moment: what was killed may not have been noticed at once.
        calm = time.monotonic()
        while time.monotonic() - calm < LAG_S:
            if not self.recovered():
                until(self.recovered, self._site.said, 600)
                calm = time.monotonic()
            time.sleep(0.2)
        return calm

    def run(self, minutes: float) -> None:
        producer = Producer(self._site.postgres.url)
        producer.start()
        try:
            until(lambda: self._site.postgres.ask(lambda db: db.count("copies")), self._site.said, 600)
            until(self.recovered, self._site.said, 600)
            kinds = [kind for kind in KINDS if kind != ("worker" if self._cluster else "executor")]
            deadline = time.monotonic() + minutes * 60
            number = 0
            while time.monotonic() < deadline:
                if self.round(kinds[number % len(kinds)]):
                    number += 1
                time.sleep(self._chance.uniform(2, 10))
        finally:
            producer.end()
        self._site.caught_up()


KINDS = (
    "driver",
    "worker",
    "executor",
    "PostgreSQL restarted",
    "supervisor",
    "driver with its JVM",
    "PostgreSQL killed",
)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def soak(site: Site, minutes: float, master: str, conf: dict[str, str], seed: int) -> int:
    site.fill(1)
    declared = COPY | {"checkpoint": str(site.folder / "c"), "master": master, "conf": {**COPY["conf"], **conf}}
    if site.apply(copy=declared) != 0:
        return 1
    run = Soak(site, random.Random(seed), cluster=not master.startswith("local"))
    begun = time.monotonic()
    wrong = ["it was ended before its end"]
    try:
        run.run(minutes)
        wrong = [*site.differences(), *site.findings("orders"), *site.findings("copies")]
    except (AssertionError, psycopg.Error) as error:
        wrong = [f"{type(error).__name__}: {error}"]
    finally:
        say(f"\nseed {seed}, {(time.monotonic() - begun) / 60:.1f} minutes\n\n{table(run.recoveries)}")
        with contextlib.suppress(psycopg.Error):
            say(f"{site.postgres.ask(lambda db: db.count('copies'))} messages arrived")
        slow = sum(took > WITHIN_S for _, took in run.recoveries)
        if slow:
            wrong.append(f"the lag was small again later than after {WITHIN_S:.0f} s {slow} times")
        say("\n".join(f"FAILED: {one}" for one in wrong) or "passed: all arrived once and in order, both audits clean")
    return 1 if wrong else 0


def table(recoveries: list[tuple[str, float]]) -> str:
    """A line for each kind of kill, and one for all: when lag was small again."""
    lines = [f"{'killed':<22} {'times':>5}   lag under {LAG_S:.0f} s again after (s)"]
    for kind in dict.fromkeys(kind for kind, _ in recoveries):
        took = [seconds for one, seconds in recoveries if one == kind]
        lines.append(f"{kind:<22} {len(took):>5}   " + ", ".join(f"{seconds:.0f}" for seconds in took))
    kind, longest = max(recoveries, key=lambda one: one[1], default=("none", 0.0))
    lines.append(f"{len(recoveries)} kills, the longest recovery {longest:.1f} s ({kind})")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = random.randrange(10**6) if given.seed is None else given.seed
    say(f"seed {seed}, {given.minutes:g} minutes, on {'a cluster' if given.cluster else 'this machine'}")
    with tempfile.TemporaryDirectory(prefix="queen-soak-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        master = "local[2]"
        conf: dict[str, str] = {}
        if given.cluster:
            (folder / "cluster").mkdir()
            hosts = ["127.0.0.2"]
            master = stack.enter_context(cluster(folder / "cluster", hosts, {"PYSPARK_PYTHON": sys.executable}))
            conf = {
                "spark.executor.memory": "512m",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
            }
        postgres = Restarted(folder)
        site = Site(postgres, folder)
        try:
            return soak(site, given.minutes, master, conf, seed)
        finally:
            site.close()


if __name__ == "__main__":
    sys.exit(main())
