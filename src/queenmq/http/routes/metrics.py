"""GET /metrics and GET /metrics/prometheus"""

from __future__ import annotations

from typing import Any

from queenmq.engine.engine import Engine
from queenmq.http.exposition import CONTENT_TYPE
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.metrics import collect
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.overload.load_manager import Choice


def add_routes(router: Router, engine: Engine) -> None:
    @documented({200: dict[str, Any]})
    async def metrics(_: Request) -> Response:
        """What this server did since it started, and how it is."""
        counts, vitals = engine.activity.now(), engine.vitals
        user, system = vitals.processor_us()
        memory = vitals.memory()
        requests = counts.push_requests + counts.pop_requests + counts.ack_requests + counts.transactions
        messages = counts.push_messages + counts.pop_messages
        uptime = max(vitals.uptime_s, 0.001)
        body = {
            "uptime": vitals.uptime_s,
            "requests": {"total": requests, "rate": requests / uptime},
            "messages": {"total": messages, "rate": messages / uptime},
            "database": {
                "poolSize": engine.database.pool_size,
                "idleConnections": engine.database.pool_idle,
                "waitingRequests": sum(lane.pending for lane in engine.sidecar.lanes),
            },
            "memory": {
                "rss": memory.resident,
                "heapTotal": memory.virtual,
                "heapUsed": memory.resident,
                "external": 0,
                "arrayBuffers": 0,
            },
            "cpu": {"user": user, "system": system},
            "buffer": {
                "pending": 0 if engine.buffer is None else engine.buffer.messages,
                "failed": 0 if engine.buffer is None else len(engine.buffer.journal.set_aside_sizes()),
                "dbHealthy": engine.database.is_open,
            },
            "operations": {
                "depth": engine.load.load.queue_depth,
                "drainRate": engine.load.load.drain_rate,
                "executed": engine.load.decisions[Choice.EXECUTE],
                "queued": engine.load.decisions[Choice.QUEUE],
                "rejected": engine.load.decisions[Choice.REJECT],
            },
        }
        return json_response(200, body)

    @documented({200: str})
    async def prometheus(_: Request) -> Response:
        """The same and more in the text format of Prometheus; docs/metrics.md lists the families."""
        told = await collect(engine)
        return Response(200, told.text(), CONTENT_TYPE, ((b"Cache-Control", b"no-cache"),))

    for path, handler in (("/metrics", metrics), ("/metrics/prometheus", prometheus)):
        # They name queues, so whoever takes them off the list closes them.
        role = Role.PUBLIC if path in engine.settings.jwt_skip_paths else Role.READ_ONLY
        router.add("GET", path, handler, role)
