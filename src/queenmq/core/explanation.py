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
    "limited",
    "leased",
    "end_reached",
    "expired",
    "exhausted",
    "retry_pause",
    "parked",
    "delayed",
    "window_open",
    "backpressure",
    "filtered",
    "deliverable",
]

# The same in a word, for lists: the API, the command and the dashboard use these.
STATES: Final[dict[Reason, str]] = {
    "queue_unknown": "No such queue",
    "partition_unknown": "No such partition",
    "group_never_started": "Never started",
    "paused": "Paused",
    "limited": "Limited",
    "leased": "Leased",
    "end_reached": "Up to date",
    "expired": "Expired",
    "exhausted": "Exhausted",
    "retry_pause": "Retrying",
    "parked": "Parked",
    "delayed": "Delayed",
    "window_open": "Gathering",
    "backpressure": "Backpressure",
    "filtered": "Nothing fits",
    "deliverable": "Ready",
}

FAILING: Final = "Failing"  # instead of Ready, if the message that a pop gets has failed before

GroupState = Literal["Up to date", "Waiting", "Reading", "Idle", "Behind", "Paused", "Queue is gone"]
BEHIND_S: Final = 300  # from here on a group is behind
READING_S: Final = 60  # a group that has finished something since then is reading


def group_state(lives: bool, paused: bool, unread: int, lag: int, lag_s: float, reads: bool) -> GroupState:
    """How a group does in a queue. `lag` are the unread messages that are due, the first of them for `lag_s`."""
    if not lives:
        return "Queue is gone"
    if paused:
        return "Paused"
    if unread == 0:
        return "Up to date"
    if lag == 0:
        return "Waiting"
    if lag_s > BEHIND_S:
        return "Behind"
    return "Reading" if reads else "Idle"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a queue that matter here."""

    lease_s: int
    retry_limit: int
    delay_s: int
    window_s: int
    ttl_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionState:
    """The state of a group in a partition, as `queen.describe_position` returns it."""

    now: datetime
    unread: int
    ready: int  # what a pop gets now
    attempts: int  # that failed, of the next message
    lease_id: str | None
    lease_expires_at: datetime | None
    leased: int
    retry_at: datetime | None
    ready_at: datetime | None
    next_created_at: datetime | None
    last_message_at: datetime | None
    expired: int = 0
    doomed: str | None = None  # the transaction id of a message that the next pop gives up
    started: bool = True


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Pushes that were accepted and are not stored yet: in the operation queue, and in the journal of this server."""

    operations: int = 0
    oldest: datetime | None = None
    journalled: int = 0
    in_maintenance: bool = False  # pushes are switched off, so the journal is not replayed
    error: str | None = None  # why the oldest operation failed; those behind it wait
    is_blocked: bool = False  # it is not tried again by itself

    def __bool__(self) -> bool:
        return bool(self.operations or self.journalled)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`until` is the moment from which on the reason will not hold any more, if that is known."""

    reason: Reason
    sentence: str
    advice: str
    until: datetime | None = None
    is_failing: bool = False  # what can be popped has failed before

    @property
    def state(self) -> str:
        return FAILING if self.is_failing else STATES[self.reason]


_NOTHING_HELD: Final = HeldBack()
_NEVER: Final = 9999  # the year until which a parked partition waits
_POP: Final = "Pop with this group; if a consumer gets nothing, check that it names this queue, partition and group."


def attempts_left(position: PositionState, options: Options) -> int:
    """How often the head may still fail before it becomes a dead letter."""
    return max(0, options.retry_limit - position.attempts) + 1


def judge(position: PositionState, options: Options, held: HeldBack = _NOTHING_HELD) -> Verdict:
    """What keeps a pop of this group away from this partition. `held` are the pushes to it that wait."""
    now = position.now
    if position.lease_id is not None and position.lease_expires_at is not None and position.lease_expires_at > now:
        return Verdict(
            "leased",
            f"Lease {position.lease_id} holds {_messages(position.leased)} that {_are(position.leased)} not "
            "acknowledged yet; no other consumer of the group gets messages of this partition until "
            f"{time_text(position.lease_expires_at)}.",
            "Wait for the consumer to acknowledge, or for the lease to end; if the consumer is dead, release the lease "
            "with `queen leases release` or on the page of the partition. Consumers that need longer should renew, and "
            f"those that die often need a shorter leaseTime (now {options.lease_s} s).",
            position.lease_expires_at,
        )
    if position.next_created_at is None:
        return _nothing_left(position, options, held)
    if position.retry_at is not None and position.retry_at > now:
        return _in_pause(position, options, position.retry_at)
    due = _due(position, options)
    if due is not None:
        return due
    if position.started and (position.ready_at is None or position.ready_at > now):
        return _not_awake(position)
    if position.attempts:
        return Verdict(
            "deliverable",
            f"{_messages(position.ready)} can be popped now. The head failed {_times(position.attempts)}; "
            f"{_attempts(attempts_left(position, options))} left before it becomes a dead letter.",
            "Pop with this group; if the head fails every time, inspect it and make it a dead letter.",
            is_failing=True,
        )
    if not position.started:
        return Verdict(
            "deliverable",
            f"{_messages(position.ready)} can be popped now. The group has not popped from this partition yet.",
            "Pop from any partition with this group, or from this one; if a consumer gets nothing, check which "
            "partition it names.",
        )
    return Verdict("deliverable", f"{_messages(position.ready)} can be popped now.{_given_up_soon(position)}", _POP)


def _nothing_left(position: PositionState, options: Options, held: HeldBack) -> Verdict:
    """Nothing is stored that could still be delivered."""
    if held:
        return held_back(held)
    if position.doomed is not None:
        return Verdict(
            "exhausted",
            f"Message {position.doomed} has used up its attempts: its last lease ended without an acknowledgement. The "
            "next pop makes it a dead letter and gets no message.",
            "Inspect the message and the consumer that died; then redrive the message from the dead letters.",
        )
    if position.expired:
        return Verdict(
            "expired",
            f"{_messages(position.expired)} expired unread and {_are(position.expired)} not delivered any more: "
            f"older than the ttl of the queue, {options.ttl_s} s.",
            "Push something, or raise ttl if the consumers need longer.",
        )
    return Verdict(
        "end_reached",
        "The group has finished every message that is stored.",
        "Push something, or seek the group back to read old messages again.",
    )


def _in_pause(position: PositionState, options: Options, until: datetime) -> Verdict:
    if until.year == _NEVER:
        return Verdict(
            "parked",
            f"The message at the head failed {_times(position.attempts)} and has no attempts left, and the policy of "
            f"the group parks its partition then: {_messages(position.unread)} {_are(position.unread)} kept back.",
            "Inspect the message; then retry it, make it a dead letter or delete it: `queen messages retry`, `bury` or "
            "`delete`. The others follow in their order.",
        )
    if position.attempts:
        what = (
            f"The message at the head failed {_times(position.attempts)} and is tried again at {time_text(until)}; "
            f"{_attempts(attempts_left(position, options))} left before it becomes a dead letter."
        )
    else:
        what = f"A message behind the head failed; the partition is tried again at {time_text(until)}."
    return Verdict(
        "retry_pause",
        what,
        "Fix the consumer, or make the message a dead letter so that the others pass; retryDelay sets the pause.",
        until,
    )


def _due(position: PositionState, options: Options) -> Verdict | None:
    """What keeps the next message back for a time that the queue's options say."""
    if position.next_created_at is None:
        return None
    ripe = position.next_created_at + timedelta(seconds=options.delay_s)
    if options.delay_s and ripe > position.now:
        lost = options.ttl_s and options.ttl_s <= options.delay_s
        return Verdict(
            "delayed",
            f"The queue delays its messages by {options.delay_s} s: the next one is due at {time_text(ripe)}."
            + (f" It will have expired by then: ttl is {options.ttl_s} s." if lost else ""),
            "Raise ttl, or lower delayedProcessing." if lost else "Wait, or lower delayedProcessing.",
            ripe,
        )
    if options.window_s and position.last_message_at is not None:
        shut = position.last_message_at + timedelta(seconds=options.window_s)
        if shut > position.now:
            return Verdict(
                "window_open",
                f"The queue collects messages until none was pushed for {options.window_s} s. The last one was pushed "
                f"at {time_text(position.last_message_at)}, so that is at {time_text(shut)} unless more are pushed.",
                "Wait for a pause of the pushes, or lower windowBuffer.",
                shut,
            )
    return None


