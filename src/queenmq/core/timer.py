"""Timers: messages that are pushed at a later moment, and what became of a change of them. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from queenmq.core.message import Message

Change = Literal["schedule", "cancel"]
Became = Literal["scheduled", "rescheduled", "cancelled", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerChange:
    """Make a timer under `key` of a queue, or replace the one that has it; without a message, cancel it.

    `deliver_at` is the moment; without it, `delay_ms` counts from when the database has it. With `schedule`, it is
    repeated.
    """

    queue: str
    key: str
    message: Message | None = None
    delay_ms: int | None = None
    deliver_at: datetime | None = None
    schedule: str | None = None
    time_zone: str | None = None

    @property
    def change(self) -> Change:
        return "cancel" if self.message is None else "schedule"


@dataclass(frozen=True, slots=True)
class TimerState:
    """What a change led to. An absent timer has no ids and no moment."""

    became: Became
    transaction_id: str | None
    message_id: str | None
    deliver_at: datetime | None
