"""The process of one declared pipeline, which a supervisor starts: it runs the job, says how it is, and drains.

`python -m queenmq.pipeline.driver` reads what to run from the first line of stdin, where nobody else sees the URL with
its password. The supervisor keeps that pipe open: when it ends, so does the supervisor, and the driver drains, as it
does on SIGTERM. The exit status says what the supervisor should do.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from queenmq.clock import SYSTEM
from queenmq.pipeline.connection import connection, rows
from queenmq.pipeline.declaration import checkpoint, make
from queenmq.pipeline.errors import (
    BadOption,
    DatabaseAway,
    DataLost,
    NoSuchQueue,
    OtherContent,
    PipelineError,
    Superseded,
    explained,
)
from queenmq.pipeline.generation import DRAIN, GENERATION
from queenmq.pipeline.kinds import KINDS
from queenmq.pipeline.runs import Batch, Run
from queenmq.pipeline.session import session

log = logging.getLogger("queenmq.pipeline")

# What the exit status means to the supervisor.
DRAINED: Final = 0
FAILED: Final = 1
HOPELESS: Final = 2  # it would fail in the same way again: somebody must change something
SUPERSEDED: Final = 3
_HOPELESS: Final = (BadOption, DataLost, OtherContent)

# Spark's reports on batches are read several times a second, all that it has kept.
RECENT: Final = {"spark.sql.streaming.numRecentProgressUpdates": "20"}
REPORT_S: Final = 2.0
RATE_S: Final = 60.0
# So long must it have run, or ended a batch, to count as healthy again.
HEALTHY_S: Final = 60.0


class DriverRun(Run):
    """A run that also says, every two seconds, how its pipeline is. Ends the process if another one has its place."""

    wants_batches = True

    def __init__(self, order: dict[str, Any], job: str, queue: str | None, master: str) -> None:
        shown = {"pipeline": order["name"], "version": order["version"], "generation": order["generation"]}
        super().__init__(order["url"], job, queue, master, shown)
        self._name: str = order["name"]
        self._generation: int = order["generation"]
        self._lock = threading.Lock()
        self._positions: dict[tuple[str, str], int] = {}
        self._covered: dict[str, float] = {}
        self._new: list[Batch] = []
        self._recent: deque[Batch] = deque()
        self._begun = SYSTEM.monotonic()
        self._state = "starting"
        self._ended = threading.Event()
        self._reporter = threading.Thread(target=self._report_often, name="pipeline-report", daemon=True)

    def __enter__(self) -> Self:
        super().__enter__()
        with connection(self.url) as opened:
            rows(opened, "pipeline_runs_forget", self._name, self.job)
        self._reporter.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._reporter.join()
        found = None if error is None else explained(error)
        if not isinstance(found, Superseded):
            self._state = "draining" if found is None else "waiting"
            self._report_once(None if found is None else found.message)
        super().__exit__(kind, error, trace)

    def running(self) -> None:
        """Spark has started, and the job begins."""
        self._state = "running"

    def batch(self, batch: Batch) -> None:
        with self._lock:
            self._new.append(batch)
            self._recent.append(batch)
            for queue, at in batch.positions.items():
                self._positions[batch.query, queue] = at
            if batch.covered is not None:
                self._covered[batch.query] = batch.covered

    def _report_often(self) -> None:
        while not self._ended.wait(REPORT_S):
            state = "draining" if self.drain.is_set() else self._state
            self._report_once(None, state)

    def _report_once(self, error: str | None, state: str | None = None) -> None:
        try:
            if not self._report(error, state or self._state):
                log.error("another driver has taken the place of this one: it ends")
                os._exit(SUPERSEDED)
        except DatabaseAway as away:
            log.warning("the pipeline cannot report just now: %s", away.message)
        except PipelineError as refused:
            log.error("the pipeline cannot report: %s", refused.message)

    def _report(self, error: str | None, state: str) -> bool:
        """False if another generation has taken its place."""
        now = SYSTEM.wall()
        with self._lock:
            new, self._new = self._new, []
            while self._recent and self._recent[0].ended < now - RATE_S:
                self._recent.popleft()
            positions: dict[str, int] = {}
            for (_, queue), at in self._positions.items():
                positions[queue] = min(at, positions.get(queue, at))
            covered = min(self._covered.values(), default=None)
            span = min(RATE_S, max(1.0, SYSTEM.monotonic() - self._begun))
            rate = sum(batch.rows for batch in self._recent) / span
        healthy = bool(new) or SYSTEM.monotonic() - self._begun > HEALTHY_S
        try:
            with connection(self.url) as opened:
                alive = rows(
                    opened,
                    "pipeline_report",
                    self._name,
                    self._generation,
                    state,
                    error,
                    json.dumps(positions) if positions else None,
                    None if covered is None else now - covered,
                    sum(batch.rows for batch in new),
                    len(new),
                    rate,
                    healthy and error is None,
                )
                if alive and new:
                    self._store(opened, new, now)
        except PipelineError:
            with self._lock:
                self._new = [*new, *self._new][-1000:]
            raise
        return bool(alive)

    def _store(self, opened: Any, new: list[Batch], now: float) -> None:
        columns = (
            [now - batch.ended for batch in new],
            [batch.number for batch in new],
            [batch.query for batch in new],
            [batch.rows for batch in new],
            [batch.seconds for batch in new],
        )
        rows(opened, "pipeline_batches_store", self._name, *columns)
        rows(opened, "pipeline_batches_forget", self._name)


def main() -> int:
    order: dict[str, Any] = json.loads(sys.stdin.readline())
    name = order["name"]
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s [{name}] %(message)s")
    for noisy in ("py4j", "pyspark"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    os.environ[GENERATION] = f"{name}:{order['generation']}"
    flag = Path(tempfile.gettempdir()) / f"queen-pipeline-{secrets.token_hex(8)}"
    os.environ[DRAIN] = str(flag)
    try:
        return _run(order)
    except BaseException as error:
        found = explained(error)
        log.error("%s", found.message)
        if isinstance(found, Superseded):
            return SUPERSEDED
        # A queue that is not there may come.
        return HOPELESS if isinstance(found, _HOPELESS) and not isinstance(found, NoSuchQueue) else FAILED
    finally:
        flag.unlink(missing_ok=True)


def _run(order: dict[str, Any]) -> int:
    declared = make(order["name"], order["declaration"], KINDS)
    plan = declared.plan
    job = plan.job(order["url"], checkpoint(plan, order["state_number"]))
    run = DriverRun(order, declared.kind, plan.reads[0] if plan.reads else None, declared.master)

    def drain(*_: object) -> None:
        if run.drain.is_set():
            return
        log.info("draining: the batch that runs is finished")
        Path(os.environ[DRAIN]).touch()
        run.drain.set()

    signal.signal(signal.SIGTERM, drain)
    signal.signal(signal.SIGINT, drain)
    threading.Thread(target=_watch_supervisor, args=(drain,), name="pipeline-supervisor", daemon=True).start()
    with run:
        check_queues(order["url"], plan.reads)
        spark = session(declared.master, f"queen {declared.name}", RECENT | declared.conf)
        run.running()
        job(spark, run)
    if not run.drain.is_set():
        log.error("the job has ended by itself")
        return FAILED
    return DRAINED


def check_queues(url: str, names: tuple[str, ...] | None) -> None:
    """Raises NoSuchQueue for the first that is not there."""
    with connection(url) as opened:
        for name in names or ():
            if not rows(opened, "pipeline_queue", name):
                raise NoSuchQueue(f"there is no queue {name!r}")


def _watch_supervisor(drain: Any) -> None:
    sys.stdin.read()
    log.warning("the supervisor is gone")
    drain()


if __name__ == "__main__":
    sys.exit(main())
