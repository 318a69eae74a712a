"""What needs a person, the worst first, each with a sentence that names the cause and what to do about it.

Only what the database knows: whether it answers, and which servers do, the server that is asked knows by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from queenmq.core.explanation import BEHIND_S, READING_S, Reason
from queenmq.core.names import QUEUE_MODE
from queenmq.reports import attempts, horizon, partitions, pauses
from queenmq.reports.places import JudgedPlace
from queenmq.reports.reading import Query, Reader, Reports
from queenmq.reports.status import FrequentError, frequent_errors

Kind = Literal["failing", "behind", "paused", "full", "gathering", "token_expired", "dead_letters", "horizon"]

_MOST: Final = 10  # of each kind
_MOST_ERRORS: Final = 5
_LONGEST_ERROR: Final = 300
_TOKEN_DAYS: Final = 7
_LETTERS_FOR: Final = timedelta(days=1)
_FAILED: Final = ("retry_pause", "parked", "exhausted")


class Trouble(Struct, frozen=True, kw_only=True):
    """`reason` is why a group is behind, as explain calls it; `statement` SQL for an administrator of the database;
    `fingerprint` that of the error of dead letters."""

    kind: Kind
    sentence: str
    advice: str
    reason: Reason | None = None
    queue: str | None = None
    partition: str | None = None
    consumer_group: str | None = None
    fingerprint: str | None = None
    statement: str | None = None


class _Example(Struct, frozen=True):
    queue: str
    consumer_group: str
    partition: str
    error: str | None


class _Behind(JudgedPlace, frozen=True):
    """A group that is behind, in the partition that waits longest, and the consumer of it that popped last."""

    queue: str
    consumer_group: str
    partition: str
    partition_id: UUID
    partitions: int
    time_lag_s: float
    is_known: bool
    reader: str | None
    host: str | None
    process: str | None
    address: str | None
    subject: str | None
    seen_ago_s: float | None
    finished_ago_s: float | None


class _OpenWindow(Struct, frozen=True):
    queue: str
    consumer_group: str
    partition: str
    window_buffer_s: int
    unread: int
    open_for_s: float


class _FullQueue(Struct, frozen=True):
    queue: str
    max_size: int
    size: int
    consumer_group: str | None
    unread: int | None


class _ExpiredToken(Struct, frozen=True):
    name: str
    expires_at: datetime


class _Found(Struct, frozen=True):
    failing: list[partitions.FailingHeads]
    examples: list[_Example]
    behind: list[_Behind]
    heads: dict[attempts.Head, attempts.HeadAttempts]
    pauses: list[pauses.ListedPause]
    full: list[_FullQueue]
    windows: list[_OpenWindow]
    tokens: list[_ExpiredToken]
    errors: list[FrequentError]


_EXAMPLES: Final = Query("failing_head_examples", _Example)
_BEHIND: Final = Query("groups_behind", _Behind)
_WINDOWS: Final = Query("windows_open", _OpenWindow)
_FULL: Final = Query("queues_full", _FullQueue)
_TOKENS: Final = Query("tokens_expired", _ExpiredToken)


async def troubles(
    reports: Reports,
    first_seen: horizon.FirstSeen,
    now: datetime,
    *,
    starts_new: bool,
    pops_paused: bool,
    held_long_s: int,
) -> list[Trouble]:
    """`now` decides which dead letters are old news; `starts_new`: a group that says nothing starts with new messages;
    `pops_paused`: they are switched off on every server; `held_long_s`: from when on a held horizon is a trouble."""

    async def read(reader: Reader) -> _Found:
        failing = await partitions.failing_heads(reader, None, _MOST)
        behind = await reader.rows(_BEHIND, BEHIND_S, _MOST, starts_new)
        leased = [(one.partition_id, one.consumer_group, one.lease_id, None) for one in behind if one.is_leased]
        names = [[one.queue for one in failing], [one.consumer_group for one in failing]]
        return _Found(
            failing=failing,
            examples=await reader.rows(_EXAMPLES, *names) if failing else [],
            behind=behind,
            heads=await attempts.of_heads(reader, leased),
            pauses=await pauses.page(reader, None, None, _MOST),
            full=await reader.rows(_FULL, _MOST),
            windows=await reader.rows(_WINDOWS, BEHIND_S, _MOST),
            tokens=await reader.rows(_TOKENS, _TOKEN_DAYS, _MOST),
            errors=await frequent_errors(reader, None),
        )

    found = await reports.snapshot(read)
    held = await horizon.horizon(reports, first_seen)
    return [
        *_failing(found),
        *_behind(found, pops_paused),
        *(_paused(pause) for pause in found.pauses),
        *(_full(queue) for queue in found.full),
        *(_gathering(window) for window in found.windows),
        *(_expired(token, now) for token in found.tokens),
        *_letters(found.errors, now),
        *(_held(holder) for holder in held.holders if (holder.seconds or 0) >= held_long_s),
    ]


def _failing(found: _Found) -> Iterator[Trouble]:
    examples = {(one.queue, one.consumer_group): one for one in found.examples}
    for one in found.failing:
        example = examples.get((one.queue, one.consumer_group))
        error = f" The last error: {_cut(example.error)}" if example is not None and example.error else ""
        has = "has" if one.partitions == 1 else "have"
        yield Trouble(
            kind="failing",
            sentence=f"{_count(one.partitions, 'partition')} of {one.queue} {has} a failing head: group "
            f"{_group(one.consumer_group)}, up to {_count(one.attempts, 'attempt')}.{error}",
            advice="Fix the consumer; if the message itself is bad, make it a dead letter so that the others pass.",
            queue=one.queue,
            partition=example.partition if example is not None and one.partitions == 1 else None,
            consumer_group=one.consumer_group,
        )


def _behind(found: _Found, pops_paused: bool) -> Iterator[Trouble]:
    """Without those that are said already: the head fails, or somebody has paused it."""
    failing = {(one.queue, one.consumer_group) for one in found.failing}
    paused = {one.queue for one in found.pauses}
    for row in found.behind:
        verdict = row.verdict(pops_paused)
        if verdict.reason in _FAILED and (row.queue, row.consumer_group) in failing:
            continue
        if verdict.reason == "paused" and row.queue in paused:
            continue
        others = f" and {_count(row.partitions - 1, 'other partition')}" if row.partitions > 1 else ""
        why, advice = verdict.sentence, verdict.advice
        if verdict.reason == "leased":
            head = found.heads.get((row.partition_id, row.consumer_group), attempts.NOTHING)
            since = "" if head.held_since is None else f" for {_span((row.now - head.held_since).total_seconds())}"
            why = f"A lease on {_count(row.leased, 'message')} has been held{since} by {_consumer(head.holder)}."
            advice = (
                "If that consumer is gone, release the lease (`queen leases release`, or the page of the partition); "
                "if it is at work, wait or make its batches smaller."
            )
        elif verdict.reason == "deliverable":
            why = _not_read(row)
            advice = "Start its consumers, or more; if nobody needs the messages, skip them or delete the group."
        yield Trouble(
            kind="behind",
            sentence=f"Group {_group(row.consumer_group)} is {_span(row.time_lag_s)} behind in {row.queue} / "
            f"{row.partition}{others}. {why}",
            advice=advice,
            reason=verdict.reason,
            queue=row.queue,
            partition=row.partition,
            consumer_group=row.consumer_group,
        )


def _not_read(row: _Behind) -> str:
    """A pop would get the messages, so it is nobody's or too few."""
    signs = [ago for ago in (row.seen_ago_s, row.finished_ago_s) if ago is not None]
    if signs and min(signs) <= READING_S:
        return "It reads, but not as fast as messages come."
    if row.is_known and row.seen_ago_s is not None:
        last = attempts.Consumer(row.reader, row.host, row.process, row.address, row.subject)
        return f"Nobody reads: its last consumer was {_consumer(last)}, {_span(row.seen_ago_s)} ago."
    if row.finished_ago_s is not None:
        return f"Nobody reads: its last message was finished {_span(row.finished_ago_s)} ago."
    return "Nobody reads, and it has finished no message yet."


