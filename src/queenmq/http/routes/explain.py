"""GET /api/v1/explain/{queue}: why is nothing delivered?"""

from __future__ import annotations

import asyncpg

from queenmq.cluster.maintenance import Switch
from queenmq.core.explanation import HeldBack, Options, Standing, Verdict, attempts_left, given_up, held_back, judge
from queenmq.core.names import QUEUE_MODE, check_name, iso_millis
from queenmq.engine.engine import Engine
from queenmq.http.decoding import query_name
from queenmq.http.figures import Explained, ExplainedPlace
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import LABEL, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.routes.resources import moment

_MOST_PLACES = 20
_MOST_GROUPS = 20
_DEFAULT_LEASE_S = 60
_WHICH = (
    Parameter("partition", LABEL, "Only about this partition."),
    Parameter("consumerGroup", LABEL, f"About this group; `group` is the same. {QUEUE_MODE} by default."),
    Parameter("group", LABEL, "About this group."),
)
_PAUSED = Verdict(
    "paused",
    "Pops are switched off for maintenance on every server; long polls are held meanwhile.",
    'Switch them on again: POST /api/v1/system/maintenance/pop {"enabled": false}.',
)


def add_routes(router: Router, engine: Engine) -> None:
    reports = engine.reports

    @documented({200: Explained}, query=_WHICH)
    async def explain(request: Request) -> Response:
        """Why a group gets nothing from a queue, or from one partition of it, and what to do about it."""
        queue = request.params[0]
        check_name(queue, "queue")
        partition = query_name(request, "partition")
        asked = query_name(request, "consumerGroup") or query_name(request, "group")
        row = await reports.row("explain_queue", queue)
        subscribed = await reports.rows("explain_groups", queue, None, _MOST_GROUPS)
        names = [group["name"] for group in subscribed]
        group = asked or _likeliest(names)
        held = await _held(engine, queue, partition)
        explained = Explained(
            queue=queue,
            partition=partition,
            consumer_group=group,
            groups=names,
            reason="deliverable",
            explanation="",
            advice="",
            until=None,
            paused=engine.popper.paused,
            waiters=engine.popper.waiting.registry.parked().get(queue, 0),
            queued_pushes=sum(one.operations for one in held.values()),
            journalled_pushes=sum(one.journalled for one in held.values()),
            dead_letters=0,
            partitions=[],
        )
        if row is None:
            return _answer(explained, _first_held(held) or _unknown_queue(queue, names))
        place = None
        if partition is not None:
            [found] = await reports.rows("partition_ids", [queue], [partition])
            place = found["id"]
            if place is None:
                return _answer(explained, _first_held(held) or _unknown_partition(queue, partition))
        rows = await reports.rows("explain_places", row["id"], group, place, _MOST_PLACES)
        explained.dead_letters = (await reports.one("explain_dead_letters", row["id"], group, place))["letters"]
        if not rows:
            return _answer(explained, _PAUSED if engine.popper.paused else _never_started(group, names))
        options = _options(row)
        verdicts = [(_standing(standing, row), standing) for standing in rows]
        nothing = HeldBack()
        judged = [
            (judge(standing, options, held.get(record["partition"], nothing)), standing, record)
            for standing, record in verdicts
        ]
        explained.partitions = [
            _place(verdict, standing, record, options, held.get(record["partition"], nothing))
            for verdict, standing, record in judged
        ]
        return _answer(explained, _PAUSED if engine.popper.paused else _overall(judged, held, explained.dead_letters))

    router.add("GET", "/api/v1/explain/{queue}", explain, Role.READ_ONLY)


async def _held(engine: Engine, queue: str, partition: str | None) -> dict[str, HeldBack]:
    """What was pushed and is not stored yet, by partition."""
    rows = await engine.reports.rows("explain_held", queue, partition, _MOST_PLACES)
    journalled = {} if engine.buffer is None else engine.buffer.held_in(queue, partition)
    operations = {row["partition"]: (row["operations"], row["oldest"]) for row in rows}
    in_maintenance = engine.maintenance.is_on(Switch.PUSH)
    return {
        name: HeldBack(*operations.get(name, (0, None)), journalled.get(name, 0), in_maintenance)
        for name in (*operations, *journalled)
    }


