"""Ack: acknowledgements of many requests become one call of `queen.ack_runs`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import asyncpg

from queenmq.broker.lane import Vegas
from queenmq.broker.locked_rows import Row, lease, position
from queenmq.broker.locking_lane import LockingLane
from queenmq.broker.merging import Policy
from queenmq.broker.parts import Parts
from queenmq.core.acknowledgement import COMPLETED, Acknowledgement, Run
from queenmq.errors import InternalError, QueenError, UnavailableError
from queenmq.storage.database import LOST_ANSWERS
from queenmq.storage.failures import AnswerLost
from queenmq.storage.statements import statement


@dataclass(slots=True)
class Acked:
    """What became of one acknowledgement; `problem` is None if it was applied."""

    problem: str | None
    queue: str | None
    partition: str | None
    lease_released: bool
    dead_lettered: bool
    is_unknown: bool = False  # the answer of a try got lost, and there is no trace of whether it was applied


@dataclass(slots=True)
class AckRequest:
    runs: list[Run]
    messages: int
    lost: bool = False  # the answer of a try got lost, which may have been applied; later tries are judged by that


def run_columns(runs: list[Run]) -> tuple[list[object], ...]:
    """The parallel arrays that `queen.ack_runs` wants."""
    return (
        [run.first.partition_id for run in runs],
        [run.first.group for run in runs],
        [run.first.lease_id for run in runs],
        [run.first.status for run in runs],
        [run.first.error for run in runs],
        [len(run.transactions) for run in runs],
        [run.joined for run in runs],
    )


def columns(items: list[Acknowledgement]) -> tuple[list[object], ...]:
    """The parallel arrays that `queen.ack` wants."""
    return (
        [i.partition_id for i in items],
        [i.transaction_id for i in items],
        [i.group for i in items],
        [i.lease_id for i in items],
        [i.status for i in items],
        [i.error for i in items],
    )


def positions(items: Iterable[Acknowledgement], leases: Iterable[str] = ()) -> frozenset[Row]:
    """The rows that these acknowledgements lock. `leases` are those of their transaction."""
    rows = {position(item.partition_id, item.group) for item in items if item.group is not None}
    rows.update(lease(item.lease_id) for item in items if item.group is None and item.lease_id is not None)
    return frozenset(rows | {lease(lease_id) for lease_id in leases})


class AckAdmission:
    """Which requests may share one call, so that retry or dead letter is decided once per position and request.

    Two requests about one position share a call only if both do nothing but complete messages. A request that has to
    wait keeps later ones of its positions waiting too, so order within a position is kept.
    """

    def __init__(self) -> None:
        self._completing_only: set[tuple[str, str | None]] = set()
        self._exclusive: set[tuple[str, str | None]] = set()  # anything else happens, or something waits

    def admit(self, request: AckRequest) -> bool:
        positions = {(run.first.partition_id, run.first.group) for run in request.runs}
        completes = all(run.first.status in COMPLETED for run in request.runs)
        admitted = positions.isdisjoint(self._exclusive) and (completes or positions.isdisjoint(self._completing_only))
        (self._completing_only if admitted and completes else self._exclusive).update(positions)
        return admitted


class Acker:
    def __init__(self, parts: Parts, policy: Policy, concurrency: Vegas | None) -> None:
        self._database = parts.database
        self._activity = parts.activity
        self._long_polls = parts.long_polls
        self.lane: LockingLane[AckRequest, list[Acked]] = LockingLane(
            "ack",
            self._run,
            policy,
            locks=parts.locks,
            rows=lambda request: positions(run.first for run in request.runs),
            concurrency=concurrency,
            admission=lambda: AckAdmission().admit,
        )

    async def ack(self, runs: list[Run]) -> list[Acked]:
        """Apply the acknowledgements of one request; a result for each message, in their order. Raises AnswerLost if
        nobody can know any more whether that was done."""
        if not runs:
            return []
        request = AckRequest(runs, sum(len(run.transactions) for run in runs))
        first = runs[0].first
        acked = await self.lane.submit(request, (first.partition_id, first.group), request.messages)
        if request.lost and any(one.is_unknown for one in acked):
            raise AnswerLost
        return acked

    async def _run(self, requests: list[AckRequest], lock_timeout: str) -> list[list[Acked]]:
        acked = iter(await self._apply_until_answered(requests, lock_timeout))
        self._activity.acked_requests(len(requests))
        return [list(islice(acked, request.messages)) for request in requests]

    async def _apply_until_answered(self, requests: list[AckRequest], lock_timeout: str) -> list[Acked]:
        lost = 0
        while True:
            try:
                acked = await self._apply([run for request in requests for run in request.runs], lock_timeout)
            except AnswerLost:
                lost += 1
                # In the request, because the next try may be a call of others: if this one finds a row locked now.
                for request in requests:
                    request.lost = True
                if lost > LOST_ANSWERS:
                    raise
            except QueenError as error:
                error.is_unknown = lost > 0
                raise
            else:
                if any(request.lost for request in requests):
                    return await self._with_the_finished(requests, acked)
                return acked

    async def _with_the_finished(self, requests: list[AckRequest], acked: list[Acked]) -> list[Acked]:
        """After a lost answer, what was applied by the try whose answer it was is done, although its lease has ended
        with that."""
        if all(one.problem is None for one in acked):
            return acked
        asked = [
            (run.first, transaction, request.lost)
            for request in requests
            for run in request.runs
            for transaction in run.transactions
        ]
        try:
            found = await self._database.fetch(
                statement("acks_finished"),
                [said.partition_id for said, _, _ in asked],
                [transaction for _, transaction, _ in asked],
                [said.group for said, _, _ in asked],
                [said.lease_id for said, _, _ in asked],
                repeatable=True,
            )
        except (UnavailableError, InternalError) as error:
            raise AnswerLost from error  # some of it is done
        for (said, _, is_lost), one, row in zip(asked, acked, found, strict=True):
            if not is_lost or one.problem is None:
                continue
            was_applied = applied_before(said.status, row)
            if was_applied:
                one.problem, one.dead_lettered = None, row["dead"]
                one.queue, one.partition = row["queue_name"], row["partition_name"]
            one.is_unknown = was_applied is None
        return acked

    async def _apply(self, runs: list[Run], lock_timeout: str) -> list[Acked]:
        rows = await self._database.fetch(statement("ack"), *run_columns(runs), lock_timeout)
        freed = {
            (row["queue_name"], row["partition_name"], row["consumer_group"]) for row in rows if row["lease_released"]
        }
        if freed and (self._long_polls.registry.total or self._long_polls.linked):
            self._long_polls.wake_freed(freed)
        self._activity.acked(
            (row["queue_name"], row["problem"], row["dead_lettered"], _messages(runs, row)) for row in rows
        )
        return list(acked_of(runs, rows))


def applied_before(status: str, row: asyncpg.Record) -> bool | None:
    """Whether an acknowledgement that is refused now was applied by an earlier try, by its row of `acks_finished`.

    None if nobody can say: the lease has expired since and another one has taken its place, under which the message may
    have been finished as well.
    """
    match status:
        case "failed" | "dlq":
            return bool(row["said"] == status)
        case "retry":
            # It leaves no trace but the end of the lease, by which the message was handed back in any case.
            return not (row["held"] or row["expired"])
    if not row["finished"] or row["dead"]:
        return False
    return None if row["expired"] else True


def acked_of(runs: list[Run], rows: list[asyncpg.Record]) -> Iterator[Acked]:
    """One for each message, in order, of the rows of `queen.ack_runs`: those of a lease that was finished share one."""
    answers: list[list[Acked]] = [[] for _ in runs]
    for row in rows:
        one = Acked(
            problem=row["problem"],
            queue=row["queue_name"],
            partition=row["partition_name"],
            lease_released=row["lease_released"],
            dead_lettered=row["dead_lettered"],
        )
        answers[row["run"] - 1] += [one] * _messages(runs, row)
    return chain.from_iterable(answers)


def _messages(runs: list[Run], row: asyncpg.Record) -> int:
    """How many messages a row of `queen.ack_runs` is about."""
    return 1 if row["item"] is not None else len(runs[row["run"] - 1].transactions)
