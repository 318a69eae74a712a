"""The dashboard: GET / and the files below /assets, read once from the package"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from queenmq.engine.engine import Engine
from queenmq.errors import NotFound
from queenmq.http.messages import Request, Response
from queenmq.http.openapi import ANY_STRING, documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.schemas import Error

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
    (b"X-Content-Type-Options", b"nosniff"),
    (b"X-Frame-Options", b"DENY"),
    (b"Referrer-Policy", b"no-referrer"),
    # Kept, but asked about each time: a new version of the server is a new dashboard at once.
    (b"Cache-Control", b"no-cache"),
)
_PAGE = "index.html"


def add_routes(router: Router, engine: Engine) -> None:
    @documented({200: "text/html"})
    async def dashboard(request: Request) -> Response:
        """The dashboard, a page for people."""
        return _answer(request, _PAGE)

    @documented({200: "text/javascript", 404: Error}, path={"file": ANY_STRING})
    async def asset(request: Request) -> Response:
        """A file of the dashboard."""
        return _answer(request, request.params[0])

    router.add("GET", "/", dashboard, Role.PUBLIC)
    router.add("GET", "/assets/{file}", asset, Role.PUBLIC)


def _answer(request: Request, name: str) -> Response:
    file = _files().get(name)
    if file is None:
        raise NotFound("Not found")
    body, content_type, tag = file
    headers = (*_SECURITY, (b"ETag", tag))
    if request.headers.get(b"if-none-match") == tag:
        return Response(304, headers=headers)
    return Response(200, body, content_type, headers)


@cache
def _files() -> dict[str, tuple[bytes, bytes, bytes]]:
    """Every file by name, with its content type and tag. Not before somebody asks: most servers are never looked at."""
    found = {}
    for file in files("queenmq.dashboard").iterdir():
        content_type = _TYPES.get("." + file.name.rpartition(".")[2])
        if content_type is not None:
            body = file.read_bytes()
            found[file.name] = body, content_type, b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
    return found
