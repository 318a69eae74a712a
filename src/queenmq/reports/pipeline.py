"""The runs of pipeline jobs, and declared pipelines with how they are."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from queenmq.reports.reading import Query, Reader


class PipelineRun(Struct, frozen=True):
    """`lost` is a run that has not reported for five minutes. `options`, `offsets` and `summary` are JSON text."""

    id: UUID
    job: str
    queue_name: str | None
    master: str
    state: Literal["running", "finished", "failed", "lost"]
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None
    rows: int
    options: str
    offsets: str
    summary: str
    error: str | None


_RUNS: Final = Query("pipeline_runs_listed", PipelineRun)


async def runs(reader: Reader, job: str | None, limit: int, offset: int) -> list[PipelineRun]:
    """Newest first, of one job if it is given."""
    return await reader.rows(_RUNS, job, limit, offset)


class Pipeline(Struct, frozen=True):
    """A declared pipeline; `unsupervised` is one that shall run and that no supervisor has. `declaration` is JSON text.

    `lag` is the number of messages that are stored and not done, None if the pipeline reads no queue as a stream or has
    not begun; `lag_seconds` is how long ago the oldest of them can have been pushed.
    """

    name: str
    kind: str
    version: int
    declaration: str
    reads: list[str] | None
    writes: list[str]
    wanted: Literal["running", "stopped"]
    changed_at: datetime
    state: Literal["starting", "running", "draining", "waiting", "failed", "stopped", "unsupervised"]
    supervisor: str | None
    generation: int
    running_version: int | None
    started_at: datetime | None
    seen_at: datetime | None
    starts: int
    failures: int
    next_start_at: datetime | None
    error: str | None
    error_at: datetime | None
    rows: int
    batches: int
    rate: float | None
    lag: int | None
    lag_seconds: float | None
    batch_ended_at: datetime | None
    batch_number: int | None
    batch_rows: int | None
    batch_seconds: float | None


class PipelineBatch(Struct, frozen=True):
    ended_at: datetime
    number: int
    query: str
    rows: int
    seconds: float


class PipelineVersion(Struct, frozen=True):
    """`declaration` is JSON text."""

    version: int
    declaration: str
    state_number: int
    applied_at: datetime


_PIPELINES: Final = Query("pipelines_listed", Pipeline)
_BATCHES: Final = Query("pipeline_batches_listed", PipelineBatch)
_VERSIONS: Final = Query("pipeline_versions_listed", PipelineVersion)


async def pipelines(
    reader: Reader, visible: list[str] | None, limit: int, offset: int = 0, name: str | None = None
) -> list[Pipeline]:
    """Declared pipelines all of whose queues are visible (patterns for LIKE; None: all), by name."""
    return await reader.rows(_PIPELINES, name, visible, limit, offset)


async def batches(reader: Reader, name: str, limit: int) -> list[PipelineBatch]:
    """The newest batches of a pipeline, newest first."""
    return await reader.rows(_BATCHES, name, limit)


async def versions(reader: Reader, name: str, limit: int) -> list[PipelineVersion]:
    """The newest versions of a pipeline, newest first."""
    return await reader.rows(_VERSIONS, name, limit)
