"""GET /api/v1/session: who is asking"""

from __future__ import annotations

from queenmq.engine.engine import Engine
from queenmq.http.figures import Session
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.router import Router

_NAMES = {Role.READ_ONLY: "read-only", Role.READ_WRITE: "read-write", Role.ADMIN: "admin"}


def add_routes(router: Router, engine: Engine) -> None:
    @documented({200: Session})
    async def session(request: Request) -> Response:
        """Whose token this is and what it may do; without tokens everybody may do everything."""
        role = _NAMES[Role(request.role)]
        return json_response(
            200,
            Session(tokens=engine.settings.jwt_enabled, subject=request.subject, role=role),  # type: ignore[arg-type]
        )

    router.add("GET", "/api/v1/session", session, Role.READ_ONLY)
