"""A lane whose requests lock rows: who needs one that another transaction holds waits without keeping others waiting.

A call that finds a row locked is taken apart: the requests that need the row step aside and wait in `lock_wait`, with
no connection and no place in the lane; the rest is tried again at once. When the row is free, those who have waited go
on one call after the other, and requests for the same rows that came meanwhile go behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from queenmq.broker.lane import Lane, Vegas
from queenmq.broker.lock_wait import LockWait
from queenmq.broker.locked_rows import Row
from queenmq.broker.merging import Batch, Policy, Request, Result, Waiting
from queenmq.broker.waiting_for_rows import Ticket
from queenmq.errors import DatabaseUnavailable, UnavailableError
from queenmq.storage.failures import RowLocked

# For so long requests queue up behind those that have waited for a row which is free again. Then they are treated as
# all others, or a partition that is always busy would never go back to the usual way.
_CATCH_UP_S = 1.0


class LockingLane(Lane[Request, Result]):
    """`rows` says which rows a request locks, and `locks` is where it waits for them. The rest is as in every lane."""

    def __init__(
        self,
        name: str,
        run: Callable[[list[Request], str], Awaitable[list[Result]]],
        policy: Policy,
        *,
        locks: LockWait,
        rows: Callable[[Request], frozenset[Row]],
        concurrency: Vegas | None = None,
        orphaned: Callable[[Result], None] | None = None,
        admission: Callable[[], Callable[[Request], bool]] | None = None,
        repeat_for_s: float = 0.0,
        refuses: Callable[[Result], bool] = lambda _result: False,
    ) -> None:
        super().__init__(
            *(name, run, policy),
            concurrency=concurrency,
            orphaned=orphaned,
            admission=admission,
            repeat_for_s=repeat_for_s,
            refuses=refuses,
            clock=locks.clock,
        )
        self._locks = locks
        self._rows = rows
        self._locked = locks.known
        self._freed: Batch[Request, Result] = []  # have waited for rows that are free now, in order
        # `_catching_up` is how many of these, and of those that run, need a row.
        self._caught_up_by = 0.0
        self._catch_up: asyncio.Task[None] | None = None
        self._trying: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait until everything that was submitted is answered."""
        await super().close()
        while self._catch_up is not None or self._trying:
            await asyncio.wait(self._trying | ({self._catch_up} if self._catch_up is not None else set()))
            await super().close()

    def _abandon(self, waiting: Waiting[Request, Result]) -> None:
        if waiting.ticket is not None:
            self._locks.leave(waiting.ticket)
        super()._abandon(waiting)

    def _steps_aside(self, waiting: Waiting[Request, Result]) -> bool:
        """Whether it waits now: for a locked row, or behind those who have waited for one."""
        rows = self._rows(waiting.request)
        locked = self._locks.locked(rows)
        if locked:
            self._park(waiting, rows, locked)
            return True
        if rows.isdisjoint(self._catching_up) or waiting.since > self._caught_up_by:
            return False
        self._follow(waiting, rows)
        return True

    def _park(self, waiting: Waiting[Request, Result], rows: frozenset[Row], locked: set[Row] | None) -> None:
        """Have it wait for these rows; with None, for something that the probe does not see."""
        if waiting.answer.done():
            return
        if waiting.ticket is None:
            waiting.ticket = Ticket(rows, waiting.since, partial(self._go_on, waiting), partial(self._fail, [waiting]))
        try:
            if locked is None:
                self._locks.suspect(waiting.ticket)
            else:
                self._locks.park(waiting.ticket, locked)
        except UnavailableError as error:
            self._fail([waiting], error)

    def _go_on(self, waiting: Waiting[Request, Result]) -> None:
        """What it waited for is free."""
        if waiting.ticket is not None and waiting.ticket.trying is not None:
            task = asyncio.get_running_loop().create_task(self._try_alone(waiting, waiting.ticket))
            self._trying.add(task)
            task.add_done_callback(self._trying.discard)
            return
        self._caught_up_by = self._clock.monotonic() + _CATCH_UP_S
        self._follow(waiting, self._rows(waiting.request))

    def _follow(self, waiting: Waiting[Request, Result], rows: frozenset[Row]) -> None:
        self._catching_up.update(rows)
        self._freed.append(waiting)
        # One that has ended and whose callback has not run yet will not take this one any more.
        if self._catch_up is None or self._catch_up.done():
            self._catch_up = asyncio.get_running_loop().create_task(self._run_freed())
            self._catch_up.add_done_callback(self._caught_up)

    def _caught_up(self, task: asyncio.Task[None]) -> None:
        if self._catch_up is task:
            self._catch_up = None

    async def _run_freed(self) -> None:
        """The calls of those who have waited, one after the other so that nobody overtakes."""
        while self._freed:
            batch = self._take_freed()
            await self._execute(batch, has_waited=True)
            self._forget_rows(batch)

    def _take_freed(self) -> Batch[Request, Result]:
        freed, self._freed = self._freed, []
        admit = self._admission() if self._admission is not None else lambda _request: True
        policy = self._policy
        batch: Batch[Request, Result] = []
        weight = 0
        for place, waiting in enumerate(freed):
            full = len(batch) >= policy.max_requests or (batch and weight + waiting.weight > policy.max_weight)
            if full:
                self._freed += freed[place:]
                break
            rows = self._rows(waiting.request)
            locked = self._locks.locked(rows)
            if waiting.answer.done():
                self._forget_rows([waiting])
            elif locked:
                self._forget_rows([waiting])
                self._park(waiting, rows, locked)
            elif not admit(waiting.request):
                self._freed.append(waiting)
            else:
                batch.append(waiting)
                weight += waiting.weight
        return batch

    def _forget_rows(self, batch: Batch[Request, Result]) -> None:
        for waiting in batch:
            for row in self._rows(waiting.request):
                self._catching_up[row] -= 1
                if not self._catching_up[row]:
                    del self._catching_up[row]

    async def _try_alone(self, waiting: Waiting[Request, Result], ticket: Ticket) -> None:
        async with self._locks.alone(ticket):
            if not waiting.answer.done():
                await self._execute([waiting])

    async def _sidestep(
        self, batch: Batch[Request, Result], error: RowLocked, is_doubted: bool
    ) -> Batch[Request, Result]:
        """Have those wait who need a locked row. Returns the others, who are to be tried again at once.

        `is_doubted`: the last time nothing was found, either.
        """
        needs = [self._rows(waiting.request) for waiting in batch]
        first = batch[0].ticket
        tried = None if first is None else first.trying
        try:
            locked = await self._locks.find(frozenset().union(*needs), tried)
        except UnavailableError as failure:
            self._fail(batch, failure)
            return []
        if locked is None:
            await self._execute_patiently(batch)
            return []
        left = []
        for waiting, rows in zip(batch, needs, strict=True):
            if rows.isdisjoint(locked):
                left.append(waiting)
            else:
                self._park(waiting, rows, locked & rows)
        if len(left) < len(batch) or not (is_doubted or tried is not None):
            return left
        # It is locked, and no probe sees it: who needs it is found by halving.
        if len(batch) == 1:
            self._park(batch[0], needs[0], None)
        else:
            await self._isolate(batch, error)
        return []

    async def _execute_patiently(self, batch: Batch[Request, Result]) -> None:
        """A whole table is locked, and nobody can go on: wait for it in the call."""
        try:
            results = await self._call(batch, self._locks.longest, is_patient=True)
        except DatabaseUnavailable as error:
            self._fail(batch, error)
        except Exception as error:
            await self._isolate(batch, error)
        else:
            self._deal(batch, results)