def _paused(pause: pauses.ListedPause) -> Trouble:
    verdict = pause.verdict()
    return Trouble(
        kind="paused",
        sentence=f"{pause.queue}: {verdict.sentence}",
        advice=verdict.advice,
        queue=pause.queue,
        partition=pause.partition,
        consumer_group=pause.consumer_group,
    )


def _full(queue: _FullQueue) -> Trouble:
    slowest = (
        "No group reads it."
        if queue.consumer_group is None
        else f"Its slowest group is {_group(queue.consumer_group)}, with {queue.unread or 0:,} unread."
    )
    return Trouble(
        kind="full",
        sentence=f"Queue {queue.queue} is full: {queue.size:,} of {queue.max_size:,} messages (maxSize). Pushes are "
        f"refused. {slowest}",
        advice="Let the slowest group catch up, raise maxSize, or delete the group if nobody needs it any more.",
        queue=queue.queue,
        consumer_group=queue.consumer_group,
    )


def _gathering(window: _OpenWindow) -> Trouble:
    return Trouble(
        kind="gathering",
        sentence=f"The window of {window.queue} / {window.partition} has been open for {_span(window.open_for_s)}: "
        f"pushes come more often than every {window.window_buffer_s} s (windowBuffer), so group "
        f"{_group(window.consumer_group)} gets none of {_count(window.unread, 'message')}.",
        advice="Lower windowBuffer, or make a pause between the pushes.",
        queue=window.queue,
        partition=window.partition,
        consumer_group=window.consumer_group,
    )


def _expired(token: _ExpiredToken, now: datetime) -> Trouble:
    return Trouble(
        kind="token_expired",
        sentence=f"The token {token.name} was in use and expired {_ago(token.expires_at, now)}: requests with it are "
        "refused (401).",
        advice="Make a new one of this name and give it to its users, or revoke it if nobody needs it.",
    )


def _letters(errors: list[FrequentError], now: datetime) -> Iterator[Trouble]:
    for one in [one for one in errors if one.last_at > now - _LETTERS_FOR][:_MOST_ERRORS]:
        yield Trouble(
            kind="dead_letters",
            sentence=f"{_count(one.count, 'dead letter')} of one cause, the last {_ago(one.last_at, now)}: "
            f"{_cut(one.error)}",
            advice="Fix the consumer, then redrive them.",
            fingerprint=one.fingerprint,
        )


def _held(holder: horizon.Holder) -> Trouble:
    return Trouble(
        kind="horizon",
        sentence=f"For {_span(holder.seconds or 0)}, {horizon.described(holder)} has kept dead rows from being "
        "removed: tables grow and requests get slower.",
        advice=f"To mend it, {horizon.advice(holder)}.",
        statement=horizon.statement(holder),
    )


def _group(name: str) -> str:
    return "queue mode" if name == QUEUE_MODE else name


def _consumer(one: attempts.Consumer | None) -> str:
    if one is None:
        return "an unknown consumer"
    told = one.name or one.address or "an unnamed consumer"
    if one.host:
        told += f" on {one.host}"
    return f"{told}, process {one.process}" if one.process else told


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _cut(error: str) -> str:
    return error if len(error) <= _LONGEST_ERROR else f"{error[:_LONGEST_ERROR]}…"


def _ago(moment: datetime, now: datetime) -> str:
    return f"{_span(max(0.0, (now - moment).total_seconds()))} ago"


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"
