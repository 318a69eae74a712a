"""Every error that the server raises on purpose, with its HTTP status and its `code`.

The `code` is stable; the message is for people. Those marked with * are defined beside what raises them.

QueenError                          error                 the root
├── HttpError                  500  error                 has a status and a body, so it can be an answer
│   ├── RequestError           400  bad_request           the caller must change something; repeating it is of no use
│   │   ├── InvalidRequest     400  invalid_request       a field is missing, of the wrong type or out of range
│   │   │   ├── TooManyItems   413  too_large             * an array of the request is over the limit
│   │   │   └── SchemaMismatch 422  schema_mismatch       a message does not fit the schema of its queue
│   │   ├── InvalidJson        400  invalid_json          the body is not JSON (or not UTF-8)
│   │   ├── BadHttp            400  bad_http              * the bytes are not HTTP
│   │   ├── PlainHttp          400  https_required        * plain HTTP at a server that has TLS
│   │   ├── Unauthenticated    401  unauthenticated       no token, or one that does not verify
│   │   ├── Forbidden          403  forbidden             the token's role is not enough
│   │   ├── NotFound           404  not_found             the named thing does not exist
│   │   │   └── NotSupported   404  not_supported         published clients know it, and this server leaves it out
│   │   ├── MethodNotAllowed   405  method_not_allowed    the path exists, the method does not
│   │   ├── RequestTimeout     408  request_timeout       * the request did not arrive in time
│   │   ├── Conflict           409  conflict              the request contradicts what is stored
│   │   │   └── OffsetConflict 409  offset_conflict       a partition does not end where the push expects
│   │   ├── TooLarge           413  too_large             the body is over the limit
│   │   ├── TargetTooLong      414  target_too_long       * the path and query are over the limit
│   │   ├── UpgradeRequired    426  upgrade_required      * the request opens no WebSocket, and must
│   │   └── HeadersTooLarge    431  headers_too_large     * the headers are over the limit
│   ├── UnavailableError       503  unavailable           the same request may succeed later; nothing was kept
│   │   ├── DatabaseUnavailable 503 database_unavailable  PostgreSQL does not answer
│   │   │   ├── TryAgain       503  database_unavailable  * the statement was rolled back; it may succeed at once
│   │   │   │   └── RowLocked  503  row_locked            * another transaction holds a row that it needs
│   │   │   └── AnswerLost     503  outcome_unknown       * the connection ended; it may have been committed
│   │   ├── NoEncryptionKey    503  no_encryption_key     * the queue is encrypted and this server has no key
│   │   ├── JournalFailed      503  journal_failed        * the disk refused the record
│   │   ├── ForwardLost        503  outcome_unknown       * the server that it was forwarded to may have done it
│   │   ├── ServerStopping     503  server_stopping       this server is shutting down
│   │   │   └── Interrupted    503  outcome_unknown       it did not wait for the end: what was asked may be done
│   │   ├── InMaintenance      503  maintenance           the operator has switched pushes off
│   │   ├── WouldJournal       503  would_journal         for other servers: the push belongs into their journal
│   │   ├── TooManyConnections 503  too_many_connections  * the bound on open connections is reached
│   │   └── Overloaded         429  overloaded            a bound is reached; `retry_after_s` says when to come back
│   │       └── QuotaExceeded  429  quota_exceeded        a namespace stores as much as it may
│   ├── CallRefused            500  internal_error        * a function of our schema refused what it was given
│   │   ├── TransactionRefused 500  internal_error        * it cannot be applied, with the reason; answered with 200
│   │   │   ├── OffsetsDiffer  500  internal_error        * a partition does not end where it expects
│   │   │   └── KeyConditionFailed 500 internal_error     * a change of a key that is required was not applied
│   │   └── EncryptionRequired 500  internal_error        * a payload came in clear; the call is made again
│   └── InternalError          500  internal_error        a defect in Queen; the details are in the log
│       └── StatementFailed    503  statement_failed      PostgreSQL refused a statement; nothing was kept
├── DecryptionFailed                decryption_failed     * a record is damaged or was written with another key
└── StartupError                    startup_failed        the process cannot start; printed, exit status 1
    ├── DatabaseAway                startup_failed        * the database does not answer yet
    └── PortTaken                   startup_failed        * the port of the bundled PostgreSQL is in use
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple


class QueenError(Exception):
    code: ClassVar[str] = "error"
    is_unknown = False  # whether an earlier try of the same has changed something: nobody may say that it has not

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class HttpError(QueenError):
    """An error that has an HTTP status; `body` is what the caller sees."""

    status: ClassVar[int] = 500

    def body(self) -> dict[str, object]:
        return {"error": self.message, "code": self.code}


class RequestError(HttpError):
    status = 400
    code = "bad_request"


class InvalidRequest(RequestError):
    code = "invalid_request"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field

    def body(self) -> dict[str, object]:
        body = super().body()
        if self.field is not None:
            body["field"] = self.field
        return body


class InvalidJson(RequestError):
    code = "invalid_json"


class SchemaMismatch(InvalidRequest):
    """A message does not fit the schema of its queue; nothing of the request was stored."""

    status = 422
    code = "schema_mismatch"


class Unauthenticated(RequestError):
    status = 401
    code = "unauthenticated"


class Forbidden(RequestError):
    status = 403
    code = "forbidden"


class NotFound(RequestError):
    status = 404
    code = "not_found"


class NotSupported(NotFound):
    code = "not_supported"


class MethodNotAllowed(RequestError):
    status = 405
    code = "method_not_allowed"

    def __init__(self, method: str, allow: str) -> None:
        super().__init__(f"{method} is not allowed here; allowed: {allow}")
        self.allow = allow


class Conflict(RequestError):
    status = 409
    code = "conflict"


class OffsetFound(NamedTuple):
    """The last offset that a partition has, where another one was expected."""

    queue: str
    partition: str
    expected: int
    actual: int


class OffsetConflict(Conflict):
    code = "offset_conflict"

    def __init__(self, found: Sequence[OffsetFound]) -> None:
        first = found[0]
        super().__init__(
            f"the last offset of partition {first.partition!r} of queue {first.queue!r} is {first.actual}, not "
            f"{first.expected} as expected: nothing was stored"
        )
        self.found = found

    def body(self) -> dict[str, object]:
        return super().body() | {"conflicts": [one._asdict() for one in self.found]}


class TooLarge(RequestError):
    status = 413
    code = "too_large"


class UnavailableError(HttpError):
    status = 503
    code = "unavailable"


class DatabaseUnavailable(UnavailableError):
    code = "database_unavailable"

    def __init__(self, message: str = "database connection unavailable (ECONNREFUSED)") -> None:
        # Published consumers stay alive only if the text has both "connection" and "ECONNREFUSED".
        super().__init__(message)


class ServerStopping(UnavailableError):
    code = "server_stopping"

    def __init__(self, message: str = "server is stopping, connection closed (ECONNREFUSED)") -> None:
        super().__init__(message)


class Interrupted(ServerStopping):
    """The request was under way when the grace of the stop ended. What it has sent to the database goes on."""

    code = "outcome_unknown"


class InMaintenance(UnavailableError):
    code = "maintenance"

    def __init__(self) -> None:
        super().__init__("pushes are switched off for maintenance, try again later")


class WouldJournal(UnavailableError):
    """Only other servers see it: they journal the push themselves."""

    code = "would_journal"

    def __init__(self, *, is_unknown: bool = False) -> None:
        super().__init__("the push would be journalled here, but belongs in the journal of the server that received it")
        self.is_unknown = is_unknown


class Overloaded(UnavailableError):
    """Refused for now. The text for a pop needs the two words of `DatabaseUnavailable`, or published consumers end."""

    status = 429
    code = "overloaded"

    def __init__(self, message: str, retry_after_s: int = 1, queue_depth: int | None = None) -> None:
        """`queue_depth` are the operations that wait, if that is why it is refused."""
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.queue_depth = queue_depth

    def body(self) -> dict[str, object]:
        depth = {} if self.queue_depth is None else {"queueDepth": self.queue_depth}
        return super().body() | depth


class QuotaExceeded(Overloaded):
    """A namespace stores as much as it may, or a queue has as many groups."""

    code = "quota_exceeded"


class InternalError(HttpError):
    status = 500
    code = "internal_error"

    def __init__(self, message: str = "internal error") -> None:
        super().__init__(message)


class StatementFailed(InternalError):
    """Nobody knows whose fault it is, so it is not taken for the caller's: the same request may succeed later."""

    status = 503
    code = "statement_failed"

    def __init__(self) -> None:
        super().__init__("database connection failed the statement, see the log of the server (ECONNREFUSED)")


class StartupError(QueenError):
    code = "startup_failed"
