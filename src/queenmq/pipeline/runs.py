"""The record of a job's run in `queen.pipeline_runs`: begun, alive, ended, with what it covered."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from queenmq.ids import uuid7_text
from queenmq.pipeline.connection import connection, rows
from queenmq.pipeline.errors import PipelineError, explained

log = logging.getLogger(__name__)

ALIVE_S: Final = 30.0
NEWEST: Final = 20


@dataclass
class Outcome:
    """What a job has done: `offsets` says what it covered, `summary` is for people."""

    rows: int = 0
    offsets: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    ok: bool = True


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch of a stream, or a round of another job, that has ended. Times are in seconds since 1970.

    `positions` are sums over the partitions of a queue, by its id. All that was pushed before `covered` is done; None
    if more was there than the batch took.
    """

    number: int
    rows: int
    seconds: float
    ended: float
    query: str = ""
    positions: dict[str, int] = field(default_factory=dict)
    covered: float | None = None


class Run:
    """One run of a job. Used as a context: what happens inside is recorded when it ends, whichever way.

    A run whose process was killed stays `running`; it is shown as lost when it has said nothing for five minutes.
    A job that runs for long ends soon after `drain` is set, in good order.
    """

    wants_batches = False

    def __init__(self, url: str, job: str, queue: str | None, master: str, options: dict[str, Any]) -> None:
        self.id = uuid7_text()
        self.url = url
        self.job = job
        self.outcome = Outcome()
        self.drain = threading.Event()
        self._start = (self.id, job, queue, master, json.dumps(options, default=str))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._say_alive, name="pipeline-run", daemon=True)

    def __enter__(self) -> Self:
        with connection(self.url) as opened:
            rows(opened, "pipeline_run_start", *self._start)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        told = explained(error).message if error is not None else None
        state = "failed" if error is not None or not self.outcome.ok else "finished"
        found = self.outcome
        with connection(self.url) as opened:
            rows(
                opened,
                "pipeline_run_end",
                self.id,
                state,
                found.rows,
                json.dumps(found.offsets, default=str),
                json.dumps(found.summary, default=str),
                told,
            )

    def progress(self, count: int) -> None:
        """So many rows more are done for good."""
        self.outcome.rows += count

    def batch(self, batch: Batch) -> None:
        """A batch has ended; for those who supervise the run."""

    def _say_alive(self) -> None:
        while not self._stop.wait(ALIVE_S):
            try:
                with connection(self.url) as opened:
                    rows(opened, "pipeline_run_alive", self.id, self.outcome.rows)
            except PipelineError as error:
                log.warning("the run cannot be recorded just now: %s", error)


def newest(url: str, count: int = NEWEST) -> list[dict[str, Any]]:
    """The newest runs, newest first."""
    names = ("id", "job", "queue", "master", "state", "started", "ended", "rows", "offsets", "summary", "error")
    with connection(url) as opened:
        return [dict(zip(names, row, strict=True)) for row in rows(opened, "pipeline_runs", count)]
