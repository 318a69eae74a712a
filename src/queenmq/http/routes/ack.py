"""POST /api/v1/ack and /api/v1/ack/batch"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, groupby, repeat
from operator import attrgetter

import msgspec

from queenmq.broker.ack import Acked
from queenmq.broker.broker import Broker
from queenmq.core.acknowledgement import COMPLETED, STATUSES, Acknowledgement, Run, read_error, runs_of
from queenmq.core.names import QUEUE_MODE, check_name
from queenmq.errors import InvalidRequest
from queenmq.http.decoding import decode
from queenmq.http.openapi import documented
from queenmq.http.plans import Plan, producer_plan
from queenmq.http.requests import AckBatchBody, AckBatchItem, AckBody, Operation
from queenmq.http.roles import Role
from queenmq.http.route import Context, Need, Route
from queenmq.http.routes.push import check_count
from queenmq.http.schemas import AckResult
from queenmq.http.scopes import acked_partitions
from queenmq.httpserver.messages import Request, Response
from queenmq.ids import is_uuid

# Lease ids are opaque to callers: one that Queen never gave out is answered like one that has expired.
_NO_LEASE = "00000000-0000-0000-0000-000000000000"

_QUEUE = b'"queue"'
_SAID = attrgetter("partition_id", "lease_id", "status", "error")

_ACK_TEXTS = {
    "transactionId": "transactionId is required",
    "partitionId": "partitionId is required to ensure message uniqueness",
}
_BATCH_TEXTS = {
    "acknowledgments": "acknowledgments array is required",
    "acknowledgments[].transactionId": "Each acknowledgment must have a valid transactionId string",
    "acknowledgments[].partitionId": (
        "Each acknowledgment must have a valid partitionId string to ensure message uniqueness"
    ),
}
_ack_decoder = msgspec.json.Decoder(AckBody)
_batch_decoder = msgspec.json.Decoder(AckBatchBody)


@documented({200: list[AckResult]}, body=AckBody)
async def ack(request: Request, context: Context) -> Response:
    """Acknowledge one message."""
    body = read_single(request)
    item = read_ack(body, group_name(body.consumer_group) or QUEUE_MODE, "")
    return await _apply(context.broker, [Run(item, [item.transaction_id])])


@documented({200: list[AckResult]}, body=AckBatchBody)
async def ack_batch(request: Request, context: Context) -> Response:
    """Acknowledge many messages of one group; the answer has one result for each, in order."""
    body = _read_batch(request)
    check_count(len(body.acknowledgments), context.settings, "acknowledgments")
    group = group_name(body.consumer_group) or QUEUE_MODE
    return await _apply(context.broker, read_runs(body.acknowledgments, group))


def read_single(request: Request) -> AckBody:
    body = request.parsed
    if not isinstance(body, AckBody):
        body = request.parsed = decode(request.body, _ack_decoder, _ACK_TEXTS)
    return body


def _read_batch(request: Request) -> AckBatchBody:
    body = request.parsed
    if not isinstance(body, AckBatchBody):
        body = request.parsed = decode(request.body, _batch_decoder, _BATCH_TEXTS)
    return body


async def _scope(request: Request, context: Context) -> Sequence[Need]:
    body = read_single(request)
    acks = [(body.partition_id, body.consumer_group or QUEUE_MODE)]
    return await acked_partitions(context, acks)


async def _batch_scope(request: Request, context: Context) -> Sequence[Need]:
    body = _read_batch(request)
    check_count(len(body.acknowledgments), context.settings, "acknowledgments")
    acks = [(ack.partition_id, body.consumer_group or QUEUE_MODE) for ack in body.acknowledgments]
    return await acked_partitions(context, acks)


# An acknowledgement is forwarded only if it has no lease and only completes: of any other a repetition would be
# answered with "expired lease" although the first attempt had done it.


class _NamedAck(msgspec.Struct, rename="camel"):
    """What of an acknowledgement says whether it may be forwarded."""

    queue: str | None = None
    lease_id: str | None = None
    status: str | None = None

    @property
    def is_repeatable(self) -> bool:
        return not self.lease_id and (not self.status or self.status in COMPLETED)


class _NamedBatch(msgspec.Struct):
    acknowledgments: list[_NamedAck]
    queue: str | None = None


_decode_named = msgspec.json.Decoder(_NamedAck).decode
_decode_named_batch = msgspec.json.Decoder(_NamedBatch).decode


def _plan(request: Request, context: Context) -> Plan | None:
    if _QUEUE not in request.body:
        return None
    try:
        ack = _decode_named(request.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return producer_plan(context.broker, [ack.queue]) if ack.is_repeatable else None


def _batch_plan(request: Request, context: Context) -> Plan | None:
    if _QUEUE not in request.body:
        return None
    try:
        batch = _decode_named_batch(request.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not all(ack.is_repeatable for ack in batch.acknowledgments):
        return None
    return producer_plan(context.broker, [ack.queue or batch.queue for ack in batch.acknowledgments])


def group_name(given: str | None, prefix: str = "") -> str | None:
    """The group of an acknowledgement, if one is named."""
    if not given:
        return None
    check_name(given, f"{prefix}consumerGroup")
    return given


def read_ack(item: AckBody | AckBatchItem | Operation, group: str | None, prefix: str) -> Acknowledgement:
    """A checked acknowledgement; `prefix` leads to its fields in the request."""
    check_ack(item, prefix)
    partition_id = _required(item.partition_id, f"{prefix}partitionId")
    return Acknowledgement(
        partition_id=partition_id.lower(),
        transaction_id=_required(item.transaction_id, f"{prefix}transactionId"),
        group=group,
        lease_id=opaque_lease(item.lease_id),
        status=item.status or "completed",
        error=read_error(item.error, f"{prefix}error"),
    )


def read_runs(items: list[AckBatchItem], group: str) -> list[Run]:
    """The checked acknowledgements of a batch. What is the same for all messages of a run is read once."""
    runs: list[Run] = []
    for (partition_id, lease_id, status, error), alike in groupby(items, _SAID):
        transactions = [item.transaction_id for item in alike]
        lease_id, status = opaque_lease(lease_id), status or "completed"
        said = Acknowledgement(partition_id.lower(), transactions[0], group, lease_id, status, error)
        run = Run(said, transactions)
        if not (is_uuid(partition_id) and error is None and run.is_plain):
            # Each by itself: that says which of them is malformed, if one is.
            return runs_of(read_ack(item, group, f"acknowledgments[{i}].") for i, item in enumerate(items))
        runs.append(run)
    return runs


def check_ack(item: AckBody | AckBatchItem | Operation, prefix: str) -> None:
    """Raise InvalidRequest for the first field that is there and malformed."""
    if item.transaction_id is not None:
        check_name(item.transaction_id, f"{prefix}transactionId")
    if item.partition_id is not None and not is_uuid(item.partition_id):
        raise InvalidRequest(f"{prefix}partitionId must be a UUID", f"{prefix}partitionId")
    read_error(item.error, f"{prefix}error")


def _required(value: str | None, field: str) -> str:
    if value is None:
        raise InvalidRequest(f"{field} is required", field)
    return value


def opaque_lease(lease_id: str | None) -> str | None:
    if not lease_id:
        return None
    return lease_id if is_uuid(lease_id) else _NO_LEASE


async def _apply(broker: Broker, runs: list[Run]) -> Response:
    acked = iter(await broker.ack([run for run in runs if run.first.status in STATUSES]))
    results: list[AckResult] = []
    for run in runs:
        status = run.first.status
        outcomes = acked if status in STATUSES else repeat(_unknown_status(status))
        results += map(_result, count(len(results)), run.transactions, outcomes)
    return Response(200, results)


def _unknown_status(status: str) -> Acked:
    problem = f"Unknown status {status!r}: use completed, success, failed, dlq or retry"
    return Acked(problem, queue=None, partition=None, lease_released=False, dead_lettered=False)


def _result(index: int, transaction_id: str, acked: Acked) -> AckResult:
    return AckResult(
        index=index,
        transaction_id=transaction_id,
        success=acked.problem is None,
        error=acked.problem,
        queue_name=acked.queue,
        partition_name=acked.partition,
        lease_released=acked.lease_released,
        dlq=acked.dead_lettered,
    )


ROUTES = (
    Route("POST", "/api/v1/ack", ack, Role.READ_WRITE, _plan, scope=_scope),
    Route("POST", "/api/v1/ack/batch", ack_batch, Role.READ_WRITE, _batch_plan, scope=_batch_scope),
)
