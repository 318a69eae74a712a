"""Policies: what queues and groups do with messages that fail, and how much they get"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from queenmq.access.permissions import Verb
from queenmq.core.fairness import FairnessPolicy
from queenmq.core.limits import LimitPolicy
from queenmq.core.names import check_name, iso_millis
from queenmq.core.retry_policy import BreakerPolicy, RetryPolicy
from queenmq.errors import InvalidRequest
from queenmq.http.answers.policies import PoliciesListed, PolicyListed, PolicySet, SkippedListed, SkippedShown
from queenmq.http.decoding import decode, query_count, query_group, query_name
from queenmq.http.openapi import COUNT, LABEL, Parameter, documented
from queenmq.http.requests import PolicyBody
from queenmq.http.roles import Role
from queenmq.http.route import Context, Need, Route
from queenmq.http.schemas import Error
from queenmq.http.scopes import listed_or_in_query, queue_in_path, visible
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import policies

_MOST = 1000
_TEXTS = {"queue": "queue is required"}
_decoder = msgspec.json.Decoder(PolicyBody)
_retry = msgspec.json.Decoder(RetryPolicy)
_breaker = msgspec.json.Decoder(BreakerPolicy)
_limits = msgspec.json.Decoder(LimitPolicy)
_fairness = msgspec.json.Decoder(FairnessPolicy)
_LIMIT = Parameter("limit", COUNT, f"Most entries of the answer, up to {_MOST}.", _MOST)


@documented({200: PolicySet, 404: Error, 409: Error}, body=PolicyBody)
async def set_policy(request: Request, context: Context) -> Response:
    """Set parts of the policy of a queue, or of one group of it, or take them back with null. Every later pop and ack
    goes by it."""
    body = _body(request)
    queue, group = body.queue, body.consumer_group
    parts = (body.retry, body.breaker, body.limits, body.fairness)
    changed = await context.broker.policies.set(queue, group, request.subject, *parts)
    shown = PolicySet(
        queue=queue,
        consumer_group=group,
        retry=body.retry,
        breaker=body.breaker,
        limits=body.limits,
        fairness=body.fairness,
        changed=changed,
    )
    return Response(200, shown)


@documented({200: PoliciesListed}, query=(Parameter("queue", LABEL, "Only of this queue."), _LIMIT))
async def list_policies(request: Request, context: Context) -> Response:
    """The policies of queues and groups."""
    queue = query_name(request.query, "queue")
    limit = max(1, query_count(request.query, "limit", _MOST, _MOST))
    rows = await policies.page(context.reports, queue, visible(request), limit)
    return Response(200, PoliciesListed(policies=[_listed(row) for row in rows]))


@documented(
    {200: SkippedListed}, query=(Parameter("consumerGroup", LABEL, "Only those of this consumer group."), _LIMIT)
)
async def list_skipped(request: Request, context: Context) -> Response:
    """The messages of a queue that failed and wait by themselves (`skip`), or keep their partition waiting (`park`)."""
    queue = request.params[0]
    check_name(queue, "queue")
    group = query_group(request.query)
    limit = max(1, query_count(request.query, "limit", _MOST, _MOST))
    rows = await policies.skipped(context.reports, queue, group, limit)
    return Response(200, SkippedListed(messages=[_shown(row) for row in rows]))


async def _scope(request: Request, _: Context) -> Sequence[Need]:
    """What is for every group of a queue overrides its options, and needs what changing them does."""
    body = _body(request)
    verb = Verb.ADMINISTER if body.consumer_group is None else Verb.ACK
    return (Need(verb, body.queue, body.consumer_group),)


def _body(request: Request) -> PolicyBody:
    body = decode(request.body, _decoder, _TEXTS)
    check_name(body.queue, "queue")
    if body.consumer_group is not None:
        check_name(body.consumer_group, "consumerGroup")
    if body.retry is body.breaker is body.limits is body.fairness is msgspec.UNSET:
        what = "retry, breaker, limits or fairness"
        raise InvalidRequest(f"{what} is required: what to set, or null to take it back", "retry")
    if body.fairness is not msgspec.UNSET and body.consumer_group is not None:
        raise InvalidRequest("fairness is of a queue, for all of its groups: leave consumerGroup out", "fairness")
    if body.retry:
        body.retry.delays()
    if body.breaker:
        body.breaker.check()
    if body.limits:
        body.limits.check()
    if body.fairness:
        body.fairness.check()
    return body


def _listed(row: policies.ListedPolicy) -> PolicyListed:
    return PolicyListed(
        queue=row.queue,
        consumer_group=row.consumer_group,
        changed_at=iso_millis(row.changed_at),
        changed_by=row.changed_by,
        retry=None if row.retry is None else _retry.decode(row.retry),
        breaker=None if row.breaker is None else _breaker.decode(row.breaker),
        limits=None if row.limits is None else _limits.decode(row.limits),
        fairness=None if row.fairness is None else _fairness.decode(row.fairness),
    )


def _shown(row: policies.SkippedMessage) -> SkippedShown:
    return SkippedShown(
        partition=row.partition,
        partition_id=str(row.partition_id),
        consumer_group=row.consumer_group,
        offset=row.offset,
        transaction_id=row.transaction_id,
        created_at=iso_millis(row.created_at),
        until=None if row.parks else iso_millis(row.until),
        parked=row.parks,
        retry_count=row.attempts,
    )


ROUTES = (
    Route("POST", "/api/v1/policies", set_policy, Role.READ_WRITE, scope=_scope, audited=True),
    Route("GET", "/api/v1/policies", list_policies, Role.READ_ONLY, scope=listed_or_in_query(Verb.READ)),
    Route("GET", "/api/v1/queues/{queue}/skipped", list_skipped, Role.READ_ONLY, scope=queue_in_path(Verb.READ)),
)
