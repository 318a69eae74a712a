"""What administration asks about: one named read-only statement a question."""

from __future__ import annotations

import asyncpg

from queenmq.storage.database import Database
from queenmq.storage.statements import statement


class Reports:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def rows(self, question: str, *arguments: object) -> list[asyncpg.Record]:
        """The answer of `sql/queries/<question>.sql`."""
        return await self._database.fetch(statement(question), *arguments)

    async def row(self, question: str, *arguments: object) -> asyncpg.Record | None:
        return await self._database.fetchrow(statement(question), *arguments)

    async def one(self, question: str, *arguments: object) -> asyncpg.Record:
        """The same for a question that always has an answer."""
        row = await self.row(question, *arguments)
        if row is None:
            raise AssertionError(f"{question} returned no row")
        return row
