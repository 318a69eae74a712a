"""GET /api/v1/audit: who has changed or was refused what"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from queenmq.access.audit import AuditFilter
from queenmq.access.permissions import Verb
from queenmq.core.names import iso_millis
from queenmq.http.decoding import query_count, query_name, query_time
from queenmq.http.openapi import COUNT, LABEL, MOMENT, Parameter, documented
from queenmq.http.paging import page, page_parameters
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.schemas import Moment, Page, Uuid
from queenmq.http.scopes import all_queues, refuse_restricted
from queenmq.httpserver.messages import Request, Response

_LIMIT: Final = 100
_FILTERS: Final = (
    Parameter("subject", LABEL, "Only of this subject."),
    Parameter("action", LABEL, "Only actions with this in them, such as DELETE or seek."),
    Parameter("status", COUNT, "Only with this status."),
    Parameter("from", MOMENT, "Only at or after this moment."),
    Parameter("to", MOMENT, "Only at or before this moment."),
    *page_parameters(_LIMIT),
)


class AuditEntry(Struct, kw_only=True, rename="camel"):
    """`count` requests from `at` to `until`: more than one only if they were refused. `detail` is the body, cut to
    2,000 characters. `forwardedFor` is what the request says, and proves nothing."""

    id: int
    at: Moment
    until: Moment
    count: int
    subject: str | None
    role: str | None
    token_id: Uuid | None
    action: str
    target: str | None
    detail: str | None
    address: str | None
    forwarded_for: str | None
    status: int
    error: str | None
    operation_id: Uuid | None
    server: str


class AuditPage(Struct, kw_only=True):
    entries: list[AuditEntry]
    pagination: Page


@documented({200: AuditPage}, query=_FILTERS)
async def audit(request: Request, context: Context) -> Response:
    """The audit log, newest first. Refusals (401, 403) are in it after a minute."""
    refuse_restricted(request)
    query = request.query
    limit, offset = page(request, context.settings, _LIMIT)
    which = AuditFilter(
        subject=query_name(query, "subject"),
        action=query_name(query, "action"),
        status=query_count(query, "status", 0, 999) or None,
        since=query_time(query, "from"),
        until=query_time(query, "to"),
    )
    entries = []
    for row in await context.audit.page(which, limit, offset):
        values = dict(row)
        values |= {"at": iso_millis(row["at"]), "until": iso_millis(row["until"])}
        values |= {name: None if row[name] is None else str(row[name]) for name in ("token_id", "operation_id")}
        entries.append(AuditEntry(**values))
    return Response(200, AuditPage(entries=entries, pagination=Page(limit, offset)))


ROUTES = (Route("GET", "/api/v1/audit", audit, Role.ADMIN, scope=all_queues(Verb.ADMINISTER)),)
