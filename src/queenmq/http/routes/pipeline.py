"""GET /api/v1/pipeline/runs"""

from __future__ import annotations

from msgspec import Raw

from queenmq.access.permissions import Verb
from queenmq.core.names import iso_millis, optional_iso_millis
from queenmq.http.answers.server import PipelineRun, PipelineRuns
from queenmq.http.decoding import query_name
from queenmq.http.openapi import LABEL, Parameter, documented
from queenmq.http.paging import page, page_parameters
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.schemas import Page
from queenmq.http.scopes import all_queues
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import pipeline

_LIMIT = 50
_WHICH = (
    Parameter("job", LABEL, "Only of this job."),
    *page_parameters(_LIMIT, "runs"),
)


@documented({200: PipelineRuns}, query=_WHICH)
async def pipeline_runs(request: Request, context: Context) -> Response:
    """Runs of the jobs of the data pipeline, newest first."""
    job = query_name(request.query, "job")
    limit, offset = page(request, context.settings, _LIMIT)
    rows = await pipeline.runs(context.reports, job, limit, offset)
    return Response(200, PipelineRuns(runs=[_run(row) for row in rows], pagination=Page(limit, offset)))


def _run(row: pipeline.PipelineRun) -> PipelineRun:
    return PipelineRun(
        id=str(row.id),
        job=row.job,
        queue=row.queue_name,
        master=row.master,
        state=row.state,
        started_at=iso_millis(row.started_at),
        seen_at=iso_millis(row.seen_at),
        ended_at=optional_iso_millis(row.ended_at),
        rows=row.rows,
        options=Raw(row.options.encode()),
        offsets=Raw(row.offsets.encode()),
        summary=Raw(row.summary.encode()),
        error=row.error,
    )


ROUTES = (Route("GET", "/api/v1/pipeline/runs", pipeline_runs, Role.READ_ONLY, scope=all_queues(Verb.READ)),)
