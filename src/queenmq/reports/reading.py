"""How reports read: named statements with a row type each, from the pool or from one snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

import asyncpg
from msgspec import Struct

from queenmq.errors import Overloaded
from queenmq.storage.database import LOST_ANSWERS, Database
from queenmq.storage.failures import AnswerLost
from queenmq.storage.statements import statement

Row = TypeVar("Row", bound=Struct)
Answer = TypeVar("Answer")

_WAITING_FOR_EACH: Final = 8  # search that runs


class Query(Generic[Row]):
    """A named statement and the type of its rows: each field is the column of that name.

    Columns without a field are not read. A field without a column is an error, which a test of all queries finds.
    """

    def __init__(self, name: str, row: type[Row]) -> None:
        self.name: Final = name
        self.row: Final = row
        self.columns: Final = row.__struct_fields__

    def typed(self, record: asyncpg.Record) -> Row:
        return self.row(*[record[column] for column in self.columns])


class _Source(Protocol):
    async def fetch(self, query: str, /, *arguments: object) -> list[asyncpg.Record]: ...

    async def fetchrow(self, query: str, /, *arguments: object) -> asyncpg.Record | None: ...


class Reader:
    """Runs queries."""

    def __init__(self, source: _Source) -> None:
        self._source = source

    async def rows(self, query: Query[Row], *arguments: object) -> list[Row]:
        return [query.typed(record) for record in await self._source.fetch(statement(query.name), *arguments)]

    async def row(self, query: Query[Row], *arguments: object) -> Row | None:
        record = await self._source.fetchrow(statement(query.name), *arguments)
        return None if record is None else query.typed(record)

    async def one(self, query: Query[Row], *arguments: object) -> Row:
        """The row of a query that always has one."""
        row = await self.row(query, *arguments)
        if row is None:
            raise AssertionError(f"{query.name} returned no row")
        return row


class Reports(Reader):
    """Runs queries on connections of the pool, each by itself; `snapshot` runs several about the same moment.

    `searches` run or wait now, of at most `most_searches`; `searches_refused` counts those beyond.
    """

    def __init__(self, database: Database, searches_at_once: int = 2) -> None:
        super().__init__(_Pool(database))
        self._database = database
        self._turns = asyncio.Semaphore(searches_at_once)
        self.most_searches = searches_at_once * (1 + _WAITING_FOR_EACH)
        self.searches = 0
        self.searches_refused = 0

    async def search(self, read: Callable[[Reader], Awaitable[Answer]]) -> Answer:
        """As `snapshot`, for what may read much: few run at a time, so that pushes and pops find connections. Raises
        Overloaded when too many wait."""
        if self.searches >= self.most_searches:
            self.searches_refused += 1
            raise Overloaded("too many searches wait for their turn, connection refused for now (ECONNREFUSED)")
        self.searches += 1
        try:
            async with self._turns:
                return await self.snapshot(read)
        finally:
            self.searches -= 1

    async def snapshot(self, read: Callable[[Reader], Awaitable[Answer]]) -> Answer:
        """The answer of `read`, whose queries all see the database at one moment. They cannot change anything.

        `read` starts again if the connection is lost meanwhile, so it must only read.
        """
        left = LOST_ANSWERS
        while True:
            try:
                async with (
                    self._database.connection() as connection,
                    connection.transaction(isolation="repeatable_read", readonly=True),
                ):
                    return await read(Reader(connection))
            except AnswerLost:
                if not left:
                    raise
                left -= 1


class _Pool:
    """Runs a statement again if the connection is lost before it has answered."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def fetch(self, query: str, /, *arguments: object) -> list[asyncpg.Record]:
        return await self._database.fetch(query, *arguments, repeatable=True)

    async def fetchrow(self, query: str, /, *arguments: object) -> asyncpg.Record | None:
        return await self._database.fetchrow(query, *arguments, repeatable=True)
