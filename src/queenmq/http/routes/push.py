"""POST /api/v1/push"""

from __future__ import annotations

import msgspec

from queenmq.config import Settings
from queenmq.core.message import Message
from queenmq.core.names import check_name
from queenmq.core.push_call import Outcome
from queenmq.core.trace_context import trace_id_of
from queenmq.errors import HttpError
from queenmq.http.decoding import decode
from queenmq.http.openapi import documented
from queenmq.http.plans import Plan, push_plan
from queenmq.http.requests import PushBody, PushItem
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.schemas import PushResult
from queenmq.httpserver.messages import Request, Response
from queenmq.httpserver.refusals import TooManyItems
from queenmq.ids import is_uuid, uuid7_for, uuid7_text

ITEM_TEXTS = {
    "queue": "Queue must be a string",
    "partition": "Partition must be a string",
    "transactionId": "TransactionId must be a string",
    "traceId": "TraceId must be a string",
}
_TEXTS = {"items": "items array is required"} | {f"items[].{name}": text for name, text in ITEM_TEXTS.items()}
_decoder = msgspec.json.Decoder(PushBody)


@documented(
    {201: list[PushResult], 202: list[PushResult]},
    body=PushBody,
    links={"pop_queue": {"parameters": {"queue": "$response.body#/0/queueName"}}},
)
async def push(request: Request, context: Context) -> Response:
    """Store messages; one result for each item, in order. 202 if some are on disk but stored later."""
    body = read_push(request)
    check_count(len(body.items), context.settings, "items")
    messages = [to_message(item, f"items[{index}]", request) for index, item in enumerate(body.items)]
    broker = context.broker
    outcomes = await (broker.push_unless_journalled if request.forwarded else broker.push)(messages)
    results = [result(index, *pair) for index, pair in enumerate(zip(messages, outcomes, strict=True))]
    return Response(201 if all(outcome.deferral is None for outcome in outcomes) else 202, results)


def read_push(request: Request) -> PushBody:
    body = request.parsed
    if not isinstance(body, PushBody):
        body = request.parsed = decode(request.body, _decoder, _TEXTS)
    return body


def _plan(request: Request, context: Context) -> Plan | None:
    try:
        items = read_push(request).items
    except HttpError:
        return None  # the handler says what is wrong with it
    return push_plan(context.broker, items)


def check_count(count: int, settings: Settings, field: str) -> None:
    if count > settings.limits.max_items:
        raise TooManyItems(f"{field} has {count} elements, at most {settings.limits.max_items} are allowed", field)


def to_message(item: PushItem, field: str, request: Request, absent: bytes = b"null") -> Message:
    """A checked message with its ids. A trace id that is no UUID is dropped, as it only describes the message; without
    one, the message belongs to the trace of the request."""
    check_name(item.queue, f"{field}.queue")
    check_name(item.partition, f"{field}.partition")
    message_id = uuid7_text() if request.origin is None else uuid7_for(request.origin, field)
    transaction_id = item.transaction_id
    if transaction_id is msgspec.UNSET:
        transaction_id = message_id
    else:
        check_name(transaction_id, f"{field}.transactionId")
    if item.trace_id is msgspec.UNSET:
        traceparent = request.headers.get(b"traceparent")
        trace_id = None if traceparent is None else trace_id_of(traceparent)
    else:
        trace_id = item.trace_id if is_uuid(item.trace_id) else None
    payload = absent if item.payload is msgspec.UNSET else bytes(item.payload)
    return Message(
        item.queue,
        item.partition,
        payload,
        message_id,
        transaction_id,
        trace_id=trace_id,
        producer=request.subject,
    )


def result(index: int, message: Message, outcome: Outcome) -> PushResult:
    shown = PushResult(
        index=index,
        status="failed" if outcome.status == "rejected" else outcome.status,
        queue=message.queue,
        transaction_id=message.transaction_id,
        transaction_id_camel=message.transaction_id,
    )
    if outcome.status == "failed":
        shown.error = f"queue {message.queue!r} is full: the message would exceed max capacity (maxSize)"
        return shown
    if outcome.status == "rejected":
        shown.error = "the operation queue is full: nothing of this message was kept, push it again later"
        return shown
    if outcome.deferral is not None:
        shown.queue_plain, shown.partition = message.queue, message.partition
        shown.operation_id = outcome.deferral.operation_id
        shown.queue_position = outcome.deferral.position
        shown.estimated_wait = outcome.deferral.wait_s
        shown.reason = outcome.deferral.reason
        return shown
    shown.message_id = shown.message_id_camel = outcome.message_id
    if outcome.status == "queued":
        shown.partition_id = shown.partition_id_camel = outcome.partition_id
        shown.trace_id = message.trace_id
    return shown


ROUTES = (Route("POST", "/api/v1/push", push, Role.READ_WRITE, _plan),)
