"""GET /metrics and GET /metrics/prometheus"""

from __future__ import annotations

from typing import Any

from queenmq.access.permissions import Verb
from queenmq.broker.load_manager import Choice
from queenmq.http.exposition import CONTENT_TYPE
from queenmq.http.metrics import collect
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.scopes import all_queues
from queenmq.httpserver.messages import Request, Response


@documented({200: dict[str, Any]})
async def metrics(_: Request, context: Context) -> Response:
    """Counters of this server since its start, and its state, as JSON."""
    broker = context.broker
    counts, vitals = broker.activity.now(), broker.vitals
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
            "poolSize": broker.database.pool_size,
            "idleConnections": broker.database.pool_idle,
            "waitingRequests": sum(lane.pending for lane in broker.lanes.values()),
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
            "pending": 0 if broker.journal is None else broker.journal.figures().messages,
            "failed": 0 if broker.journal is None else broker.journal.figures().quarantined,
            "dbHealthy": broker.database.is_open,
        },
        "operations": {
            "depth": broker.load.load.queue_depth,
            "drainRate": broker.load.load.drain_rate,
            "executed": broker.load.decisions[Choice.EXECUTE],
            "queued": broker.load.decisions[Choice.QUEUE],
            "rejected": broker.load.decisions[Choice.REJECT],
        },
    }
    return Response(200, body)


@documented({200: str})
async def prometheus(_: Request, context: Context) -> Response:
    """All metrics in the text format of Prometheus; docs/metrics.md lists them."""
    # Requests that come meanwhile get the same: they need no token by default, and each would ask the database.
    text = await context.scrapes.load(None, lambda: _text(context))
    return Response(200, body=text, content_type=CONTENT_TYPE, headers=((b"Cache-Control", b"no-cache"),))


async def _text(context: Context) -> bytes:
    return (await collect(context)).text()


# They name queues, so they need a token as soon as somebody takes them out of JWT_SKIP_PATHS.
ROUTES = (
    Route("GET", "/metrics", metrics, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route("GET", "/metrics/prometheus", prometheus, Role.READ_ONLY, scope=all_queues(Verb.READ)),
)
