"""Finishing messages in a transaction of the application's own database, where the schema queen is, too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any

from queenmq.client.errors import InvalidUse

_ASYNCPG = "SELECT queen.finish($1::uuid, $2::uuid)"
_PSYCOPG = "SELECT queen.finish(%s::uuid, %s::uuid)"


class OwnTransaction(AbstractAsyncContextManager[Any], AbstractContextManager[Any]):
    """Begins a transaction on `connection`, and finishes messages in it at its end: what was written meanwhile and the
    acknowledgement are one commit.

    `connection` is one of asyncpg or of psycopg 3; enter it with `async with`, or with `with` if the connection is
    psycopg's `Connection`. The database refuses the end of a lease that is over, so that everything is rolled back.
    The connection must not be in a transaction yet, because then this one would end with the other.
    """

    def __init__(self, connection: Any, places: Sequence[tuple[str, str]]) -> None:
        """`places`: the lease and the id of each message. Raises InvalidUse if a message has no lease."""
        if not all(lease for lease, _ in places):
            raise InvalidUse("the message was consumed at delivery (autoAck): there is no lease to finish")
        library = _library_of(connection)
        if library is None:
            kind = type(connection)
            raise TypeError(
                f"a {kind.__module__}.{kind.__name__} is no connection of asyncpg or psycopg 3: "
                "call queen.finish(lease, message_id) in your own transaction instead"
            )
        self._connection = connection
        self._is_asyncpg = library == "asyncpg"
        self._places = places
        self._entered: Any = None

    async def __aenter__(self) -> Any:
        self._entered = self._async()
        return await self._entered.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        ended: bool | None = await self._entered.__aexit__(kind, error, trace)
        return ended

    def __enter__(self) -> Any:
        self._entered = self._blocking()
        return self._entered.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        ended: bool | None = self._entered.__exit__(kind, error, trace)
        return ended

    def _check_idle(self) -> None:
        connection = self._connection
        is_busy = connection.is_in_transaction() if self._is_asyncpg else bool(connection.info.transaction_status)
        if is_busy:
            raise InvalidUse(
                "the connection is in a transaction already, so this one could not commit: commit or roll back first; "
                "psycopg begins one with every statement unless autocommit is on"
            )

    @asynccontextmanager
    async def _async(self) -> AsyncIterator[Any]:
        self._check_idle()
        async with self._connection.transaction():
            yield self._connection
            for place in self._places:
                if self._is_asyncpg:
                    await self._connection.execute(_ASYNCPG, *place)
                else:
                    await self._connection.execute(_PSYCOPG, place)

    @contextmanager
    def _blocking(self) -> Iterator[Any]:
        self._check_idle()
        with self._connection.transaction():
            yield self._connection
            for place in self._places:
                self._connection.execute(_PSYCOPG, place)


def _library_of(connection: Any) -> str | None:
    """Also of a class that was derived from one of theirs."""
    for kind in type(connection).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in ("asyncpg", "psycopg"):
            return library
    return None
