"""The process that starts Spark's Python workers, quiet about workers whose JVM has what it wanted and hung up.

Over a Unix socket such a worker notices, and PySpark would print a traceback that means nothing.
"""

from __future__ import annotations

from typing import Any

from pyspark import daemon

_worker = daemon.worker


def worker(sock: Any, authenticated: Any) -> int:
    """As PySpark's; the worker ends, as it would have."""
    try:
        code: int = _worker(sock, authenticated)
    except BrokenPipeError:
        return 1
    return code


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
