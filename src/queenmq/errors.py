"""Every error that Queen raises on purpose.

QueenError                    one root; `code` is stable, the message is for people
├── RequestError              4xx: the caller must change something; never retried
│   ├── InvalidRequest        400  a field is missing, of the wrong type or out of range
│   ├── InvalidJson           400  the body is not JSON (or not UTF-8)
│   ├── Unauthenticated       401  no token, or one that does not verify
│   ├── Forbidden             403  the token's role is not enough
│   ├── NotFound              404  the named thing does not exist
│   ├── MethodNotAllowed      405  the path exists, the method does not
│   ├── Conflict              409  the request contradicts what is stored
│   └── TooLarge              413  the body or its number of items is over the limit
├── UnavailableError          the same request may succeed later; nothing was kept
│   ├── DatabaseUnavailable   503  PostgreSQL does not answer
│   ├── ServerStopping        503  this server is shutting down
│   ├── InMaintenance         503  the operator has switched pushes off
│   └── Overloaded            429  a bound is reached; `retry_after_s` says when to come back
├── InternalError             500  a defect in Queen; the details are in the log, not in the answer
└── StartupError              the process cannot start; printed as one sentence, exit status 1
"""

from __future__ import annotations

from typing import ClassVar


class QueenError(Exception):
    code: ClassVar[str] = "error"

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


class Unauthenticated(RequestError):
    status = 401
    code = "unauthenticated"


class Forbidden(RequestError):
    status = 403
    code = "forbidden"


class NotFound(RequestError):
    status = 404
    code = "not_found"


class MethodNotAllowed(RequestError):
    status = 405
    code = "method_not_allowed"


class Conflict(RequestError):
    status = 409
    code = "conflict"


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


class InMaintenance(UnavailableError):
    code = "maintenance"

    def __init__(self) -> None:
        super().__init__("pushes are switched off for maintenance, try again later")


class Overloaded(UnavailableError):
    """Refused for now. The text for a pop needs the two words of `DatabaseUnavailable`, or published consumers end."""

    status = 429
    code = "overloaded"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class InternalError(HttpError):
    status = 500
    code = "internal_error"

    def __init__(self, message: str = "internal error") -> None:
        super().__init__(message)


class StartupError(QueenError):
    code = "startup_failed"
