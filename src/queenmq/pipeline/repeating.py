"""Jobs that do their work in rounds: one every so many seconds, until the run drains or Ctrl-C."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from queenmq.clock import SYSTEM
from queenmq.pipeline.connection import connection, rows
from queenmq.pipeline.errors import DatabaseAway, explained
from queenmq.pipeline.heads import heads
from queenmq.pipeline.patience import wait_for
from queenmq.pipeline.runs import Batch, Outcome, Run

log = logging.getLogger(__name__)


def repeat(work: Callable[[], Any], run: Run, url: str, every_s: float, queue: str | None = None) -> Outcome:
    """Do a round every `every_s` seconds. Each does all that is stored in `queue`, if one is named."""
    number = 0
    try:
        while not run.drain.is_set():
            begun, wall, before = SYSTEM.monotonic(), SYSTEM.wall(), run.outcome.rows
            try:
                positions = _positions(url, queue)
                work()
            except Exception as error:
                if not isinstance(found := explained(error), DatabaseAway):
                    raise
                log.warning("%s; the round is done again when PostgreSQL answers", found.message)
                wait_for(url)
                continue
            took = SYSTEM.monotonic() - begun
            done = Batch(
                number=number,
                rows=run.outcome.rows - before,
                seconds=took,
                ended=wall + took,
                positions=positions,
                covered=wall,
            )
            run.batch(done)
            number += 1
            run.drain.wait(max(0.0, every_s - took))
    except KeyboardInterrupt:
        pass
    run.outcome.summary["rounds"] = number
    return run.outcome


def _positions(url: str, queue: str | None) -> dict[str, int]:
    """Where the queue ends now, as the sum over its partitions."""
    if queue is None:
        return {}
    with connection(url) as opened:
        found = rows(opened, "pipeline_queue", queue)
        if not found:
            return {}
        queue_id = str(found[0][0])
        return {queue_id: sum(heads(opened, queue_id).last.values())}
