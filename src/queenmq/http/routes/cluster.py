"""What servers share: GET /internal/api/shared-state/stats and its siblings, POST /internal/api/notify; and how
evenly they are loaded: GET /api/v1/cluster/balance"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from queenmq.access.permissions import Verb
from queenmq.core.names import check_name
from queenmq.http.answers.server import Balance, Notified
from queenmq.http.decoding import decode
from queenmq.http.openapi import documented
from queenmq.http.requests import NotifyBody
from queenmq.http.roles import Role
from queenmq.http.route import Context, Need, Route
from queenmq.http.scopes import all_queues
from queenmq.httpserver.messages import Request, Response

_TEXTS = {"queue": "queue is required"}
_decoder = msgspec.json.Decoder(NotifyBody)


@documented({200: dict[str, Any]})
async def shared_state(_: Request, context: Context) -> Response:
    """Members of the cluster, caches, packets, the sidecar and parked long polls, with every counter."""
    return Response(200, context.broker.shared_state())


@documented({200: dict[str, Any]})
async def shared_state_stats(request: Request, context: Context) -> Response:
    """The same as GET /api/v1/system/shared-state."""
    return await shared_state(request, context)


@documented({200: dict[str, Any]})
async def inter_instance_stats(request: Request, context: Context) -> Response:
    """The same as GET /api/v1/system/shared-state."""
    return await shared_state(request, context)


@documented({200: Notified}, body=NotifyBody)
async def notify(request: Request, context: Context) -> Response:
    """Wake the long polls of a queue, or of one partition of it; useful after writing with psql."""
    body = decode(request.body, _decoder, _TEXTS)
    check_name(body.queue, "queue")
    partitions = None
    if body.partition is not msgspec.UNSET:
        check_name(body.partition, "partition")
        partitions = (body.partition,)
    context.broker.long_polls.wake(body.queue, partitions)
    return Response(200, Notified(status="ok"))


async def _notified(request: Request, _: Context) -> Sequence[Need]:
    return (Need(Verb.PUSH, decode(request.body, _decoder, _TEXTS).queue),)


@documented({200: Balance})
async def balance(_: Request, context: Context) -> Response:
    """Load of each server of the cluster, and the difference between them."""
    node = context.broker.node
    node.measure()
    node.coordinator.observe(node.now)
    return Response(200, node.coordinator.balance(node.now))


ROUTES = (
    Route("GET", "/api/v1/cluster/balance", balance, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route("GET", "/api/v1/system/shared-state", shared_state, Role.ADMIN, scope=all_queues(Verb.ADMINISTER)),
    Route("GET", "/internal/api/shared-state/stats", shared_state_stats, Role.ADMIN, scope=all_queues(Verb.ADMINISTER)),
    Route(
        "GET", "/internal/api/inter-instance/stats", inter_instance_stats, Role.ADMIN, scope=all_queues(Verb.ADMINISTER)
    ),
    Route("POST", "/internal/api/notify", notify, Role.READ_WRITE, scope=_notified),
)
