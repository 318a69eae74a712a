"""copy: the messages of a queue into another one as a stream, all of them or those that fit a condition.

They keep their partitions, transaction ids, trace ids and headers. A message that is there already is not stored again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queenmq.pipeline.frames import read_stream, write_stream
from queenmq.pipeline.options import key_of_environment
from queenmq.pipeline.runs import Outcome, Run
from queenmq.pipeline.streaming import run_query


@dataclass(frozen=True, kw_only=True)
class Settings:
    url: str
    source: str
    target: str
    checkpoint: str
    where: str | None = None
    schema: str | None = None
    trigger: str = "1 second"
    available_now: bool = False
    seconds: float | None = None
    start: str = "earliest"
    most_per_trigger: int | None = None
    commit_rows: int | None = None


def copy(spark: Any, settings: Settings, run: Run) -> Outcome:
    """Until everything is there (availableNow), the time is over, Ctrl-C, or the run drains."""
    run_query(
        lambda: _start(spark, settings),
        run,
        settings.url,
        seconds=settings.seconds,
        endless=not settings.available_now,
    )
    return run.outcome


def _start(spark: Any, settings: Settings) -> Any:
    options: dict[str, Any] = {"startingOffsets": settings.start, "includeHeaders": True}
    if settings.most_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = settings.most_per_trigger
    if settings.schema:
        options["valueSchema"] = settings.schema
    sealed = {"encryptionKey": key} if (key := key_of_environment()) else {}
    found = read_stream(spark, settings.url, settings.source, **options, **sealed)
    if settings.where:
        found = found.where(f"coalesce({settings.where}, false)")
    wanted = found.select("value", "partition", "transactionId", "traceId", "headers")
    steps = {} if settings.commit_rows is None else {"commitRows": str(settings.commit_rows)}
    writer = write_stream(wanted, settings.url, settings.target, settings.checkpoint, **sealed, **steps)
    trigger = {"availableNow": True} if settings.available_now else {"processingTime": settings.trigger}
    return writer.queryName(f"{settings.source} copy").trigger(**trigger).start()
