"""The result of a deferred push, as it is stored with its operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from queenmq.core.push_call import Outcome

_encode = msgspec.json.Encoder().encode


def push_result(outcomes: Sequence[Outcome], transaction_ids: Sequence[str]) -> str:
    """One result per message, with the ids in both spellings that published clients read."""
    results: list[dict[str, Any]] = []
    for index, (outcome, transaction_id) in enumerate(zip(outcomes, transaction_ids, strict=True)):
        result = {
            "index": index,
            "status": outcome.status,
            "transaction_id": transaction_id,
            "transactionId": transaction_id,
            "message_id": outcome.message_id,
            "messageId": outcome.message_id,
        }
        if outcome.deferral is not None:
            result["operationId"] = outcome.deferral.operation_id
        if outcome.status == "failed":
            result["error"] = "the queue is full: the message would exceed max capacity (maxSize)"
        results.append(result)
    return _encode(results).decode()
