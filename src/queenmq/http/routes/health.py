"""GET /health"""

from __future__ import annotations

import queenmq
from queenmq.broker.broker import Broker
from queenmq.clock import utc_now
from queenmq.core.names import iso_millis
from queenmq.http.answers.server import Health, HealthJournal, SharedState, Worker
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.scopes import nothing
from queenmq.httpserver.messages import Request, Response


@documented({200: Health, 503: Health})
async def health(_: Request, context: Context) -> Response:
    """200 while the database answers, else 503."""
    broker = context.broker
    healthy = await broker.database_answers()
    body = Health(
        status="healthy" if healthy else "unhealthy",
        database="connected" if healthy else "disconnected",
        server="queen",
        worker_id=context.settings.server.worker_id,
        version=queenmq.__version__,
        timestamp=iso_millis(utc_now()),
        shared_state=SharedState(enabled=broker.node.linked),
        queen=Worker(worker_id=0, status="active" if healthy else "degraded"),
        journal=_journal(broker),
    )
    return Response(200 if healthy else 503, body)


def _journal(broker: Broker) -> HealthJournal | None:
    if broker.journal is None:
        return None
    figures = broker.journal.figures()
    return HealthJournal(
        messages=figures.messages,
        stuck=figures.stuck,
        waiting_for_key=figures.waiting_for_key,
        quarantined=figures.quarantined,
    )


ROUTES = (Route("GET", "/health", health, Role.PUBLIC, scope=nothing),)
