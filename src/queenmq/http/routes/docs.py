"""GET /openapi.json"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from queenmq.engine.engine import Engine
from queenmq.http.messages import Request, Response
from queenmq.http.openapi import document, documented
from queenmq.http.roles import Role
from queenmq.http.router import Router


def add_routes(router: Router, engine: Engine) -> None:
    @cache
    def body() -> bytes:
        # Not before it is asked for: topics may still add their routes.
        return msgspec.json.encode(document(router.routes(), engine.settings))

    @documented({200: dict[str, Any]})
    async def openapi(_: Request) -> Response:
        """The OpenAPI document of this server."""
        return Response(200, body())

    router.add("GET", "/openapi.json", openapi, Role.PUBLIC)
