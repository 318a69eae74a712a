"""Batch writes that jobs do under a name: each is done once, and says what this time was new."""

from __future__ import annotations

from typing import Any

from queenmq.pipeline.connection import connection, rows
from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.options import key_of_environment
from queenmq.pipeline.sink import BATCH_EPOCH


def write_once(frame: Any, url: str, name: str, **options: str) -> tuple[int, int]:
    """Write the frame, unless a write of this name was done. Returns the messages that are new, and those that were
    there already.
    """
    before = committed(url, name)
    writer = frame.write.format("queen").mode("append").options(**options).option("url", url).option("writeId", name)
    if key := key_of_environment():
        writer = writer.option("encryptionKey", key)
    writer.save()
    after = committed(url, name)
    if after is None:
        raise PipelineError(f"the write {name!r} was not committed")
    written, duplicates, _ = after
    new = written - (before[2] if before else 0)
    return new, written + duplicates - new


def committed(url: str, name: str) -> tuple[Any, ...] | None:
    """Rows that the write has, or will have, written, its duplicates, and the rows that are in the queue by now."""
    with connection(url) as opened:
        return committed_in(opened, name)


def committed_in(opened: Any, name: str) -> tuple[Any, ...] | None:
    """What `committed` returns, over a connection that is there."""
    return next(iter(rows(opened, "pipeline_committed", f"batch {name}", BATCH_EPOCH)), None)
