"""The runs of pipeline jobs."""

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
