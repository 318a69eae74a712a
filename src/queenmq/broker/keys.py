"""Values under keys of a namespace, counters and locks: changed with a condition, and gone at their time.

What cannot be repeated safely is not repeated here: if an answer gets lost, the caller learns that the outcome is
unknown. `services/expiry.py` removes what is past its time; until then nobody sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import asyncpg

from queenmq.core.keys import (
    LOCK_NAMESPACE,
    MOST_PERMITS,
    KeyChange,
    KeyChanged,
    LockChanged,
    LockOperation,
    StoredValue,
)
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

_LOCK_TIMEOUT: Final = "5s"
_LAST: Final = "\U0010ffff" * 3
_EXPIRED_AT_ONCE: Final = 1000


class Keys:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.expired = 0

    async def change(self, changes: Sequence[KeyChange]) -> list[KeyChanged]:
        """Apply them in one transaction, in their order. Raises KeyConditionFailed if one that is required is not
        applied: then nothing is."""
        return _changed(await self._database.fetch(statement("change_keys"), *_columns(changes), _LOCK_TIMEOUT))

    @staticmethod
    async def change_in(
        connection: asyncpg.Connection[asyncpg.Record], changes: Sequence[KeyChange], lock_timeout: str
    ) -> list[KeyChanged]:
        """The same in the caller's transaction. Its other locks come after."""
        return _changed(await connection.fetch(statement("change_keys"), *_columns(changes), lock_timeout))

    async def find(self, namespace: str, keys: Sequence[str], max_bytes: int) -> list[StoredValue]:
        """Those that are there, by key; values up to `max_bytes`."""
        rows = await self._database.fetch(statement("find_keys"), namespace, keys, max_bytes, repeatable=True)
        return [_stored(row) for row in rows]

    async def page(
        self, namespace: str, prefix: str, after: str, limit: int, *, with_values: bool, max_bytes: int
    ) -> list[StoredValue]:
        """Keys that begin with `prefix`, behind `after`."""
        bounds = (namespace, prefix, prefix + _LAST, after, limit)
        rows = await self._database.fetch(statement("keys_listed"), *bounds, with_values, max_bytes, repeatable=True)
        return [_stored(row) for row in rows]

    async def change_lock(self, operation: LockOperation) -> LockChanged:
        row = await self._database.fetchrow(
            statement("change_lock"),
            operation.change,
            operation.name,
            operation.owner,
            operation.ttl_s,
            operation.limit,
            operation.slot,
            operation.token,
            _LOCK_TIMEOUT,
        )
        if row is None:
            raise AssertionError("queen.change_lock returned no row")
        return LockChanged(row["done"], row["slot"], row["token"], row["owner"], row["already"])

    async def holders(self, lock: str) -> list[StoredValue]:
        """The permits of a lock that somebody has."""
        return await self.page(
            LOCK_NAMESPACE + lock, "", "", MOST_PERMITS, with_values=True, max_bytes=MOST_PERMITS * 1000
        )

    async def forget_expired(self) -> bool:
        """Remove some that are past their time. True if there may be more."""
        removed: int = await self._database.fetchval(statement("forget_expired"), _EXPIRED_AT_ONCE)
        self.expired += removed
        return removed == _EXPIRED_AT_ONCE


def _columns(changes: Sequence[KeyChange]) -> tuple[object, ...]:
    return (
        [change.change for change in changes],
        [change.namespace for change in changes],
        [change.key for change in changes],
        [change.value for change in changes],
        [change.ttl_s for change in changes],
        [change.expected for change in changes],
        [change.delta for change in changes],
        [change.least for change in changes],
        [change.most for change in changes],
        [change.required for change in changes],
    )


def _changed(rows: Sequence[asyncpg.Record]) -> list[KeyChanged]:
    return [KeyChanged(row["applied"], row["reason"], row["version"], row["value"], row["expires_at"]) for row in rows]


def _stored(row: asyncpg.Record) -> StoredValue:
    return StoredValue(
        row["key"], row["version"], row["expires_at"], row["updated_at"], row["value"], bool(row["omitted"])
    )
