"""GET /openapi.json"""

from __future__ import annotations

from typing import Any

from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.scopes import nothing
from queenmq.httpserver.messages import Request, Response


@documented({200: dict[str, Any]})
async def openapi(_: Request, context: Context) -> Response:
    """The OpenAPI document of this server."""
    return Response(200, body=context.openapi())


ROUTES = (Route("GET", "/openapi.json", openapi, Role.PUBLIC, scope=nothing),)
