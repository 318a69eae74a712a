"""GET /api/v1/session: who is asking, and GET /api/v1/login: where people sign in"""

from __future__ import annotations

from msgspec import UNSET

from queenmq.http.answers.server import Login, Session
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


@documented({200: Login})
async def login(_: Request, context: Context) -> Response:
    """The OpenID provider of the dashboard, if there is one."""
    auth = context.settings.auth
    if auth.oidc_issuer is None:
        return Response(200, Login())
    shown = Login(
        issuer=auth.oidc_issuer,
        client_id=auth.oidc_client_id,
        scopes=auth.oidc_scopes,
        token=auth.oidc_token,  # type: ignore[arg-type]
    )
    return Response(200, shown)


ROUTES = (
    Route("GET", "/api/v1/session", session, Role.READ_ONLY, scope=nothing),
    Route("GET", "/api/v1/login", login, Role.PUBLIC, scope=nothing),
)
