"""LISTEN: the notifications that are received, and on which connection.

That is the one on which the database is asked whether it is alive, or one to QUEEN_DB_LISTEN_URL, because a pooler has
no session that could listen. A notification only saves time: long polls find by their own probes what it is about.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import asyncpg

from queenmq.clock import SYSTEM
from queenmq.config import DatabaseSettings
from queenmq.errors import QueenError
from queenmq.storage.connecting import Connector
from queenmq.storage.failures import BROKEN, known_if_cut, without_details
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)


class Listener:
    """`callbacks` has what to call with the payload of each notification, by channel."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self.callbacks: dict[str, Callable[[str], None]] = {}
        self._within_s = settings.connection_timeout_ms / 1000
        url = settings.listen_url
        self._connector = None if url is None else Connector(replace(settings, pooler="auto"), url)
        self._on: asyncpg.Connection[asyncpg.Record] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._complained = False

    @property
    def is_listening(self) -> bool:
        return self._on is not None and not self._on.is_closed()

    async def listen_on(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        with known_if_cut(connection):
            for channel, callback in self.callbacks.items():
                await connection.add_listener(
                    channel, lambda _c, _pid, _channel, payload, callback=callback: callback(payload)
                )
        self._on = connection

    def keep(self) -> None:
        """See to it that the connection to QUEEN_DB_LISTEN_URL is there and answers; does not wait for that."""
        if self._connector is not None and (self._keeping is None or self._keeping.done()):
            self._keeping = asyncio.create_task(self._keep(self._connector), name="listener")

    async def _keep(self, connector: Connector) -> None:
        try:
            if self._on is None or self._on.is_closed():
                await connector.find()
                if connector.is_pooled:
                    raise asyncpg.InterfaceError("there is a pooler, through which LISTEN does not work")
                fresh = await connector.connect()
                try:
                    await self.listen_on(fresh)
                finally:
                    if self._on is not fresh:
                        fresh.terminate()
                self._complained = False
            else:
                deadline = SYSTEM.call_later(self._within_s, self._on.terminate)
                try:
                    with known_if_cut(self._on):
                        await self._on.fetchval(statement("ping"))
                finally:
                    deadline.cancel()
        except (asyncpg.PostgresError, QueenError, *BROKEN) as error:
            self._cut()
            if not self._complained:
                log.warning("cannot listen at QUEEN_DB_LISTEN_URL; trying again: %s", without_details(error))
            self._complained = True

    def _cut(self) -> None:
        if self._on is not None:
            self._on.terminate()
            self._on = None

    def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        self._cut()
