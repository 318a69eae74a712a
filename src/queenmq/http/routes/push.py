"""POST /api/v1/push"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from queenmq.access.permissions import Verb
from queenmq.broker.conditional_push import ConditionalPush
from queenmq.config import Settings
from queenmq.core.headers import encode_headers
from queenmq.core.message import Message
from queenmq.core.names import check_name, is_plain_name, iso_millis, parse_timestamp
from queenmq.core.push_call import Outcome, Target
from queenmq.core.timer import TimerChange, TimerState
from queenmq.core.trace_context import trace_id_of
from queenmq.errors import HttpError, InvalidRequest, SchemaMismatch
from queenmq.http.decoding import decode
from queenmq.http.openapi import documented
from queenmq.http.plans import Plan, push_plan
from queenmq.http.requests import Expectation, PushBody, PushItem
from queenmq.http.roles import Role
from queenmq.http.route import Context, Need, Route
from queenmq.http.schemas import ConflictError, Error, PushResult
from queenmq.httpserver.messages import Request, Response
from queenmq.httpserver.refusals import TooManyItems
from queenmq.ids import is_uuid, uuid7_for, uuid7_text
from queenmq.storage.failures import after_commit

ITEM_TEXTS = {
    "queue": "Queue must be a string",
    "partition": "Partition must be a string",
    "transactionId": "TransactionId must be a string",
    "traceId": "TraceId must be a string",
}
_TEXTS = {"items": "items array is required"} | {f"items[].{name}": text for name, text in ITEM_TEXTS.items()}
_decoder = msgspec.json.Decoder(PushBody)


@documented(
    {201: list[PushResult], 202: list[PushResult], 409: ConflictError, 422: Error},
    body=PushBody,
    links={"pop_queue": {"parameters": {"queue": "$response.body#/0/queueName"}}},
)
async def push(request: Request, context: Context) -> Response:
    """Store messages; one result for each item, in order. 202 if some are on disk but stored later.

    With `expect`, store all of them or none: 409 if a partition does not end where `expect` says. 422 if no item fits
    the schema of its queue, or with `expect` if one does not.
    """
    body = read_push(request)
    check_count(len(body.items), context.settings, "items")
    check_expectations(body.expect or (), context.settings)
    messages = [to_message(item, "items", index, request) for index, item in enumerate(body.items)]
    broker = context.broker
    misfits = await broker.schemas.misfits(messages) if broker.schemas.any else {}
    if misfits and (body.expect or len(misfits) == len(messages)):
        index, why = next(iter(misfits.items()))
        raise SchemaMismatch(f"items[{index}]: {why}", f"items[{index}]")
    if body.expect:
        return await _push_expected(body, messages, context)
    later = [index for index, item in enumerate(body.items) if index not in misfits and is_later(item)]
    if later or misfits:
        return await _push_in_parts(request, context, messages, later, misfits)
    outcomes = await (broker.push_unless_journalled if request.forwarded else broker.push)(messages)
    results = [result(index, *pair) for index, pair in enumerate(zip(messages, outcomes, strict=True))]
    return Response(202 if any(outcome.deferral for outcome in outcomes) else 201, results)


async def _push_expected(body: PushBody, messages: list[Message], context: Context) -> Response:
    for index, item in enumerate(body.items):
        if is_later(item):
            raise InvalidRequest(f"items[{index}]: a timer cannot be pushed with expect", f"items[{index}]")
    expected = read_expected(body.expect or (), messages)
    outcomes = await context.broker.conditional_pusher.push(ConditionalPush(messages, expected))
    return Response(201, [result(index, *pair) for index, pair in enumerate(zip(messages, outcomes, strict=True))])


def check_expectations(expectations: Sequence[Expectation], settings: Settings) -> None:
    """What is wrong with them by themselves, whatever is pushed."""
    check_count(len(expectations), settings, "expect")
    for index, one in enumerate(expectations):
        check_name(one.queue, f"expect[{index}].queue")
        check_name(one.partition, f"expect[{index}].partition")


def read_expected(expectations: Sequence[Expectation], messages: Sequence[Message]) -> Mapping[Target, int]:
    """The last offset that each partition must have. Raises InvalidRequest if nothing is pushed to one."""
    targets = {(message.queue, message.partition) for message in messages}
    expected: dict[Target, int] = {}
    for index, one in enumerate(expectations):
        target = one.queue, one.partition
        if target not in targets:
            raise InvalidRequest(f"expect[{index}]: the request pushes nothing to this partition", f"expect[{index}]")
        if expected.setdefault(target, one.last_offset) != one.last_offset:
            raise InvalidRequest(f"expect[{index}]: the partition cannot have two last offsets", f"expect[{index}]")
    return expected


async def _push_in_parts(
    request: Request, context: Context, messages: list[Message], later: list[int], misfits: Mapping[int, str]
) -> Response:
    """Refuse what does not fit, and make timers of what is for later, before the rest is pushed: repeating the request
    after a failure replaces them by the same ones."""
    items = read_push(request).items
    changes = [_to_timer(items[index], messages[index], f"items[{index}]") for index in later]
    now = [index for index in range(len(messages)) if index not in misfits and not is_later(items[index])]
    if now:  # or a timer would be kept of a request that is refused
        if request.forwarded:
            context.broker.check_forwarded_pushes([messages[index] for index in now])
        else:
            context.broker.check_pushes()
    states = await context.broker.timers.change(changes) if changes else []
    results = {index: _misfit(index, messages[index], why) for index, why in misfits.items()}
    results |= {
        index: _scheduled(index, change, state) for index, change, state in zip(later, changes, states, strict=True)
    }
    push = context.broker.push_unless_journalled if request.forwarded else context.broker.push
    with after_commit(bool(states)):
        outcomes = await push([messages[index] for index in now])
    results |= {index: result(index, messages[index], outcome) for index, outcome in zip(now, outcomes, strict=True)}
    is_stored = all(outcome.deferral is None for outcome in outcomes)
    return Response(201 if is_stored else 202, [results[index] for index in range(len(messages))])


def is_later(item: PushItem) -> bool:
    return item.delay is not msgspec.UNSET or item.deliver_at is not msgspec.UNSET


def refuse_later(item: PushItem, field: str) -> None:
    """Raise InvalidRequest where a message can only be pushed now."""
    if is_later(item):
        raise InvalidRequest(f"{field}: delay and deliverAt are only for POST /api/v1/push", field)


def _to_timer(item: PushItem, message: Message, field: str) -> TimerChange:
    """The key is made of what identifies the message, so that a repeated push is the same timer."""
    if item.delay is not msgspec.UNSET and item.deliver_at is not msgspec.UNSET:
        raise InvalidRequest(f"{field} has both delay and deliverAt", f"{field}.delay")
    return TimerChange(
        queue=message.queue,
        key=f"push:{message.partition}:{message.transaction_id}",
        message=message,
        delay_ms=None if item.delay is msgspec.UNSET else round(item.delay * 1000),
        deliver_at=None if item.deliver_at is msgspec.UNSET else parse_timestamp(item.deliver_at, f"{field}.deliverAt"),
    )


def _misfit(index: int, message: Message, why: str) -> PushResult:
    return PushResult(
        index=index,
        status="failed",
        queue=message.queue,
        transaction_id=message.transaction_id,
        transaction_id_camel=message.transaction_id,
        error=why,
        reason=SchemaMismatch.code,
    )


def _scheduled(index: int, change: TimerChange, state: TimerState) -> PushResult:
    return PushResult(
        index=index,
        status="scheduled",
        queue=change.queue,
        transaction_id=state.transaction_id or "",
        transaction_id_camel=state.transaction_id or "",
        message_id=state.message_id or msgspec.UNSET,
        message_id_camel=state.message_id or msgspec.UNSET,
        timer_key=change.key,
        deliver_at=msgspec.UNSET if state.deliver_at is None else iso_millis(state.deliver_at),
    )


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


def _pushed(request: Request) -> list[str]:
    return [item.queue for item in read_push(request).items]


async def _scope(request: Request, context: Context) -> Sequence[Need]:
    items = read_push(request).items
    check_count(len(items), context.settings, "items")
    if len(items) == 1:
        return (Need(Verb.PUSH, items[0].queue),)
    return [Need(Verb.PUSH, queue) for queue in {item.queue for item in items}]


def check_count(count: int, settings: Settings, field: str) -> None:
    if count > settings.limits.max_items:
        raise TooManyItems(f"{field} has {count} elements, at most {settings.limits.max_items} are allowed", field)


def to_message(item: PushItem, items: str, index: int, request: Request, absent: bytes = b"null") -> Message:
    """A checked message with its ids; `items` names the field that has the item. A trace id that is no UUID is dropped,
    as it only describes the message; without one, the message belongs to the trace of the request."""
    if not (is_plain_name(item.queue) and is_plain_name(item.partition)):
        check_name(item.queue, f"{items}[{index}].queue")
        check_name(item.partition, f"{items}[{index}].partition")
    message_id = uuid7_text() if request.origin is None else uuid7_for(request.origin, f"{items}[{index}]")
    transaction_id = item.transaction_id
    if transaction_id is msgspec.UNSET:
        transaction_id = message_id
    elif not is_plain_name(transaction_id):
        check_name(transaction_id, f"{items}[{index}].transactionId")
    if item.trace_id is msgspec.UNSET:
        traceparent = request.headers.get(b"traceparent")
        trace_id = None if traceparent is None else trace_id_of(traceparent)
    else:
        trace_id = item.trace_id if is_uuid(item.trace_id) else None
    if item.fairness_key is not msgspec.UNSET:
        instead = "push to a partition with the key in its name, such as 'acme:1', and set fairness for the queue"
        why = f"fairnessKey is not supported: {instead} (POST /api/v1/policies)"
        raise InvalidRequest(why, f"{items}[{index}].fairnessKey")
    if item.payload is msgspec.UNSET and item.data is not msgspec.UNSET:
        why = f"{items}[{index}] has data and no payload: push the content as payload"
        raise InvalidRequest(why, f"{items}[{index}].payload")
    payload = absent if item.payload is msgspec.UNSET else bytes(item.payload)
    return Message(
        item.queue,
        item.partition,
        payload,
        message_id,
        transaction_id,
        trace_id=trace_id,
        producer=request.subject,
        headers=encode_headers(item.headers, f"{items}[{index}].headers") if item.headers else None,
    )


def result(index: int, message: Message, outcome: Outcome) -> PushResult:
    if outcome.status == "queued" and outcome.deferral is None:
        return PushResult(
            index=index,
            status="queued",
            queue=message.queue,
            transaction_id=message.transaction_id,
            transaction_id_camel=message.transaction_id,
            message_id=outcome.message_id,
            message_id_camel=outcome.message_id,
            partition_id=outcome.partition_id,
            partition_id_camel=outcome.partition_id,
            trace_id=message.trace_id,
            offset=msgspec.UNSET if outcome.offset is None else outcome.offset,
        )
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
    shown.offset = msgspec.UNSET if outcome.offset is None else outcome.offset
    return shown


ROUTES = (Route("POST", "/api/v1/push", push, Role.READ_WRITE, _plan, scope=_scope, pushes=_pushed),)
