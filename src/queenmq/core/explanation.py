"""Why a group gets nothing from a partition just now, and what to do about it. No I/O.

The rules are those by which a pop chooses; they are checked in the order in which they keep a pop away.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

Reason = Literal[
    "queue_unknown",
    "partition_unknown",
    "group_never_started",
    "paused",
    "leased",
    "end_reached",
    "retry_pause",
    "delayed",
    "window_open",
    "backpressure",
    "deliverable",
]


@dataclass(frozen=True, slots=True)
class Options:
    """What of a queue's options matters."""

    lease_s: int
    retry_limit: int
    delay_s: int
    window_s: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a group stands in a partition."""

    now: datetime
    unread: int
    attempts: int
    lease_id: str | None
    lease_expires_at: datetime | None
    leased: int
    retry_at: datetime | None
    next_created_at: datetime | None
    last_message_at: datetime | None


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Pushes that were accepted and are not stored yet: in the operation queue, and in the journal of this server."""

    operations: int = 0
    oldest: datetime | None = None
    journalled: int = 0
    in_maintenance: bool = False  # pushes are switched off, so the journal is not replayed

    def __bool__(self) -> bool:
        return bool(self.operations or self.journalled)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`until` is the moment from which on the reason will not hold any more, if that is known."""

    reason: Reason
    sentence: str
    advice: str
    until: datetime | None = None


_NOTHING_HELD: Final = HeldBack()


def attempts_left(standing: Standing, options: Options) -> int:
    """How often the head may still fail before it goes to the dead letters."""
    return max(0, options.retry_limit - standing.attempts) + 1


def judge(standing: Standing, options: Options, held: HeldBack = _NOTHING_HELD) -> Verdict:
    """What keeps a pop of this group away from this partition. `held` are the pushes to it that wait."""
    now = standing.now
    if standing.lease_id is not None and standing.lease_expires_at is not None and standing.lease_expires_at > now:
        return Verdict(
            "leased",
            f"Lease {standing.lease_id} holds {_messages(standing.leased)} of it that nobody has acknowledged yet; "
            f"nobody else of the group gets anything from it until {_time(standing.lease_expires_at)}.",
            "Wait for the consumer to acknowledge, or for the lease to end; if the consumer is dead, seek the group in "
            "this partition, which ends its lease. Consumers that need longer should renew, and those that die often "
            f"want a shorter leaseTime (now {options.lease_s} s).",
            standing.lease_expires_at,
        )
    if standing.unread == 0 or standing.next_created_at is None:
        if held:
            return held_back(held)
        return Verdict(
            "end_reached",
            "The group has finished every message that is stored.",
            "Push something, or seek the group back to read old messages again.",
        )
    if standing.retry_at is not None and standing.retry_at > now:
        return Verdict(
            "retry_pause",
            f"The message at the head failed {_times(standing.attempts)} and is tried again at "
            f"{_time(standing.retry_at)}; {_attempts(attempts_left(standing, options))} left before it becomes a "
            "dead letter.",
            "Mend the consumer, or put the message to the dead letters so that others pass; retryDelay is the pause.",
            standing.retry_at,
        )
    ripe = standing.next_created_at + timedelta(seconds=options.delay_s)
    if options.delay_s and ripe > now:
        return Verdict(
            "delayed",
            f"The queue delays its messages by {options.delay_s} s: the next one is due at {_time(ripe)}.",
            "Wait, or lower delayedProcessing.",
            ripe,
        )
    if options.window_s and standing.last_message_at is not None:
        shut = standing.last_message_at + timedelta(seconds=options.window_s)
        if shut > now:
            return Verdict(
                "window_open",
                f"The queue gathers messages until none has come for {options.window_s} s; as the last one came at "
                f"{_time(standing.last_message_at)}, that is at {_time(shut)} unless more come.",
                "Wait for a pause of the pushes, or lower windowBuffer.",
                shut,
            )
    if standing.attempts:
        return Verdict(
            "deliverable",
            f"{_messages(standing.unread)} can be popped now. The head failed {_times(standing.attempts)}; "
            f"{_attempts(attempts_left(standing, options))} left before it becomes a dead letter.",
            "Pop with this group; if the head fails every time, look at it and put it to the dead letters.",
        )
    return Verdict(
        "deliverable",
        f"{_messages(standing.unread)} can be popped now.",
        "Pop with this group; if a consumer gets nothing, check that it names this queue, partition and group.",
    )


def given_up(letters: int) -> Verdict:
    """Everything that is stored was read, but not all of it was completed."""
    return Verdict(
        "end_reached",
        "The group has finished every message that is stored. "
        f"It gave {_messages(letters)} up, which {'is a dead letter' if letters == 1 else 'are dead letters'} now.",
        "Look at the dead letters (GET /api/v1/dlq) and redrive them when the consumer is mended; or push something, "
        "or seek the group back to read old messages again.",
    )


def held_back(held: HeldBack) -> Verdict:
    """Everything that is stored was read, but there is more to come."""
    if held.operations:
        since = "" if held.oldest is None else f", the oldest since {_time(held.oldest)}"
        journal = f" In the journal of this server: {_pushes(held.journalled)}." if held.journalled else ""
        return Verdict(
            "backpressure",
            "Everything that is stored was read. Still in the operation queue: "
            f"{_pushes(held.operations)} accepted under load{since}.{journal}",
            "Wait: they are stored in order. GET /api/v1/operations?status=pending shows them; if the queue does not "
            "get shorter, see GET /api/v1/operations/stats and the load of the database.",
        )
    sentence = f"Everything that is stored was read. Still in the journal of this server: {_pushes(held.journalled)}"
    if held.in_maintenance:
        return Verdict(
            "backpressure",
            f"{sentence}, as long as pushes are switched off for maintenance.",
            'Switch them on again: POST /api/v1/system/maintenance {"enabled": false}.',
        )
    return Verdict(
        "backpressure",
        f"{sentence}, from a time when the database was away.",
        "Wait: the journal is being replayed, in order. GET /api/v1/system/maintenance shows what is left.",
    )


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _pushes(count: int) -> str:
    return "1 push" if count == 1 else f"{count} pushes"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _attempts(count: int) -> str:
    return "1 attempt is" if count == 1 else f"{count} attempts are"
