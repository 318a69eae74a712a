"""What requests leave in the audit log."""

from __future__ import annotations

import asyncio

from queenmq.access.audit import AuditLog
from queenmq.access.caller import Caller
from queenmq.access.entry import ADMINISTRATOR, Entry, entry
from queenmq.core.roles import ROLE_NAMES, Role
from queenmq.errors import HttpError
from queenmq.http.route import Context, Route
from queenmq.http.scopes import permissions_of
from queenmq.httpserver.messages import Request, Response

_CLIENT_GONE = 499  # nobody got an answer
_FORWARDED_FOR = b"x-forwarded-for"
_NAMES = {role: name for name, role in ROLE_NAMES.items()}


class Trail:
    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    async def follow(self, request: Request, route: Route, context: Context) -> Response:
        """Serve the request, and write down what became of it before it is answered."""
        if not self._audit.enabled:
            return await route.handler(request, context)
        status, error, operation_id = 500, None, None
        try:
            response = await route.handler(request, context)
            status = response.status
            operation_id = getattr(response.value, "operation_id", None)
            return response
        except HttpError as refusal:
            status, error = refusal.status, refusal.message
            raise
        except asyncio.CancelledError:
            status = _CLIENT_GONE
            raise
        finally:
            await self._audit.write(
                _entry(
                    request,
                    route,
                    status,
                    error,
                    subject=request.subject,
                    role=_role_of(request),
                    token_id=request.token_id,
                    operation_id=operation_id if isinstance(operation_id, str) else None,
                    detail=request.body[:4000].decode(errors="replace") or None,
                )
            )

    def refused(self, request: Request, route: Route | None, error: HttpError, caller: Caller | None = None) -> None:
        """Note a request that was refused with 401 or 403. Nothing waits for that."""
        if not self._audit.enabled or request.forwarded:
            return
        known = {} if caller is None else {"subject": caller.subject, "token_id": caller.token_id}
        self._audit.refused(_entry(request, route, error.status, error.message, **known))


def _role_of(request: Request) -> str | None:
    """What an administrator of some queues does must not displace what the others do."""
    role = _NAMES.get(Role(request.role))
    return f"restricted {role}" if role == ADMINISTRATOR and permissions_of(request) is not None else role


def _entry(request: Request, route: Route | None, status: int, error: str | None, **known: str | None) -> Entry:
    forwarded_for = request.headers.get(_FORWARDED_FOR)
    query = request.query_string.decode("latin-1")
    return entry(
        f"{request.method} {'(another page)' if route is None else route.path}",
        status,
        error=error,
        target=f"{request.path}?{query}" if query else request.path,
        address=request.address,
        forwarded_for=None if forwarded_for is None else forwarded_for.decode("latin-1"),
        **known,
    )
