"""POST /api/v1/transaction"""

from __future__ import annotations

import msgspec

from queenmq.core.acknowledgement import TRANSACTION_STATUSES, Acknowledgement
from queenmq.core.names import check_name
from queenmq.engine.engine import Engine
from queenmq.engine.push import Message
from queenmq.engine.transaction import Committed, Transaction
from queenmq.errors import InvalidRequest
from queenmq.http.auth import Role
from queenmq.http.decoding import decode
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.router import Router
from queenmq.http.routes.ack import make_ack, opaque_lease
from queenmq.http.routes.push import ITEM_TEXTS, check_count, require_items, to_message
from queenmq.http.schemas import Operation, TransactionBody
from queenmq.ids import uuid7
from queenmq.storage.database import TransactionRefused

_TEXTS = {"operations": "operations array required"} | {
    f"operations[].items[].{name}": text for name, text in ITEM_TEXTS.items()
}
_decoder = msgspec.json.Decoder(TransactionBody)


def add_routes(router: Router, engine: Engine) -> None:
    async def transaction(request: Request) -> Response:
        """Apply pushes and acknowledgements together, or none of them; 200 either way, `success` tells."""
        body = decode(request.body, _decoder, _TEXTS)
        if not body.operations:
            raise InvalidRequest("operations array cannot be empty", "operations")
        transaction_id = str(uuid7())
        try:
            steps = _read_steps(body, request.subject)
            check_count(len(steps), engine.settings, "operations")
            committed = await engine.transactor.commit(_transaction(steps, body))
        except TransactionRefused as refusal:
            return json_response(
                200, {"transactionId": transaction_id, "success": False, "error": refusal.message, "results": []}
            )
        results = _results(steps, committed)
        return json_response(200, {"transactionId": transaction_id, "success": True, "results": results})

    router.add("POST", "/api/v1/transaction", transaction, Role.READ_WRITE)


Step = Message | Acknowledgement


def _read_steps(body: TransactionBody, producer: str | None) -> list[Step]:
    """Every pushed item and every ack, in order. What is well-formed but cannot be done raises TransactionRefused."""
    steps: list[Step] = []
    for index, operation in enumerate(body.operations):
        field = f"operations[{index}]"
        match operation.type:
            case "push":
                items = require_items(operation.items, field)
                steps.extend(
                    to_message(item, f"{field}.items[{i}]", producer, absent=b"{}") for i, item in enumerate(items)
                )
            case "ack":
                steps.append(_read_ack(operation, field))
            case unknown:
                raise TransactionRefused(f"Unknown operation type: {unknown}")
    return steps


def _read_ack(operation: Operation, field: str) -> Acknowledgement:
    transaction_id, partition_id = operation.transaction_id, operation.partition_id
    if transaction_id is None:
        raise InvalidRequest(f"{field}.transactionId is required", f"{field}.transactionId")
    if partition_id is None:
        raise InvalidRequest(f"{field}.partitionId is required", f"{field}.partitionId")
    if operation.consumer_group:
        check_name(operation.consumer_group, f"{field}.consumerGroup")
    ack = make_ack(
        partition_id,
        transaction_id,
        operation.consumer_group or None,
        operation.lease_id,
        operation.status,
        operation.error,
        f"{field}.",
    )
    if ack.status not in TRANSACTION_STATUSES:
        raise TransactionRefused("ACK operation failed: Unknown error")
    return ack


def _transaction(steps: list[Step], body: TransactionBody) -> Transaction:
    leases = [opaque_lease(lease) for lease in body.required_leases or ()]
    return Transaction(
        messages=[step for step in steps if isinstance(step, Message)],
        acknowledgements=[step for step in steps if isinstance(step, Acknowledgement)],
        required_leases=[lease for lease in leases if lease is not None],
    )


def _results(steps: list[Step], committed: Committed) -> list[dict[str, object]]:
    partition_ids, dead_lettered = iter(committed.partition_ids), iter(committed.dead_lettered)
    return [
        _push_result(index, step, next(partition_ids))
        if isinstance(step, Message)
        else _ack_result(index, step, next(dead_lettered))
        for index, step in enumerate(steps)
    ]


def _push_result(index: int, message: Message, partition_id: str) -> dict[str, object]:
    return {
        "index": index,
        "type": "push",
        "success": True,
        "transactionId": message.transaction_id,
        "messageId": message.id,
        "partitionId": partition_id,
        "queueName": message.queue,
    }


def _ack_result(index: int, ack: Acknowledgement, dead_lettered: bool) -> dict[str, object]:
    return {
        "index": index,
        "type": "ack",
        "success": True,
        "transactionId": ack.transaction_id,
        "error": None,
        "dlq": dead_lettered,
    }
