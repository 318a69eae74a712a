"""The answer to a transaction."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType

from queenmq.http.answers.keys import KeyResult
from queenmq.http.answers.timers import TimerChanged
from queenmq.http.schemas import OffsetDiffers, TransactionAck, TransactionPush, Uuid


class TransactionResult(Struct, kw_only=True, rename="camel"):
    """One result per pushed item and per ack, in order; none if the transaction was refused, and `error` says why.

    If a partition does not end where `expect` says, `reason` is `offset_conflict`, and `conflicts` has what was found.
    If a required change of `kv` was not applied, it is `kv_precondition`, and `failedIndex`, `kvReason`, `version` and
    `value` say which one, why, and what is there.
    If the answer of the database got lost, and the messages show that all was applied, `kv` and `timers` are left out:
    what became of each is not known any more.
    """

    transaction_id: Uuid
    success: bool
    error: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    conflicts: list[OffsetDiffers] | UnsetType = UNSET
    results: list[TransactionPush | TransactionAck]
    kv: list[KeyResult] | UnsetType = UNSET
    timers: list[TimerChanged] | UnsetType = UNSET
    failed_index: int | UnsetType = UNSET
    kv_reason: str | UnsetType = UNSET
    version: int | UnsetType = UNSET
    value: Raw | UnsetType = UNSET
