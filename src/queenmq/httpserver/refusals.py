"""Errors as answers: how an `HttpError` goes over the wire, and the errors that only HTTP itself knows."""

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
from queenmq.httpserver.messages import Response


class BadHttp(RequestError):
    code = "bad_http"


class RequestTimeout(RequestError):
    status = 408
    code = "request_timeout"

    def __init__(self, message: str = "the request did not arrive in time, connection closed") -> None:
        super().__init__(message)


class PlainHttp(RequestError):
    code = "https_required"

    def __init__(self, message: str = "this server speaks HTTPS: use https:// instead of http://") -> None:
        super().__init__(message)


class TargetTooLong(RequestError):
    status = 414
    code = "target_too_long"


class HeadersTooLarge(RequestError):
    status = 431
    code = "headers_too_large"


class TooManyItems(InvalidRequest):
    status = TooLarge.status
    code = TooLarge.code


class TooManyConnections(UnavailableError):
    code = "too_many_connections"

    def __init__(self, message: str = "too many connections (ECONNREFUSED)") -> None:
        # Published consumers stay alive only if the text has both "connection" and "ECONNREFUSED".
        super().__init__(message)


def error_response(error: HttpError) -> Response:
    response = Response(error.status, error.body())
    response.encode()
    match error:
        case Overloaded():
            response.headers = ((b"Retry-After", b"%d" % error.retry_after_s),)
        case MethodNotAllowed():
            response.headers = ((b"Allow", error.allow.encode()),)
        case Unauthenticated():
            response.headers = ((b"WWW-Authenticate", b"Bearer"),)
    return response
