"""LOCK_WAIT: requests that need a row which another transaction holds wait here, and nobody waits with them.

Anybody may write to the tables in a transaction of his own, and keep it open. So calls wait only a moment for a lock;
one that fails for it is taken apart: a probe, which never waits, finds the rows that are locked, the requests that
need one of them step aside, and the rest is repeated at once. Who stepped aside holds no connection and no place in a
lane. The locked rows are probed again with growing pauses, all with one statement; when one is free, those who waited
for it go on in the order in which they came. After too long a request fails and names the holder of the row.

Not everything can be probed: a partition that the other transaction is just making cannot be seen. The row of such a
request is tried instead: the request that came first repeats its call now and then, alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from queenmq.broker.locked_rows import Row, find_locked, holder_of, refusal_for
from queenmq.broker.waiting_for_rows import (
    AGAIN_TIMEOUT,
    FIRST_PAUSE_S,
    FIRST_TIMEOUT,
    IDLE_PAUSE_S,
    NEXT_TIMEOUT,
    LockedRow,
    Ticket,
)
from queenmq.clock import SYSTEM, Clock
from queenmq.errors import Overloaded, QueenError, ServerStopping, UnavailableError
from queenmq.storage.database import Database
from queenmq.storage.failures import RowLocked

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_FORGET_AFTER_S: Final = 60.0
_MOST_PROBED: Final = 1000
# Probing takes at most this share of the time.
_PROBE_SHARE: Final = 0.1
# Calls at a time, each with a connection: to find out whether what cannot be probed is still locked, and for what is
# not merged and has waited.
_MOST_TRIED: Final = 2
_MOST_AGAIN: Final = 4
_HOLDER_HOLDS_S: Final = 1.0
_LOG_EVERY_S: Final = 60.0


class LockWait:
    def __init__(
        self, database: Database, longest_s: float, most: int, clock: Clock = SYSTEM, *, names_holders: bool = True
    ) -> None:
        """A request waits for `longest_s` at most, and `most` requests at a time. Where tenants are among those who
        ask, only the log names who holds a row: sessions and applications are none of their business."""
        self._names_holders = names_holders
        self._database = database
        self._longest_s = longest_s
        self.clock = clock
        self.longest = str(round(longest_s * 1000))  # the lock_timeout of a call that is to wait
        self.limit = most
        self.known: dict[Row, LockedRow] = {}
        self.waiting = 0
        self.stepped_aside = 0
        self.given_up = 0
        self._probing = asyncio.Lock()
        self._trying = asyncio.Semaphore(_MOST_TRIED)
        self._again = asyncio.Semaphore(_MOST_AGAIN)
        self._nudged = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._closed = False

    def timeout(self, *, has_waited: bool = False) -> str:
        """The lock_timeout for a call that is not to wait for a lock: a moment; longer, if it is about requests that
        have waited for rows which were free, or had another holder, when last probed."""
        if has_waited:
            return AGAIN_TIMEOUT
        return NEXT_TIMEOUT if self.known else FIRST_TIMEOUT

    # Finding

    def locked(self, rows: Iterable[Row]) -> set[Row]:
        """Those that are known to be locked."""
        known = self.known
        return {row for row in rows if row in known}

    async def find(self, rows: Collection[Row], tried: Row | None = None) -> set[Row] | None:
        """Ask which of these rows are locked. None: a whole table is, so that nobody can go on.

        `tried` is known, but nobody can see whether it is locked: that was tried just now.
        """
        known = self.locked(rows) - {tried}
        if known:
            return known
        async with self._probing:
            known = self.locked(rows) - {tried}
            if known:
                return known
            try:
                found = await find_locked(self._database, rows, tables=True)
            except UnavailableError:
                raise
            except QueenError:
                found = None  # nobody can say: then it is waited for in the call
        if found is None:
            return None
        for row, mark in found.items():
            self._learn(row, probed=True).mark = mark
        return set(found)

    def _learn(self, row: Row, *, probed: bool) -> LockedRow:
        now = self.clock.monotonic()
        state = self.known.get(row)
        if state is None:
            state = self.known[row] = LockedRow(now, now + FIRST_PAUSE_S, now, probed)
        elif probed:
            state.probed, state.tried_by = True, None
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.get_running_loop().create_task(self._watch())
        self._nudged.set()
        return state

    # Waiting

    def park(self, ticket: Ticket, rows: Iterable[Row]) -> None:
        """Have it wait for these rows, which are known to be locked. Raises Overloaded or ServerStopping."""
        self.tried(ticket)
        if self._closed:
            raise ServerStopping
        if self.waiting >= self.limit:
            raise Overloaded(
                f"{self.waiting} requests wait for rows that other transactions hold: "
                "connection refused for now (ECONNREFUSED)"
            )
        ticket.blocked = self.locked(rows)
        if not ticket.blocked:
            ticket.go()
            return
        now = self.clock.monotonic()
        if ticket.give_up_at is None:
            ticket.give_up_at = now + self._longest_s
            self.stepped_aside += 1
        for row in ticket.blocked:
            state = self.known[row]
            if not state.waiting:
                state.due = min(state.due, now + FIRST_PAUSE_S)
                self._nudged.set()
            state.waiting[ticket] = None
            state.wanted_at = now
        ticket.timer = self.clock.call_later(ticket.give_up_at - now, self._give_up, ticket)
        self.waiting += 1

    def suspect(self, ticket: Ticket) -> None:
        """Its call finds something locked, also alone, and the probe does not see it: wait, then try. Raises as park.

        Others who need the same row wait behind it; but if it needs several, nobody can say which of them is locked.
        """
        row = ticket.trying
        if row is None:
            row = next(iter(ticket.rows)) if len(ticket.rows) == 1 else ("request", str(id(ticket)))
        state = self._learn(row, probed=False)
        if state.tried_by is ticket:
            state.tried_by = ticket.trying = None
            state.defer(self.clock.monotonic())
        self.park(ticket, (row,))
        state.defer(self.clock.monotonic())

    @asynccontextmanager
    async def alone(self, ticket: Ticket) -> AsyncIterator[None]:
        """For the call of a ticket that was let go to find out: few at a time."""
        async with self._trying:
            try:
                yield
            finally:
                self.tried(ticket)

    def tried(self, ticket: Ticket) -> None:
        """The call of a ticket that was let go to find out did not find its row locked."""
        row, ticket.trying = ticket.trying, None
        if row is not None and row in self.known and self.known[row].tried_by is ticket:
            self._free((row,))

    def leave(self, ticket: Ticket) -> None:
        """It does not want to wait any longer."""
        if ticket.timer is None:
            return
        ticket.timer.cancel()
        ticket.timer = None
        self.waiting -= 1
        for row in ticket.blocked:
            if row in self.known:
                self.known[row].waiting.pop(ticket, None)
        ticket.blocked = set()

    def nudge(self, queue: str) -> None:
        """Somebody has committed messages of this queue: probe at once whether its heads are free."""
        for row, state in self.known.items():
            if row[0] == "head" and row[1] == queue:
                state.due = 0.0
                self._nudged.set()

    async def through(self, rows: frozenset[Row], attempt: Callable[[str], Awaitable[Result]]) -> Result:
        """What `attempt` returns or raises; it is given the lock_timeout for its call. While it finds rows locked, it
        is repeated when they are free."""
        ticket = Ticket(rows, self.clock.monotonic(), lambda: None, lambda error: None)
        try:
            return await self._through(ticket, attempt)
        finally:
            # Wherever it ends while it tries a row: the next request has to try that then.
            self.tried(ticket)

    async def _through(self, ticket: Ticket, attempt: Callable[[str], Awaitable[Result]]) -> Result:
        rows = ticket.rows
        is_doubted = False
        while True:
            locked = self.locked(rows) if self.known and ticket.trying is None else None
            if locked:
                await self._wait(ticket, locked)
            try:
                return await self._attempt(ticket, attempt)
            except RowLocked:
                found = await self.find(rows, ticket.trying)
            if found is None:
                self.tried(ticket)
                return await attempt(self.longest)
            if found:
                await self._wait(ticket, found)
            elif is_doubted or ticket.trying is not None:
                await self._wait(ticket, None)
            is_doubted = not found

    async def _attempt(self, ticket: Ticket, attempt: Callable[[str], Awaitable[Result]]) -> Result:
        if ticket.trying is None and ticket.give_up_at is None:
            return await attempt(self.timeout())
        if ticket.trying is None:
            # It may take its time for the row now, so there must not be many who do.
            async with self._again:
                return await attempt(self.timeout(has_waited=True))
        async with self._trying:
            try:
                result = await attempt(self.timeout())
            except RowLocked:
                raise
            except BaseException:
                self.tried(ticket)
                raise
        self.tried(ticket)
        return result

    async def _wait(self, ticket: Ticket, rows: set[Row] | None) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go() -> None:
            if not turn.done():
                turn.set_result(None)

        def fail(error: QueenError) -> None:
            if not turn.done():
                turn.set_exception(error)

        ticket.go, ticket.fail = go, fail
        if rows is None:
            self.suspect(ticket)
        else:
            self.park(ticket, rows)
        try:
            await turn
        except asyncio.CancelledError:
            self.leave(ticket)
            self.tried(ticket)
            raise

    # Going on

    async def _watch(self) -> None:
        while self.known and not self._closed:
            horizon = self.clock.monotonic()
            ready = [row for row, state in self.known.items() if state.due <= horizon and state.tried_by is None]
            if ready:
                await self._probe_due(ready[:_MOST_PROBED])
                continue
            self._nudged.clear()
            dues = [state.due for state in self.known.values() if state.tried_by is None]
            try:
                async with self.clock.timeout(min(dues, default=horizon + IDLE_PAUSE_S) - horizon):
                    await self._nudged.wait()
            except TimeoutError:
                pass

    async def _probe_due(self, rows: list[Row]) -> None:
        """Probe these rows, or let a request try them, and release the requests that may go on."""
        probed = [row for row in rows if self.known[row].probed]
        began = self.clock.monotonic()
        try:
            locked = await find_locked(self._database, probed) if probed else {}
        except QueenError:
            # Without a database there are no locks, and who waits is to learn that the usual way.
            locked = None if self._database.is_open else {}
        except Exception:
            log.exception("the probe of locked rows failed")
            locked = None
        now = self.clock.monotonic()
        # Probes of thousands of rows take long, and must not become a load of their own.
        least_s = (now - began) * len(self.known) / max(len(probed), 1) / _PROBE_SHARE
        free = []
        for row in probed:
            state = self.known.get(row)
            if state is None:
                continue
            idle = not state.waiting and now - state.wanted_at > _FORGET_AFTER_S
            # With another holder each time it is in great demand: then only PostgreSQL's own queue is fair.
            is_free = locked is not None and locked.get(row) != state.mark
            if is_free or idle:
                free.append(row)
            else:
                state.defer(now, min(least_s, IDLE_PAUSE_S))
        self._free(free)
        for row in rows:
            state = self.known.get(row)
            if state is not None and not state.probed and state.tried_by is None:
                self._have_tried(row, state)

    def _have_tried(self, row: Row, state: LockedRow) -> None:
        if not state.waiting:
            del self.known[row]
            return
        first = min(state.waiting, key=lambda ticket: ticket.since)
        if len(first.blocked) > 1:
            # It waits for another row as well, which will be free some time.
            state.defer(self.clock.monotonic())
            return
        self.leave(first)
        first.trying, state.tried_by = row, first
        first.go()

    def _free(self, rows: Iterable[Row]) -> None:
        """These rows are not locked any more: requests that wait for no other row go on, in their order."""
        going: list[Ticket] = []
        for row in rows:
            for ticket in self.known.pop(row).waiting:
                ticket.blocked.discard(row)
                if not ticket.blocked:
                    going.append(ticket)
        for ticket in sorted(going, key=lambda ticket: ticket.since):
            self.leave(ticket)
            ticket.go()

    # Giving up

    def _give_up(self, ticket: Ticket) -> None:
        rows = ticket.blocked
        self.leave(ticket)
        self.given_up += 1
        self._begin(self._refuse(ticket, min(rows)))

    async def _refuse(self, ticket: Ticket, row: Row) -> None:
        holder = await asyncio.shield(self._ask_holder(row))
        sentence = refusal_for(row, self._longest_s, holder)
        state = self.known.get(row)
        now = self.clock.monotonic()
        if state is not None and (state.logged_at is None or now - state.logged_at > _LOG_EVERY_S):
            state.logged_at = now
            log.warning("%s; %d requests wait for it", sentence, len(state.waiting))
        if not self._names_holders:
            sentence = refusal_for(row, self._longest_s, "another transaction, which the log of the server names")
        ticket.fail(RowLocked(sentence))

    def _ask_holder(self, row: Row) -> asyncio.Task[str]:
        """Asked once for all who give up at about the same time."""
        state, now = self.known.get(row), self.clock.monotonic()
        if state is not None and state.holder is not None and now - state.holder_at < _HOLDER_HOLDS_S:
            return state.holder
        asking = asyncio.get_running_loop().create_task(holder_of(self._database, row))
        if state is not None:
            state.holder, state.holder_at = asking, now
        return asking

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """The server is stopping: refuse the requests that wait, and those that would have to wait from now on."""
        self._closed = True
        waiting = {ticket for state in self.known.values() for ticket in state.waiting}
        for ticket in waiting:
            self.leave(ticket)
            ticket.fail(ServerStopping())
        self._nudged.set()

    async def close(self) -> None:
        self.end()
        tasks = [*self._tasks, *([self._watcher] if self._watcher is not None else [])]
        if tasks:
            await asyncio.wait(tasks)
