"""The states of an operation, and how the result of a deferred push is recorded with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct, ValidationError
from msgspec.json import Decoder, Encoder

from queenmq.core.push_call import Outcome, Status

OperationStatus = Literal["pending", "processing", "blocked", "completed", "failed", "cancelled"]


class RecordedOutcome(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What became of one message of a deferred push. With an `operation_id` it was deferred again."""

    status: Status
    transaction_id: str
    message_id: str
    operation_id: str | None = None


_encode: Final = Encoder().encode
_decode: Final = Decoder(list[RecordedOutcome]).decode


def record_outcomes(outcomes: Sequence[Outcome], transaction_ids: Sequence[str]) -> str:
    """The outcomes of the messages of a push as JSON text, in their order."""
    recorded = [
        RecordedOutcome(
            outcome.status,
            transaction_id,
            outcome.message_id,
            None if outcome.deferral is None else outcome.deferral.operation_id,
        )
        for outcome, transaction_id in zip(outcomes, transaction_ids, strict=True)
    ]
    return _encode(recorded).decode()


def read_outcomes(recorded: str) -> list[RecordedOutcome] | None:
    """What `record_outcomes` has written; None if another version has written something else.

    Fields that older versions have written besides are ignored.
    """
    try:
        return _decode(recorded)
    except ValidationError:
        return None