def _not_awake(position: PositionState) -> Verdict:
    """The row that a pop needs is not claimable, although nothing above explains it."""
    if position.ready_at is not None:
        return Verdict(
            "delayed",
            f"Pops find this partition again at {time_text(position.ready_at)}: that time was set when its last "
            "message was pushed, or by earlier options of the queue.",
            "Wait, or configure the queue again, which sets the time again.",
            position.ready_at,
        )
    return Verdict(
        "delayed",
        f"{_messages(position.unread)} {_are(position.unread)} unread, but pops do not find this partition: "
        "its entry in the index of partitions is wrong.",
        "Run `queen admin resync-lookup`, which repairs it while servers run, and report it: this should not happen.",
    )


def _given_up_soon(position: PositionState) -> str:
    if position.doomed is None:
        return ""
    return f" Message {position.doomed}, which comes first, has used up its attempts: the pop makes it a dead letter."


def given_up(letters: int) -> Verdict:
    """Everything that is stored was read, but not all of it was completed."""
    return Verdict(
        "end_reached",
        "The group has finished every message that is stored. "
        f"{_messages(letters)} became {'a dead letter' if letters == 1 else 'dead letters'}.",
        "Inspect the dead letters (`queen dlq list`, or GET /api/v1/dlq) and redrive them when the consumer is fixed; "
        "or push something, or seek the group back to read old messages again.",
    )


def held_back(held: HeldBack) -> Verdict:
    """Everything that is stored was read, but there is more to come."""
    if held.operations and held.error is not None:
        return Verdict(
            "backpressure",
            "Everything that is stored was read. Still in the operation queue: "
            f"{_pushes(held.operations)}, {'which' if held.operations == 1 else 'of which the oldest'} failed: "
            f"{held.error}",
            "Remove the cause and retry it, or cancel it: GET /api/v1/operations?status=blocked shows it, "
            "then use `queen operations retry` or `queen operations cancel`."
            if held.is_blocked
            else "It is retried with growing pauses, and the others are stored after it. "
            "GET /api/v1/operations shows when; `queen operations retry` retries it at once.",
        )
    if held.operations:
        since = "" if held.oldest is None else f", the oldest since {time_text(held.oldest)}"
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


def time_text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _pushes(count: int) -> str:
    return "1 push" if count == 1 else f"{count} pushes"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _attempts(count: int) -> str:
    return "1 attempt is" if count == 1 else f"{count} attempts are"
