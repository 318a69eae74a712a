"""The application: every request finds its route, shows its token, and is handled."""

from __future__ import annotations

from queenmq.engine.engine import Engine
from queenmq.http.auth import Authenticator
from queenmq.http.messages import Request, Response
from queenmq.http.router import Router
from queenmq.http.routes import (
    ack,
    analytics,
    cluster,
    dashboard,
    docs,
    explain,
    groups,
    health,
    leases,
    live,
    maintenance,
    messages,
    metrics,
    observe,
    operations,
    partitions,
    pipeline,
    pop,
    push,
    queues,
    resources,
    session,
    status,
    streams,
    transaction,
)

_TOPICS = (
    push,
    pop,
    ack,
    transaction,
    leases,
    queues,
    groups,
    observe,
    messages,
    resources,
    status,
    analytics,
    explain,
    streams,
    metrics,
    cluster,
    maintenance,
    operations,
    partitions,
    pipeline,
    live,
    session,
    health,
    docs,
    dashboard,
)


def build_router(engine: Engine) -> Router:
    router = Router()
    for topic in _TOPICS:
        topic.add_routes(router, engine)
    return router


class App:
    def __init__(self, engine: Engine, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self.router = build_router(engine)

    async def handle(self, request: Request) -> Response:
        route = self.router.resolve(request)
        authorization = request.headers.get(b"authorization")
        request.subject, request.role = await self._authenticator.authenticate(request.path, authorization, route.role)
        return await route.handler(request)
