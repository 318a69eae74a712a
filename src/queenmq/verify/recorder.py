"""Records what clients do: each call as an invocation and, when it has ended, its completion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

from queenmq.client import NetworkError, QueenError, ResponseError, TransactionFailed
from queenmq.clock import Clock
from queenmq.verify.history import Answer, Completion, Fault, History, Invocation, Outcome, Request

T = TypeVar("T")
_LONGEST_ERROR = 200
# The codes of Queen's 503 that say that nothing was kept. One with another code says that nobody knows. One without any
# is from a proxy, which may have passed the request on before.
NOTHING_KEPT = frozenset(
    {
        "unavailable",
        "database_unavailable",
        "row_locked",
        "server_stopping",
        "maintenance",
        "no_encryption_key",
        "journal_failed",
        "too_many_connections",
        "statement_failed",
    }
)


class Recorder:
    """The history so far. Everything that is recorded runs in one process, on one monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self.history: History = []
        self._clock = clock
        self._numbers = count(1)

    async def attempt(
        self, process: str, request: Request, call: Callable[[], Awaitable[T]], answer: Callable[[T], Answer]
    ) -> T | None:
        """Make a call of the client and record what came of it; None if it got no answer that says it took place."""
        op = self.invoke(process, request)
        try:
            result = await call()
        except QueenError as error:
            self.complete(op, outcome_of(error), error=str(error)[:_LONGEST_ERROR])
            return None
        except TimeoutError:
            self.complete(op, "info", error="the client has not waited for the answer")
            return None
        self.complete(op, "ok", answer(result))
        return result

    def invoke(self, process: str, request: Request, since: float | None = None) -> int:
        """`since` is when it may have begun, if that was before now."""
        op = next(self._numbers)
        now = self._clock.monotonic()
        at = now if since is None else since
        self.history.append(Invocation(op, process, at, request, self._clock.wall() - now + at))
        return op

    def complete(self, op: int, outcome: Outcome, answer: Answer | None = None, error: str = "") -> None:
        self.history.append(Completion(op, self._clock.monotonic(), outcome, answer, error, self._clock.wall()))

    def note(self, fault: str, begun: float, ended: float) -> None:
        """A fault of the servers, by the same monotonic clock."""
        self.history.append(Fault(fault, begun, ended, self._clock.wall() - self._clock.monotonic() + begun))


def outcome_of(error: QueenError) -> Outcome:
    """What is known after an error of a call that was tried once.

    429 says that nothing was kept, and so does 503 with one of the codes of `NOTHING_KEPT`.
    """
    match error:
        case TransactionFailed(uncertain=False) | NetworkError(sent=False):
            return "fail"
        case ResponseError(status=status) if 400 <= status < 500 and status != 408:
            return "fail"
        case ResponseError(status=503) if error.code in NOTHING_KEPT:
            return "fail"
        case _:
            return "info"
