"""The schemas of queues and their versions."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Struct

from queenmq.reports.reading import Query, Reader


class SchemaListed(Struct, frozen=True):
    queue: str
    version: int
    compatibility: str
    check: bool
    changed_at: datetime


class SchemaVersion(Struct, frozen=True):
    version: int
    created_at: datetime
    created_by: str | None


class SchemaRead(SchemaVersion, frozen=True):
    queue: str
    newest: int
    compatibility: str
    check: bool
    schema: str


_LISTED: Final = Query("schemas_listed", SchemaListed)
_VERSIONS: Final = Query("schema_versions", SchemaVersion)
_VERSION: Final = Query("schema_version", SchemaRead)


async def page(reader: Reader, visible: list[str] | None, after: str, limit: int) -> list[SchemaListed]:
    return await reader.rows(_LISTED, visible, after, limit)


async def versions(reader: Reader, queue: str, limit: int) -> list[SchemaVersion]:
    """The newest first."""
    return await reader.rows(_VERSIONS, queue, limit)


async def find(reader: Reader, queue: str, version: int | None) -> SchemaRead | None:
    """A version of the schema of a queue, or the newest."""
    return await reader.row(_VERSION, queue, version)
