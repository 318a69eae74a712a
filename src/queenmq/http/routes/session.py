"""GET /api/v1/session: who is asking"""

from __future__ import annotations

from msgspec import UNSET

from queenmq.http.answers.server import Session
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.scopes import nothing, permissions_of
from queenmq.httpserver.messages import Request, Response

_NAMES = {Role.READ_ONLY: "read-only", Role.READ_WRITE: "read-write", Role.ADMIN: "admin"}


@documented({200: Session})
async def session(request: Request, context: Context) -> Response:
    """Subject and role of the token; without tokens every request has the role admin."""
    role, permissions = _NAMES[Role(request.role)], permissions_of(request)
    shown = Session(
        tokens=context.settings.auth.required,
        subject=request.subject,
        role=role,  # type: ignore[arg-type]
        grants=UNSET if permissions is None else permissions.grants,
    )
    return Response(200, shown)


ROUTES = (Route("GET", "/api/v1/session", session, Role.READ_ONLY, scope=nothing),)
