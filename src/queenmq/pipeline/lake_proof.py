"""Proof that the driver and every task of a job see the same lake, before anything in it counts.

A folder of one machine is another folder on the next one: tasks would write files that nobody finds again, and
retention would delete messages that only those files have. So the driver leaves a mark in the lake, each task reads it
before it writes, and the driver reads back what tasks have written before it publishes it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final

from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.lake import Lake, folder_of

# Files that are read back at once: an object store takes long to answer.
AT_ONCE: Final = 4
_REMEDY: Final = (
    "a lake must be a folder that all machines of the cluster share under the same path, or an object store such as "
    "s3://bucket/folder"
)


@contextmanager
def marked(lake: Lake, queue: str, run_id: str) -> Iterator[None]:
    """In the driver: the lake has the mark of the run. Raises PipelineError if nothing can be written there.

    The mark of a run that died is swept with its files.
    """
    lake.write(_mark(queue, run_id), run_id.encode())
    try:
        yield
    finally:
        with suppress(OSError):
            lake.delete(_mark(queue, run_id))


def check_mark(lake: Lake, queue: str, run_id: str) -> None:
    """In a task: raise PipelineError unless this is the lake of the driver."""
    if lake.digest(_mark(queue, run_id)) is None:
        raise PipelineError(
            f"the lake {lake.place} on {socket.gethostname()}, where a task runs, is not the one on the driver's "
            f"machine: {_REMEDY}. Nothing was archived"
        )


def read_back(lake: Lake, files: Iterable[Any]) -> None:
    """In the driver: raise PipelineError unless each file (path, bytes, digest) is there as a task wrote it."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for problem in pool.map(lambda file: _problem(lake, file["path"], file["bytes"], file["digest"]), files):
            if problem is not None:
                raise PipelineError(f"{problem}: {_REMEDY}. Nothing of this round was published")


def _problem(lake: Lake, path: str, size: int, digest: str) -> str | None:
    there = lake.size(path)
    if there is None:
        return f"the driver does not find the file {path}, which a task has written, in the lake {lake.place}"
    if there != size or lake.digest(path) != digest:
        return f"the file {path} of the lake {lake.place} is not what a task has written ({size} bytes, now {there})"
    return None


def _mark(queue: str, run_id: str) -> str:
    # Spark and Arrow pass over names that begin with an underscore.
    return f"{folder_of(queue)}/_run-{run_id}"
