"""What servers share: GET /internal/api/shared-state/stats and its siblings, POST /internal/api/notify; and how
evenly they are loaded: GET /api/v1/cluster/balance"""

from __future__ import annotations

from typing import Any

import msgspec

from queenmq.core.names import check_name
from queenmq.engine.engine import Engine
from queenmq.http.decoding import decode
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.schemas import Balance, Notified, NotifyBody

_TEXTS = {"queue": "queue is required"}
_decoder = msgspec.json.Decoder(NotifyBody)


def add_routes(router: Router, engine: Engine) -> None:
    @documented({200: dict[str, Any]})
    async def shared_state(_: Request) -> Response:
        """Members of the cluster, caches, packets, the sidecar and parked long polls, with every counter."""
        return json_response(200, engine.shared_state())

    @documented({200: dict[str, Any]})
    async def shared_state_stats(request: Request) -> Response:
        """The same as GET /api/v1/system/shared-state."""
        return await shared_state(request)

    @documented({200: dict[str, Any]})
    async def inter_instance_stats(request: Request) -> Response:
        """The same as GET /api/v1/system/shared-state."""
        return await shared_state(request)

    @documented({200: Notified}, body=NotifyBody)
    async def notify(request: Request) -> Response:
        """Wake the long polls of a queue, or of one partition of it; useful after writing with psql."""
        body = decode(request.body, _decoder, _TEXTS)
        check_name(body.queue, "queue")
        partitions = None
        if body.partition is not msgspec.UNSET:
            check_name(body.partition, "partition")
            partitions = (body.partition,)
        engine.readable(body.queue, partitions)
        return json_response(200, Notified(status="ok"))

    @documented({200: Balance})
    async def balance(_: Request) -> Response:
        """How busy each server of the cluster is, and how far apart they are."""
        node = engine.node
        node.measure()
        node.coordinator.observe(node.now)
        return json_response(200, node.coordinator.balance(node.now))

    router.add("GET", "/api/v1/cluster/balance", balance, Role.READ_ONLY)
    router.add("GET", "/api/v1/system/shared-state", shared_state, Role.ADMIN)
    router.add("GET", "/internal/api/shared-state/stats", shared_state_stats, Role.ADMIN)
    router.add("GET", "/internal/api/inter-instance/stats", inter_instance_stats, Role.ADMIN)
    router.add("POST", "/internal/api/notify", notify, Role.READ_WRITE)
