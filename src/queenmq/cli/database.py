"""The database for commands that read it: the one in the settings, or the bundled one that runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from queenmq.config import Settings
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
