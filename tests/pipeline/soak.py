"""A supervised pipeline under load for long, while everything around it is killed: `make pipeline-soak MINUTES=60`.

Killed in turn are its driver, its workers or executors, PostgreSQL and its supervisor.

Checked are: every message arrived once and in order, by id; and after each kill the oldest message that had not arrived
was less than five seconds old again within a minute. CLUSTER=1 runs the pipeline on a standalone cluster whose
executors are killed; without it the Python workers are, which do the work of executors on one machine.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import psycopg

from pipeline.cluster import cluster
from pipeline.db import Db
from pipeline.supervision import Site, SupervisorProcess, end, until
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
    def __init__(self, site: Site, chance: random.Random) -> None:
        self._site = site
        self._chance = chance
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

    def holder(self) -> SupervisorProcess | None:
        return next((one for one in self._running if one.drivers()), None)

    def kill(self, kind: str) -> bool:
        """False if there is nothing of this kind just now."""
        holder = self.holder()
        if kind == "PostgreSQL restarted":
            self._site.postgres.restart()
        elif kind == "PostgreSQL killed":
            self._site.postgres.crash()
        elif holder is None:
            return False
        elif kind == "supervisor":
            self._running.remove(holder)
            holder.kill()
            self._running.append(self._site.run())
        elif kind == "driver":
            holder.drivers()[0].kill()
        elif kind == "driver with its JVM":
            end(holder.drivers()[0])
        else:
            workers = [one for one in psutil.process_iter() if self._is_worker(one)]
            if not workers:
                return False
            self._chance.choice(workers).kill()
        return True

    def _is_worker(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            parts = process.cmdline()
            if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in parts:
                return str(self._site.folder) in process.cwd()
            return any(part.startswith("pyspark.daemon") for part in parts) and (
                process.environ().get("QUEEN_TEST_SUPERVISORS") == str(self._site.log)
            )
        return False

    def round(self, kind: str) -> bool:
        """False if there was nothing to kill just now."""
        begun = time.monotonic()
        if not self.kill(kind):
            return False
        time.sleep(1.0)
        until(self.recovered, self._site.said, 600)
        # It must stay so for a moment: what was killed may not have been noticed at once.
        calm = time.monotonic()
        while time.monotonic() - calm < LAG_S:
            if not self.recovered():
                until(self.recovered, self._site.said, 600)
                calm = time.monotonic()
            time.sleep(0.2)
        took = calm - begun
        self.recoveries.append((kind, took))
        sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {kind:<22} {took:6.1f} s\n")
        sys.stdout.flush()
        return True


KINDS = ("driver", "worker", "PostgreSQL restarted", "supervisor", "driver with its JVM", "PostgreSQL killed")


def soak(site: Site, minutes: float, master: str, conf: dict[str, str]) -> int:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    site.fill(1)
    declared = COPY | {"checkpoint": str(site.folder / "c"), "master": master, "conf": {**COPY["conf"], **conf}}
    if site.apply(copy=declared) != 0:
        return 1
    run = Soak(site, chance)
    producer = Producer(site.postgres.url)
    producer.start()
    until(lambda: site.postgres.ask(lambda db: db.count("copies")), site.said, 600)
    until(run.recovered, site.said, 600)
    deadline = time.monotonic() + minutes * 60
    number = 0
    while time.monotonic() < deadline:
        if run.round(KINDS[number % len(KINDS)]):
            number += 1
        time.sleep(chance.uniform(2, 10))
    producer.end()
    site.caught_up()
    sys.stdout.write(f"seed {seed}, {minutes} minutes\n\n{verdict(run.recoveries)}\n")
    messages = site.postgres.ask(lambda db: db.count("copies"))
    try:
        site.audit()
    except AssertionError as error:
        sys.stdout.write(f"audit: FAILED among {messages} messages: {error}\n")
        return 1
    sys.stdout.write(f"audit: all {messages} messages arrived once and in order\n")
    return 1 if any(took > WITHIN_S for _, took in run.recoveries) else 0


def verdict(recoveries: list[tuple[str, float]]) -> str:
    """A line for each kind of kill, and one for all: when lag was small again."""
    lines = [f"{'killed':<22} {'times':>5}   lag under {LAG_S:.0f} s again after (s)"]
    for kind in dict.fromkeys(kind for kind, _ in recoveries):
        took = [seconds for one, seconds in recoveries if one == kind]
        lines.append(f"{kind:<22} {len(took):>5}   " + ", ".join(f"{seconds:.0f}" for seconds in took))
    longest = max((took for _, took in recoveries), default=0.0)
    slow = sum(took > WITHIN_S for _, took in recoveries)
    judged = "FAILED" if slow else "passed"
    lines.append(f"{len(recoveries)} kills: {longest:.0f} s at most, {slow} times more than {WITHIN_S:.0f} s: {judged}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--cluster", action="store_true")
    given = parser.parse_args()
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
            return soak(site, given.minutes, master, conf)
        finally:
            site.close()


if __name__ == "__main__":
    sys.exit(main())
