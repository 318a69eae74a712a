"""Where a group stands in a partition, and what a pop would do there."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Protocol
from uuid import UUID

from msgspec import Struct

from queenmq.core.explanation import Options, PositionState, Verdict, judge

_DEFAULT_LEASE_S: Final = 60
_STOPPED: Final = Verdict(
    "paused",
    "It is paused, itself or with its group or queue.",
    "See who has paused it and why: GET /api/v1/pauses, or `queen queues pauses`.",
)
SWITCHED_OFF: Final = Verdict(
    "paused",
    "Pops are switched off for maintenance on every server; long polls are held meanwhile.",
    'Switch them on again: `queen maintenance off --pops`, or POST /api/v1/system/maintenance/pop {"enabled": false}.',
)


class Place(Struct, frozen=True):
    """What `queen.describe_position` says about a group in a partition; the function's comment explains each column."""

    started: bool
    read_upto: int
    last_offset: int
    last_message_at: datetime | None
    ready_at: datetime | None
    lease_id: UUID | None
    lease_expires_at: datetime | None
    leased: int
    retry_at: datetime | None
    last_consumed_at: datetime | None
    unread: int
    expired: int
    ready: int
    next_offset: int | None
    next_transaction: str | None
    next_created_at: datetime | None
    attempts: int
    doomed: str | None

    def position(self, now: datetime) -> PositionState:
        """The place as the rules of explain take it."""
        return PositionState(
            now=now,
            unread=self.unread,
            ready=self.ready,
            attempts=self.attempts,
            lease_id=None if self.lease_id is None else str(self.lease_id),
            lease_expires_at=self.lease_expires_at,
            leased=self.leased,
            retry_at=self.retry_at,
            ready_at=self.ready_at,
            next_created_at=self.next_created_at,
            last_message_at=self.last_message_at,
            expired=self.expired,
            doomed=self.doomed,
            started=self.started,
        )


class JudgedPlace(Place, frozen=True):
    """A place with what else decides about it: the options of its queue, and the time of the database."""

    lease_time_s: int | None
    retry_limit: int
    delayed_processing_s: int
    window_buffer_s: int
    ttl_s: int | None
    now: datetime
    is_leased: bool | None
    is_stopped: bool

    def verdict(self, switched_off: bool) -> Verdict:
        """What keeps a pop away; `switched_off` if pops are, on every server."""
        pause = SWITCHED_OFF if switched_off else _STOPPED if self.is_stopped else None
        return under_pause(judge(self.position(self.now), options_of(self)), pause)


class _Configured(Protocol):
    """The columns of a queue that matter to explain."""

    @property
    def lease_time_s(self) -> int | None: ...
    @property
    def retry_limit(self) -> int: ...
    @property
    def delayed_processing_s(self) -> int: ...
    @property
    def window_buffer_s(self) -> int: ...
    @property
    def ttl_s(self) -> int | None: ...


def options_of(queue: _Configured) -> Options:
    """The options of a queue as the rules of explain take them."""
    return Options(
        lease_s=queue.lease_time_s or _DEFAULT_LEASE_S,
        retry_limit=queue.retry_limit,
        delay_s=queue.delayed_processing_s,
        window_s=queue.window_buffer_s,
        ttl_s=queue.ttl_s or 0,
    )


def under_pause(verdict: Verdict, pause: Verdict | None) -> Verdict:
    """The verdict on a place, which cannot be that a pop gets something while that is paused."""
    return pause if pause is not None and verdict.reason == "deliverable" else verdict
