"""Dead letters and traces: /api/v1/dlq and what is done with them, POST /api/v1/traces and GET below it"""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec

from queenmq.core.names import check_name, iso_micros, iso_millis
from queenmq.engine.administration import DeadLetterFilter, Trace
from queenmq.engine.engine import Engine
from queenmq.errors import InvalidRequest, NotFound
from queenmq.http.administered import administered
from queenmq.http.decoding import decode, query_count, query_name, query_time
from queenmq.http.figures import (
    NamedTrace,
    NamedTraces,
    Purged,
    TraceName,
    TraceNames,
    TraceShown,
    TracesShown,
)
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import COUNT, LABEL, MOMENT, NAME, UUID, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.schemas import DeadLetter, DeadLetters, Error, Page, RedriveBody, Redriven, TraceAdded, TraceBody
from queenmq.ids import is_uuid

_TRACE_TEXTS = {
    "transactionId": "transactionId and partitionId are required",
    "partitionId": "transactionId and partitionId are required",
    "data": "data is required",
}
_MOST_OFFSET = 2**62
_DEFAULT_LIMIT = 100
_FILTERS = (
    Parameter("queue", LABEL, "Only of this queue."),
    Parameter("consumerGroup", LABEL, "Only of this group."),
    Parameter("partition", LABEL, "Only of partitions with this name."),
    Parameter("from", MOMENT, "Only what failed at or after this moment."),
    Parameter("to", MOMENT, "Only what failed at or before this moment."),
    Parameter("limit", COUNT, "Most dead letters in the answer; cut to the server's limit.", _DEFAULT_LIMIT),
    Parameter("offset", COUNT, "How many to leave out.", 0),
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
_MOST_COUNTED = 1000
_COUNTED_A_NAME = 100
_NAMES = 50
_OFFSET = Parameter("offset", COUNT, "How many to leave out.", 0)
_LIMIT = "Most entries; cut to the server's limit."
_REDRIVE_TEXTS = {"queue": "queue is required"}
_redrive_decoder = msgspec.json.Decoder(RedriveBody)
_trace_decoder = msgspec.json.Decoder(TraceBody)


def add_routes(router: Router, engine: Engine) -> None:
    administration = engine.administration

    @documented({200: DeadLetters}, query=_FILTERS)
    async def dead_letters(request: Request) -> Response:
        """Dead letters, newest failure first, with the number of all that match."""
        which = DeadLetterFilter(
            queue=query_name(request, "queue"),
            group=query_name(request, "consumerGroup"),
            partition=query_name(request, "partition"),
            since=query_time(request, "from"),
            until=query_time(request, "to"),
            limit=query_count(request, "limit", _DEFAULT_LIMIT, engine.settings.max_items),
            offset=query_count(request, "offset", 0, _MOST_OFFSET),
        )
        rows, total = await administration.dead_letters(which)
        messages = [_dead_letter(row, administration.payload_of(row)) for row in rows]
        return json_response(200, DeadLetters(messages, Page(which.limit, which.offset), total))

    @documented({200: Redriven, 202: Redriven, 404: Error}, body=RedriveBody)
    async def redrive(request: Request) -> Response:
        """Have dead letters delivered again, those of a partition in the order of its messages."""
        body = decode(request.body, _redrive_decoder, _REDRIVE_TEXTS)
        check_name(body.queue, "queue")
        for name, field in ((body.partition, "partition"), (body.consumer_group, "consumerGroup")):
            if name is not None:
                check_name(name, field)
        standing = await administration.redrive(body.queue, body.partition, body.consumer_group)
        if standing is None:
            raise NotFound("Queue not found")
        redriven = Redriven(
            success=True,
            queue=body.queue,
            partition=body.partition,
            consumer_group=body.consumer_group,
            redriven=standing.done,
        )
        return administered(standing, redriven)

    @documented({200: Purged, 404: Error}, query=_CHOSEN)
    async def purge(request: Request) -> Response:
        """Forget dead letters of a queue, or of a group in it; one step of it."""
        queue = query_name(request, "queue")
        if queue is None:
            raise InvalidRequest("queue is required", "queue")
        if await engine.reports.row("queue_described", queue) is None:
            raise NotFound("Queue not found")
        until = query_time(request, "to") or (await engine.reports.one("now"))[0]
        which = DeadLetterFilter(
            queue=queue,
            group=query_name(request, "consumerGroup"),
            partition=query_name(request, "partition"),
            since=None,
            until=until,
            limit=query_count(request, "limit", _STEP, _MOST_A_STEP),
            offset=0,
        )
        purged, more = await administration.purge(which)
        return json_response(200, Purged(purged=purged, to=iso_micros(until), more=more))

    @documented({201: TraceAdded, 404: Error}, body=TraceBody)
    async def add_trace(request: Request) -> Response:
        """Record what happened to a message; 404 if it is not stored."""
        trace = _read_trace(decode(request.body, _trace_decoder, _TRACE_TEXTS))
        trace_id = await administration.add_trace(trace)
        if trace_id is None:
            raise NotFound("Message not found")
        return json_response(201, TraceAdded(success=True, trace_id=trace_id))

    @documented({200: TracesShown}, path={"partitionId": UUID})
    async def traces_of_message(request: Request) -> Response:
        """The traces of a message, oldest first."""
        partition_id, transaction_id = message_key(request)
        limit = engine.settings.max_items
        rows = await engine.reports.rows("traces_of_message", partition_id, transaction_id, limit)
        return json_response(200, TracesShown(traces=[TraceShown(**_trace(row)) for row in rows]))

    @documented({200: NamedTraces}, query=[Parameter("limit", COUNT, _LIMIT, _DEFAULT_LIMIT), _OFFSET])
    async def traces_by_name(request: Request) -> Response:
        """The traces of a name, newest first, with the messages that they are about."""
        name = request.params[0]
        check_name(name, "name")
        limit = query_count(request, "limit", _DEFAULT_LIMIT, engine.settings.max_items)
        offset = query_count(request, "offset", 0, _MOST_OFFSET)
        rows = await engine.reports.rows("traces_by_name", name, limit, offset)
        total = await engine.reports.one("traces_by_name_count", name, max(_MOST_COUNTED, offset + limit))
        traces = [
            NamedTrace(
                **_trace(row),
                transaction_id=row["transaction_id"],
                partition_id=str(row["partition_id"]),
                queue_name=row["queue"],
                partition_name=row["partition"],
                message_payload=msgspec.Raw((row["payload"] and administration.payload_of(row)) or b"null"),
            )
            for row in rows
        ]
        return json_response(200, NamedTraces(traces=traces, total=total[0], pagination=Page(limit, offset)))

    @documented({200: TraceNames}, query=[Parameter("limit", COUNT, _LIMIT, _NAMES), _OFFSET])
    async def trace_names(request: Request) -> Response:
        """The names of traces, by name, with how much goes by them."""
        limit = query_count(request, "limit", _NAMES, engine.settings.max_items)
        offset = query_count(request, "offset", 0, _MOST_OFFSET)
        rows = await engine.reports.rows("trace_names", limit, offset, _MOST_COUNTED, _COUNTED_A_NAME)
        names = [
            TraceName(
                trace_name=row["name"],
                trace_count=row["traces"],
                message_count=row["messages"],
                last_seen=iso_millis(row["last_seen"]),
            )
            for row in rows
        ]
        total = rows[0]["total"] if rows else 0
        return json_response(200, TraceNames(trace_names=names, total=total, pagination=Page(limit, offset)))

    router.add("GET", "/api/v1/traces/names", trace_names, Role.READ_ONLY)
    router.add("GET", "/api/v1/traces/by-name/{name}", traces_by_name, Role.READ_ONLY)
    router.add("GET", "/api/v1/traces/{partitionId}/{transactionId}", traces_of_message, Role.READ_ONLY)
    router.add("GET", "/api/v1/dlq", dead_letters, Role.READ_ONLY)
    router.add("POST", "/api/v1/dlq/redrive", redrive, Role.READ_WRITE)
    router.add("DELETE", "/api/v1/dlq", purge, Role.ADMIN)
    router.add("POST", "/api/v1/traces", add_trace, Role.READ_WRITE)


def message_key(request: Request) -> tuple[str, str]:
    """The partition id and transaction id of a path. Raises InvalidRequest if they cannot be ones."""
    partition_id, transaction_id = request.params
    if not is_uuid(partition_id):
        raise InvalidRequest("partitionId must be a UUID", "partitionId")
    check_name(transaction_id, "transactionId")
    return partition_id, transaction_id


def _trace(row: asyncpg.Record) -> dict[str, Any]:
    return {
        "id": str(row["id"]),
        "event_type": row["event_type"],
        "data": msgspec.Raw(row["data"]),
        "consumer_group": row["consumer_group"],
        "worker_id": row["worker_id"],
        "created_at": iso_millis(row["created_at"]),
        "trace_names": row["names"],
    }


def _dead_letter(row: asyncpg.Record, payload: bytes | None) -> DeadLetter:
    return DeadLetter(
        id=str(row["message_id"]),
        transaction_id=row["transaction_id"],
        partition_id=str(row["partition_id"]),
        queue=row["queue"],
        partition=row["partition_name"],
        consumer_group=row["consumer_group"],
        error_message=row["error_message"],
        retry_count=row["retry_count"],
        data=msgspec.Raw(b"null" if payload is None else payload),
        undecryptable=payload is None,
        producer_sub=row["producer_sub"],
        created_at=iso_millis(row["created_at"]),
        failed_at=iso_millis(row["failed_at"]),
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
