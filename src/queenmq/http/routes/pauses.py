"""Pause and resume: queues, groups and single partitions of a group that are not delivered for a while"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from queenmq.access.permissions import Verb
from queenmq.broker.pauses import PausePlace
from queenmq.core.names import check_name, check_text, iso_millis
from queenmq.errors import InvalidRequest
from queenmq.http.answers.groups import PauseListed, PauseMade, PausesListed, Resumed
from queenmq.http.decoding import decode, query_count, query_name
from queenmq.http.openapi import COUNT, LABEL, Parameter, documented
from queenmq.http.requests import PauseBody, ResumeBody
from queenmq.http.roles import Role
from queenmq.http.route import Context, Need, Route
from queenmq.http.schemas import Error
from queenmq.http.scopes import listed_or_in_query, visible
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import pauses

_MOST = 1000
_TEXTS = {"queue": "queue is required"}
_pause = msgspec.json.Decoder(PauseBody)
_resume = msgspec.json.Decoder(ResumeBody)
_WHICH = (
    Parameter("queue", LABEL, "Only of this queue."),
    Parameter("limit", COUNT, f"Most pauses in the answer, up to {_MOST}.", _MOST),
)


@documented({200: PauseMade, 404: Error, 409: Error}, body=PauseBody)
async def pause(request: Request, context: Context) -> Response:
    """Deliver nothing more of a queue, to a group of it, or of one partition to that group, until it is resumed.

    Leases that are out can be acknowledged and renewed. What is paused already stays paused as it was.
    """
    body = decode(request.body, _pause, _TEXTS)
    place = _place(body)
    if body.reason is not None:
        check_text(body.reason, "reason")
    made = await context.broker.pauses.pause(place, request.subject, body.reason)
    shown = PauseMade(
        queue=place.queue,
        consumer_group=place.group,
        partition=place.partition,
        paused_at=iso_millis(made.at),
        paused_by=made.by,
        reason=made.reason,
        changed=made.is_new,
    )
    return Response(200, shown)


@documented({200: Resumed, 404: Error}, body=ResumeBody)
async def resume(request: Request, context: Context) -> Response:
    """End exactly this pause; others of the queue stay. `changed` is false if there was none."""
    place = _place(decode(request.body, _resume, _TEXTS))
    changed = await context.broker.pauses.resume(place)
    return Response(
        200, Resumed(queue=place.queue, consumer_group=place.group, partition=place.partition, changed=changed)
    )


@documented({200: PausesListed}, query=_WHICH)
async def list_pauses(request: Request, context: Context) -> Response:
    """What is paused, the oldest first."""
    queue = query_name(request.query, "queue")
    limit = max(1, query_count(request.query, "limit", _MOST, _MOST))
    rows = await pauses.page(context.reports, queue, visible(request), limit)
    return Response(200, PausesListed(pauses=[_listed(row) for row in rows]))


async def _scope(request: Request, _: Context) -> Sequence[Need]:
    place = _place(decode(request.body, _pause, _TEXTS))  # this has every field of a resume, too
    verb = Verb.ADMINISTER if place.group is None else Verb.ACK
    return (Need(verb, place.queue, place.group),)


def _place(body: PauseBody | ResumeBody) -> PausePlace:
    check_name(body.queue, "queue")
    for name, field in ((body.consumer_group, "consumerGroup"), (body.partition, "partition")):
        if name is not None:
            check_name(name, field)
    if body.partition is not None and body.consumer_group is None:
        raise InvalidRequest("partition needs consumerGroup: a partition is paused for one group", "consumerGroup")
    return PausePlace(body.queue, body.consumer_group, body.partition)


def _listed(row: pauses.ListedPause) -> PauseListed:
    return PauseListed(
        queue=row.queue,
        consumer_group=row.consumer_group,
        partition=row.partition,
        paused_at=iso_millis(row.paused_at),
        paused_by=row.paused_by,
        reason=row.reason,
        probe_at=None if row.probe_at is None else iso_millis(row.probe_at),
    )


ROUTES = (
    Route("POST", "/api/v1/pause", pause, Role.READ_WRITE, scope=_scope, audited=True),
    Route("POST", "/api/v1/resume", resume, Role.READ_WRITE, scope=_scope, audited=True),
    Route("GET", "/api/v1/pauses", list_pauses, Role.READ_ONLY, scope=listed_or_in_query(Verb.READ)),
)
