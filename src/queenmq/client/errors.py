"""Every error that the client raises on purpose, with the HTTP status that it stands for and its `code`.

The `code` is stable; the message is for people. That of a ResponseError is the one that the server sends; the tree has
what it is if the server sends none.

QueenError                         client_error        the root
├── ResponseError                  refused             the server refused; `status`, `code`, `field`, `body`
│   ├── RequestError          4xx  bad_request         the caller must change something; never retried
│   │   ├── InvalidRequest    400  invalid_request     a field is missing, of the wrong type or out of range
│   │   ├── Unauthenticated   401  unauthenticated     no token, or one that does not verify
│   │   ├── Forbidden         403  forbidden           the token's role is not enough
│   │   ├── NotFound          404  not_found           the named thing does not exist
│   │   ├── Conflict          409  conflict            the request contradicts what is stored
│   │   │   └── OffsetConflict     offset_conflict     a partition does not end where the push expects; `actual`
│   │   └── TooLarge          413  too_large           the body or its number of items is over the limit
│   └── Unavailable                unavailable         the same request may succeed later; the retries are used up
│       ├── Overloaded        429  overloaded          a bound is reached; `retry_after_s` says when to come back
│       └── ServerFailed      5xx  server_failed       the server failed, or got the request too slowly (408)
├── NetworkError                   network_error       no answer: refused, cut, or too slow; the retries are used up
├── InvalidResponse                invalid_response    the answer is not of the contract; the retries are used up
├── InvalidUse                     invalid_use         an option, a URL or the order of calls is wrong; nothing was sent
├── InvalidPayload                 invalid_payload     the payload cannot be written as JSON; nothing was sent
├── InvalidItem                    invalid_item        what was given to push is ambiguous or invalid; nothing was sent
├── EmptyTransaction               empty_transaction   a transaction without steps; nothing was sent
├── PushFailed                     push_failed         the server refused items one by one; `results` has all of them
├── ReadFailed                     read_failed         messages cannot be read from there: deleted, or not decrypted
├── TransactionFailed              transaction_failed  it was not applied (`uncertain`: unless an earlier attempt was)
├── OperationFailed                operation_failed    a queued operation ended without success
│   └── OperationTimeout           operation_timeout   it has not ended yet; ask again with its id
├── BufferNotFlushed               buffer_not_flushed  messages are left in a client-side buffer; `count` says how many
├── Reject                         reject              raised by a handler: what becomes of its message instead
└── ClientClosed                   client_closed       the client was used after it was closed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from queenmq.client.models import OffsetFound, PushResult


class QueenError(Exception):
    code: str = "client_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ResponseError(QueenError):
    """The server's refusal. `code` and `field` are what its body says."""

    default_code: ClassVar[str] = "refused"

    def __init__(self, status: int, message: str, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body: Mapping[str, Any] = body or {}
        code, field = self.body.get("code"), self.body.get("field")
        self.code = code if isinstance(code, str) else self.default_code
        self.field = field if isinstance(field, str) else None


class RequestError(ResponseError):
    """`uncertain`: an earlier attempt got no answer, so this refusal may be that of a repetition of what was done."""

    default_code = "bad_request"
    uncertain = False


class InvalidRequest(RequestError):
    default_code = "invalid_request"


class Unauthenticated(RequestError):
    default_code = "unauthenticated"


class Forbidden(RequestError):
    default_code = "forbidden"


class NotFound(RequestError):
    default_code = "not_found"


class Conflict(RequestError):
    default_code = "conflict"


class OffsetConflict(Conflict):
    """`actual` is the last offset of the partition; nothing was stored."""

    default_code = "offset_conflict"

    @property
    def actual(self) -> int:
        found: list[dict[str, int]] = self.body["conflicts"]
        return found[0]["actual"]


class TooLarge(RequestError):
    default_code = "too_large"


class Unavailable(ResponseError):
    default_code = "unavailable"


class ServerFailed(Unavailable):
    default_code = "server_failed"


class Overloaded(Unavailable):
    default_code = "overloaded"

    def __init__(
        self, status: int, message: str, body: Mapping[str, Any] | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(status, message, body)
        self.retry_after_s = retry_after_s


class NetworkError(QueenError):
    """`sent` is False if no server can have seen the request, in any attempt."""

    code = "network_error"

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class InvalidResponse(QueenError):
    code = "invalid_response"


class InvalidUse(QueenError, ValueError):
    code = "invalid_use"


class InvalidPayload(QueenError, ValueError):
    code = "invalid_payload"


class InvalidItem(QueenError, ValueError):
    code = "invalid_item"


class EmptyTransaction(QueenError, ValueError):
    code = "empty_transaction"

    def __init__(self) -> None:
        # As published clients say it.
        super().__init__("Transaction has no operations to commit")


class PushFailed(QueenError):
    """Items that the server refused; the others of the same push are stored."""

    code = "push_failed"

    def __init__(self, results: Sequence[PushResult]) -> None:
        refused = [result for result in results if result.status == "failed"]
        super().__init__(refused[0].error or "the push was refused" if refused else "the push was refused")
        self.results = list(results)


class ReadFailed(QueenError):
    """`reason` is the word of the server for it: `OFFSET_OUT_OF_RANGE` or `CANNOT_DECRYPT`."""

    code = "read_failed"

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class TransactionFailed(QueenError):
    """`uncertain`: an attempt got no answer and may have been applied. `conflicts` are the partitions that did not end
    where they were expected to. `reason` is `kv_precondition` if a required change of a key was not applied, and
    `offset_conflict` if a partition ended elsewhere."""

    code = "transaction_failed"

    def __init__(
        self,
        message: str,
        *,
        uncertain: bool = False,
        conflicts: Sequence[OffsetFound] = (),
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.uncertain = uncertain
        self.reason = reason
        self.conflicts = list(conflicts)


class OperationFailed(QueenError):
    code = "operation_failed"

    def __init__(self, message: str, operation_id: str) -> None:
        super().__init__(message)
        self.operation_id = operation_id


class OperationTimeout(OperationFailed):
    code = "operation_timeout"


class BufferNotFlushed(QueenError):
    code = "buffer_not_flushed"

    def __init__(self, message: str, count: int) -> None:
        super().__init__(message)
        self.count = count


class Reject(QueenError):
    """Raise it in a handler to say what becomes of the message: `dlq` makes it a dead letter at once, `retry` gives it
    back without counting as an attempt, `failed` is what any other exception means.

    >>> raise Reject("no such customer")  # doctest: +SKIP
    """

    code = "reject"

    def __init__(
        self, message: str = "rejected by the handler", status: Literal["dlq", "retry", "failed"] = "dlq"
    ) -> None:
        super().__init__(message)
        if status not in ("dlq", "retry", "failed"):
            raise InvalidUse(f"{status!r} is no status of a Reject: dlq, retry or failed")
        self.status = status


class ClientClosed(QueenError):
    code = "client_closed"

    def __init__(self, message: str = "the client is closed") -> None:
        super().__init__(message)


_BY_STATUS: dict[int, type[RequestError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
}


def refusal(status: int, body: Mapping[str, Any], retry_after_s: float | None) -> ResponseError:
    """The error for an answer of 4xx or 5xx."""
    text = body.get("error")
    message = text if isinstance(text, str) and text else f"the server answered {status}"
    if status == 429:
        return Overloaded(status, message, body, retry_after_s)
    if status == 408 or status >= 500:
        return ServerFailed(status, message, body)
    if status == 409 and body.get("code") == OffsetConflict.default_code:
        return OffsetConflict(status, message, body)
    error = _BY_STATUS.get(status, RequestError)(status, message, body)
    if status == 401:
        error.add_note(
            "Give the client a token: Queen(url, bearer_token=...), or QUEEN_URL and QUEEN_TOKEN and Queen()."
        )
    return error
