"""Finishing messages in a transaction of the application's own database, where the schema queen is, too.

Each library begins transactions in its own way. None of them is imported here: who has a connection has imported it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from types import TracebackType
from typing import Any, Final

from queenmq.client.errors import InvalidUse

_ASYNCPG: Final = "SELECT queen.finish($1::uuid, $2::uuid)"
_PSYCOPG: Final = "SELECT queen.finish(%s::uuid, %s::uuid)"
_SQLALCHEMY: Final = "SELECT queen.finish(CAST(:lease AS uuid), CAST(:message AS uuid))"

Places = Sequence[tuple[str, str]]


class OwnTransaction(AbstractAsyncContextManager[Any], AbstractContextManager[Any]):
    """Begins a transaction on `connection`, and finishes messages in it at its end: what was written meanwhile and the
    acknowledgement are one commit.

    `connection` is one of asyncpg or of psycopg 3, a session or connection of SQLAlchemy, or a connection of Django.
    Enter it with `async with`, or with `with` if the connection is one that blocks. The database refuses the end of a
    lease that is over, so that everything is rolled back. The connection must not be in a transaction yet, because then
    this one would end with the other.
    """

    def __init__(self, connection: Any, places: Places) -> None:
        """`places`: the lease and the id of each message. Raises InvalidUse if a message has no lease."""
        if not all(lease for lease, _ in places):
            raise InvalidUse("the message was consumed at delivery (autoAck): there is no lease to finish")
        library = _library_of(connection)
        if library is None:
            kind = type(connection)
            raise TypeError(
                f"a {kind.__module__}.{kind.__name__} is no connection of asyncpg, psycopg 3, SQLAlchemy or Django: "
                "call queen.finish(lease, message_id) in your own transaction instead"
            )
        if library == "sqlalchemy" and ".scoping" in type(connection).__module__:
            connection = connection()  # the session of this thread or task
        self._connection = connection
        self._library = library
        self._places = places
        self._entered: Any = None

    async def __aenter__(self) -> Any:
        self._entered = self._begun(_ASYNCHRONOUS, "with")
        return await self._entered.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        ended: bool | None = await self._entered.__aexit__(kind, error, trace)
        return ended

    def __enter__(self) -> Any:
        self._entered = self._begun(_BLOCKING, "async with")
        return self._entered.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        ended: bool | None = self._entered.__exit__(kind, error, trace)
        return ended

    def _begun(self, ways: dict[tuple[str, bool], Callable[[Any, Places], Any]], other: str) -> Any:
        bases = type(self._connection).__mro__
        is_async = self._library == "asyncpg" or any(kind.__name__.startswith("Async") for kind in bases)
        way = ways.get((self._library, is_async))
        if way is None:
            raise InvalidUse(f"this connection is entered with `{other} message.transaction(connection)`")
        return way(self._connection, self._places)


def _library_of(connection: Any) -> str | None:
    """Also of a class that was derived from one of theirs."""
    for kind in type(connection).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in ("asyncpg", "psycopg", "sqlalchemy", "django"):
            return library
    return None


def _check_idle(is_busy: bool) -> None:
    if is_busy:
        raise InvalidUse(
            "the connection is in a transaction already, so this one could not commit: commit or roll back first; "
            "psycopg and SQLAlchemy begin one with every statement unless autocommit is on"
        )


@asynccontextmanager
async def _asyncpg(connection: Any, places: Places) -> AsyncIterator[Any]:
    _check_idle(connection.is_in_transaction())
    async with connection.transaction():
        yield connection
        for place in places:
            await connection.execute(_ASYNCPG, *place)


@asynccontextmanager
async def _psycopg_async(connection: Any, places: Places) -> AsyncIterator[Any]:
    _check_idle(bool(connection.info.transaction_status))
    async with connection.transaction():
        yield connection
        for place in places:
            await connection.execute(_PSYCOPG, place)


@contextmanager
def _psycopg(connection: Any, places: Places) -> Iterator[Any]:
    _check_idle(bool(connection.info.transaction_status))
    with connection.transaction():
        yield connection
        for place in places:
            connection.execute(_PSYCOPG, place)


@asynccontextmanager
async def _sqlalchemy_async(connection: Any, places: Places) -> AsyncIterator[Any]:
    from sqlalchemy import text

    _check_idle(connection.in_transaction())
    async with connection.begin():
        is_session = hasattr(connection, "sync_session")
        _check_transactional((await connection.connection() if is_session else connection).sync_connection)
        yield connection
        for lease, message in places:
            await connection.execute(text(_SQLALCHEMY), {"lease": lease, "message": message})


@contextmanager
def _sqlalchemy(connection: Any, places: Places) -> Iterator[Any]:
    from sqlalchemy import Connection, text

    _check_idle(connection.in_transaction())
    with connection.begin():
        _check_transactional(connection if isinstance(connection, Connection) else connection.connection())
        yield connection
        for lease, message in places:
            connection.execute(text(_SQLALCHEMY), {"lease": lease, "message": message})


def _check_transactional(connection: Any) -> None:
    """With the isolation level AUTOCOMMIT, SQLAlchemy only pretends to begin."""
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise InvalidUse("the connection commits every statement by itself (AUTOCOMMIT): use another isolation level")


@contextmanager
def _django(connection: Any, places: Places) -> Iterator[Any]:
    from django.db import transaction

    if not connection.in_atomic_block:
        _check_idle(not connection.get_autocommit())  # atomic() would leave the commit to somebody else
    with ExitStack() as stack:
        try:
            stack.enter_context(transaction.atomic(using=connection.alias, durable=True))
        except RuntimeError as error:  # not in a TestCase, whose own transaction does not count
            raise InvalidUse(f"{error} So this one could not commit: leave the other one first.") from error
        yield connection
        with connection.cursor() as cursor:
            for place in places:
                cursor.execute(_PSYCOPG, place)


# By library, and whether the connection is an asynchronous one.
_ASYNCHRONOUS: Final[dict[tuple[str, bool], Callable[[Any, Places], Any]]] = {
    ("asyncpg", True): _asyncpg,
    ("psycopg", True): _psycopg_async,
    ("sqlalchemy", True): _sqlalchemy_async,
}
_BLOCKING: Final[dict[tuple[str, bool], Callable[[Any, Places], Any]]] = {
    ("psycopg", False): _psycopg,
    ("sqlalchemy", False): _sqlalchemy,
    ("django", False): _django,
}
