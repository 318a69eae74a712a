"""The operation queue: what waits, what became of it, and retry and cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from msgspec import UNSET, Raw

from queenmq.access.permissions import Verb
from queenmq.broker.broker import Broker
from queenmq.broker.load_manager import Choice
from queenmq.core.names import iso_millis, optional_iso_millis
from queenmq.core.operations import OperationStatus, RecordedOutcome, read_outcomes
from queenmq.errors import Conflict, HttpError, InvalidRequest, NotFound
from queenmq.http.administered import cleared, partition_sought, queue_deleted, redriven, sought
from queenmq.http.answers.operations import (
    JournalState,
    LoadState,
    OperationDepth,
    OperationMoved,
    OperationPage,
    OperationState,
    OperationStats,
    OperationTotals,
    PushRecorded,
    Retained,
)
from queenmq.http.decoding import query_count, query_name
from queenmq.http.openapi import COUNT, NAME, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, FoundNeed, Need, Route, Scope
from queenmq.http.schemas import Administered, Error, Page, Progress
from queenmq.http.scopes import all_queues, listed_or_in_query, visible
from queenmq.httpserver.messages import Request, Response
from queenmq.ids import is_uuid
from queenmq.journal.interface import JournalledOperation
from queenmq.reports import operations

_ONE = "/api/v1/operations/{operationId}"
_PATH = {"operationId": {"type": "string", "format": "uuid"}}
_STATES = get_args(OperationStatus)
_KINDS = ("push", "delete_queue", "clear", "seek", "redrive", "redrive_matching", "retention")
_MOST = 1000
_MOST_DEPTHS = 100
_QUERY = (
    Parameter("status", {"type": "string", "enum": list(_STATES)}, "Only operations in this state."),
    Parameter("type", {"type": "string", "enum": list(_KINDS)}, "Only operations of this kind."),
    Parameter("queue", NAME, "Only operations on this queue."),
    Parameter("partition", NAME, "Only operations on partitions with this name."),
    Parameter("limit", COUNT, f"Most operations in the answer, up to {_MOST}.", 100),
    Parameter("offset", COUNT, "Operations to skip.", 0),
)
_IN_JOURNAL = "it is in the journal of this server, from where it can only go into the database"
_IN_QUARANTINE = "it is in the quarantine of the journal of this server: use `queen journal retry`, or delete the file"
_BEHIND = "it was set aside, so its messages are stored behind what has come after them in their partition"
_FULL = "the queue is full: the message would exceed max capacity (maxSize)"
_MISSING = "there is no such operation; completed ones are forgotten after a while"


@documented({200: OperationStats})
async def operation_stats(_: Request, context: Context) -> Response:
    """Numbers of operations by status, the load of this server and its journal."""
    broker = context.broker
    rows = await operations.totals(context.reports)
    return Response(
        200,
        OperationStats(
            stats=[_totals(row) for row in rows],
            depth=[
                OperationDepth(
                    queue=row.queue, partition=row.partition, operations=row.operations, oldest_seconds=row.oldest_s
                )
                for row in await operations.depths(context.reports, _MOST_DEPTHS)
            ],
            system_health=_health(broker),
            journal=_journal(broker),
        ),
    )


@documented({200: OperationPage}, query=_QUERY)
async def list_operations(request: Request, context: Context) -> Response:
    """Operations, newest first."""
    status, kind = _chosen(request, "status", _STATES), _chosen(request, "type", _KINDS)
    limit = query_count(request.query, "limit", 100, _MOST)
    offset = query_count(request.query, "offset", 0, 2**31 - 1)
    queue, partition = (query_name(request.query, name) for name in ("queue", "partition"))
    which = operations.OperationFilter(status, queue, kind, partition, visible(request))
    rows = await operations.page(
        context.reports, which, limit, offset, max_bytes=context.settings.limits.max_answer_bytes
    )
    page = OperationPage(
        operations=[_shown(row, context.broker) for row in rows],
        pagination=Page(limit, offset),
        total=await operations.count(context.reports, which),
    )
    return Response(200, page)


@documented({200: OperationState, 404: Error}, path=_PATH)
async def get_operation(request: Request, context: Context) -> Response:
    """One operation, with its result once it has ended."""
    broker = context.broker
    operation_id = _id(request)
    held = None if broker.journal is None else await broker.journal.find(operation_id)
    if held is not None:
        return Response(200, _journalled(held))
    row = await operations.find(context.reports, operation_id)
    if row is not None:
        return Response(200, _shown(row, broker))
    quarantined = None if broker.journal is None else await broker.journal.find_quarantined(operation_id)
    if quarantined is None:
        raise NotFound(_MISSING)
    return Response(200, _journalled(quarantined))


@documented({200: OperationMoved, 404: Error, 409: Error}, path=_PATH)
async def retry_operation(request: Request, context: Context) -> Response:
    """Retry an operation that is blocked, or waits for its next attempt, at once. A failed push is done again
    after the later ones of its partition; a stepped operation continues where it stopped."""
    broker = context.broker
    retried = await broker.operations.retry(_id(request))
    if retried is None:
        raise await _refusal(
            request,
            context,
            "only an operation that is blocked, has failed or waits for its next attempt can be retried, "
            "or a cancelled stepped operation",
        )
    broker.load.note_queued(1)
    message = None if retried.in_place else _BEHIND
    return Response(200, OperationMoved(operation_id=_id(request), status="pending", message=message))


@documented({200: OperationMoved, 404: Error, 409: Error}, path=_PATH)
async def cancel_operation(request: Request, context: Context) -> Response:
    """Cancel an operation that is pending, blocked or failed, or stop a stepped operation after its current step."""
    cancelled = await context.broker.operations.cancel(_id(request))
    if cancelled is None:
        raise await _refusal(request, context, "only an operation that waits or has failed can be cancelled")
    return Response(200, OperationMoved(operation_id=_id(request), status="cancelled", message=cancelled.done))


async def _refusal(request: Request, context: Context, reason: str) -> HttpError:
    """Why an operation cannot be changed."""
    broker = context.broker
    if broker.journal is not None and await broker.journal.find(_id(request)) is not None:
        return Conflict(_IN_JOURNAL)
    if await operations.find(context.reports, _id(request)) is not None:
        return Conflict(reason)
    if broker.journal is not None and await broker.journal.find_quarantined(_id(request)) is not None:
        return Conflict(_IN_QUARANTINE)
    return NotFound(_MISSING)


def _operated(verb: Verb) -> Scope:
    """The queue of the operation, and the group of a seek or redrive. One of all queues, or whose queue is not known,
    is not for a restricted token."""

    async def operated(request: Request, context: Context) -> Sequence[Need]:
        journal, operation_id = context.broker.journal, _id(request)
        row = await operations.find(context.reports, operation_id)
        if row is not None:
            return (FoundNeed(verb, row.queue_name, None if verb is Verb.READ else row.group),)
        held = None if journal is None else await journal.find(operation_id)
        if held is None and journal is not None:
            held = await journal.find_quarantined(operation_id)
        if held is None:
            raise NotFound(_MISSING)
        return (FoundNeed(verb, held.queue or None),)

    return operated


def _id(request: Request) -> str:
    if not is_uuid(request.params[0]):
        raise InvalidRequest("operationId must be a UUID", "operationId")
    return request.params[0].lower()


def _chosen(request: Request, name: str, allowed: tuple[str, ...]) -> str | None:
    value = request.query.get(name) or None
    if value is not None and value not in allowed:
        raise InvalidRequest(f"{name} must be one of {', '.join(allowed)}", name)
    return value


def _shown(row: operations.Operation, broker: Broker) -> OperationState:
    before = row.before if row.status in ("pending", "processing", "blocked") else None
    is_push = row.kind == "push"
    is_estimable = is_push and row.error is None
    return OperationState(
        id=str(row.id),
        operation_type=row.kind,
        status=row.status,
        queue=row.queue_name,
        partition=row.partition_name,
        priority=row.priority,
        items=row.items or 0,
        created_at=iso_millis(row.created_at),
        processing_started_at=optional_iso_millis(row.claimed_at),
        processed_at=optional_iso_millis(row.finished_at),
        retry_count=max(0, row.attempts - 1),
        error_message=row.error,
        next_attempt_at=optional_iso_millis(row.next_attempt_at),
        queue_position=before,
        latency_seconds=row.latency_s,
        estimated_wait=broker.load.estimated_wait_s(before + 1) if before is not None and is_estimable else None,
        progress=None if is_push else Progress(done=row.done, total=row.total, unit=row.unit),
        result=_result(row),
        subject=row.subject or UNSET,
        omitted=row.omitted or UNSET,
    )


def _result(row: operations.Operation) -> object:
    """What a completed operation has done. A stepped one has the answer that its request would have got."""
    if row.status != "completed":
        return None
    if row.kind == "push" and row.result is not None:
        outcomes = read_outcomes(row.result)
        return Raw(row.result.encode()) if outcomes is None else [_pushed(*each) for each in enumerate(outcomes)]
    if row.kind == "push":
        return None
    if row.result is not None:
        return Raw(row.result.encode())
    if row.kind == "retention":
        return Retained(deleted=row.deleted or 0, partitions_dropped=row.dropped or 0)
    return {} if row.queue_name is None else _administered(row, row.queue_name)


def _administered(row: operations.Operation, queue: str) -> Administered:
    if row.kind == "delete_queue":
        return queue_deleted(queue, existed=True)
    if row.kind == "clear":
        return cleared(queue, row.partition_name, row.done, finished=True)
    if row.kind in ("redrive", "redrive_matching"):
        return redriven(queue, row.partition_name, row.group, row.done)
    if row.partition_name is None:
        return sought(row.group or "", queue, row.moment, row.done)
    return partition_sought(row.group or "", queue, row.partition_name, updated=row.done > 0, position=row.position)


def _pushed(index: int, outcome: RecordedOutcome) -> PushRecorded:
    return PushRecorded(
        index=index,
        status=outcome.status,
        transaction_id=outcome.transaction_id,
        transaction_id_camel=outcome.transaction_id,
        message_id=outcome.message_id,
        message_id_camel=outcome.message_id,
        operation_id=outcome.operation_id or UNSET,
        error=_FULL if outcome.status == "failed" else UNSET,
    )


def _journalled(held: JournalledOperation) -> OperationState:
    """A push that is in the journal, or was set aside there."""
    return OperationState(
        id=held.operation_id,
        operation_type="push",
        status="pending" if held.error is None else "failed",
        queue=held.queue or None,
        partition=held.partition or None,
        priority=5,
        items=held.messages,
        created_at=None,
        processing_started_at=None,
        processed_at=None if held.quarantined_at is None else iso_millis(held.quarantined_at),
        retry_count=0,
        error_message=held.error,
        next_attempt_at=None,
        queue_position=None,
        latency_seconds=None,
        estimated_wait=None,
        progress=None,
        result=None,
    )


def _totals(row: operations.OperationTotals) -> OperationTotals:
    return OperationTotals(
        operation_type=row.kind,
        priority=row.priority,
        status=row.status,
        count=row.count,
        oldest=iso_millis(row.oldest),
        newest=iso_millis(row.newest),
        avg_latency_seconds=row.latency_s,
    )


def _health(broker: Broker) -> LoadState:
    load = broker.load.measured()
    return LoadState(
        pool_utilization=load.pool_used,
        pool_waiting=load.pool_waiting,
        push_wait_seconds=load.wait_s,
        event_loop_delay_seconds=load.loop_delay_s,
        queue_depth=load.queue_depth,
        drain_rate=load.drain_rate,
        executed=broker.load.decisions[Choice.EXECUTE],
        queued=broker.load.decisions[Choice.QUEUE],
        rejected=broker.load.decisions[Choice.REJECT],
    )


def _journal(broker: Broker) -> JournalState | None:
    if broker.journal is None:
        return None
    figures = broker.journal.figures()
    return JournalState(
        operations=figures.operations,
        messages=figures.messages,
        bytes=figures.bytes,
        replayed_messages=figures.replayed_messages,
        syncs=figures.syncs,
        damaged=figures.damaged,
        torn_bytes=figures.torn_bytes,
        healthy=bool(figures.healthy),
        quarantined=figures.quarantined,
        stuck=figures.stuck,
        waiting_for_key=figures.waiting_for_key,
        replay_failing=bool(figures.failing),
    )


ROUTES = (
    Route("GET", "/api/v1/operations/stats", operation_stats, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route("GET", "/api/v1/operations", list_operations, Role.READ_ONLY, scope=listed_or_in_query(Verb.READ)),
    Route("GET", _ONE, get_operation, Role.READ_ONLY, scope=_operated(Verb.READ)),
    Route("POST", _ONE + "/retry", retry_operation, Role.ADMIN, scope=_operated(Verb.ADMINISTER), audited=True),
    Route("POST", _ONE + "/cancel", cancel_operation, Role.ADMIN, scope=_operated(Verb.ADMINISTER), audited=True),
)
