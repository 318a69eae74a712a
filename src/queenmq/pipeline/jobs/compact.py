"""compact: fewer and larger files in a table of the lake, and none of messages that are too old. Without Spark.

The table is changed first, and `reconcile` lets the database know: a run that dies between the two leaves nothing to
mend that the next run of archive or compact does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from queenmq.clock import utc_now
from queenmq.pipeline.connection import connection
from queenmq.pipeline.errors import BadOption
from queenmq.pipeline.heads import find_queue
from queenmq.pipeline.lake import Lake, lost, published
from queenmq.pipeline.lake_table import open_table, reconcile
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.runs import Outcome, Run

FILE_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Settings:
    url: str
    queue: str
    lake: str
    keep_days: int | None = None
    file_bytes: int = FILE_BYTES


def compact(settings: Settings, run: Run) -> Outcome:
    """Raises BadOption if the lake has the queue as plain Parquet."""
    lake = Lake(settings.lake)
    with connection(settings.url) as opened, open_table(lake, settings.url, settings.queue) as table:
        if table is None:
            raise BadOption(
                f"the lake {settings.lake!r} has no table of queue {settings.queue!r}: see archive --format"
            )
        queue_id = find_queue(opened, ReadOptions(url=settings.url, queue=settings.queue))
        known = (opened, lake, table, settings.queue, queue_id, run.id)
        reconcile(*known)
        before = len(table.files())
        if settings.keep_days is not None:
            day = utc_now().date() - timedelta(days=settings.keep_days)
            table.expire(day)
        kept = len(table.files())
        table.compact(settings.file_bytes)
        reconcile(*known)
        table.clean(lambda path, changed: bool(lost(opened, lake, settings.queue, path, changed)))
        after = published(opened, lake, settings.queue)
    run.outcome.summary = {
        "files before": before,
        "files expired": before - kept,
        "files after": len(after),
        "messages": sum(file.rows for file in after),
    }
    return run.outcome
