"""Answers with an operationId: wait for the operation, with a progress bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from queenmq.cli import exits
from queenmq.cli.remote import pause
from queenmq.cli.show import working

if TYPE_CHECKING:
    from queenmq.client import BlockingQueen
    from queenmq.client.answers import OperationState

_POLL_S: Final = 0.2
DONE: Final = frozenset({"completed", "blocked", "failed", "cancelled", "canceled"})


def followed(queen: BlockingQueen, answer: Any) -> dict[str, Any]:
    """The answer, or the result of the operation that it names. Ctrl-C ends only the waiting."""
    if not isinstance(answer, dict) or not isinstance(answer.get("operationId"), str):
        return answer if isinstance(answer, dict) else {}
    return outcome(wait(queen, answer["operationId"])) | {"operationId": answer["operationId"]}


def wait(queen: BlockingQueen, operation_id: str) -> OperationState:
    """Wait until the operation has ended, with a progress bar, and return it."""
    operation = queen.admin.get_operation(operation_id)
    progress: Mapping[str, Any] = operation.get("progress") or {}
    with working(f"{progress.get('unit') or 'steps'} done", progress.get("total")) as advance:
        done = 0
        while operation["status"] not in DONE:
            progress = operation.get("progress") or {}
            now = int(progress.get("done") or 0)
            advance(now - done)
            done = now
            pause(_POLL_S)
            operation = queen.admin.get_operation(operation_id)
    return operation


def outcome(operation: Mapping[str, Any]) -> dict[str, Any]:
    """The result of an operation. Ends the command if it did not succeed."""
    if operation["status"] != "completed":
        why = operation.get("errorMessage") or operation.get("error") or f"it is {operation['status']}"
        raise exits.Failed(f"the operation did not succeed: {why}")
    result = operation.get("result")
    return dict(result) if isinstance(result, Mapping) else {}
