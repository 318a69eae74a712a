"""POST /api/v1/transaction"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from queenmq.access.permissions import Verb
from queenmq.broker.broker import Broker
from queenmq.broker.transaction import Committed, Transaction
from queenmq.core.acknowledgement import STATUSES, TRANSACTION_STATUSES, Acknowledgement
from queenmq.core.keys import MOST_OPERATIONS
from queenmq.core.message import Message
from queenmq.errors import HttpError, InvalidRequest, OffsetConflict
from queenmq.http.answers.transaction import TransactionResult
from queenmq.http.decoding import decode
from queenmq.http.openapi import documented
from queenmq.http.plans import Plan, push_plan
from queenmq.http.requests import Operation, TransactionBody
from queenmq.http.roles import Role
from queenmq.http.route import Context, Need, Route
from queenmq.http.routes.ack import check_ack, group_name, opaque_lease, read_ack
from queenmq.http.routes.keys import key_need, key_results, read_change, value_after
from queenmq.http.routes.push import (
    ITEM_TEXTS,
    check_count,
    check_expectations,
    read_expected,
    refuse_later,
    to_message,
)
from queenmq.http.routes.timers import require_fitting, timer_changed, to_change
from queenmq.http.schemas import OffsetDiffers, TransactionAck, TransactionPush
from queenmq.http.scopes import acked_partitions
from queenmq.httpserver.messages import Request, Response
from queenmq.httpserver.refusals import TooManyItems
from queenmq.ids import uuid7_text
from queenmq.storage.failures import KeyConditionFailed, TransactionRefused

_TEXTS = {
    "operations": "operations array required",
} | {f"operations[].items[].{name}": text for name, text in ITEM_TEXTS.items()}
_decoder = msgspec.json.Decoder(TransactionBody)


@documented({200: TransactionResult}, body=TransactionBody)
async def transaction(request: Request, context: Context) -> Response:
    """Apply pushes, acknowledgements, changes of keys and timers together or not at all; always 200, `success` says
    which."""
    body = read_transaction(request)
    if not (body.operations or body.kv or body.timers):
        raise InvalidRequest("operations array cannot be empty", "operations")
    check_count(len(body.operations), context.settings, "operations")
    check_count(len(body.required_leases or ()), context.settings, "requiredLeases")
    check_expectations(body.expect or (), context.settings)
    for name, given in (("kv", body.kv or ()), ("timers", body.timers or ())):
        if len(given) > MOST_OPERATIONS:
            raise TooManyItems(f"{name} has {len(given)} elements, at most {MOST_OPERATIONS} are allowed", name)
    keys = [read_change(one, f"kv[{index}]") for index, one in enumerate(body.kv or ())]
    timers = [to_change(one, f"timers[{index}]", request) for index, one in enumerate(body.timers or ())]
    outcome = TransactionResult(transaction_id=uuid7_text(), success=True, results=[])
    try:
        steps = _read_steps(body, request)
        check_count(len(steps), context.settings, "operations")
        if context.broker.schemas.any:
            await _require_fitting(context.broker, steps)
            await require_fitting(timers, context)
        transacted = replace(_transaction(steps, body), keys=keys, timers=timers)
        committed = await _commit(context.broker, transacted, request.origin)
        outcome.results = _results(steps, committed)
        if committed.keys:
            outcome.kv = key_results(transacted.keys, committed.keys, request)
        if committed.timers:
            outcome.timers = [timer_changed(*pair) for pair in zip(transacted.timers, committed.timers, strict=True)]
    except KeyConditionFailed as failed:
        outcome.success = False
        outcome.error, outcome.reason = failed.message, "kv_precondition"
        outcome.failed_index, outcome.kv_reason = failed.index, failed.reason
        outcome.version = msgspec.UNSET if failed.version is None else failed.version
        outcome.value = await value_after(failed, keys, request, context)
    except TransactionRefused as refusal:
        outcome.success = False
        outcome.error = refusal.message
    except OffsetConflict as conflict:
        outcome.success = False
        outcome.error, outcome.reason = conflict.message, conflict.code
        outcome.conflicts = [OffsetDiffers(*one) for one in conflict.found]
    return Response(200, outcome)


async def _require_fitting(broker: Broker, steps: list[Step]) -> None:
    for why in (await broker.schemas.misfits([step for step in steps if isinstance(step, Message)])).values():
        raise TransactionRefused(why)


async def _commit(broker: Broker, transaction: Transaction, origin: str | None) -> Committed:
    try:
        return await broker.transact(transaction)
    except (TransactionRefused, OffsetConflict):
        earlier = None if origin is None else await broker.committed_before(transaction)
        if earlier is None:
            raise
        return earlier


def read_transaction(request: Request) -> TransactionBody:
    body = request.parsed
    if not isinstance(body, TransactionBody):
        body = request.parsed = decode(request.body, _decoder, _TEXTS)
    return body


def _plan(request: Request, context: Context) -> Plan | None:
    try:
        operations = read_transaction(request).operations
    except HttpError:
        return None  # the handler says what is wrong with it
    return push_plan(context.broker, [item for operation in operations for item in operation.items or ()])


def _pushed(request: Request) -> list[str]:
    operations = read_transaction(request).operations
    pushed = [item.queue for operation in operations for item in operation.items or ()]
    timers = read_transaction(request).timers or ()
    return pushed + [timer.queue for timer in timers if timer.op != "cancel"]


async def _scope(request: Request, context: Context) -> Sequence[Need]:
    operations = read_transaction(request).operations
    check_count(len(operations), context.settings, "operations")
    pushed = {item.queue for operation in operations for item in operation.items or ()}
    acks = [(one.partition_id, one.consumer_group or None) for one in operations if one.partition_id is not None]
    acked = await acked_partitions(context, acks)
    body = read_transaction(request)
    pushed |= {timer.queue for timer in body.timers or ()}
    return [*(Need(Verb.PUSH, queue) for queue in pushed), *acked, *(key_need(one) for one in body.kv or ())]


Step = Message | Acknowledgement


def _read_steps(body: TransactionBody, request: Request) -> list[Step]:
    """Every pushed item and every ack, in order.

    Raises TransactionRefused for the first that cannot be done, but only if all of the request is well-formed.
    """
    steps: list[Step] = []
    refusal: TransactionRefused | None = None
    for index, operation in enumerate(body.operations):
        try:
            steps.extend(_read_operation(operation, f"operations[{index}]", request))
        except TransactionRefused as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    return steps


def _read_operation(operation: Operation, field: str, request: Request) -> list[Step]:
    # Every field that is there is checked, also those that the type does not need.
    group = group_name(operation.consumer_group, f"{field}.")
    check_ack(operation, f"{field}.")
    items = list(enumerate(operation.items or ()))
    for i, item in items:
        refuse_later(item, f"{field}.items[{i}]")
    messages = [to_message(item, f"{field}.items", i, request, absent=b"{}") for i, item in items]
    match operation.type:
        case "push" if operation.items is None:
            raise InvalidRequest(f"{field}.items array is required", f"{field}.items")
        case "push":
            return [*messages]
        case "ack":
            ack = read_ack(operation, group, f"{field}.")
            if ack.status not in TRANSACTION_STATUSES:
                raise TransactionRefused(f"ACK operation failed: Unknown error: {_misfit(ack.status)}")
            return [ack]
        case unknown:
            raise TransactionRefused(f"Unknown operation type: {unknown}")


def _misfit(status: str) -> str:
    if status in STATUSES:
        return (
            f"a transaction has no status {status!r}: leave this acknowledgement out, and send it by itself with "
            "POST /api/v1/ack"
        )
    return f"unknown status {status!r}: a transaction takes completed, failed or dlq"


def _transaction(steps: list[Step], body: TransactionBody) -> Transaction:
    leases = [opaque_lease(lease) for lease in body.required_leases or ()]
    messages = [step for step in steps if isinstance(step, Message)]
    return Transaction(
        messages=messages,
        acknowledgements=[step for step in steps if isinstance(step, Acknowledgement)],
        required_leases=[lease for lease in leases if lease is not None],
        expected=read_expected(body.expect or (), messages),
    )


def _results(steps: list[Step], committed: Committed) -> list[TransactionPush | TransactionAck]:
    stored = iter(zip(committed.partition_ids, committed.offsets, strict=True))
    dead_lettered = iter(committed.dead_lettered)
    return [
        _push_result(index, step, *next(stored))
        if isinstance(step, Message)
        else _ack_result(index, step, next(dead_lettered))
        for index, step in enumerate(steps)
    ]


def _push_result(index: int, message: Message, partition_id: str, offset: int) -> TransactionPush:
    return TransactionPush(
        index=index,
        success=True,
        transaction_id=message.transaction_id,
        message_id=message.id,
        partition_id=partition_id,
        queue_name=message.queue,
        offset=offset,
    )


def _ack_result(index: int, ack: Acknowledgement, dead_lettered: bool) -> TransactionAck:
    return TransactionAck(index=index, success=True, transaction_id=ack.transaction_id, error=None, dlq=dead_lettered)


ROUTES = (Route("POST", "/api/v1/transaction", transaction, Role.READ_WRITE, _plan, scope=_scope, pushes=_pushed),)
