"""The dashboard: GET / and the files below /assets, read once from the package"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from queenmq.errors import NotFound
from queenmq.http.openapi import ANY_STRING, documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.schemas import Error
from queenmq.http.scopes import nothing
from queenmq.httpserver.messages import Request, Response

_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SECURITY = (
    (b"Content-Security-Policy", _POLICY),
    (b"X-Frame-Options", b"DENY"),
    (b"Referrer-Policy", b"no-referrer"),
    # Kept, but asked about each time: a new version of the server is a new dashboard at once.
    (b"Cache-Control", b"no-cache"),
)
_PAGE = "index.html"


@documented({200: "text/html"})
async def dashboard(request: Request, context: Context) -> Response:
    """The dashboard."""
    return _answer(request, _PAGE)


@documented({200: "text/javascript", 404: Error}, path={"file": ANY_STRING})
async def asset(request: Request, context: Context) -> Response:
    """A file of the dashboard."""
    return _answer(request, request.params[0])


def _answer(request: Request, name: str) -> Response:
    file = _files().get(name)
    if file is None:
        raise NotFound("Not found")
    body, content_type, tag = file
    headers = (*_SECURITY, (b"ETag", tag))
    if request.headers.get(b"if-none-match") == tag:
        return Response(304, headers=headers)
    return Response(200, body=body, content_type=content_type, headers=headers)


@cache
def _files() -> dict[str, tuple[bytes, bytes, bytes]]:
    """Every file by name, with its content type and tag; read at the first request, which most servers never get."""
    found = {}
    for file in files("queenmq.dashboard").iterdir():
        content_type = _TYPES.get("." + file.name.rpartition(".")[2])
        if content_type is not None:
            body = file.read_bytes()
            found[file.name] = body, content_type, b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
    return found


ROUTES = (
    Route("GET", "/", dashboard, Role.PUBLIC, scope=nothing),
    Route("GET", "/assets/{file}", asset, Role.PUBLIC, scope=nothing),
)
