"""Quotas and limits of namespaces: GET and POST /api/v1/quotas, DELETE /api/v1/quotas/{namespace}"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from queenmq.access.permissions import Verb
from queenmq.access.quotas import Quota
from queenmq.access.rates import Bound
from queenmq.core.names import check_name
from queenmq.errors import NotFound
from queenmq.http.decoding import decode
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.schemas import Error, Name
from queenmq.http.scopes import all_queues, listing, permissions_of, refuse_restricted
from queenmq.httpserver.messages import Request, Response

_TEXTS: Final = {"namespace": "namespace is required"}
_Most = Annotated[int, Meta(ge=1, le=2**53)]


class QuotaBody(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Stored messages and bytes, requests and pushed messages a second, and long polls at a time, each if given; the
    last three at each worker. Without any limit, nothing is refused, and the messages are shown."""

    namespace: Name
    max_messages: _Most | None = None
    max_bytes: _Most | None = None
    requests_per_second: Bound | None = None
    messages_per_second: Bound | None = None
    long_polls: Bound | None = None


class QuotaShown(Struct, kw_only=True, rename="camel"):
    """What is stored is some seconds old; `bytes` is estimated from a sample, and only there if it has a limit.
    `longPollsWaiting` are those at the worker that answers, if they have a limit."""

    namespace: str
    max_messages: int | None
    max_bytes: int | None
    messages: int
    bytes: int | UnsetType = UNSET
    requests_per_second: int | None
    messages_per_second: int | None
    long_polls: int | None
    long_polls_waiting: int | UnsetType = UNSET


class QuotasListed(Struct, kw_only=True):
    quotas: list[QuotaShown]


class QuotaRemoved(Struct, kw_only=True):
    removed: bool
    namespace: str


_decoder = msgspec.json.Decoder(QuotaBody)


@documented({200: QuotasListed})
async def list_quotas(request: Request, context: Context) -> Response:
    """The quotas of namespaces, and how much of them is used."""
    permissions = permissions_of(request)
    await context.quotas.freshen()
    shown = [
        _shown(quota, context)
        for quota in context.quotas.known()
        if permissions is None or permissions.allows(Verb.READ, quota.namespace)
    ]
    return Response(200, QuotasListed(quotas=shown))


@documented({200: QuotaShown}, body=QuotaBody)
async def set_quota(request: Request, context: Context) -> Response:
    """Limit what the queues of a namespace may store, and how much may be asked for of them: the queue of that name,
    and all whose names begin with it and a dot. What would exceed a limit gets 429."""
    body = decode(request.body, _decoder, _TEXTS)
    check_name(body.namespace, "namespace")
    refuse_restricted(request)
    await context.quotas.set(Quota(**structs.asdict(body)))
    known = next((quota for quota in context.quotas.known() if quota.namespace == body.namespace), None)
    if known is None:
        raise NotFound("Quota not found")  # removed at the same moment
    return Response(200, _shown(known, context))


@documented({200: QuotaRemoved, 404: Error})
async def remove_quota(request: Request, context: Context) -> Response:
    """Remove the quota of a namespace."""
    refuse_restricted(request)
    namespace = request.params[0]
    check_name(namespace, "namespace")
    if not await context.quotas.remove(namespace):
        raise NotFound("Quota not found")
    return Response(200, QuotaRemoved(removed=True, namespace=namespace))


def _shown(quota: Quota, context: Context) -> QuotaShown:
    return QuotaShown(
        namespace=quota.namespace,
        max_messages=quota.max_messages,
        max_bytes=quota.max_bytes,
        messages=quota.messages,
        bytes=UNSET if quota.max_bytes is None else quota.bytes or 0,
        requests_per_second=quota.requests_per_second,
        messages_per_second=quota.messages_per_second,
        long_polls=quota.long_polls,
        long_polls_waiting=UNSET if quota.long_polls is None else context.rates.polls_of(quota.namespace),
    )


_PATH = "/api/v1/quotas"
_ADMINISTER = all_queues(Verb.ADMINISTER)

ROUTES = (
    Route("GET", _PATH, list_quotas, Role.READ_ONLY, scope=listing),
    Route("POST", _PATH, set_quota, Role.ADMIN, scope=_ADMINISTER, audited=True),
    Route("DELETE", _PATH + "/{namespace}", remove_quota, Role.ADMIN, scope=_ADMINISTER, audited=True),
)
