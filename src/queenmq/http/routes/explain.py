"""GET /api/v1/explain/{queue}: why is nothing delivered?"""

from __future__ import annotations

from queenmq.access.permissions import Verb
from queenmq.core.maintenance import Switch
from queenmq.core.names import QUEUE_MODE, check_name, optional_iso_millis
from queenmq.http.answers.attempts import attempt_shown, consumer_shown
from queenmq.http.answers.groups import Explained, ExplainedPlace
from queenmq.http.decoding import query_name
from queenmq.http.openapi import LABEL, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.scopes import queue_in_path
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import explain as report
from queenmq.reports import explanation

_WHICH = (
    Parameter("partition", LABEL, "Only about this partition."),
    Parameter("consumerGroup", LABEL, f"About this group; `group` is the same. {QUEUE_MODE} by default."),
    Parameter("group", LABEL, "About this group."),
)


@documented({200: Explained}, query=_WHICH)
async def explain(request: Request, context: Context) -> Response:
    """Why a group gets no messages from a queue or one of its partitions, and what to do about it."""
    broker = context.broker
    queue = request.params[0]
    check_name(queue, "queue")
    partition = query_name(request.query, "partition")
    group = query_name(request.query, "consumerGroup") or query_name(request.query, "group")
    question = explanation.Question(queue, partition, group, context.settings.pop.default_subscription_mode)
    # Before the database: what is replayed meanwhile is seen there, or twice, but never overlooked.
    journalled = {} if broker.journal is None else await broker.journal.held_in(queue, partition)
    server = explanation.ServerState(
        pops_paused=broker.pops_are_paused,
        pushes_paused=broker.maintenance.is_on(Switch.PUSH),
        journalled=journalled,
    )
    await broker.statistics.name_readers()
    found = await report.explain(context.reports, question, server)
    explained = Explained(
        queue=queue,
        partition=partition,
        consumer_group=found.group,
        groups=found.groups,
        deliverable=found.is_deliverable,
        reason=found.verdict.reason,
        state=found.verdict.state,
        explanation=found.verdict.sentence,
        advice=found.verdict.advice,
        until=optional_iso_millis(found.verdict.until),
        paused=server.pops_paused,
        waiters=broker.long_polls.registry.parked().get(queue, 0),
        queued_pushes=found.queued_pushes,
        journalled_pushes=found.journalled_pushes,
        dead_letters=found.dead_letters,
        filter=found.selection.filter,
        conflation=found.selection.conflates,
        passed_over=found.selection.filtered + found.selection.conflated,
        partitions=[_place(one) for one in found.places],
    )
    return Response(200, explained)


def _place(one: explanation.ExplainedPlace) -> ExplainedPlace:
    place, verdict = one.place, one.verdict
    is_live = verdict.reason == "leased"
    return ExplainedPlace(
        partition=place.partition,
        partition_id=str(place.partition_id),
        started=place.started,
        reason=verdict.reason,
        state=verdict.state,
        explanation=verdict.sentence,
        advice=verdict.advice,
        until=optional_iso_millis(verdict.until),
        position=place.read_upto,
        last_offset=place.last_offset,
        unread=place.unread,
        ready=place.ready if verdict.reason == "deliverable" else 0,
        attempts=place.attempts,
        attempts_left=one.attempts_left,
        lease_id=str(place.lease_id) if is_live else None,
        lease_expires_at=optional_iso_millis(place.lease_expires_at) if is_live else None,
        leased=place.leased if is_live else 0,
        leased_at=optional_iso_millis(one.attempts.held_since) if is_live else None,
        held_by=consumer_shown(one.attempts.holder) if is_live else None,
        last_attempt=attempt_shown(one.attempts.last),
        next_transaction_id=place.next_transaction,
        next_message_at=optional_iso_millis(place.next_created_at),
        last_consumed_at=optional_iso_millis(place.last_consumed_at),
        queued_pushes=one.held.operations,
        journalled_pushes=one.held.journalled,
    )


ROUTES = (Route("GET", "/api/v1/explain/{queue}", explain, Role.READ_ONLY, scope=queue_in_path(Verb.READ)),)
