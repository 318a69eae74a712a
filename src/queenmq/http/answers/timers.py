"""Answers about timers."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from queenmq.http.schemas import HeadersShown, Moment, Uuid


class TimerChanged(Struct, kw_only=True, rename="camel", omit_defaults=True):
    """What one operation led to. `absent`: there is no such timer, it may have been pushed before; its message has the
    transactionId `txn`. For a repeated timer, `txn`, `messageId` and `deliverAt` are those of its next message."""

    ok: bool
    status: Literal["scheduled", "rescheduled", "cancelled", "absent"]
    queue: str
    timer_key: str
    txn: str | None
    message_id: Uuid | UnsetType = UNSET
    deliver_at: Moment | UnsetType = UNSET


class TimersChanged(Struct):
    results: list[TimerChanged]


class TimerShown(Struct, kw_only=True, rename="camel"):
    """A timer that waits for its moment. `lastError` is why the last of `attempts` to push it has failed."""

    queue: str
    timer_key: str
    partition: str
    deliver_at: Moment
    txn: str
    message_id: Uuid
    encrypted: bool
    schedule: str | None
    time_zone: str | None
    attempts: int
    last_error: str | None
    created_at: Moment
    headers: HeadersShown | UnsetType = UNSET


class TimerFound(Struct, kw_only=True, rename="camel"):
    """With `found`, the fields of a timer; its `payload` is the Base64 of what is stored: the JSON, or its ciphertext
    if it is `encrypted`."""

    found: bool
    queue: str | UnsetType = UNSET
    timer_key: str | UnsetType = UNSET
    partition: str | UnsetType = UNSET
    deliver_at: Moment | UnsetType = UNSET
    txn: str | UnsetType = UNSET
    message_id: Uuid | UnsetType = UNSET
    encrypted: bool | UnsetType = UNSET
    schedule: str | UnsetType | None = UNSET
    time_zone: str | UnsetType | None = UNSET
    attempts: int | UnsetType = UNSET
    last_error: str | UnsetType | None = UNSET
    created_at: Moment | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    headers: HeadersShown | UnsetType = UNSET


class TimerPage(Struct, kw_only=True, rename="camel"):
    """By key; with `truncated`, there are more behind `nextAfter`."""

    rows: list[TimerShown]
    truncated: bool
    next_after: str | None
