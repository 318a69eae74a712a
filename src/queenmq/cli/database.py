"""The database for commands that read it: the one in the settings, or the bundled one that runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from queenmq import config
from queenmq.config import Settings
from queenmq.errors import HttpError, StartupError
from queenmq.storage.connecting import dsn
from queenmq.storage.database import Database
from queenmq.storage.embedded import default_data_dir, running_url


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Database]:
    """Raises StartupError if there is none, or it cannot be reached."""
    url = (
        running_url(settings.server.data_dir or default_data_dir())
        if settings.database.is_bundled
        else dsn(settings.database)
    )
    database = Database(settings.database, url)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


def run(data_dir: Path | None, action: Callable[[Database], Awaitable[int]]) -> int:
    """What `action` returns for the database of this configuration. Raises StartupError, also for what it refuses."""

    async def connected() -> int:
        async with opened(config.load(flags={"QUEEN_DATA_DIR": data_dir})) as database:
            return await action(database)

    try:
        return asyncio.run(connected())
    except HttpError as error:
        raise StartupError(error.message) from error
