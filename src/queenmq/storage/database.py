"""The connection pool, and the one place where database exceptions become ours.

Callers run named statements (`queenmq.storage.statements`) and see only `queenmq.errors`, or one of the
three errors below that the engine acts on.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import asyncpg

from queenmq.config import Settings
from queenmq.errors import Conflict, DatabaseUnavailable, InternalError, Overloaded, QueenError, StartupError

log = logging.getLogger(__name__)

OLDEST_POSTGRES = 14
_CONNECTION_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # A session that was ended while it was idle leaves the driver in a state that it calls impossible.
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    OSError,
    TimeoutError,
)
_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
)
_TRY_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError)


class TryAgain(DatabaseUnavailable):
    """The statement was rolled back because others were in its way; the same one may succeed now."""


class DatabaseAway(StartupError):
    """Nobody answers at the address of the database, or it is starting or full: it may answer later."""


class TransactionRefused(InternalError):
    """A transaction was rolled back for a reason that the caller is told (SQLSTATE QN001)."""


class EncryptionRequired(InternalError):
    """A payload came in clear for a queue that demands encryption (SQLSTATE QN002); `detail` names the queues."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


def dsn(settings: Settings) -> str:
    """The URL of the existing PostgreSQL that the settings select."""
    if settings.database_url is not None:
        return settings.database_url
    user, password = quote(settings.pg_user, safe=""), quote(settings.pg_password, safe="")
    host = settings.pg_host or "localhost"
    if ":" in host:
        host = f"[{host}]"
    return f"postgresql://{user}:{password}@{host}:{settings.pg_port}/{quote(settings.pg_db, safe='')}"


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.pg_use_ssl:
        return None
    context = ssl.create_default_context()
    if not settings.pg_ssl_reject_unauthorized:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def _leave_clean(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Run when a connection goes back. The reset of asyncpg is a round trip at every call, for nothing of ours."""
    if connection.is_in_transaction():
        await connection.reset()


async def _answers(connection: asyncpg.Connection[asyncpg.Record]) -> bool:
    try:
        return bool(await connection.fetchval("SELECT true"))
    except (asyncpg.PostgresError, *_CONNECTION_LOST):
        return False


def translate(error: BaseException) -> BaseException:
    """Our error for one that asyncpg raised; ours stay. What is nobody's fault but ours is logged here."""
    if isinstance(error, QueenError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        match error.sqlstate:
            case "QN001":
                return TransactionRefused(str(error))
            case "QN002":
                return EncryptionRequired(str(error), error.detail or "[]")
            case "QN004" | "QN005":
                return Overloaded(str(error))
            case "QN006":
                return Conflict(str(error))
    if isinstance(error, _TRY_AGAIN):
        return TryAgain("database connection busy: a lock could not be had (ECONNREFUSED)")
    if isinstance(error, asyncpg.QueryCanceledError):
        return DatabaseUnavailable("database connection too slow: the statement was cancelled (ECONNREFUSED)")
    if isinstance(error, asyncpg.DiskFullError):
        return DatabaseUnavailable("database connection refused the write: its disk is full (ECONNREFUSED)")
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return DatabaseUnavailable("database connection is read-only (ECONNREFUSED)")
    # asyncpg calls an argument that it cannot encode an interface error, too.
    if isinstance(error, _CONNECTION_LOST) and not isinstance(error, ValueError):
        return DatabaseUnavailable()
    if isinstance(error, Exception):
        log.error("statement failed: %s", _told(error))
        return InternalError()
    return error


def _told(error: Exception) -> str:
    """Without the details that PostgreSQL adds, because they may show rows and with them payloads."""
    if isinstance(error, asyncpg.PostgresError):
        return f"{type(error).__name__} ({error.sqlstate}): {error.args[0] if error.args else ''}"
    return f"{type(error).__name__}: {error}"


class Database:
    """A bounded pool of connections to one PostgreSQL."""

    def __init__(self, settings: Settings, url: str) -> None:
        self._settings = settings
        self._url = url
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._lifeline: asyncpg.Connection[asyncpg.Record] | None = None
        self._heard: dict[str, Callable[[str], None]] = {}
        self.is_listening = False
        self.calls = 0
        self.errors = 0
        self.answers = 0
        self.waiting = 0
        self.in_use = 0

    async def open(self) -> None:
        """Connect. Raises StartupError with a sentence that names the cause, never the password.

        It is DatabaseAway if the same call may succeed later.
        """
        try:
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=1,
                max_size=self._settings.db_pool_size,
                timeout=self._settings.db_connection_timeout_ms / 1000,
                ssl=_tls(self._settings),
                max_inactive_connection_lifetime=0,
                reset=_leave_clean,
                server_settings=self._session(),
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError, ValueError) as error:
            reason = str(error) or type(error).__name__
            kind = DatabaseAway if isinstance(error, _AWAY) else StartupError
            raise kind(f"cannot connect to PostgreSQL: {reason}") from None
        await self._check_version()

    @property
    def is_open(self) -> bool:
        """False before the first connection, and from an outage until the database is back."""
        return self._pool is not None

    async def is_alive(self, within_s: float) -> bool:
        """Whether the database answers anything within that time. Asks on a connection of its own."""
        before = self.answers
        asking = asyncio.create_task(self._ask())
        await asyncio.wait((asking,), timeout=within_s)
        if asking.done():
            return asking.result()
        # Not cancelled: asyncpg would try to tell that to a server that does not answer.
        self._cut_lifeline()
        return self.answers > before

    async def _ask(self) -> bool:
        asked = self._lifeline
        if asked is not None and await _answers(asked):
            return True
        if self._lifeline is asked:
            self._cut_lifeline()
        try:
            fresh = await asyncpg.connect(
                self._url, timeout=self._settings.db_connection_timeout_ms / 1000, ssl=_tls(self._settings)
            )
        except (asyncpg.PostgresError, *_CONNECTION_LOST):
            return False
        if self._pool is None or self._lifeline is not None:
            # It was given up meanwhile, or whoever asked before and was no longer waited for has connected, too.
            fresh.terminate()
            return self._pool is not None
        self._lifeline = fresh
        return await self._listen(fresh)

    def on_notice(self, channel: str, heard: Callable[[str], None]) -> None:
        """Call `heard` with the payload of each NOTIFY on `channel`, while the database is there.

        The connection on which is_alive asks hears them: what is sent before it is there (`is_listening`) is missed.
        """
        self._heard[channel] = heard

    async def _listen(self, connection: asyncpg.Connection[asyncpg.Record]) -> bool:
        try:
            for channel, heard in self._heard.items():
                await connection.add_listener(channel, lambda _c, _pid, _channel, payload, heard=heard: heard(payload))
        except _CONNECTION_LOST:
            return False
        except asyncpg.PostgresError as error:
            # It is there all the same. Long polls find by themselves what they are not told of.
            log.warning("the database refuses LISTEN: %s", _told(error))
            return await _answers(connection)
        self.is_listening = self._lifeline is connection
        return True

    def _cut_lifeline(self) -> None:
        self.is_listening = False
        if self._lifeline is not None:
            self._lifeline.terminate()
            self._lifeline = None

    def abandon(self) -> None:
        """The database does not answer: cut every connection, so that whoever waits for it learns that now."""
        self._cut_lifeline()
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.terminate()

    def _session(self) -> dict[str, str]:
        settings = self._settings
        return {
            "application_name": "queen",
            "timezone": "UTC",
            "jit": "off",
            "default_transaction_isolation": "read committed",
            "statement_timeout": str(settings.db_statement_timeout_ms),
            "lock_timeout": str(settings.db_lock_timeout_ms),
            # Every hot statement has its index. Without this a plan made while a table was small would stay a scan.
            "enable_seqscan": "off",
            # Planning the functions' statements anew for every call costs more than running them.
            "plan_cache_mode": "force_generic_plan",
        }

    async def _check_version(self) -> None:
        async with self.connection() as connection:
            version = connection.get_server_version()
        if version.major < OLDEST_POSTGRES:
            raise StartupError(f"PostgreSQL {version.major} is too old: Queen needs version {OLDEST_POSTGRES} or newer")

    async def close(self) -> None:
        self.abandon()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy[asyncpg.Record]]:
        """Borrow a connection. Database exceptions inside leave it as ours."""
        pool = self._pool
        if pool is None:
            raise DatabaseUnavailable()
        self.calls += 1
        try:
            self.waiting += 1
            try:
                connection = await pool.acquire(timeout=self._settings.db_lock_timeout_ms / 1000)
            finally:
                self.waiting -= 1
            self.in_use += 1
            try:
                yield connection
            except asyncpg.InternalClientError:
                connection.terminate()
                raise
            finally:
                self.in_use -= 1
                await pool.release(connection)
            self.answers += 1
        except Exception as error:
            ours = translate(error)
            self.errors += not isinstance(ours, TransactionRefused | EncryptionRequired | TryAgain | Overloaded)
            if ours is error:
                raise
            raise ours from error

    async def fetch(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        async with self.connection() as connection:
            return await connection.fetch(statement, *arguments)

    async def fetchrow(self, statement: str, *arguments: object) -> asyncpg.Record | None:
        async with self.connection() as connection:
            return await connection.fetchrow(statement, *arguments)

    async def fetchval(self, statement: str, *arguments: object) -> Any:
        async with self.connection() as connection:
            return await connection.fetchval(statement, *arguments)

    @property
    def pool_size(self) -> int:
        return self._pool.get_size() if self._pool else 0

    @property
    def pool_idle(self) -> int:
        return self._pool.get_idle_size() if self._pool else 0
