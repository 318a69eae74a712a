"""GET /openapi.json and /docs, the same for people; and /asyncapi.json"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from queenmq.http.openapi import documented
from queenmq.http.reference import page
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.routes.dashboard import PageFile, served
from queenmq.http.scopes import nothing
from queenmq.httpserver.messages import Request, Response

_HTML = b"text/html; charset=utf-8"
_STYLE = "/assets/reference.css"


@documented({200: dict[str, Any]})
async def openapi(_: Request, context: Context) -> Response:
    """The OpenAPI document of this server."""
    return Response(200, body=context.openapi())


@documented({200: dict[str, Any]})
async def asyncapi(_: Request, context: Context) -> Response:
    """The AsyncAPI document of this server: the messages on a consumer connection."""
    return Response(200, body=context.asyncapi())


@documented({200: "text/html"})
async def docs(request: Request, context: Context) -> Response:
    """The HTTP API of this server as a page, with an example of each request."""
    return served(request, _page(context.openapi()))


@lru_cache(maxsize=2)
def _page(document: bytes) -> PageFile:
    """Made at the first request, which most servers never get."""
    return PageFile.of(_HTML, page(msgspec.json.decode(document), _STYLE).encode())


ROUTES = (
    Route("GET", "/asyncapi.json", asyncapi, Role.PUBLIC, scope=nothing),
    Route("GET", "/docs", docs, Role.PUBLIC, scope=nothing),
    Route("GET", "/openapi.json", openapi, Role.PUBLIC, scope=nothing),
)
