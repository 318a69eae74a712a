"""The checks of `queen doctor` on the database itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

from queenmq.cli.database import opened
from queenmq.cli.finding import Finding, bad, clocks, doubtful, good, skipped
from queenmq.cli.show import plural
from queenmq.clock import SYSTEM
from queenmq.config import Settings
from queenmq.errors import QueenError, StartupError
from queenmq.storage.database import Database
from queenmq.storage.embedded import default_data_dir, running_url
from queenmq.storage.migrations import SchemaState, schema_state
from queenmq.storage.statements import statement

_OLDEST: Final = 14
_MOST_STALE: Final = 100


def check_database(settings: Settings) -> list[Finding]:
    if settings.database.is_bundled:
        folder = settings.server.data_dir or default_data_dir()
        try:
            running_url(folder)
        except StartupError:
            return [
                skipped(
                    "tables",
                    f"DATABASE_URL is not set, and no bundled PostgreSQL runs in the data folder {folder}",
                    "run this command with the server's QUEEN_DATA_DIR or DATABASE_URL, to check its tables too",
                )
            ]
    return asyncio.run(_gathered(settings))


async def _gathered(settings: Settings) -> list[Finding]:
    try:
        async with opened(settings) as database:
            return [finding async for finding in _checks(database)]
    except QueenError as error:
        return [
            bad(
                "tables",
                error.message,
                "check DATABASE_URL (or PG_HOST, PG_PORT, PG_USER, PG_PASSWORD), and the network",
            )
        ]


async def _checks(database: Database) -> AsyncIterator[Finding]:
    yield await _version(database)
    yield await _clock(database)
    found = await schema_state(database)
    unknown = [one.version for one in found.migrations if one.state == "unknown"]
    pending = [one.version for one in found.migrations if one.state == "pending"]
    if unknown:
        yield bad("schema", f"it is newer than this Queen (version {max(unknown)})", "run a newer Queen")
        return
    if pending:
        sentence = f"{plural(len(pending), 'migration')} pending (`queen admin migrations`)"
        yield bad("schema", sentence, "start a server of this version; it applies them")
        return
    yield _schema(found)
    yield await _lookup(database)


def _schema(found: SchemaState) -> Finding:
    if not found.functions_up_to_date:
        return doubtful(
            "schema", "the functions of this version are missing", "start a server of this version; it makes them"
        )
    if found.is_upgrading:
        return doubtful(
            "schema",
            "the last upgrade is not completed, so that servers of the version before can run",
            "when they are not needed any more, run `queen db upgrade --contract`",
        )
    return good("schema", f"all {len(found.migrations)} migrations are applied")


async def _version(database: Database) -> Finding:
    number = int(await database.fetchval("SELECT current_setting('server_version_num')")) // 10_000
    if number >= _OLDEST:
        return good("PostgreSQL", f"it is version {number}")
    return bad("PostgreSQL", f"it is version {number}", f"Queen needs {_OLDEST} or newer")


async def _clock(database: Database) -> Finding:
    before = SYSTEM.wall()
    now: datetime = await database.fetchval("SELECT clock_timestamp()")
    after = SYSTEM.wall()
    return clocks("tables", now.timestamp() - (before + after) / 2, (after - before) / 2)


async def _lookup(database: Database) -> Finding:
    rows = await database.fetch(statement("stale_lookup"), _MOST_STALE)
    if not rows:
        return good("lookup", "every row is correct")
    first = rows[0]
    many = f"at least {_MOST_STALE}" if len(rows) == _MOST_STALE else str(len(rows))
    return bad(
        "lookup",
        f"stale rows: {many}, such as {first['queue_name']}/{first['partition_name']}: {first['problem']}",
        "run `queen admin resync-lookup`; servers may keep running",
    )
