"""GET /openapi.json and /docs, the same for people; and /asyncapi.json"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from queenmq.http.openapi import documented
from queenmq.http.reference import SERVER, page
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.routes.dashboard import PageFile, served
from queenmq.http.scopes import nothing
from queenmq.httpserver.messages import Request, Response

_HTML = b"text/html; charset=utf-8"
_STYLE = "/assets/reference.css"
_HOST = re.compile(rb"([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")


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
    return served(request, _page(context.openapi(), _address(request, context)))


def _address(request: Request, context: Context) -> str:
    """Of this server, as the browser knows it."""
    host = request.headers.get(b"host", b"")
    if not _HOST.fullmatch(host):
        return SERVER
    by_tls = context.settings.tls.certificate is not None or request.headers.get(b"x-forwarded-proto") == b"https"
    return f"{'https' if by_tls else 'http'}://{host.decode()}"


@lru_cache(maxsize=4)
def _page(document: bytes, address: str) -> PageFile:
    return PageFile.of(_HTML, _text(document).replace(SERVER, address).encode())


@lru_cache(maxsize=2)
def _text(document: bytes) -> str:
    """Made at the first request, which most servers never get."""
    return page(msgspec.json.decode(document), _STYLE)


ROUTES = (
    Route("GET", "/asyncapi.json", asyncapi, Role.PUBLIC, scope=nothing),
    Route("GET", "/docs", docs, Role.PUBLIC, scope=nothing),
    Route("GET", "/openapi.json", openapi, Role.PUBLIC, scope=nothing),
)
