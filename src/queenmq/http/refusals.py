"""Errors as answers: how an `HttpError` goes over the wire, and the errors that only HTTP itself knows.

HttpError
├── BadHttp                400  the bytes are not HTTP
├── RequestTimeout         408  the request did not arrive in time
├── TargetTooLong          414  the path and query are over the limit
├── HeadersTooLarge        431  the header block is over the limit
├── WrongMethod            405  a `MethodNotAllowed` that names what is allowed
├── TooManyItems           413  an array of the request is over the limit
└── TooManyConnections     503  the bound on open connections is reached
"""

from __future__ import annotations

from queenmq.errors import (
    HttpError,
    InvalidRequest,
    MethodNotAllowed,
    Overloaded,
    RequestError,
    TooLarge,
    Unauthenticated,
    UnavailableError,
)
from queenmq.http.messages import Response, json_response


class BadHttp(RequestError):
    code = "bad_http"


class RequestTimeout(RequestError):
    status = 408
    code = "request_timeout"

    def __init__(self, message: str = "the request did not arrive in time, connection closed") -> None:
        super().__init__(message)


class TargetTooLong(RequestError):
    status = 414
    code = "target_too_long"


class HeadersTooLarge(RequestError):
    status = 431
    code = "headers_too_large"


class WrongMethod(MethodNotAllowed):
    def __init__(self, method: str, allow: str) -> None:
        super().__init__(f"{method} is not allowed here; allowed: {allow}")
        self.allow = allow


class TooManyItems(InvalidRequest):
    status = TooLarge.status
    code = TooLarge.code


class TooManyConnections(UnavailableError):
    code = "too_many_connections"

    def __init__(self, message: str = "too many connections (ECONNREFUSED)") -> None:
        # Published consumers stay alive only if the text has both "connection" and "ECONNREFUSED".
        super().__init__(message)


def error_response(error: HttpError) -> Response:
    response = json_response(error.status, error.body())
    match error:
        case Overloaded():
            response.headers = ((b"Retry-After", b"%d" % error.retry_after_s),)
        case WrongMethod():
            response.headers = ((b"Allow", error.allow.encode()),)
        case Unauthenticated():
            response.headers = ((b"WWW-Authenticate", b"Bearer"),)
    return response
