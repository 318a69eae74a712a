"""The dashboard: GET /, the files below /assets and the icon, read once from the package"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from queenmq.errors import NotFound
from queenmq.http.compression import BY_ENCODING, CODINGS, chosen, packed_as
from queenmq.http.login import origin_of
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
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'%b; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SECURITY = (
    (b"X-Frame-Options", b"DENY"),
    (b"Referrer-Policy", b"no-referrer"),
    # Kept, but asked about each time: a new version of the server is a new dashboard at once.
    (b"Cache-Control", b"no-cache"),
)
_PAGE, _ICON = "index.html", "icon.svg"


class PageFile(NamedTuple):
    """A file for a browser, also compressed."""

    content_type: bytes
    body: bytes
    digest: bytes
    forms: dict[bytes, bytes]

    @classmethod
    def of(cls, content_type: bytes, body: bytes) -> PageFile:
        digest = hashlib.sha256(body).hexdigest()[:32].encode()
        return cls(content_type, body, digest, {})

    def packed(self, coding: bytes) -> bytes:
        """Made when it is asked for, and kept."""
        if coding not in self.forms:
            self.forms[coding] = CODINGS[coding].thorough(self.body)
        return self.forms[coding]

    def tag(self, coding: bytes | None) -> bytes:
        """Another form has another one."""
        return b'"%b"' % self.digest if coding is None else b'"%b-%b"' % (self.digest, coding)


@documented({200: "text/html"})
async def dashboard(request: Request, context: Context) -> Response:
    """The dashboard."""
    return _answer(request, context, _PAGE)


@documented({200: "text/javascript", 404: Error}, path={"file": ANY_STRING})
async def asset(request: Request, context: Context) -> Response:
    """A file of the dashboard."""
    return _answer(request, context, request.params[0])


@documented({200: "image/svg+xml"})
async def icon(request: Request, context: Context) -> Response:
    """The icon of the dashboard, where browsers ask for it on pages that name none."""
    return _answer(request, context, _ICON)


def _answer(request: Request, context: Context, name: str) -> Response:
    file = _files().get(name)
    if file is None:
        raise NotFound("Not found")
    return served(request, file, context.settings.auth.oidc_issuer)


def served(request: Request, file: PageFile, provider: str | None = None) -> Response:
    """The file, or that the browser has it already, with what keeps a page from loading anything else, and from asking
    anybody but this server and the OpenID provider."""
    coding = chosen(request)
    tag = file.tag(coding)
    headers = (_policy(provider), *_SECURITY, (b"ETag", tag), BY_ENCODING)
    if request.headers.get(b"if-none-match") == tag:
        return Response(304, headers=headers)
    if coding is not None:
        packed = (*headers, packed_as(coding))
        return Response(200, body=file.packed(coding), content_type=file.content_type, headers=packed)
    return Response(200, body=file.body, content_type=file.content_type, headers=headers)


@cache
def _policy(issuer: str | None) -> tuple[bytes, bytes]:
    origin = b"" if issuer is None else b" " + origin_of(issuer).encode()
    return b"Content-Security-Policy", _POLICY % origin


@cache
def _files() -> dict[str, PageFile]:
    """Every file by name; read at the first request, which most servers never get."""
    found = {}
    for file in files("queenmq.dashboard").iterdir():
        content_type = _TYPES.get("." + file.name.rpartition(".")[2])
        if content_type is not None:
            found[file.name] = PageFile.of(content_type, file.read_bytes())
    return found


ROUTES = (
    Route("GET", "/", dashboard, Role.PUBLIC, scope=nothing),
    Route("GET", "/assets/{file}", asset, Role.PUBLIC, scope=nothing),
    Route("GET", "/favicon.ico", icon, Role.PUBLIC, scope=nothing),
)
