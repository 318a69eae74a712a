"""What stream engines in clients keep on the server: POST /streams/v1/queries, …/state/get, …/cycle"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from queenmq.access.permissions import Verb
from queenmq.broker.streams import Cycle, StateChange, StreamAck
from queenmq.core.acknowledgement import COMPLETED, TRANSACTION_STATUSES, read_error
from queenmq.core.names import QUEUE_MODE, check_name, check_text, iso_millis
from queenmq.errors import InvalidRequest
from queenmq.http.decoding import decode
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, FoundNeed, Need, Route
from queenmq.http.routes.ack import opaque_lease
from queenmq.http.routes.push import ITEM_TEXTS, check_count, refuse_later, result, to_message
from queenmq.http.schemas import CycleAck, Cycled, QueryRefused, QueryRegistered, StateFound, StateRow
from queenmq.http.scopes import of_partitions, permissions_of
from queenmq.http.stream_requests import CycleAckBody, CycleBody, QueryBody, StateGetBody, StateOp
from queenmq.httpserver.messages import Request, Response
from queenmq.ids import is_uuid
from queenmq.storage.failures import TransactionRefused

_MOST_KEY = 500
_WITHIN = "\x1f"
_KINDS = ("upsert", "delete")
_OBJECT = {"": "request body must be a JSON object"}
_QUERY_TEXTS = _OBJECT | {name: f"{name} is required" for name in ("name", "source_queue", "config_hash")}
_STATE_TEXTS = _OBJECT | {name: f"{name} is required" for name in ("query_id", "partition_id")}
_CYCLE_TEXTS = _STATE_TEXTS | {f"push_items[].{name}": text for name, text in ITEM_TEXTS.items()}
_query_decoder = msgspec.json.Decoder(QueryBody)
_state_decoder = msgspec.json.Decoder(StateGetBody)
_cycle_decoder = msgspec.json.Decoder(CycleBody)


class _Windowed(msgspec.Struct):
    window_end: float | None = msgspec.field(name="windowEnd", default=None)


_windowed_decoder = msgspec.json.Decoder(_Windowed)


@documented({200: QueryRegistered, 409: QueryRefused}, body=QueryBody)
async def register_query(request: Request, context: Context) -> Response:
    """Register a query of a stream engine; 409 if it exists with another configuration, unless `reset` is set."""
    body = decode(request.body, _query_decoder, _QUERY_TEXTS)
    check_name(body.name, "name")
    check_name(body.source_queue, "source_queue")
    check_name(body.config_hash, "config_hash")
    if body.sink_queue:
        check_name(body.sink_queue, "sink_queue")
    query = await context.broker.register_query(
        await _stored_name(request, body, context),
        body.source_queue,
        body.sink_queue or None,
        body.config_hash,
        bool(body.reset),
    )
    if query.mismatch:
        refused = QueryRefused(
            success=False,
            query_id=query.id,
            name=body.name,
            error=f"config_hash mismatch: query {body.name!r} has {query.config_hash}, not {body.config_hash}",
            code="config_hash_mismatch",
        )
        return Response(409, refused)
    registered = QueryRegistered(
        success=True,
        query_id=query.id,
        name=body.name,
        config_hash=query.config_hash,
        fresh=query.fresh,
        reset=query.was_reset,
    )
    return Response(200, registered)


@documented({200: StateFound}, body=StateGetBody)
async def get_state(request: Request, context: Context) -> Response:
    """The state of a query in a partition: of some keys, of a prefix, of ended windows, or all of it."""
    body = decode(request.body, _state_decoder, _STATE_TEXTS)
    _check_ids(body.query_id, body.partition_id)
    keys = body.keys or []
    check_count(len(keys), context.settings, "keys")
    for index, key in enumerate(keys):
        _check_key(key, f"keys[{index}]")
    if body.key_prefix is not None:
        check_text(body.key_prefix, "key_prefix")
    entries = await context.broker.stream_state(
        body.query_id,
        body.partition_id,
        keys,
        body.key_prefix,
        body.ripe_at_or_before,
        limit=context.settings.limits.max_items,
        max_bytes=context.settings.limits.max_answer_bytes,
    )
    found = [
        StateRow(key=entry.key, value=msgspec.Raw(entry.value), updated_at=iso_millis(entry.updated_at))
        for entry in entries
    ]
    return Response(200, StateFound(success=True, rows=found))


@documented({200: Cycled}, body=CycleBody)
async def stream_cycle(request: Request, context: Context) -> Response:
    """Push, change state and acknowledge together or not at all; always 200, `success` says which."""
    body = decode(request.body, _cycle_decoder, _CYCLE_TEXTS)
    _check_ids(body.query_id, body.partition_id)
    group = body.consumer_group or QUEUE_MODE
    check_name(group, "consumer_group")
    operations, items = body.state_ops or [], body.push_items or []
    check_count(len(operations), context.settings, "state_ops")
    check_count(len(items), context.settings, "push_items")
    for i, item in enumerate(items):
        refuse_later(item, f"push_items[{i}]")
    messages = [to_message(item, "push_items", i, request) for i, item in enumerate(items)]
    answer = Cycled(success=True, query_id=body.query_id, partition_id=body.partition_id)
    try:
        if context.broker.schemas.any:
            for why in (await context.broker.schemas.misfits(messages)).values():
                raise TransactionRefused(why)
        changes = [_change(operation, f"state_ops[{i}]") for i, operation in enumerate(operations)]
        cycle = Cycle(
            query_id=body.query_id,
            partition_id=body.partition_id,
            group=group,
            changes=changes,
            messages=messages,
            ack=None if body.ack is None else _read_ack(body.ack),
            release_lease=body.release_lease is not False,
        )
        done = await context.broker.stream_cycle(cycle)
    except TransactionRefused as refusal:
        answer.success = False
        answer.error = refusal.message
        return Response(200, answer)
    answer.queue_name = done.queue
    if done.stale:
        answer.stale = True
        return Response(200, answer)
    answer.state_ops_applied = len(changes)
    pairs = zip(messages, done.outcomes, strict=True)
    answer.push_results = [result(index, *pair) for index, pair in enumerate(pairs)]
    if body.ack is not None:
        answer.ack_result = CycleAck(
            success=True, count=done.acked, lease_released=done.released, dlq=done.dead_lettered
        )
    return Response(200, answer)


def _pushed(request: Request) -> list[str]:
    return [item.queue for item in decode(request.body, _cycle_decoder, _CYCLE_TEXTS).push_items or ()]


async def _registered(request: Request, context: Context) -> Sequence[Need]:
    """Where the query reads and writes. Its state belongs to all who read with it, so that only who may acknowledge for
    every group may reset it."""
    body = decode(request.body, _query_decoder, _QUERY_TEXTS)
    needs = [Need(Verb.POP, body.source_queue)]
    if body.sink_queue:
        needs.append(Need(Verb.PUSH, body.sink_queue))
    if body.reset:
        needs.append(Need(Verb.ACK, body.source_queue))
    return needs


async def _stored_name(request: Request, body: QueryBody, context: Context) -> str:
    """Tenants do not know each other's names. So the query of a token that is restricted to queues is stored under the
    name of its source, too, unless there is one without it that the token may use."""
    permissions = permissions_of(request)
    if permissions is None:
        return body.name
    former = await context.owners.stream(name=body.name)
    if former is not None and permissions.allows(Verb.POP, former.source_queue):
        return body.name
    return f"{body.source_queue}{_WITHIN}{body.name}"


async def _state_read(request: Request, context: Context) -> Sequence[Need]:
    body = decode(request.body, _state_decoder, _STATE_TEXTS)
    return await _of_query(context, Verb.READ, body.query_id, body.partition_id)


async def _cycled(request: Request, context: Context) -> Sequence[Need]:
    body = decode(request.body, _cycle_decoder, _CYCLE_TEXTS)
    check_count(len(body.push_items or ()), context.settings, "push_items")
    acked = await _of_query(context, Verb.ACK, body.query_id, body.partition_id)
    group = body.consumer_group or QUEUE_MODE
    pushed = {item.queue for item in body.push_items or ()}
    return [*(need._replace(group=group) for need in acked), *(Need(Verb.PUSH, queue) for queue in pushed)]


async def _of_query(context: Context, verb: Verb, query_id: str, partition_id: str) -> Sequence[Need]:
    """The queue that the query reads, and the one of the partition. Raises NotFound if there is no such partition."""
    needs = await of_partitions(context, verb, (partition_id,))
    place = await context.owners.stream(query_id=query_id) if is_uuid(query_id) else None
    return needs if place is None else [*needs, FoundNeed(verb, place.source_queue)]


def _check_ids(query_id: str, partition_id: str) -> None:
    for field, value in (("query_id", query_id), ("partition_id", partition_id)):
        if not is_uuid(value):
            raise InvalidRequest(f"{field} must be a UUID", field)


def _check_key(key: str, field: str) -> None:
    check_text(key, field)
    if not 1 <= len(key) <= _MOST_KEY:
        raise InvalidRequest(f"{field} must have 1 to {_MOST_KEY} characters", field)


def _change(operation: StateOp, field: str) -> StateChange:
    _check_key(operation.key, f"{field}.key")
    if operation.type not in _KINDS:
        raise TransactionRefused(f"Unknown state_op type {operation.type}")
    value = b"null" if operation.value is msgspec.UNSET else bytes(operation.value)
    return StateChange(operation.type, operation.key, value, _window_end(value))


def _window_end(value: bytes) -> float | None:
    try:
        return _windowed_decoder.decode(value).window_end
    except msgspec.ValidationError:
        return None


def _read_ack(ack: CycleAckBody) -> StreamAck:
    error = read_error(ack.error, "ack.error")
    if not ack.transaction_id:
        raise TransactionRefused("ack.transactionId is required")
    check_name(ack.transaction_id, "ack.transactionId")
    status = ack.status or "completed"
    if status not in TRANSACTION_STATUSES:
        raise TransactionRefused(f"Unknown ack.status {status}")
    word = "completed" if status in COMPLETED else status
    return StreamAck(ack.transaction_id, opaque_lease(ack.lease_id), word, error)


ROUTES = (
    Route("POST", "/streams/v1/queries", register_query, Role.READ_WRITE, scope=_registered, audited=True),
    Route("POST", "/streams/v1/state/get", get_state, Role.READ_ONLY, scope=_state_read),
    Route("POST", "/streams/v1/cycle", stream_cycle, Role.READ_WRITE, scope=_cycled, pushes=_pushed),
)
