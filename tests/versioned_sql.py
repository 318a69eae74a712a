"""Sessions of tests that call the stored functions as the SQL files name them, like `queen.trim(…)`."""

from __future__ import annotations

from typing import Any

import asyncpg

from queenmq.storage.statements import versioned


class VersionedSession(asyncpg.Connection):
    """A plain session, in whose statements the names of this version's functions are filled in."""

    async def execute(self, query: str, *args: Any, **options: Any) -> str:
        return await super().execute(versioned(query), *args, **options)

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        return await super().fetch(versioned(query), *args, **options)

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
        return await super().fetchrow(versioned(query), *args, **options)

    async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
        return await super().fetchval(versioned(query), *args, **options)
