"""Waiting for a PostgreSQL that does not answer: it is restarted, or another one takes over.

What waits has reached it before, or follows something that has: a wrong URL is reported at once. The server waits in
the same way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from queenmq.clock import SYSTEM
from queenmq.pipeline.connection import connect
from queenmq.pipeline.errors import DatabaseAway
from queenmq.retry import Pauses

log = logging.getLogger(__name__)

# How long a read, a write or a trigger of a stream waits for PostgreSQL.
PATIENCE_S: Final = 300.0
PAUSES: Final = Pauses(0.1, 2.0)

Answer = TypeVar("Answer")


class Patience:
    """For one thing that is tried again while PostgreSQL is away. None as the limit: as long as it takes."""

    def __init__(self, limit_s: float | None = PATIENCE_S) -> None:
        self._limit_s = limit_s
        self._failures = 0
        self._began = 0.0

    def failed(self, error: DatabaseAway) -> None:
        """Pause before the next try, or raise the error if there shall be none."""
        now = SYSTEM.monotonic()
        if not self._failures:
            self._began = now
            log.warning("%s; waiting for it", error.message)
        elif self._limit_s is not None and now - self._began > self._limit_s:
            raise error
        self._failures += 1
        time.sleep(PAUSES.after(self._failures))

    def succeeded(self) -> None:
        self._failures = 0


def patiently(attempt: Callable[[], Answer], limit_s: float | None = PATIENCE_S) -> Answer:
    """What `attempt` returns. It is called again while PostgreSQL is away, so it may be done twice."""
    patience = Patience(limit_s)
    while True:
        try:
            return attempt()
        except DatabaseAway as error:
            patience.failed(error)


def wait_for(url: str, limit_s: float | None = None) -> None:
    """Until PostgreSQL can be reached. Raises PipelineError if it refuses for another reason than that it is away."""
    patiently(lambda: connect(url), limit_s).close()
