"""What the processes of a supervised driver know from their environment: its generation, and whether it shall end.

Spark commits and plans in Python processes of its own, which inherit the environment of the driver. Whatever a job
publishes goes through here: the sink does it by itself, other transactions begin with `hold_generation`. So of two
drivers of one pipeline only the one that was started last can publish, also if the other one was only paused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from queenmq.pipeline.connection import rows

GENERATION: Final = "QUEEN_PIPELINE_GENERATION"  # the name of the pipeline, a colon, the number
DRAIN: Final = "QUEEN_PIPELINE_DRAIN"  # a file: once it exists, streams read nothing more
# A driver that stops in the middle of a transaction must not hold up the one that takes its place for longer.
_MOST_IDLE: Final = "60s"


def generation_of_environment() -> tuple[str, int] | None:
    """The name of the pipeline and its generation; None if nobody supervises this process."""
    found = os.environ.get(GENERATION)
    if not found:
        return None
    name, _, number = found.rpartition(":")
    return name, int(number)


def hold_generation(opened: Any) -> None:
    """At the beginning of a transaction that publishes something. Raises the error of psycopg for Superseded if another
    driver has taken the place of this one.
    """
    generation = generation_of_environment()
    if generation is not None:
        opened.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{_MOST_IDLE}'")
        rows(opened, "pipeline_hold_generation", *generation)


def is_draining() -> bool:
    place = os.environ.get(DRAIN)
    return place is not None and Path(place).exists()
