"""`queen admin`: checking and mending what the database keeps. Works while servers run."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable

from queenmq import config
from queenmq.config import Settings
from queenmq.errors import HttpError, StartupError
from queenmq.storage.database import Database, dsn
from queenmq.storage.embedded import default_data_dir, running_url
from queenmq.storage.migrations import require_newest
from queenmq.storage.statements import statement

_STEP = 1000
_MOST_SHOWN = 100


def run(given: argparse.Namespace) -> int:
    settings = config.load(data_dir=given.data_dir)
    action = {"check-lookup": _check_lookup, "resync-lookup": _resync_lookup}[given.action]
    try:
        return asyncio.run(_with_database(settings, action))
    except HttpError as error:
        raise StartupError(error.message) from error


async def _with_database(settings: Settings, action: Callable[[Database], Awaitable[int]]) -> int:
    url = running_url(settings.data_dir or default_data_dir()) if settings.uses_bundled_database else dsn(settings)
    database = Database(settings, url)
    await database.open()
    try:
        await require_newest(database)
        return await action(database)
    finally:
        await database.close()


async def _check_lookup(database: Database) -> int:
    """Status 1 if anything is stale."""
    rows = await database.fetch(statement("stale_lookup"), _MOST_SHOWN + 1)
    for row in rows[:_MOST_SHOWN]:
        print(f"{row['queue_name']}/{row['partition_name']}: {row['problem']}")
    count = f"more than {_MOST_SHOWN}" if len(rows) > _MOST_SHOWN else str(len(rows))
    print(f"stale rows: {count}")
    return 1 if rows else 0


async def _resync_lookup(database: Database) -> int:
    changed, after = 0, None
    while True:
        row = await database.fetchrow(statement("resync_lookup"), after, _STEP)
        if row is None:
            break
        changed += row["changed"]
        after = row["next"]
        if after is None:
            break
    print(f"rows changed: {changed}")
    return 0
