"""Supervisors in processes of their own, as tests start, kill and pause them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import psutil
import psycopg
import yaml
from ports import free_port

from pipeline.db import Db
from pipeline.test_outage import Restarted
from queenmq.cli.main import main

PATIENCE_S = 180
MARK = "QUEEN_TEST_SUPERVISORS"
# Small JVMs that start fast.
CONF = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": 1,
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss16m",
}


# Epochs that are decided, and not all of whose rows are in the queue.
HALF_DONE = "SELECT count(*) FROM queen.pipeline_commits WHERE promotion IS NOT NULL AND promoted > 0"


def until(found: Callable[[], Any], what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> Any:
    deadline = time.monotonic() + patience_s
    while not (answer := found()):
        assert time.monotonic() < deadline, f"not in time: {what if isinstance(what, str) else what()}"
        time.sleep(0.05)
    return answer


@contextlib.contextmanager
def held(url: str, queue: str) -> Iterator[None]:
    """Nobody can write to the partition p0: a commit in two parts stays half done."""
    with psycopg.connect(url) as holder:
        found = holder.execute(
            "SELECT 1 FROM queen.partition_lookup l JOIN queen.partitions p ON p.id = l.partition_id "
            "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = %s AND p.name = 'p0' FOR NO KEY UPDATE OF l",
            (queue,),
        )
        assert found.rowcount == 1
        try:
            yield
        finally:
            holder.rollback()


class SupervisorProcess:
    """`queen pipeline run`."""

    def __init__(self, url: str, log: Path, *options: str) -> None:
        self.port = free_port()
        arguments = ["pipeline", "run", "--url", url, "--listen", f"127.0.0.1:{self.port}", "--lease", "3", *options]
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).with_name("queen")), *arguments],
                stdout=file,
                stderr=file,
                start_new_session=True,
                env=os.environ | {MARK: str(log)},
            )

    def drivers(self) -> list[psutil.Process]:
        """The Python processes of the drivers, those that have just ended left out."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if any("queenmq.pipeline.driver" in part for part in child.cmdline()):
                        found.append(child)
        return found

    def kill(self) -> None:
        """Only the supervisor: its drivers are left alone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def end(process: psutil.Process) -> None:
    """With its group, if it still runs."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(os.getpgid(process.pid), signal.SIGKILL)


def end_all(mark: str) -> None:
    """Whatever supervisors of this mark have left: drivers, JVMs, workers."""
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get(MARK) == mark:
                end(one)


class Site:
    """A database that can be restarted, a folder, and the supervisors on it."""

    def __init__(self, postgres: Restarted, folder: Path) -> None:
        self.postgres = postgres
        self.folder = folder
        self.log = folder / "log"
        self.supervisors: list[SupervisorProcess] = []

    def apply(self, *options: str, **pipelines: dict[str, Any]) -> int:
        file = self.folder / "pipelines.yaml"
        file.write_text(yaml.safe_dump({"pipelines": pipelines}))
        return main(["pipeline", "apply", str(file), "--url", self.postgres.url, *options])

    def run(self, *options: str) -> SupervisorProcess:
        self.supervisors.append(SupervisorProcess(self.postgres.url, self.log, *options))
        return self.supervisors[-1]

    def fill(self, each: int) -> None:
        self.postgres.ask(lambda db: db.fill("orders", 5, each))

    def status(self, name: str = "copy") -> dict[str, Any]:
        def read(db: Db) -> dict[str, Any]:
            cursor = db.connection.execute(
                "SELECT s.*, l.generation, l.holder_name FROM queen.pipeline_states s JOIN queen.pipeline_leases l "
                "USING (name) WHERE name = %s",
                (name,),
            )
            assert cursor.description is not None
            return dict(zip([c.name for c in cursor.description], cursor.fetchone() or (), strict=True))

        found: dict[str, Any] = self.postgres.ask(read)
        return found

    def caught_up(self, patience_s: float = 180) -> None:
        counted = (
            "SELECT (SELECT count(*) FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id JOIN "
            "queen.queues q ON q.id = p.queue_id WHERE q.name = 'orders') = (SELECT count(*) FROM queen.messages m "
            "JOIN queen.partitions p ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id "
            "WHERE q.name = 'copies')"
        )
        until(lambda: self.postgres.ask(lambda db: db.one(counted)), self.said, patience_s)

    def close(self) -> None:
        end_all(str(self.log))
        for one in self.supervisors:
            one.process.wait()
        self.postgres.close()

    def said(self) -> str:
        return self.log.read_text()[-3000:] if self.log.exists() else ""

    def audit(self) -> None:
        self.postgres.ask(lambda db: db.assert_copied("orders", "copies"))
        ids = "transaction_id"
        assert self.postgres.ask(lambda db: db.partitions("copies", ids) == db.partitions("orders", ids))

    def differences(self) -> list[str]:
        """What is wrong in the copy: for every partition a sentence about the first message that differs."""
        both = {}
        for queue in ("orders", "copies"):
            ids = self.postgres.ask(lambda db, queue=queue: db.partitions(queue, "m.transaction_id"))
            values = self.postgres.ask(lambda db, queue=queue: db.partitions(queue))
            both[queue] = {name: list(zip(ids[name], values[name], strict=True)) for name in ids}
        return differences(both["orders"], both["copies"])

    def findings(self, queue: str) -> list[str]:
        """What `queen pipeline audit` finds in the queue."""
        command = [str(Path(sys.executable).with_name("queen")), "pipeline", "audit", "--queue", queue]
        command += ["--url", self.postgres.url, "--master", "local[2]", "--conf", "spark.driver.memory=512m", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return []
        try:
            found = json.loads(done.stdout)["summary"]["findings"]
        except (ValueError, KeyError):
            found = [f"ended with status {done.returncode}: {done.stderr[-2000:]}"]
        return [f"audit of {queue}: {one}" for one in found]


def differences(pushed: dict[str, list[Any]], arrived: dict[str, list[Any]]) -> list[str]:
    found = []
    for name in sorted({*pushed, *arrived}):
        there, here = pushed.get(name, []), arrived.get(name, [])
        for number, (first, second) in enumerate(zip_longest(there, here, fillvalue="nothing"), start=1):
            if first != second:
                found.append(
                    f"{name}: {len(there)} messages were pushed and {len(here)} arrived; they differ first at offset "
                    f"{number}, where {first} was pushed and {second} arrived"
                )
                break
    return found
