"""What PostgreSQL says about the database and the tables of Queen."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Struct

from queenmq.reports.reading import Query, Reader, Reports


class DatabaseFigures(Struct, frozen=True):
    name: str
    version: str
    connections: int
    size_bytes: int
    tls: bool
    blks_hit: int
    blks_read: int
    hit_ratio: float | None
    temp_bytes: int
    deadlocks: int


class Table(Struct, frozen=True):
    """A table with what PostgreSQL has counted about it; blocks are None where it has not counted any yet."""

    table: str
    total_bytes: int
    table_bytes: int
    index_bytes: int
    live: int
    dead: int
    updates: int
    hot_updates: int
    last_vacuum: datetime | None
    last_autovacuum: datetime | None
    last_analyze: datetime | None
    last_autoanalyze: datetime | None
    vacuum_count: int
    autovacuum_count: int
    heap_blks_read: int | None
    heap_blks_hit: int | None
    idx_blks_read: int | None
    idx_blks_hit: int | None


class Session(Struct, frozen=True):
    """What another session does. The statement is cut."""

    pid: int
    application: str
    state: str
    wait_event_type: str | None
    wait_event: str | None
    since: datetime | None
    seconds: float | None
    query: str


class Setting(Struct, frozen=True):
    name: str
    setting: str
    unit: str | None


class PostgresFigures(Struct, frozen=True):
    now: datetime
    database: DatabaseFigures
    tables: list[Table]
    sessions: list[Session]
    settings: list[Setting]


class _Now(Struct, frozen=True):
    now: datetime


_DATABASE: Final = Query("postgres_database", DatabaseFigures)
_TABLES: Final = Query("postgres_tables", Table)
_SESSIONS: Final = Query("postgres_activity", Session)
_SETTINGS: Final = Query("postgres_settings", Setting)
_NOW: Final = Query("now", _Now)


async def figures(reports: Reports, most_sessions: int) -> PostgresFigures:
    """The largest tables first, and the sessions that have been busy for longest."""

    async def read(reader: Reader) -> PostgresFigures:
        return PostgresFigures(
            database=await reader.one(_DATABASE),
            tables=await reader.rows(_TABLES),
            sessions=await reader.rows(_SESSIONS, most_sessions),
            settings=await reader.rows(_SETTINGS),
            now=(await reader.one(_NOW)).now,
        )

    return await reports.snapshot(read)
