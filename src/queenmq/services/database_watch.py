"""Notices that the database is away, and that it is back: the one who gives connections up and makes them anew."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from queenmq.config import Settings
from queenmq.errors import StartupError
from queenmq.services.service import Service
from queenmq.storage.database import Database, DatabaseAway

log = logging.getLogger(__name__)


class DatabaseWatch(Service):
    """`come_up` connects and does what else a first or renewed contact needs."""

    name = "database watch"

    def __init__(self, database: Database, settings: Settings, come_up: Callable[[], Awaitable[None]]) -> None:
        super().__init__(settings.database_ping_ms)
        self._database = database
        self._patience_s = settings.outage_after_ms / 1000
        self._come_up = come_up

    async def work(self) -> None:
        if not self._database.is_open:
            await self._try()
        elif not await self._database.is_alive(self._patience_s):
            log.error("the database does not answer; its connections are given up until it does")
            self._database.abandon()

    async def _try(self) -> None:
        try:
            await self._come_up()
        except DatabaseAway as error:
            log.debug("%s", error)
        except StartupError as error:
            log.error("%s", error)
        else:
            log.info("the database is back")
