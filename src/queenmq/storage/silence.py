"""Connections that stop answering without a word: a firewall that forgot them, a paused network, a stuck relay.

Every statement of a `WatchedConnection` has a deadline on our side: the statement timeout of its session and a little
more. That is the last bound, and it is long. Well before it, `SilenceWatch` asks about a statement on which nothing
moves, on a connection of its own: does the server wait for us while we wait for it? Then the request or its answer is
lost, and the connection is cut. A slow but living database says of itself that it is at work, and is not hurt. Behind a
pooler a connection has no backend of its own, and there is only the deadline.

A connection is never closed in an orderly way here: that would wait for ever for a silent server.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import struct
import sys
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from queenmq.clock import SYSTEM
from queenmq.storage.statements import statement

if TYPE_CHECKING:
    _Connection = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection

log = logging.getLogger(__name__)

UNKNOWN: Final = -1
REASONS: Final = ("silent", "suspected", "overdue")

_CHECK_S: Final = 0.25
# A statement is measured from here on: quicker ones cost nothing but a timer.
_MEASURED_AFTER_S: Final = 0.25
# While connections are found silent, others are likely to be: they are asked about sooner.
_ALARM_S: Final = 10.0
_ALARMED_AFTER_S: Final = 0.25
# Both checks of a decision must find the same, so that a moment between two packets is not taken for silence.
_CHECKS: Final = 2
# A statement without a deadline of its own (a migration) is given up if the database cannot even be asked about it.
_UNREACHABLE_S: Final = 60.0
_TERMINATE_MS: Final = 1000
_TCP_INFO_BYTES: Final = struct.Struct("=QQ")  # tcpi_bytes_acked and tcpi_bytes_received
_TCP_INFO_OFFSET: Final = 120


def _watched(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(method)
    async def call(self: WatchedConnection, *arguments: Any, **options: Any) -> Any:
        if self.since is not None:
            return await method(self, *arguments, **options)
        self.moved, self.found_waiting = None, 0
        self.since = SYSTEM.monotonic()
        try:
            return await method(self, *arguments, **options)
        finally:
            self.since = None

    return call


class WatchedConnection(_Connection):
    """A connection whose statements are watched, once a `SilenceWatch` has adopted it."""

    pool: asyncpg.Pool[asyncpg.Record]  # the one that it was borrowed from last, and what that has given out for it
    proxy: asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    uses = 0  # since then
    doubtful = False  # when it was given back: something was cut short on it
    since: float | None = None  # when the statement that runs was sent
    in_use = False
    bounded = True  # False: without a deadline, for a session without a statement timeout
    pid: int | None = None  # of its backend; None if it is not known for certain, as behind a pooler
    started_at: datetime | None = None  # of that backend, because process ids come again
    moved: int | None = None  # bytes that had moved at the last check, or UNKNOWN
    quiet_since = 0.0
    found_waiting = 0  # checks in a row at which the server waited for us

    if not TYPE_CHECKING:  # the overloads of the stubs stay as they are
        fetch = _watched(asyncpg.Connection.fetch)
        fetchrow = _watched(asyncpg.Connection.fetchrow)
        fetchval = _watched(asyncpg.Connection.fetchval)
        execute = _watched(asyncpg.Connection.execute)
        executemany = _watched(asyncpg.Connection.executemany)

    def itself(self) -> WatchedConnection:
        """The connection itself: a pool hands out a proxy."""
        return self

    def bytes_moved(self) -> int:
        """How many bytes the other side has taken and sent since the beginning; UNKNOWN if the system does not say."""
        if sys.platform != "linux":
            return UNKNOWN
        transport = getattr(self, "_transport", None)
        descriptor = -1 if transport is None else transport.get_extra_info("socket").fileno()
        if descriptor < 0:
            return UNKNOWN
        try:
            with socket.socket(fileno=os.dup(descriptor)) as same:
                info = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            return UNKNOWN  # a socket of another kind
        if len(info) < _TCP_INFO_OFFSET + _TCP_INFO_BYTES.size:
            return UNKNOWN
        return sum(_TCP_INFO_BYTES.unpack_from(info, _TCP_INFO_OFFSET))


class SilenceWatch:
    """Watches the statements of the connections of one pool. `connect` opens a connection to ask on."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[_Connection]],
        *,
        connect_within_s: float,
        silent_after_s: float,
        deadline_s: float,
        cut: Counter[str],
        knows_backends: bool = True,
    ) -> None:
        self._connect = connect
        self._connect_within_s = connect_within_s
        self._silent_after_s = silent_after_s
        self._deadline_s = deadline_s
        self._cut = cut
        self._knows_backends = knows_backends
        self._connections: weakref.WeakSet[WatchedConnection] = weakref.WeakSet()
        self._loop = asyncio.get_running_loop()
        self._sweeping: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._asking: _Connection | None = None
        self._answered_at = 0.0
        self._alarmed_until = 0.0

    # What connections report

    async def adopt(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """Watch a new connection of the pool from now on."""
        if not isinstance(connection, WatchedConnection):
            raise AssertionError("the pool makes other connections than it should")
        self._connections.add(connection)
        if not self._knows_backends:
            return
        # It belongs to connecting, which nobody waits for as long as for a statement.
        deadline = self._loop.call_later(self._connect_within_s, self._overdue, connection)
        try:
            row = await connection.fetchrow(statement("own_backend"), str(round(self._deadline_s * 1000)))
        finally:
            deadline.cancel()
        if row is not None and row["pid"] == connection.get_server_pid():
            connection.pid, connection.started_at = row["pid"], row["backend_start"]

    def _overdue(self, connection: WatchedConnection) -> None:
        self._cut_one(connection, "overdue")

    def _cut_one(self, connection: WatchedConnection, reason: str) -> None:
        """Everything that waits for it fails now; the pool makes another."""
        if connection.is_closed():
            return
        self._cut[reason] += 1
        connection.terminate()

    # Checking

    def start(self) -> None:
        self._task = self._loop.create_task(self._check_often(), name="silence watch")
        self._sweep()

    def _sweep(self) -> None:
        """The deadlines of all statements. By itself, so that no question that is not answered holds it up; and one for
        all, because a timer for each costs more than the rest of watching."""
        oldest = SYSTEM.monotonic() - self._deadline_s
        for connection in tuple(self._connections):
            if connection.bounded and connection.since is not None and connection.since < oldest:
                self._overdue(connection)
        self._sweeping = self._loop.call_later(_CHECK_S, self._sweep)

    def stop(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._stop_asking()

    def _stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.terminate()
            self._asking = None

    async def _check_often(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            try:
                await self._check()
            except Exception:
                log.exception("the check for silent connections failed, it goes on")

    async def _check(self) -> None:
        now = SYSTEM.monotonic()
        running = [connection for connection in self._connections if connection.since is not None]
        quiet = [connection for connection in running if self._is_quiet(connection, now)]
        if not quiet:
            if self._asking is not None and not running:
                self._stop_asking()
            self._answered_at = now
            return
        backends = await self._ask(statement("backends"), [c.pid for c in quiet if c.pid is not None])
        if backends is None:
            self._give_up(quiet)
            return
        self._answered_at = SYSTEM.monotonic()
        waiting = {(row["pid"], row["backend_start"]): bool(row["waits"]) for row in backends}
        silent = []
        for connection in quiet:
            if connection.pid is None or connection.since is None:
                continue
            # A backend that is gone will not answer any more, either.
            waits = waiting.get((connection.pid, connection.started_at), True)
            connection.found_waiting = connection.found_waiting + 1 if waits else 0
            if connection.found_waiting >= _CHECKS:
                silent.append(connection)
        if silent:
            await self._replace(silent)

    def _is_quiet(self, connection: WatchedConnection, now: float) -> bool:
        """Whether nothing has moved for long. The first check of a statement is where its quiet begins."""
        if connection.since is None or now - connection.since < _MEASURED_AFTER_S:
            return False
        moved = connection.bytes_moved()
        if moved != connection.moved:
            connection.moved, connection.found_waiting = moved, 0
            connection.quiet_since = connection.since if moved == UNKNOWN else now
        after_s = self._silent_after_s
        if now < self._alarmed_until:
            after_s = min(after_s, _ALARMED_AFTER_S)
        return now - connection.quiet_since >= after_s

    async def _replace(self, silent: list[WatchedConnection]) -> None:
        """Cut these, and all that nobody uses: they went the same way. Their backends are ended first, so that nothing
        is decided any more about what was asked on them, and no lock of theirs is left."""
        idle = [connection for connection in self._connections if not (connection.in_use or connection.is_closed())]
        for connection in idle:
            self._cut_one(connection, "suspected")
        lost = [connection for connection in (*silent, *idle) if connection.pid is not None]
        await self._ask(statement("end_backends"), [c.pid for c in lost], [c.started_at for c in lost], _TERMINATE_MS)
        now = SYSTEM.monotonic()
        if now >= self._alarmed_until:
            log.warning(
                "%d database connections stopped answering while the database is available: the network drops them "
                "without notice (a firewall, an idle timeout); they were replaced, and %d idle ones too",
                *(len(silent), len(idle)),
            )
        self._alarmed_until = now + _ALARM_S
        for connection in silent:
            self._cut_one(connection, "silent")

    def _give_up(self, quiet: Iterable[WatchedConnection]) -> None:
        """Nobody answers at all. That is an outage, and somebody else's to notice; only what has no bound is cut."""
        if SYSTEM.monotonic() - self._answered_at < _UNREACHABLE_S:
            return
        for connection in quiet:
            if not connection.bounded:
                self._cut_one(connection, "overdue")

    async def _ask(self, question: str, *arguments: object) -> list[asyncpg.Record] | None:
        """The answer, or None if there is none in time. A cancellation would have to reach it, so there is none."""
        asking = asyncio.create_task(self._asked(question, arguments))
        asking.add_done_callback(_ignored)
        await asyncio.wait((asking,), timeout=max(self._silent_after_s, _TERMINATE_MS / 1000) * 2)
        if not asking.done():
            self._stop_asking()
            return None
        with suppress(
            OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError
        ):
            return asking.result()
        self._stop_asking()
        return None

    async def _asked(self, question: str, arguments: tuple[object, ...]) -> list[asyncpg.Record]:
        if self._asking is None or self._asking.is_closed():
            fresh = await self._connect()
            if self._task is None or self._asking is not None:
                fresh.terminate()
                raise asyncpg.InterfaceError("nobody waits for this connection any more")
            self._asking = fresh
        return await self._asking.fetch(question, *arguments)


def _ignored(task: asyncio.Task[list[asyncpg.Record]]) -> None:
    if not task.cancelled():
        task.exception()


async def leave_clean(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Run when a connection goes back. The reset of asyncpg is a round trip at every call, for nothing of ours."""
    if not connection.is_in_transaction():
        if isinstance(connection, WatchedConnection) and connection.doubtful:
            # A statement that was cancelled while it was prepared has begun a transaction that the driver does not know
            # of, because it has not synchronised yet: any statement ends it.
            connection.doubtful = False
            await connection.execute("SELECT 1")
        return
    if isinstance(connection, WatchedConnection) and connection.pid is None:
        connection.terminate()  # behind a pooler, which rolls back; RESET would be for somebody else's session
    else:
        await connection.reset()
