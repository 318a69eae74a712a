"""GET /api/v1/find: queues, groups, partitions and messages by what is remembered of them"""

from __future__ import annotations

from queenmq.core.headers import encode_headers
from queenmq.core.names import check_name, iso_millis
from queenmq.errors import InvalidRequest
from queenmq.http.answers.found import Found, FoundGroup, FoundMessage, FoundPartition, FoundQueue
from queenmq.http.decoding import query_count
from queenmq.http.openapi import COUNT, NAME, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.scopes import listing, visible
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import finding

_LIMIT = 20
_MOST = 100
_WHAT = (
    Parameter(
        "q",
        NAME,
        "Part of the name of a queue, group or partition, `queue/partition`, the beginning of a transactionId, or a "
        "header as `name:value`.",
        required=True,
    ),
    Parameter("limit", COUNT, f"Most results of each kind, up to {_MOST}.", _LIMIT),
)


@documented({200: Found}, query=_WHAT)
async def find(request: Request, context: Context) -> Response:
    """Find queues, groups and partitions by part of their name, and messages by transactionId or header."""
    text = (request.query.get("q") or "").strip()
    if not text:
        raise InvalidRequest("q is required: what to find", "q")
    check_name(text, "q")
    limit = max(1, query_count(request.query, "limit", _LIMIT, min(_MOST, context.settings.limits.max_items)))
    found = await finding.find(context.reports, text, _headers(text), limit, visible(request))
    shown = Found(
        queues=[FoundQueue(name=one.name, namespace=one.namespace) for one in found.queues],
        groups=[FoundGroup(name=one.name, queue=one.queue) for one in found.groups],
        partitions=[FoundPartition(id=str(one.id), name=one.name, queue=one.queue) for one in found.partitions],
        messages=[
            *(_message(one, by_header=False) for one in found.by_transaction.messages),
            *(_message(one, by_header=True) for one in found.by_header.messages),
        ],
        complete=found.by_transaction.is_complete and found.by_header.is_complete,
    )
    return Response(200, shown)


def _headers(text: str) -> str | None:
    """The header that is wanted, as JSON; None if the text is none."""
    name, colon, value = text.partition(":")
    try:
        return encode_headers({name: value}, "q") if colon and name else None
    except InvalidRequest:
        return None


def _message(one: finding.FoundMessage, *, by_header: bool) -> FoundMessage:
    return FoundMessage(
        queue=one.queue,
        partition=one.partition,
        partition_id=str(one.partition_id),
        transaction_id=one.transaction_id,
        created_at=iso_millis(one.created_at),
        by_header=by_header,
    )


ROUTES = (Route("GET", "/api/v1/find", find, Role.READ_ONLY, scope=listing),)
