"""What a batch of a stream is made of, as Spark wrote it into the checkpoint before it ran it.

The offsets before and after a batch name it: when it is run again after a crash they are the same, whatever its rows
are; when a checkpoint was restored from an older copy, the batch of that number has others.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from typing import Any, Final

log = logging.getLogger(__name__)

# Of an offsets file: a version, then what Spark wants to remember (the time, settings), then a line for each source.
_HEADER_LINES: Final = 2
# Of the progress of our own source: what is not a place in the queue.
_ASIDE: Final = ("dropped", "newest")


def made_of(checkpoint: str | None, batch: int) -> str | None:
    """A digest of the offsets around a batch; None if the checkpoint cannot be read from here."""
    if not checkpoint:
        return None
    try:
        files, root = _opened(checkpoint)
        lines = [_sources(files, root, batch - 1) if batch > 0 else [], _sources(files, root, batch)]
    except (OSError, ValueError, ImportError) as error:
        # A file system that Arrow does not know, or a file that is gone.
        log.info("the checkpoint %s cannot be read, a repeated batch is known by its rows: %s", checkpoint, error)
        return None
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def _opened(checkpoint: str) -> tuple[Any, str]:
    from pyarrow import fs

    if local := re.match(r"file:(?://)?(/.*)", checkpoint):
        checkpoint = local[1]
    if re.match(r"[a-z][a-z0-9+.-]*:", checkpoint):
        files, root = fs.FileSystem.from_uri(checkpoint)
        return files, root.rstrip("/")
    return fs.LocalFileSystem(), checkpoint.rstrip("/")


def _sources(files: Any, root: str, batch: int) -> list[str]:
    with files.open_input_stream(f"{root}/offsets/{batch}") as stream:
        lines = stream.read().decode().splitlines()
    return [_place(line) for line in lines[_HEADER_LINES:]]


def _place(line: str) -> str:
    try:
        found = json.loads(line)
    except ValueError:
        return line
    if isinstance(found, dict) and "queue" in found:
        return json.dumps({key: value for key, value in found.items() if key not in _ASIDE}, sort_keys=True)
    return line
