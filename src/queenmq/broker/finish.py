"""Finish: the acknowledgement of whole leases, and with it the next claim, if one is asked for (take).

Both halves of a take are one call and one transaction, but neither is undone by the other: if the call cannot be made,
each half is tried by itself. Only the claim waits for messages; the lease is finished before.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import asyncpg

from queenmq.broker.lane import Vegas
from queenmq.broker.locked_rows import lease
from queenmq.broker.locking_lane import LockingLane
from queenmq.broker.merging import Policy
from queenmq.broker.parts import Parts
from queenmq.broker.pop import Claim, Delivered, Popper
from queenmq.core.acknowledgement import Finish
from queenmq.errors import InternalError, QueenError, UnavailableError
from queenmq.storage.failures import AnswerLost, RowLocked
from queenmq.storage.statements import statement

NO_LEASE = "Invalid or expired lease"
FINAL = frozenset({None, "lease_not_found"})  # after all other codes the lease is as it was, and may be finished again
_NOT_DONE = "Nothing was changed, because another exception is no message of the lease"
_UNKNOWN = "the connection to the database was lost, and it is not known whether the lease is finished"


@dataclass(slots=True)
class Finished:
    """What became of a lease; `problem` is None if it is finished. `excepted` has the problem of each exception, and
    whether it is a dead letter now."""

    problem: str | None = None
    code: str | None = None  # of the problem
    messages: int = 0
    dead_lettered: int = 0
    excepted: list[tuple[str | None, bool]] = field(default_factory=list)
    is_unknown: bool = False  # the answer of a try got lost, which may have finished it


@dataclass(slots=True)
class Taken:
    """`problem`: the claim could not be made, although the lease may be finished."""

    finished: Finished
    delivered: Delivered | None
    problem: str | None = None


@dataclass(slots=True)
class FinishRequest:
    finish: Finish
    claim: Claim | None = None
    lost: bool = False  # the answer of a try got lost, which may have been applied


class Finisher:
    def __init__(self, parts: Parts, popper: Popper, policy: Policy, concurrency: Vegas | None) -> None:
        self._database = parts.database
        self._activity = parts.activity
        self._long_polls = parts.long_polls
        self._clock = parts.locks.clock
        self._popper = popper
        self._deserted: set[asyncio.Task[Taken]] = set()
        self.lane: LockingLane[FinishRequest, Taken] = LockingLane(
            "finish",
            self._run,
            policy,
            locks=parts.locks,
            rows=lambda request: frozenset((lease(request.finish.lease_id),)),
            concurrency=concurrency,
            orphaned=self._give_back,
        )

    async def finish(self, finish: Finish) -> Finished:
        """Acknowledge everything of a lease. Raises AnswerLost if nobody can know any more whether that was done."""
        request = FinishRequest(finish)
        try:
            finished = (await self._submit(request)).finished
        except (UnavailableError, InternalError) as error:
            if request.lost:
                raise AnswerLost from error
            raise
        if finished.is_unknown:
            raise AnswerLost
        return finished

    async def take(self, finish: Finish, claim: Claim, wait_ms: int = 0) -> Taken:
        """Finish a lease and pop. With `wait_ms`, hold the pop until there is something or the time is over; but not if
        the lease is as it was, which the client must hear."""
        end = self._clock.monotonic() + wait_ms / 1000
        both = asyncio.get_running_loop().create_task(self._both(finish, claim))
        try:
            taken = await asyncio.shield(both)
        except asyncio.CancelledError:
            # The client has gone: what it has finished is finished, and what was taken for it is given back.
            self._deserted.add(both)
            both.add_done_callback(self._desert)
            raise
        left_ms = max(0, int((end - self._clock.monotonic()) * 1000)) if taken.finished.code in FINAL else 0
        return await self._wait(taken, claim, left_ms)

    async def take_now(self, finish: Finish, claim: Claim) -> Taken:
        """The same without waiting for messages, and only if the lease is over then: else the client, which will
        finish it again, would have one more each time. The caller goes on to its end, also if its client goes away."""
        taken = await self._both(finish, claim)
        if taken.finished.code in FINAL:
            return await self._wait(taken, claim, 0)
        self._give_back(taken)
        return Taken(taken.finished, None)

    async def _wait(self, taken: Taken, claim: Claim, left_ms: int) -> Taken:
        """Make the pop that is still to be made, if there is one."""
        if taken.delivered or taken.problem is not None:
            return taken
        if left_ms or taken.delivered is None or not taken.delivered.is_answer:
            await self._pop(taken, claim, left_ms)
        return taken

    async def _both(self, finish: Finish, claim: Claim) -> Taken:
        """In one call if that is possible. Without `delivered`, the pop is still to be made."""
        if not self._popper.may_pop():
            return Taken(await self.finish(finish), None)
        request = FinishRequest(finish, self._popper.with_lease(claim))
        try:
            taken = await self._submit(request)
        except RowLocked as error:
            return Taken(_failed(request, error), None)
        except QueenError:
            return Taken(await self._finish_alone(FinishRequest(finish, lost=request.lost)), None)
        try:
            if taken.delivered is not None:
                self._popper.open(taken.delivered)
        except QueenError as error:
            taken.problem, taken.delivered = str(error), None
        return taken

    async def _finish_alone(self, request: FinishRequest) -> Finished:
        try:
            return (await self._submit(request)).finished
        except QueenError as error:
            return _failed(request, error)

    async def _pop(self, taken: Taken, claim: Claim, wait_ms: int) -> None:
        try:
            taken.delivered = await self._popper.pop(claim, wait_ms)
        except QueenError as error:
            if taken.finished.problem is not None and taken.finished.code != AnswerLost.code:
                raise  # nothing was done; what is unknown must be said
            taken.problem = str(error)

    async def _submit(self, request: FinishRequest) -> Taken:
        weight = 1 if request.claim is None else self._popper.weight(request.claim)
        return await self.lane.submit(request, request.finish.lease_id, weight)

    async def _run(self, requests: list[FinishRequest], lock_timeout: str) -> list[Taken]:
        taking = [place for place, request in enumerate(requests) if request.claim is not None]
        finishing = finish_columns([request.finish for request in requests])

        async def call(claims: list[Claim]) -> list[asyncpg.Record]:
            try:
                if not claims:
                    return await self._database.fetch(statement("finish"), *finishing, lock_timeout)
                claiming = self._popper.columns(claims)
                if self._popper.fairness.rules:
                    return await self._popper.fairness.call("take", claims, *finishing, *claiming, lock_timeout)
                return await self._database.fetch(statement("take"), *finishing, *claiming, lock_timeout)
            except AnswerLost:
                for request in requests:
                    request.lost = True
                raise

        claims = [request.claim for request in requests if request.claim is not None]
        rows = await self._popper.until_answered(claims, call)
        popped = [row for row in rows if row["finishing"] is None]
        finished = self._finished(requests, [row for row in rows if row["finishing"] is not None])
        delivered = dict(zip(taking, self._popper.delivered(claims, popped), strict=True))
        return [Taken(one, delivered.get(place)) for place, one in enumerate(finished)]

    def _finished(self, requests: list[FinishRequest], rows: list[asyncpg.Record]) -> list[Finished]:
        results = [
            Finished(NO_LEASE, "lease_not_found", excepted=[(NO_LEASE, False)] * len(request.finish.excepted))
            for request in requests
        ]
        firsts = [0]
        for request in requests:
            firsts.append(firsts[-1] + len(request.finish.excepted))
        freed = set()
        for row in rows:
            place = row["finishing"] - 1
            result = results[place]
            if row["exception"] is not None:
                result.excepted[row["exception"] - 1 - firsts[place]] = (row["problem"], bool(row["dead_lettered"]))
            if row["queue_name"] is None:
                result.problem, result.code = row["problem"], "message_not_found"
            elif row["exception"] is None and row["problem"] is None:
                result.problem = result.code = None
                result.messages += row["messages"]
                result.dead_lettered += row["dead_lettered"]
                freed.add((row["queue_name"], row["finished_in"], row["consumer_group"]))
                self._activity.finished(row["queue_name"], row["messages"], row["dead_lettered"])
        for request, result in zip(requests, results, strict=True):
            if result.code == "message_not_found":
                result.excepted = [(_NOT_DONE if said == NO_LEASE else said, dead) for said, dead in result.excepted]
            if request.lost and result.problem == NO_LEASE:
                result.problem, result.code, result.is_unknown = _UNKNOWN, AnswerLost.code, True
                result.excepted = [(_UNKNOWN, False)] * len(result.excepted)
        if freed and (self._long_polls.registry.total or self._long_polls.linked):
            self._long_polls.wake_freed(freed)
        self._activity.acked_requests(len(requests))
        return results

    def _desert(self, both: asyncio.Task[Taken]) -> None:
        self._deserted.discard(both)
        if not both.cancelled() and both.exception() is None:
            self._give_back(both.result())

    def _give_back(self, taken: Taken) -> None:
        if taken.delivered is not None:
            self._popper.give_back(taken.delivered)


def _failed(request: FinishRequest, error: QueenError) -> Finished:
    """A lease that could not be finished because of an error, and what is known of it."""
    problem, code = (_UNKNOWN, AnswerLost.code) if request.lost else (str(error), error.code)
    excepted: list[tuple[str | None, bool]] = [(problem, False)] * len(request.finish.excepted)
    return Finished(problem, code, excepted=excepted, is_unknown=request.lost)


def finish_columns(finishes: list[Finish]) -> tuple[list[object], ...]:
    """The arrays that `queen.finish_leases` wants."""
    excepted = [(number, one) for number, finish in enumerate(finishes, 1) for one in finish.excepted]
    return (
        [finish.lease_id for finish in finishes],
        [finish.status for finish in finishes],
        [finish.error for finish in finishes],
        [number for number, _ in excepted],
        [one.partition_id for _, one in excepted],
        [one.transaction_id for _, one in excepted],
        [one.status for _, one in excepted],
        [one.error for _, one in excepted],
    )
