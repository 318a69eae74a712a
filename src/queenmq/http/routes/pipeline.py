"""GET /api/v1/pipeline/runs, /api/v1/pipelines and /api/v1/pipelines/{name}"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from queenmq.access.permissions import Verb
from queenmq.core.names import check_name, iso_millis, optional_iso_millis
from queenmq.errors import NotFound
from queenmq.http.answers.server import (
    PipelineBatch,
    PipelineRun,
    PipelineRuns,
    PipelineShown,
    PipelinesListed,
    PipelineVersion,
    PipelineWhole,
)
from queenmq.http.decoding import query_name
from queenmq.http.openapi import LABEL, Parameter, documented
from queenmq.http.paging import page, page_parameters
from queenmq.http.roles import Role
from queenmq.http.route import Context, FoundNeed, Need, Route
from queenmq.http.schemas import Error, Page
from queenmq.http.scopes import all_queues, listing, visible
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import pipeline

_LIMIT = 50
_BATCHES = 100
_VERSIONS = 20
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


@documented({200: PipelinesListed}, query=page_parameters(_LIMIT, "pipelines"))
async def list_pipelines(request: Request, context: Context) -> Response:
    """Declared pipelines with their state, lag and throughput, by name."""
    limit, offset = page(request, context.settings, _LIMIT)
    rows = await pipeline.pipelines(context.reports, visible(request), limit, offset)
    return Response(200, PipelinesListed(pipelines=[_shown(row) for row in rows], pagination=Page(limit, offset)))


async def pipeline_in_path(request: Request, context: Context) -> Sequence[Need]:
    """The queues of the pipeline, whose names the caller may not know. All queues if there is no such pipeline: the
    refusal is the same, so that nobody finds out about names."""
    check_name(request.params[0], "name")
    found = await pipeline.pipelines(context.reports, None, 1, name=request.params[0])
    if not found or found[0].reads is None:
        return (FoundNeed(Verb.READ, None),)
    return [FoundNeed(Verb.READ, queue) for queue in found[0].reads + found[0].writes]


@documented({200: PipelineWhole, 400: Error, 404: Error})
async def show_pipeline(request: Request, context: Context) -> Response:
    """A declared pipeline with its declaration, its newest batches and its newest versions. Earlier versions can be
    about other queues: a caller that may not read all queues gets only the version that counts."""
    name, permitted = request.params[0], visible(request)
    check_name(name, "name")
    found = await pipeline.pipelines(context.reports, permitted, 1, name=name)
    if not found:
        raise NotFound(f"there is no pipeline {name!r}")
    batches = await pipeline.batches(context.reports, name, _BATCHES)
    versions = await pipeline.versions(context.reports, name, _VERSIONS)
    whole = PipelineWhole(
        pipeline=_shown(found[0]),
        declaration=Raw(found[0].declaration.encode()),
        batches=[
            PipelineBatch(
                ended_at=iso_millis(row.ended_at),
                number=row.number,
                query=row.query,
                rows=row.rows,
                seconds=row.seconds,
            )
            for row in batches
        ],
        versions=[
            PipelineVersion(
                version=row.version,
                state_number=row.state_number,
                applied_at=iso_millis(row.applied_at),
                declaration=Raw(row.declaration.encode()),
            )
            for row in versions
            if permitted is None or row.version == found[0].version
        ],
    )
    return Response(200, whole)


def _shown(row: pipeline.Pipeline) -> PipelineShown:
    last = None
    if row.batch_ended_at is not None:
        last = PipelineBatch(
            ended_at=iso_millis(row.batch_ended_at),
            number=row.batch_number or 0,
            rows=row.batch_rows or 0,
            seconds=row.batch_seconds or 0.0,
        )
    return PipelineShown(
        name=row.name,
        kind=row.kind,
        version=row.version,
        running_version=row.running_version,
        wanted=row.wanted,
        state=row.state,
        supervisor=row.supervisor,
        reads=row.reads,
        writes=row.writes,
        lag=row.lag,
        lag_seconds=row.lag_seconds,
        rows=row.rows,
        batches=row.batches,
        messages_per_second=row.rate,
        starts=row.starts,
        failures=row.failures,
        started_at=optional_iso_millis(row.started_at),
        seen_at=optional_iso_millis(row.seen_at),
        next_start_at=optional_iso_millis(row.next_start_at),
        error=row.error,
        error_at=optional_iso_millis(row.error_at),
        changed_at=iso_millis(row.changed_at),
        last_batch=last,
    )


ROUTES = (
    Route("GET", "/api/v1/pipeline/runs", pipeline_runs, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route("GET", "/api/v1/pipelines", list_pipelines, Role.READ_ONLY, scope=listing),
    Route("GET", "/api/v1/pipelines/{name}", show_pipeline, Role.READ_ONLY, scope=pipeline_in_path),
)
