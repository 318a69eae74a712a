"""GET /api/v1/troubles: what needs a person, and why"""

from __future__ import annotations

from msgspec import Struct

from queenmq.access.permissions import Verb
from queenmq.clock import utc_now
from queenmq.core.explanation import Reason
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.routes.groups import starts_new
from queenmq.http.scopes import all_queues, permissions_of
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import troubles as report


class TroubleShown(Struct, kw_only=True, rename="camel"):
    """`sentence` names the cause, `advice` says what to do, `statement` is SQL for an administrator of the database.
    `reason` is why a group is behind, as explain calls it; `fingerprint` is for `GET /api/v1/dlq`."""

    kind: report.Kind
    sentence: str
    advice: str
    reason: Reason | None
    queue: str | None
    partition: str | None
    consumer_group: str | None
    fingerprint: str | None
    statement: str | None


class TroublesListed(Struct, kw_only=True):
    troubles: list[TroubleShown]


@documented({200: TroublesListed})
async def list_troubles(request: Request, context: Context) -> Response:
    """What needs a person, at most ten of each kind: failing heads, groups behind, pauses, full queues, windows that do
    not close, expired tokens (for administrators), dead letters of the last day by cause, who keeps dead rows alive."""
    await context.broker.statistics.freshen()
    await context.broker.statistics.name_readers()
    found = await report.troubles(
        context.reports,
        context.first_seen,
        utc_now(),
        starts_new=starts_new(context.settings),
        pops_paused=context.broker.pops_are_paused,
        held_long_s=context.settings.statistics.horizon_warning_s,
    )
    shown = [one for one in found if one.kind != "token_expired" or _may_list_tokens(request)]
    return Response(200, TroublesListed(troubles=[_shown(one) for one in shown]))


def _may_list_tokens(request: Request) -> bool:
    permissions = permissions_of(request)
    if permissions is not None and (permissions.restricts_groups or not permissions.allows(Verb.ADMINISTER, None)):
        return False
    return request.role >= Role.ADMIN


def _shown(one: report.Trouble) -> TroubleShown:
    return TroubleShown(
        kind=one.kind,
        sentence=one.sentence,
        advice=one.advice,
        reason=one.reason,
        queue=one.queue,
        partition=one.partition,
        consumer_group=one.consumer_group,
        fingerprint=one.fingerprint,
        statement=one.statement,
    )


ROUTES = (Route("GET", "/api/v1/troubles", list_troubles, Role.READ_ONLY, scope=all_queues(Verb.READ)),)
