"""What an error of PostgreSQL says about whose fault it was: the table of SQLSTATEs for server and pipeline. No I/O.

What was accepted may be set aside, or given up, only for `Cause.CONTENT`: the values themselves can never be stored.
The list of those is closed. Whatever is not listed, and every error that is none of PostgreSQL's, is somebody else's
fault and is tried again.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final


class Cause(Enum):
    CONTENT = "content"  # the values in the statement: the same ones fail every time
    CONTENTION = "contention"  # others were in the way: the same statement may succeed now
    CONNECTION = "connection"  # it is gone, or cannot be had: no other statement would do better
    DATABASE = "database"  # what it lacks, or the state it is in: the same statement may succeed later
    UNKNOWN = "unknown"


# Raised by our functions (RAISE SQLSTATE '…').
TRANSACTION_REFUSED: Final = "QN001"  # a transaction or a cycle cannot be applied; the message is for the caller
ENCRYPTION_REQUIRED: Final = "QN002"  # a payload in clear for a queue that demands encryption; the detail names queues
STAGED_ROWS_MISSING: Final = "QN003"  # what a sink has staged is not there any more
QUEUE_FULL: Final = "QN004"  # maxSize leaves no room; of a sink, the detail names the queues
TOO_MANY_OPERATIONS: Final = "QN005"  # the queue has as many operations to be done as it may have
TRANSACTION_ID_TAKEN: Final = "QN006"  # another message has the transactionId of a dead letter
NEEDS_ADMIN: Final = "QN007"  # the change would destroy something; the message is for the caller
KEY_CONDITION: Final = "QN011"  # a change of a key that is required was not applied; the detail says which and why
OFFSET_CONFLICT: Final = "QN008"  # a target has another last offset than expected; the detail has those of all
LEASE_ENDED: Final = "QN009"  # queen.finish of a lease that somebody else may have now
SUPERSEDED: Final = "QN010"  # a driver of a pipeline publishes, and another one has taken its place
EPOCH_INCOMPLETE: Final = "QN012"  # rows of a sink's epoch that is decided are gone
# Of PostgreSQL, where one is answered in a way of its own.
READ_ONLY: Final = "25006"
INVALID_PASSWORD: Final = "28P01"  # noqa: S105
DISK_FULL: Final = "53100"
TOO_MANY_CONNECTIONS: Final = "53300"
LOCK_NOT_AVAILABLE: Final = "55P03"  # also raised by our functions, for what can be had later but is not locked
QUERY_CANCELED: Final = "57014"
MISSING_PARENT: Final = "23503"
# No schema, table, column or function of this name: the schema queen is of another version, or not there at all.
OTHER_SCHEMA: Final = frozenset({"3F000", "42P01", "42703", "42883"})

_CODES: Final = {
    # A value that cannot be represented. 22000 is also what asyncpg calls an argument that it cannot encode.
    "22000": Cause.CONTENT,
    "22001": Cause.CONTENT,  # a text that is too long for its column
    "22003": Cause.CONTENT,  # a number out of range
    "22007": Cause.CONTENT,  # a time that is none
    "22008": Cause.CONTENT,  # a time out of range
    "22021": Cause.CONTENT,  # bytes that are no text in the encoding of the database
    "22023": Cause.CONTENT,  # a value that is not allowed
    "22026": Cause.CONTENT,  # a length that does not fit
    "22030": Cause.CONTENT,  # JSON with a key twice
    "22032": Cause.CONTENT,  # JSON that is none
    "22P02": Cause.CONTENT,  # a text that is no value of its type
    "22P03": Cause.CONTENT,  # the same in binary
    "22P05": Cause.CONTENT,  # a character that the encoding of the database does not have
    # A value that a constraint forbids. A missing parent (23503) or a row that is there already (23505) is no such
    # thing: the next try may find it otherwise.
    "23502": Cause.CONTENT,
    "23514": Cause.CONTENT,
    "40001": Cause.CONTENTION,  # a serialization failure
    "40P01": Cause.CONTENTION,  # a deadlock
    LOCK_NOT_AVAILABLE: Cause.CONTENTION,
    READ_ONLY: Cause.CONNECTION,  # to a standby: the writer is elsewhere
    TOO_MANY_CONNECTIONS: Cause.CONNECTION,
}
# By the first characters, the longest that fit.
_CLASSES: Final = {
    "08": Cause.CONNECTION,
    "53": Cause.DATABASE,  # memory, disk
    "57": Cause.DATABASE,  # somebody intervened: cancel
    "57P": Cause.CONNECTION,  # shutdown, crash, start, a session that was ended
    "58": Cause.DATABASE,  # the system below it: files
}


def cause_of(sqlstate: str | None) -> Cause:
    if not sqlstate:
        return Cause.UNKNOWN
    return _CODES.get(sqlstate) or _CLASSES.get(sqlstate[:3]) or _CLASSES.get(sqlstate[:2], Cause.UNKNOWN)


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE of an error, or of the one that it was raised from; None if there is none."""
    for one in _chain(error):
        sqlstate = getattr(one, "sqlstate", None)
        if isinstance(sqlstate, str):
            return sqlstate
    return None


def is_content_fault(error: BaseException) -> bool:
    """Whether what was to be stored can never be stored. Ask only if it was alone in its statement."""
    return cause_of(sqlstate_of(error)) is Cause.CONTENT


def is_about_the_statement(error: BaseException) -> bool:
    """Whether the database answered with an error, and other statements may succeed meanwhile."""
    sqlstate = sqlstate_of(error)
    return sqlstate is not None and cause_of(sqlstate) is not Cause.CONNECTION


def described(error: BaseException) -> str:
    """The error in a sentence, without the details of PostgreSQL: they may show rows, and with them payloads."""
    sqlstate = sqlstate_of(error)
    if sqlstate is None:
        return str(error)
    cause = next(one for one in _chain(error) if getattr(one, "sqlstate", None) == sqlstate)
    return f"{cause.args[0] if cause.args else type(cause).__name__} (SQLSTATE {sqlstate})"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from, the outermost first."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__
