"""The errors of the database: where exceptions of the driver become ours.

Callers see only `queenmq.errors`, or one of the errors below that the broker acts on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import msgspec

from queenmq.errors import (
    Conflict,
    DatabaseUnavailable,
    Forbidden,
    HttpError,
    InternalError,
    Overloaded,
    QueenError,
    StartupError,
    StatementFailed,
    UnavailableError,
    WouldJournal,
)
from queenmq.storage import sqlstates
from queenmq.storage.sqlstates import Cause, cause_of, sqlstate_of

log = logging.getLogger(__name__)

# What asyncpg and the system say of a connection that is gone or cannot be had, beside Cause.CONNECTION.
BROKEN = (
    asyncpg.InterfaceError,
    # A session that was ended while it was idle leaves the driver in a state that it calls impossible.
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


class NotTheWriter(asyncpg.InterfaceError):
    """PostgreSQL answers, but it is read-only or was replaced by another: nothing was done, and nothing can be."""


class TryAgain(DatabaseUnavailable):
    """The statement was rolled back because others were in its way; the same one may succeed now."""


class RowLocked(TryAgain):
    """The statement was rolled back because another transaction held a lock that it needs for too long."""

    code = "row_locked"


class AnswerLost(DatabaseUnavailable):
    """The connection went while a statement ran: it may have been committed or not. A repetition finds out."""

    code = "outcome_unknown"
    is_unknown = True


@contextmanager
def after_commit(anything: bool = True) -> Iterator[None]:
    """For what a request does after it has changed something (if `anything` was changed): when that fails, the
    answer must not say that nothing was kept."""
    try:
        yield
    except (UnavailableError, InternalError) as error:
        if not anything:
            raise
        if isinstance(error, WouldJournal):  # the server that asked has to go on, and must know
            raise WouldJournal(is_unknown=True) from error
        raise AnswerLost from error


class DatabaseAway(StartupError):
    """Nobody answers at the address of the database, or it is starting or full: it may answer later."""


class CallRefused(HttpError):
    """A function of our schema refused what it was given. The broker acts on it; it is an answer only where it does
    not."""

    code = "internal_error"


class TransactionRefused(CallRefused):
    """A transaction was rolled back for a reason that the caller gets (SQLSTATE QN001)."""


class OffsetsDiffer(TransactionRefused):
    """A target of the transaction has another last offset than expected (SQLSTATE QN008)."""

    def __init__(self, message: str, last_offsets: list[int]) -> None:
        super().__init__(message)
        self.last_offsets = last_offsets


class KeyDetail(msgspec.Struct):
    index: int
    reason: str
    version: int | None = None


class KeyConditionFailed(TransactionRefused):
    """A change of a key that is required was not applied (SQLSTATE QN011); `index` is its number."""

    def __init__(self, message: str, detail: KeyDetail) -> None:
        super().__init__(message)
        self.index = detail.index
        self.reason = detail.reason
        self.version = detail.version


class EncryptionRequired(CallRefused):
    """A payload came in clear for a queue that demands encryption (SQLSTATE QN002); `detail` names the queues."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


def translate(error: BaseException) -> BaseException:
    """Our error for one that asyncpg raised; ours stay. What nobody has foreseen is logged here."""
    if isinstance(error, QueenError):
        return error
    if is_not_the_writer(error):
        return DatabaseUnavailable("database connection is read-only (ECONNREFUSED)")
    if is_connection_lost(error):
        return DatabaseUnavailable()
    if isinstance(error, asyncpg.PostgresError):
        return _of_postgres(error)
    if isinstance(error, Exception):
        log.error("statement failed: %s", without_details(error))
        return InternalError()
    return error


def _of_postgres(error: asyncpg.PostgresError) -> QueenError:
    match error.sqlstate:
        case sqlstates.TRANSACTION_REFUSED:
            return TransactionRefused(str(error))
        case sqlstates.OFFSET_CONFLICT:
            return OffsetsDiffer(str(error), msgspec.json.decode(error.detail or "[]", type=list[int]))
        case sqlstates.KEY_CONDITION:
            return KeyConditionFailed(str(error), msgspec.json.decode(error.detail or "{}", type=KeyDetail))
        case sqlstates.ENCRYPTION_REQUIRED:
            return EncryptionRequired(str(error), error.detail or "[]")
        case sqlstates.QUEUE_FULL | sqlstates.TOO_MANY_OPERATIONS:
            return Overloaded(str(error))
        case sqlstates.TRANSACTION_ID_TAKEN:
            return Conflict(str(error))
        case sqlstates.EPOCH_INCOMPLETE:
            return CallRefused(str(error))
        case sqlstates.NEEDS_ADMIN:
            return Forbidden(str(error))
        case sqlstates.LOCK_NOT_AVAILABLE if error.server_source_function != "exec_stmt_raise":
            return RowLocked("database connection busy: another transaction holds a lock (ECONNREFUSED)")
        case sqlstates.QUERY_CANCELED:
            return DatabaseUnavailable("database connection too slow: the statement was cancelled (ECONNREFUSED)")
        case sqlstates.DISK_FULL:
            return DatabaseUnavailable("database connection refused the write: its disk is full (ECONNREFUSED)")
    match cause_of(error.sqlstate):
        case Cause.CONTENTION:
            return TryAgain("database connection busy: a lock could not be had (ECONNREFUSED)")
        case Cause.DATABASE:
            name = type(error).__name__
            return DatabaseUnavailable(f"database connection cannot do it for now: {name} (ECONNREFUSED)")
    log.error("statement failed: %s", without_details(error))
    return InternalError() if cause_of(error.sqlstate) is Cause.CONTENT else StatementFailed()


def is_connection_lost(error: BaseException) -> bool:
    # asyncpg calls an argument that it cannot encode an interface error, too.
    broken = isinstance(error, BROKEN) and not isinstance(error, ValueError)
    return broken or cause_of(sqlstate_of(error)) is Cause.CONNECTION


@contextmanager
def known_if_cut(connection: asyncpg.Connection[asyncpg.Record]) -> Iterator[None]:
    """Of a connection that was cut below it the driver raises what it does not foresee: here that is an OSError."""
    try:
        yield
    except (asyncpg.PostgresError, QueenError, *BROKEN):
        raise
    except Exception as error:
        if connection.is_closed():
            raise ConnectionAbortedError("the connection was cut") from error
        raise


def is_not_the_writer(error: BaseException) -> bool:
    return isinstance(error, NotTheWriter) or sqlstate_of(error) == sqlstates.READ_ONLY


def without_details(error: Exception) -> str:
    """Without the details that PostgreSQL adds, because they may show rows and with them payloads."""
    if isinstance(error, asyncpg.PostgresError):
        return f"{type(error).__name__} ({error.sqlstate}): {error.args[0] if error.args else ''}"
    return f"{type(error).__name__}: {error}"
