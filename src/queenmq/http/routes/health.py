"""GET /health"""

from __future__ import annotations

from datetime import UTC, datetime

import queenmq
from queenmq.clock import SystemClock
from queenmq.core.names import iso_millis
from queenmq.engine.engine import Engine
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.schemas import Health, SharedState, Worker

_clock = SystemClock()


def add_routes(router: Router, engine: Engine) -> None:
    @documented({200: Health, 503: Health})
    async def health(_: Request) -> Response:
        """200 while the database answers, else 503."""
        healthy = await engine.administration.database_answers()
        body = Health(
            status="healthy" if healthy else "unhealthy",
            database="connected" if healthy else "disconnected",
            server="queen",
            worker_id=engine.settings.worker_id,
            version=queenmq.__version__,
            timestamp=iso_millis(datetime.fromtimestamp(_clock.wall(), UTC)),
            shared_state=SharedState(enabled=engine.node.linked),
            queen=Worker(worker_id=0, status="active" if healthy else "degraded"),
        )
        return json_response(200 if healthy else 503, body)

    router.add("GET", "/health", health, Role.PUBLIC)
