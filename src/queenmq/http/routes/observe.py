"""Dead letters and traces: /api/v1/dlq and what is done with them, POST /api/v1/traces and GET below it"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from queenmq.access.permissions import Verb
from queenmq.broker.administration import Purge, Redrive, Trace
from queenmq.broker.broker import Broker
from queenmq.core.encryption import Place
from queenmq.core.names import check_name, check_text, iso_micros, iso_millis, parse_timestamp
from queenmq.errors import InvalidRequest, NotFound
from queenmq.http.administered import administered, redriven
from queenmq.http.answers.messages import (
    NamedTrace,
    NamedTraces,
    Purged,
    TraceName,
    TraceNames,
    TraceShown,
    TracesShown,
)
from queenmq.http.decoding import decode, message_key, query_count, query_flag, query_group, query_name, query_time
from queenmq.http.openapi import COUNT, FLAG, LABEL, MOMENT, NAME, UUID, Parameter, documented
from queenmq.http.paging import page, page_parameters
from queenmq.http.requests import MAX_ERROR_PART, RedriveBody, TraceBody
from queenmq.http.roles import Role
from queenmq.http.route import Context, Need, Route
from queenmq.http.schemas import (
    DeadLetter,
    DeadLetters,
    Error,
    LettersOfQueue,
    Page,
    Redriven,
    TraceAdded,
    headers_shown,
)
from queenmq.http.scopes import all_queues, of_partitions, partition_in_path, queue_in_query
from queenmq.httpserver.messages import Request, Response
from queenmq.ids import is_uuid
from queenmq.reports import dead_letters as letters
from queenmq.reports import queues, traces

_TRACE_TEXTS = {
    "transactionId": "transactionId and partitionId are required",
    "partitionId": "transactionId and partitionId are required",
    "data": "data is required",
}
_DEFAULT_LIMIT = 100
_MOST_QUEUES = 1000
_ERROR = {"type": "string", "maxLength": MAX_ERROR_PART, "pattern": "^[^\\u0000]*$"}
_FILTERS = (
    Parameter("queue", LABEL, "Only of this queue."),
    Parameter("consumerGroup", LABEL, "Only of this group."),
    Parameter("partition", LABEL, "Only of partitions with this name."),
    Parameter("from", MOMENT, "Only what failed at or after this moment."),
    Parameter("to", MOMENT, "Only what failed at or before this moment."),
    Parameter("error", _ERROR, "Only what has this text in its error, in any case."),
    Parameter("fingerprint", LABEL, "Only with errors of this fingerprint, as `topErrors` of the status has it."),
    Parameter("byQueue", FLAG, f"Also say in which queues they are: in up to {_MOST_QUEUES}.", False),
    *page_parameters(_DEFAULT_LIMIT, "dead letters in the answer"),
)
_STEP = 500
_MOST_A_STEP = 1000
_CHOSEN = (
    Parameter("queue", NAME, "The queue.", required=True),
    Parameter("consumerGroup", LABEL, "Only of this group."),
    Parameter("partition", LABEL, "Only of partitions with this name."),
    Parameter("to", MOMENT, "Only what failed at or before this moment; now by default."),
    Parameter("limit", COUNT, f"Most dead letters in this step, up to {_MOST_A_STEP}.", _STEP),
)
_NAMES = 50
_REDRIVE_TEXTS = {"queue": "queue is required"}
_redrive_decoder = msgspec.json.Decoder(RedriveBody)
_trace_decoder = msgspec.json.Decoder(TraceBody)


@documented({200: DeadLetters}, query=_FILTERS)
async def dead_letters(request: Request, context: Context) -> Response:
    """Dead letters, the newest failure first, and the total number that match."""
    which = letters.DeadLetterFilter(
        queue=query_name(request.query, "queue"),
        group=query_group(request.query),
        partition=query_name(request.query, "partition"),
        since=query_time(request.query, "from"),
        until=query_time(request.query, "to"),
        error=_error(request),
        fingerprint=query_name(request.query, "fingerprint"),
    )
    limit, offset = page(request, context.settings, _DEFAULT_LIMIT)
    found = await letters.page(
        context.reports,
        which,
        limit,
        offset,
        max_bytes=context.settings.limits.max_answer_bytes,
        most_queues=_MOST_QUEUES if query_flag(request.query, "byQueue") else 0,
    )
    messages = [_dead_letter(row, context.broker) for row in found.letters]
    answer = DeadLetters(messages, Page(limit, offset), found.total)
    if found.queues is not None:
        answer.queues = [LettersOfQueue(name=one.name, total=one.letters) for one in found.queues]
    return Response(200, answer)


def _error(request: Request) -> str | None:
    text = request.query.get("error") or None
    if text is not None:
        _check_error(text)
    return text


def _check_error(text: str) -> None:
    check_text(text, "error")
    if not text:
        raise InvalidRequest("error must not be empty", "error")
    if len(text) > MAX_ERROR_PART:
        raise InvalidRequest(f"error must have at most {MAX_ERROR_PART} characters", "error")


@documented({200: Redriven, 202: Redriven, 404: Error}, body=RedriveBody)
async def redrive(request: Request, context: Context) -> Response:
    """Deliver dead letters again, in each partition in the order of the messages."""
    body = decode(request.body, _redrive_decoder, _REDRIVE_TEXTS)
    progress = await context.broker.redrive(_read_redrive(body))
    if progress is None:
        raise NotFound("Queue not found")
    return administered(progress, redriven(body.queue, body.partition, body.consumer_group, progress.done))


@documented({200: Purged, 404: Error}, query=_CHOSEN)
async def purge(request: Request, context: Context) -> Response:
    """Delete one batch of dead letters of a queue, or of a group in it."""
    broker = context.broker
    queue = query_name(request.query, "queue")
    if queue is None:
        raise InvalidRequest("queue is required", "queue")
    for name in ("from", "error", "fingerprint"):
        # They narrow a listing. Ignored here, they would have others deleted.
        if name in request.query:
            raise InvalidRequest(f"{name} does not narrow what is deleted: delete such dead letters one by one", name)
    known = await queues.find(context.reports, queue)
    if known is None:
        raise NotFound("Queue not found")
    until = query_time(request.query, "to") or known.now
    which = Purge(
        queue=queue,
        group=query_group(request.query),
        partition=query_name(request.query, "partition"),
        until=until,
        limit=query_count(request.query, "limit", _STEP, _MOST_A_STEP),
    )
    purged, more = await broker.purge(which)
    return Response(200, Purged(purged=purged, to=iso_micros(until), more=more))


@documented({201: TraceAdded, 404: Error}, body=TraceBody)
async def add_trace(request: Request, context: Context) -> Response:
    """Record a trace for a message; 404 if the message is not stored."""
    trace = _read_trace(decode(request.body, _trace_decoder, _TRACE_TEXTS))
    trace_id = await context.broker.add_trace(trace)
    if trace_id is None:
        raise NotFound("Message not found")
    return Response(201, TraceAdded(success=True, trace_id=trace_id))


@documented({200: TracesShown}, path={"partitionId": UUID})
async def traces_of_message(request: Request, context: Context) -> Response:
    """The traces of a message, oldest first."""
    partition_id, transaction_id = message_key(request)
    rows = await traces.of_message(
        context.reports,
        partition_id,
        transaction_id,
        context.settings.limits.max_items,
        max_bytes=context.settings.limits.max_answer_bytes,
    )
    return Response(200, TracesShown(traces=[TraceShown(**_trace(row)) for row in rows]))


@documented({200: NamedTraces}, query=page_parameters(_DEFAULT_LIMIT))
async def traces_by_name(request: Request, context: Context) -> Response:
    """The traces with a name, newest first, and the message of each."""
    encryption = context.broker.encryption
    name = request.params[0]
    check_name(name, "name")
    limit, offset = page(request, context.settings, _DEFAULT_LIMIT)
    found = await traces.by_name(
        context.reports, name, limit, offset, max_bytes=context.settings.limits.max_answer_bytes
    )
    shown = [
        NamedTrace(
            **_trace(row),
            transaction_id=row.transaction_id,
            partition_id=str(row.partition_id),
            queue_name=row.queue,
            partition_name=row.partition,
            message_payload=msgspec.Raw(
                encryption.open_or_none(
                    row.payload, bool(row.is_encrypted), Place(row.queue, row.partition, row.transaction_id)
                )
                or b"null"
            ),
        )
        for row in found.traces
    ]
    return Response(200, NamedTraces(traces=shown, total=found.total, pagination=Page(limit, offset)))


@documented({200: TraceNames}, query=page_parameters(_NAMES))
async def trace_names(request: Request, context: Context) -> Response:
    """The trace names, with the number of traces and messages of each."""
    limit, offset = page(request, context.settings, _NAMES)
    rows = await traces.names(context.reports, limit, offset)
    names = [
        TraceName(
            trace_name=row.name,
            trace_count=row.traces,
            message_count=row.messages,
            last_seen=iso_millis(row.last_seen),
        )
        for row in rows
    ]
    total = rows[0].total if rows else 0
    return Response(200, TraceNames(trace_names=names, total=total, pagination=Page(limit, offset)))


async def _redriven(request: Request, _: Context) -> Sequence[Need]:
    body = decode(request.body, _redrive_decoder, _REDRIVE_TEXTS)
    return (Need(Verb.ACK, body.queue, body.consumer_group),)


async def _traced(request: Request, context: Context) -> Sequence[Need]:
    body = decode(request.body, _trace_decoder, _TRACE_TEXTS)
    needs = await of_partitions(context, Verb.POP, (body.partition_id,))
    return [need._replace(group=body.consumer_group or None) for need in needs]


async def _purged(request: Request, _: Context) -> Sequence[Need]:
    query = request.query
    return (Need(Verb.ADMINISTER, query_name(query, "queue"), query_group(query)),)


def _trace(row: traces.Trace) -> dict[str, Any]:
    return {
        "id": str(row.id),
        "event_type": row.event_type,
        "data": msgspec.Raw(b"null" if row.data is None else row.data),
        "omitted": row.omitted or msgspec.UNSET,
        "consumer_group": row.consumer_group,
        "worker_id": row.worker_id,
        "created_at": iso_millis(row.created_at),
        "trace_names": row.names,
    }


def _dead_letter(row: letters.DeadLetter, broker: Broker) -> DeadLetter:
    place = Place(row.queue, row.partition_name, row.transaction_id)
    payload = broker.encryption.open_or_none(row.payload, row.is_encrypted, place)
    return DeadLetter(
        id=str(row.message_id),
        transaction_id=row.transaction_id,
        partition_id=str(row.partition_id),
        queue=row.queue,
        partition=row.partition_name,
        consumer_group=row.consumer_group,
        error_message=row.error_message,
        retry_count=row.retry_count,
        data=msgspec.Raw(b"null" if payload is None else payload),
        undecryptable=payload is None and not row.omitted,
        omitted=row.omitted or msgspec.UNSET,
        producer_sub=row.producer_sub,
        headers=headers_shown(row.headers),
        created_at=iso_millis(row.created_at),
        failed_at=iso_millis(row.failed_at),
    )


def _read_redrive(body: RedriveBody) -> Redrive:
    check_name(body.queue, "queue")
    named = {"partition": body.partition, "consumerGroup": body.consumer_group, "fingerprint": body.fingerprint}
    for field, name in named.items():
        if name is not None:
            check_name(name, field)
    if body.error is not None:
        _check_error(body.error)
    return Redrive(
        queue=body.queue,
        partition=body.partition,
        group=body.consumer_group,
        error=body.error,
        fingerprint=body.fingerprint,
        since=None if body.since is None else parse_timestamp(body.since, "from"),
        until=None if body.until is None else parse_timestamp(body.until, "to"),
    )


def _read_trace(body: TraceBody) -> Trace:
    check_name(body.transaction_id, "transactionId")
    if not is_uuid(body.partition_id):
        raise InvalidRequest("partitionId must be a UUID", "partitionId")
    event_type = body.event_type or "info"
    check_name(event_type, "eventType")
    if body.consumer_group:
        check_name(body.consumer_group, "consumerGroup")
    return Trace(
        partition_id=body.partition_id,
        transaction_id=body.transaction_id,
        group=body.consumer_group or None,
        event_type=event_type,
        data=bytes(body.data),
        names=_trace_names(body.trace_names),
    )


def _trace_names(given: str | list[str] | None) -> list[str]:
    names = [given] if isinstance(given, str) else given or []
    for index, name in enumerate(names):
        check_name(name, f"traceNames[{index}]")
    return names


ROUTES = (
    Route("GET", "/api/v1/traces/names", trace_names, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route("GET", "/api/v1/traces/by-name/{name}", traces_by_name, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route(
        "GET",
        "/api/v1/traces/{partitionId}/{transactionId}",
        traces_of_message,
        Role.READ_ONLY,
        scope=partition_in_path(Verb.READ),
    ),
    Route("GET", "/api/v1/dlq", dead_letters, Role.READ_ONLY, scope=queue_in_query(Verb.READ)),
    Route("POST", "/api/v1/dlq/redrive", redrive, Role.READ_WRITE, scope=_redriven, audited=True),
    Route("DELETE", "/api/v1/dlq", purge, Role.ADMIN, scope=_purged, audited=True),
    Route("POST", "/api/v1/traces", add_trace, Role.READ_WRITE, scope=_traced),
)
