"""What a person sees while a job runs and when it ends: a line of progress, a table, or JSON."""

from __future__ import annotations

import json
import sys
import threading
from types import TracebackType
from typing import Any, Final, Self, TextIO

from queenmq.clock import SYSTEM

LOOK_S: Final = 0.5
# Without a terminal a line now and then is enough.
QUIET_S: Final = 15.0


class Progress:
    """Shows what Spark is at, on a line that is rewritten (on a terminal) or now and then (in a log)."""

    def __init__(self, spark: Any, run: Any, stream: TextIO | None = None) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._run = run
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pipeline-progress", daemon=True)
        self._begun = SYSTEM.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(2)
        if self._terminal:
            self._stream.write("\r\033[K")
            self._stream.flush()

    def line(self) -> str:
        done = total = 0
        for stage in self._tracker.getActiveStageIds():
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
        tasks = f", {done} of {total} tasks" if total else ""
        return f"{self._run.job}: {SYSTEM.monotonic() - self._begun:.0f} s, {self._run.outcome.rows:,} rows{tasks}"

    def _watch(self) -> None:
        shown = SYSTEM.monotonic()
        while not self._stop.wait(LOOK_S):
            try:
                if self._terminal:
                    self._stream.write(f"\r\033[K{self.line()}")
                    self._stream.flush()
                elif SYSTEM.monotonic() - shown >= QUIET_S:
                    shown = SYSTEM.monotonic()
                    print(self.line(), file=self._stream, flush=True)
            except Exception:  # a job must not fail for its display
                return


def table(summary: dict[str, Any]) -> str:
    """Two columns; a list is a line for each entry."""
    lines: list[tuple[str, str]] = []
    for name, value in summary.items():
        values = value if isinstance(value, list) else [value]
        for number, one in enumerate(values or ["none"]):
            lines.append((name if not number else "", f"{one:,}" if isinstance(one, int) else str(one)))
    width = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def as_json(run: Any, seconds: float) -> str:
    found = run.outcome
    body = {
        "run": run.id,
        "job": run.job,
        "ok": found.ok,
        "seconds": round(seconds, 3),
        "rows": found.rows,
        "offsets": found.offsets,
        "summary": found.summary,
    }
    return json.dumps(body, default=str)