def _first_held(held: dict[str, HeldBack]) -> Verdict | None:
    return next((held_back(one) for one in held.values()), None)


def _likeliest(names: list[str]) -> str:
    """The group that is meant if none is named: queue mode, or the only one there is."""
    return names[0] if len(names) == 1 else QUEUE_MODE


def _answer(explained: Explained, verdict: Verdict) -> Response:
    explained.reason = verdict.reason
    explained.explanation = verdict.sentence
    explained.advice = verdict.advice
    explained.until = moment(verdict.until)
    return json_response(200, explained)


def _overall(
    judged: list[tuple[Verdict, Standing, asyncpg.Record]], held: dict[str, HeldBack], letters: int
) -> Verdict:
    """The verdict on the queue: of the partition that comes next, but rather of one that has something unread."""
    verdicts = [verdict for verdict, _, _ in judged]
    if len(verdicts) == 1 and verdicts[0].reason != "end_reached":
        return verdicts[0]
    first = next((v for v in verdicts if v.reason == "deliverable"), None)
    first = first or next((v for v in verdicts if v.reason != "end_reached"), verdicts[0])
    name = judged[verdicts.index(first)][2]["partition"]
    if first.reason == "end_reached":
        return _first_held(held) or (given_up(letters) if letters else first)
    return Verdict(first.reason, f"Partition {name!r} comes next: {first.sentence}", first.advice, first.until)


def _unknown_queue(queue: str, names: list[str]) -> Verdict:
    waiting = f" {len(names)} group(s) wait for it." if names else ""
    return Verdict(
        "queue_unknown",
        f"There is no queue {queue!r}.{waiting}",
        "Check the name (case counts), or push something: that makes the queue.",
    )


def _unknown_partition(queue: str, partition: str) -> Verdict:
    return Verdict(
        "partition_unknown",
        f"Queue {queue!r} has no partition {partition!r}.",
        "Check the name, or push something to it: that makes the partition.",
    )


def _never_started(group: str, names: list[str]) -> Verdict:
    others = [name for name in names if name != group]
    known = f" Groups that did: {', '.join(others)}." if others else ""
    who = "A reader without a group" if group == QUEUE_MODE else f"Group {group!r}"
    return Verdict(
        "group_never_started",
        f"{who} has never popped here, so it has no place in the queue.{known}",
        "Let a consumer of this group pop once; it starts at the first stored message, or at new ones if it says so.",
    )


def _options(row: asyncpg.Record) -> Options:
    return Options(
        lease_s=row["lease_time_s"] or _DEFAULT_LEASE_S,
        retry_limit=row["retry_limit"],
        delay_s=row["delayed_processing_s"],
        window_s=row["window_buffer_s"],
    )


def _standing(row: asyncpg.Record, queue: asyncpg.Record) -> Standing:
    return Standing(
        now=queue["now"],
        unread=row["unread"],
        attempts=row["attempts"],
        lease_id=None if row["lease_id"] is None else str(row["lease_id"]),
        lease_expires_at=row["lease_expires_at"],
        leased=row["leased"],
        retry_at=row["retry_at"],
        next_created_at=row["created_at"],
        last_message_at=row["last_message_at"],
    )


def _place(
    verdict: Verdict, standing: Standing, row: asyncpg.Record, options: Options, held: HeldBack
) -> ExplainedPlace:
    live = verdict.reason == "leased"
    return ExplainedPlace(
        partition=row["partition"],
        partition_id=str(row["partition_id"]),
        reason=verdict.reason,
        explanation=verdict.sentence,
        advice=verdict.advice,
        until=moment(verdict.until),
        position=row["position"],
        last_offset=row["last_offset"],
        unread=row["unread"],
        attempts=row["attempts"],
        attempts_left=attempts_left(standing, options),
        lease_id=standing.lease_id if live else None,
        lease_expires_at=moment(row["lease_expires_at"]) if live else None,
        leased=row["leased"] if live else 0,
        next_transaction_id=row["transaction_id"],
        next_message_at=None if row["created_at"] is None else iso_millis(row["created_at"]),
        last_consumed_at=moment(row["last_consumed_at"]),
        queued_pushes=held.operations,
        journalled_pushes=held.journalled,
    )
