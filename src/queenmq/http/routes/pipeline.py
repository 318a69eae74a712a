"""GET /api/v1/pipeline/runs"""

from __future__ import annotations

import asyncpg
from msgspec import Raw

from queenmq.core.names import iso_millis
from queenmq.engine.engine import Engine
from queenmq.http.decoding import query_name
from queenmq.http.figures import PipelineRun, PipelineRuns
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import COUNT, LABEL, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.routes.resources import OFFSET, moment, page
from queenmq.http.schemas import Page

_LIMIT = 50
_WHICH = (
    Parameter("job", LABEL, "Only of this job."),
    Parameter("limit", COUNT, "Most runs; cut to the server's limit.", _LIMIT),
    OFFSET,
)


def add_routes(router: Router, engine: Engine) -> None:
    @documented({200: PipelineRuns}, query=_WHICH)
    async def pipeline_runs(request: Request) -> Response:
        """What the jobs of the data pipeline did, newest first."""
        job = query_name(request, "job")
        limit, offset = page(request, engine, _LIMIT)
        rows = await engine.reports.rows("pipeline_runs_listed", job, limit, offset)
        return json_response(200, PipelineRuns(runs=[_run(row) for row in rows], pagination=Page(limit, offset)))

    router.add("GET", "/api/v1/pipeline/runs", pipeline_runs, Role.READ_ONLY)


def _run(row: asyncpg.Record) -> PipelineRun:
    return PipelineRun(
        id=str(row["id"]),
        job=row["job"],
        queue=row["queue_name"],
        master=row["master"],
        state=row["state"],
        started_at=iso_millis(row["started_at"]),
        seen_at=iso_millis(row["seen_at"]),
        ended_at=moment(row["ended_at"]),
        rows=row["rows"],
        options=Raw(row["options"].encode()),
        offsets=Raw(row["offsets"].encode()),
        summary=Raw(row["summary"].encode()),
        error=row["error"],
    )
