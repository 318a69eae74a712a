"""The connections to PostgreSQL, and how statements are run on them.

Callers run named statements (`queenmq.storage.statements`); exceptions of the driver become ours (`failures`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, cast

import asyncpg

from queenmq.clock import SYSTEM
from queenmq.config import DatabaseSettings
from queenmq.core.foreign_clock import ForeignClock
from queenmq.errors import DatabaseUnavailable, InternalError, Overloaded, QueenError, StartupError, UnavailableError
from queenmq.storage.connecting import Connector, require_settings, session_settings
from queenmq.storage.failures import (
    BROKEN,
    AnswerLost,
    DatabaseAway,
    EncryptionRequired,
    NotTheWriter,
    TransactionRefused,
    TryAgain,
    is_connection_lost,
    is_not_the_writer,
    translate,
    without_details,
)
from queenmq.storage.listening import Listener
from queenmq.storage.silence import REASONS, SilenceWatch, WatchedConnection, leave_clean
from queenmq.storage.sqlstates import Cause, cause_of, sqlstate_of

log = logging.getLogger(__name__)

OLDEST_POSTGRES = 14
# Beyond the statement timeout, at which the server itself gives up: what its word of that may take to get here.
_ANSWER_GRACE_S = 2.0
# How often a call is repeated whose answer got lost: a repeat may get a connection that is silent, too.
LOST_ANSWERS = 2
# Then a connection goes back to the pool, which replaces those that have run many statements.
_MOST_USES = 10_000
# Without the watch of WatchedConnection: single statements are watched here.
_FETCH, _FETCHROW, _FETCHVAL = asyncpg.Connection.fetch, asyncpg.Connection.fetchrow, asyncpg.Connection.fetchval
_GIVING_BACK = suppress(asyncpg.PostgresError, *BROKEN)


class Database:
    """A bounded pool of connections to one PostgreSQL."""

    def __init__(self, settings: DatabaseSettings, url: str) -> None:
        self._settings = settings
        self._connector = Connector(settings, url)
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._spare: list[WatchedConnection] = []  # borrowed from the pool and used by nobody now; the last used last
        self._silence: SilenceWatch | None = None
        self._lifeline: asyncpg.Connection[asyncpg.Record] | None = None
        self._listener = Listener(settings)
        self.opened = 0
        self.calls = 0
        self.errors = 0
        self.answers = 0
        self.waiting = 0
        self.in_use = 0
        self.clock = ForeignClock()
        self.connections_cut = Counter(dict.fromkeys(REASONS, 0))

    async def open(self) -> None:
        """Connect. Raises StartupError with a sentence that names the cause, never the password.

        It is DatabaseAway if the same call may succeed later.
        """
        try:
            await self._connector.find()
            silence = SilenceWatch(
                self._connector.connect,
                connect_within_s=self._settings.connection_timeout_ms / 1000,
                silent_after_s=self._settings.silence_ms / 1000,
                deadline_s=self._settings.statement_timeout_ms / 1000 + _ANSWER_GRACE_S,
                cut=self.connections_cut,
                knows_backends=not self._connector.is_pooled,
            )
            self._pool = await asyncpg.create_pool(
                min_size=1,
                max_size=self._settings.pool_size,
                connect=cast(Any, self._connector.connect),
                max_inactive_connection_lifetime=0,
                connection_class=WatchedConnection,
                init=silence.adopt,
                reset=leave_clean,
                server_settings=session_settings(self._settings),
            )
        except (asyncpg.PostgresError, *BROKEN, ValueError) as error:
            reason = str(error) or type(error).__name__
            away = isinstance(error, OSError | TimeoutError | NotTheWriter | asyncpg.InternalClientError)
            away |= cause_of(sqlstate_of(error)) is Cause.CONNECTION
            kind = DatabaseAway if away else StartupError
            raise kind(f"cannot connect to PostgreSQL: {reason}") from None
        self.opened += 1
        self._silence = silence
        silence.start()
        try:
            await self._check()
        except StartupError:
            self.abandon()
            raise

    @property
    def is_pooled(self) -> bool:
        """Whether there is a pooler between this server and PostgreSQL."""
        return self._connector.is_pooled

    @property
    def is_listening(self) -> bool:
        return self._listener.is_listening

    @property
    def is_open(self) -> bool:
        """False before the first connection, and from an outage until the database is back."""
        return self._pool is not None

    async def is_alive(self, within_s: float) -> bool:
        """Whether the database answers anything within that time. Asks on a connection of its own."""
        before = self.answers
        self._listener.keep()
        asking = asyncio.create_task(self._ask())
        # When half of the time is over it may be the connection that is silent: the other half is for a new one.
        for _ in range(2):
            await asyncio.wait((asking,), timeout=within_s / 2)
            if asking.done():
                return asking.result()
            # Not cancelled: asyncpg would send the cancellation to a server that does not answer.
            self._cut_lifeline()
        return self.answers > before

    async def _ask(self) -> bool:
        try:
            return await self._ask_lifeline()
        except NotTheWriter as error:
            self._leave(error)
            return False

    async def _ask_lifeline(self) -> bool:
        asked = self._lifeline
        if asked is not None and await self._answers(asked):
            return True
        if self._lifeline is asked:
            self._cut_lifeline()
        try:
            fresh = await self._connector.connect()
        except NotTheWriter:
            raise
        except (asyncpg.PostgresError, *BROKEN):
            return False
        if self._pool is None or self._lifeline is not None:
            # It was given up meanwhile, or an earlier attempt that was given up has connected, too.
            fresh.terminate()
            return self._pool is not None
        self._lifeline = fresh
        if self._connector.is_pooled or self._settings.listen_url is not None:
            return await self._answers(fresh)
        return await self._listen(fresh)

    async def _answers(self, connection: asyncpg.Connection[asyncpg.Record]) -> bool:
        """Asks for the time, because that has to be known, too. Raises NotTheWriter."""
        asked_at = SYSTEM.monotonic()
        try:
            now: datetime = (await self._connector.require_writer(connection))["now"]
        except NotTheWriter:
            raise
        except (asyncpg.PostgresError, *BROKEN):
            return False
        step = self.clock.observe(now, asked_at, SYSTEM.monotonic())
        if step is not None:
            log.warning(
                "the clock of the database was set back by %.1f s: leases, delays and retry pauses last longer by that",
                step.total_seconds(),
            )
        return True

    def _leave(self, error: BaseException) -> None:
        """Close the connections: the writer is, or will be, another PostgreSQL, so waiting for this one is in vain."""
        if self._pool is not None:
            log.error("%s; its connections are closed until the writer is found", str(error) or type(error).__name__)
            self.abandon()

    def on_notice(self, channel: str, on_payload: Callable[[str], None]) -> None:
        """Call `on_payload` with the payload of each NOTIFY on `channel`, while the database is there.

        The connection on which is_alive asks receives them, or one to QUEEN_DB_LISTEN_URL: what is sent before it is
        there (`is_listening`) is missed. Behind a pooler none is received without that URL.
        """
        self._listener.callbacks[channel] = on_payload

    async def _listen(self, connection: asyncpg.Connection[asyncpg.Record]) -> bool:
        try:
            await self._listener.listen_on(connection)
        except (asyncpg.PostgresError, *BROKEN) as error:
            if is_connection_lost(error):
                return False
            # It is there all the same. Long polls find by their own probes what no NOTIFY announces.
            log.warning("the database refuses LISTEN: %s", without_details(error))
            return await self._answers(connection)
        return True

    def _cut_lifeline(self) -> None:
        if self._lifeline is not None:
            self._lifeline.terminate()
            self._lifeline = None

    def abandon(self) -> None:
        """The database does not answer: cut every connection, so that everything that waits for it fails now."""
        self._cut_lifeline()
        self._listener.stop()
        if self._silence is not None:
            self._silence.stop()
            self._silence = None
        if self._pool is not None:
            pool, self._pool = self._pool, None
            self._spare.clear()
            pool.terminate()

    async def _check(self) -> None:
        async with self.connection() as connection:
            version = connection.get_server_version()
            if self._connector.is_pooled:
                await require_settings(connection, session_settings(self._settings))
        if version.major < OLDEST_POSTGRES:
            raise StartupError(f"PostgreSQL {version.major} is too old: Queen needs version {OLDEST_POSTGRES} or newer")

    async def close(self) -> None:
        self.abandon()

    # Borrowing

    async def _borrow(self) -> WatchedConnection:
        """A spare connection, or one of the pool, which may have to be waited for."""
        while self._spare:
            spare = self._spare.pop()
            if not spare.is_closed():
                return spare
            spare.terminate()  # only now the pool learns that it may make another
        pool = self._pool
        if pool is None:
            raise DatabaseUnavailable()
        self.waiting += 1
        try:
            proxy = await pool.acquire(timeout=self._settings.lock_timeout_ms / 1000)
        finally:
            self.waiting -= 1
        connection: WatchedConnection = cast(Any, proxy).itself()
        connection.pool, connection.proxy, connection.uses = pool, proxy, 0
        return connection

    async def _give_back(self, connection: WatchedConnection, *, is_clean: bool) -> None:
        """Keep it for the next statement, or hand it to the pool if somebody waits there.

        Handing over costs a task and three turns of the event loop, so it is done only when it must be: for a waiting
        caller, after an error, and now and then, because the pool replaces connections that have served for long. A
        connection with which that fails, or takes long because a statement on it was cancelled and the server does not
        say so, has been cut by then: the borrower is not affected by that.
        """
        connection.uses += 1
        if is_clean and not self.waiting and connection.uses < _MOST_USES and connection.pool is self._pool:
            self._spare.append(connection)
            return
        connection.doubtful = not is_clean
        with _GIVING_BACK:
            await connection.pool.release(connection.proxy, timeout=self._settings.connection_timeout_ms / 1000)

    def _translated(self, error: Exception, connection: WatchedConnection | None) -> BaseException:
        ours = translate(error)
        if is_not_the_writer(error):
            if connection is None or connection.pool is self._pool:
                self._leave(error)
        elif connection is not None and (
            (type(ours) is DatabaseUnavailable and is_connection_lost(error))
            or (connection.is_closed() and not isinstance(error, QueenError | asyncpg.PostgresError))  # it was cut
        ):
            ours = AnswerLost()
        self.errors += not isinstance(ours, TransactionRefused | EncryptionRequired | TryAgain | Overloaded)
        return ours

    @asynccontextmanager
    async def connection(self, *, bounded: bool = True) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        """Borrow a connection. Database exceptions inside leave it as ours.

        `bounded` false is for statements that may take longer than the statement timeout.
        """
        self.calls += 1
        connection: WatchedConnection | None = None
        try:
            connection = await self._borrow()
            connection.in_use, connection.bounded = True, bounded
            self.in_use += 1
            is_clean = False
            try:
                yield connection
                is_clean = not connection.is_in_transaction()
            except asyncpg.InternalClientError:
                connection.terminate()
                raise
            finally:
                self.in_use -= 1
                # Before: the next one may have it before this one goes on.
                connection.in_use = False
                await self._give_back(connection, is_clean=is_clean)
            self.answers += 1
        except Exception as error:
            ours = self._translated(error, connection)
            if ours is error:
                raise
            raise ours from error

    # Single statements. One that is `repeatable` may be run twice, and is, if its answer got lost with its connection.

    def fetch(
        self, statement: str, *arguments: object, repeatable: bool = False
    ) -> Coroutine[Any, Any, list[asyncpg.Record]]:
        return self._run(_FETCH, statement, arguments, repeatable)

    def fetchrow(
        self, statement: str, *arguments: object, repeatable: bool = False
    ) -> Coroutine[Any, Any, asyncpg.Record | None]:
        return self._run(_FETCHROW, statement, arguments, repeatable)

    def fetchval(self, statement: str, *arguments: object, repeatable: bool = False) -> Coroutine[Any, Any, Any]:
        return self._run(_FETCHVAL, statement, arguments, repeatable)

    async def _run(
        self,
        method: Callable[..., Coroutine[Any, Any, Any]],
        statement: str,
        arguments: tuple[object, ...],
        repeatable: bool,
    ) -> Any:
        left = LOST_ANSWERS if repeatable else 0
        lost = False
        while True:
            self.calls += 1
            connection: WatchedConnection | None = None
            try:
                connection = await self._borrow()
                self.in_use += 1
                is_clean = False
                try:
                    answer = await self._watched(connection, method, statement, arguments)
                    is_clean = True
                finally:
                    self.in_use -= 1
                    connection.in_use = False
                    await self._give_back(connection, is_clean=is_clean)
                self.answers += 1
                return answer
            except Exception as error:
                ours = self._translated(error, connection)
                if isinstance(ours, AnswerLost) and left:
                    left -= 1
                    lost = True
                    continue
                if lost and isinstance(ours, TryAgain):
                    ours.is_unknown = True
                elif lost and isinstance(ours, UnavailableError | InternalError):
                    ours = AnswerLost()
                if ours is error:
                    raise
                raise ours from error

    @staticmethod
    async def _watched(
        connection: WatchedConnection,
        method: Callable[..., Coroutine[Any, Any, Any]],
        statement: str,
        arguments: tuple[object, ...],
    ) -> Any:
        connection.in_use = connection.bounded = True
        connection.moved, connection.found_waiting = None, 0
        connection.since = SYSTEM.monotonic()
        try:
            return await method(connection, statement, *arguments)
        except asyncpg.InternalClientError:
            connection.terminate()
            raise
        finally:
            connection.since = None

    @property
    def pool_size(self) -> int:
        return self._pool.get_size() if self._pool else 0

    @property
    def pool_idle(self) -> int:
        """Connections that nobody uses."""
        return self._pool.get_idle_size() + len(self._spare) if self._pool else 0
