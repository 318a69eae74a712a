"""Timers: messages that are pushed at a later moment, once or again and again."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Sequence

import msgspec

from queenmq.access.permissions import Verb
from queenmq.core.headers import encode_headers
from queenmq.core.message import Message
from queenmq.core.names import check_name, check_text, iso_millis, parse_timestamp
from queenmq.core.timer import TimerChange, TimerState
from queenmq.core.trace_context import trace_id_of
from queenmq.errors import InvalidRequest, SchemaMismatch
from queenmq.http.answers.timers import TimerChanged, TimerFound, TimerPage, TimersChanged, TimerShown
from queenmq.http.decoding import decode, query_count, query_name
from queenmq.http.openapi import ANY_STRING, COUNT, NAME, Parameter, documented
from queenmq.http.requests import TimerOperation, TimersBody
from queenmq.http.roles import Role
from queenmq.http.route import Context, Need, Route
from queenmq.http.routes.push import check_count
from queenmq.http.schemas import TEXT_SCHEMA, Error, headers_shown
from queenmq.http.scopes import queue_in_path
from queenmq.httpserver.messages import Request, Response
from queenmq.ids import uuid7_text
from queenmq.reports import timers

_ONE = "/api/v1/timers/{queue}/{timerKey...}"
_KEY = {"timerKey": ANY_STRING | TEXT_SCHEMA}
_MOST = 1000
_TEXTS = {"operations": "operations array is required"}
_decoder = msgspec.json.Decoder(TimersBody)
_TXN = Parameter("txn", NAME, "Returned as `txn` if the timer is absent.")
_PAGE = (
    Parameter("after", NAME, "Only timers whose key comes behind this one."),
    Parameter("limit", COUNT, f"Most timers in the answer, up to {_MOST}.", 100),
)


@documented({200: TimersChanged, 422: Error}, body=TimersBody)
async def change_timers(request: Request, context: Context) -> Response:
    """Schedule, replace and cancel timers, all of them or none; one result for each operation, in order."""
    operations = decode(request.body, _decoder, _TEXTS).operations
    check_count(len(operations), context.settings, "operations")
    changes = [to_change(one, f"operations[{index}]", request) for index, one in enumerate(operations)]
    if context.broker.schemas.any:
        await require_fitting(changes, context)
    states = await context.broker.timers.change(changes) if changes else []
    results = [timer_changed(change, state) for change, state in zip(changes, states, strict=True)]
    return Response(200, TimersChanged(results))


async def require_fitting(changes: Sequence[TimerChange], context: Context) -> None:
    scheduled = [(index, change.message) for index, change in enumerate(changes) if change.message is not None]
    for place, why in (await context.broker.schemas.misfits([message for _, message in scheduled])).items():
        field = f"operations[{scheduled[place][0]}]"
        raise SchemaMismatch(f"{field}: {why}", field)


@documented({200: TimerChanged}, query=(_TXN,), path=_KEY)
async def cancel_timer(request: Request, context: Context) -> Response:
    """Cancel a timer; `absent` if there is none, which may mean that it was pushed before."""
    queue, key = _named(request)
    change = TimerChange(queue=queue, key=key)
    [state] = await context.broker.timers.change([change])
    return Response(200, timer_changed(change, state, query_name(request.query, "txn")))


@documented({200: TimerFound}, path=_KEY)
async def get_timer(request: Request, context: Context) -> Response:
    """One timer, with its payload as it is stored."""
    row = await timers.find(context.reports, *_named(request))
    if row is None:
        return Response(200, TimerFound(found=False))
    shown = msgspec.structs.asdict(_shown(row))
    return Response(200, TimerFound(found=True, payload=b64encode(row.payload or b"").decode(), **shown))


@documented({200: TimerPage}, query=_PAGE)
async def list_timers(request: Request, context: Context) -> Response:
    """The timers of a queue that wait for their moment, by key."""
    queue = request.params[0]
    check_name(queue, "queue")
    limit = max(1, query_count(request.query, "limit", 100, _MOST))
    after = query_name(request.query, "after") or ""
    rows = await timers.page(context.reports, queue, after, limit + 1)
    shown = [_shown(row) for row in rows[:limit]]
    truncated = len(rows) > limit
    next_after = shown[-1].timer_key if truncated else None
    return Response(200, TimerPage(rows=shown, truncated=truncated, next_after=next_after))


def _pushed(request: Request) -> list[str]:
    operations = decode(request.body, _decoder, _TEXTS).operations
    return [operation.queue for operation in operations if operation.op != "cancel"]


async def _scope(request: Request, context: Context) -> Sequence[Need]:
    operations = decode(request.body, _decoder, _TEXTS).operations
    check_count(len(operations), context.settings, "operations")
    return [Need(Verb.PUSH, queue) for queue in {operation.queue for operation in operations}]


def to_change(operation: TimerOperation, field: str, request: Request) -> TimerChange:
    """A checked change, with the message that is to be pushed."""
    queue, key = operation.queue, operation.timer_key
    check_name(queue, f"{field}.queue")
    check_name(key, f"{field}.timerKey")
    # Every field that is there is checked, also those that a cancellation does not need.
    check_name(operation.partition, f"{field}.partition")
    message_id = uuid7_text()
    transaction_id = message_id if operation.txn is msgspec.UNSET else operation.txn
    check_name(transaction_id, f"{field}.txn")
    deliver_at = (
        None if operation.deliver_at is msgspec.UNSET else parse_timestamp(operation.deliver_at, f"{field}.deliverAt")
    )
    schedule = None if operation.schedule is msgspec.UNSET else operation.schedule
    time_zone = None if operation.time_zone is msgspec.UNSET else operation.time_zone
    for name, text in (("schedule", schedule), ("timeZone", time_zone)):
        if text is not None:
            check_text(text, f"{field}.{name}")
    headers = encode_headers(operation.headers or {}, f"{field}.headers")
    if operation.op == "cancel":
        return TimerChange(queue=queue, key=key)
    moments = [operation.delay_ms, operation.deliver_at, operation.schedule]
    if sum(moment is not msgspec.UNSET for moment in moments) != 1:
        raise InvalidRequest(f"{field} needs one of delayMs, deliverAt and schedule", f"{field}.delayMs")
    if time_zone is not None and schedule is None:
        raise InvalidRequest(f"{field}.timeZone is only for a schedule", f"{field}.timeZone")
    traceparent = request.headers.get(b"traceparent")
    message = Message(
        queue,
        operation.partition,
        _payload(operation, field),
        message_id,
        transaction_id,
        trace_id=None if traceparent is None else trace_id_of(traceparent),
        producer=request.subject,
        headers=headers,
    )
    return TimerChange(
        queue=queue,
        key=key,
        message=message,
        delay_ms=None if operation.delay_ms is msgspec.UNSET else operation.delay_ms,
        deliver_at=deliver_at,
        schedule=schedule,
        time_zone=time_zone,
    )


def _payload(operation: TimerOperation, field: str) -> bytes:
    """The JSON that is to be pushed. Raises InvalidRequest unless there is one and it is JSON."""
    if operation.payload_zstd:
        raise InvalidRequest(f"{field}.payloadZstd: compressed payloads are not supported", f"{field}.payloadZstd")
    if (operation.data is msgspec.UNSET) == (operation.payload is msgspec.UNSET):
        raise InvalidRequest(f"{field} needs its payload in data (JSON) or in payload (Base64)", f"{field}.payload")
    if operation.data is not msgspec.UNSET:
        return bytes(operation.data)
    try:
        payload = b64decode(str(operation.payload), validate=True)
        payload.decode()
        msgspec.json.decode(payload)
    except (binascii.Error, ValueError, RecursionError):
        raise InvalidRequest(f"{field}.payload must be the Base64 of JSON", f"{field}.payload") from None
    return payload


def _named(request: Request) -> tuple[str, str]:
    queue, key = request.params
    check_name(queue, "queue")
    check_text(key, "timerKey")  # of any length: a push makes them of the names of partition and message
    return queue, key


def timer_changed(change: TimerChange, state: TimerState, asked: str | None = None) -> TimerChanged:
    shown = TimerChanged(
        ok=state.became != "absent",
        status=state.became,
        queue=change.queue,
        timer_key=change.key,
        txn=state.transaction_id or asked,
    )
    if state.message_id is not None and state.deliver_at is not None:
        shown.message_id, shown.deliver_at = state.message_id, iso_millis(state.deliver_at)
    return shown


def _shown(row: timers.TimerRow) -> TimerShown:
    return TimerShown(
        queue=row.queue_name,
        timer_key=row.key,
        partition=row.partition_name,
        deliver_at=iso_millis(row.deliver_at),
        txn=row.transaction_id,
        message_id=str(row.message_id),
        encrypted=row.is_encrypted,
        schedule=row.schedule,
        time_zone=row.time_zone,
        attempts=row.attempts,
        last_error=row.error,
        created_at=iso_millis(row.created_at),
        headers=headers_shown(row.headers),
    )


ROUTES = (
    Route("POST", "/api/v1/timers", change_timers, Role.READ_WRITE, scope=_scope, pushes=_pushed),
    Route("GET", "/api/v1/timers/{queue}", list_timers, Role.READ_ONLY, scope=queue_in_path(Verb.READ)),
    Route("GET", _ONE, get_timer, Role.READ_ONLY, scope=queue_in_path(Verb.READ)),
    Route("DELETE", _ONE, cancel_timer, Role.READ_WRITE, scope=queue_in_path(Verb.PUSH)),
)
