"""Notices that the database is away, and that it is back: the one who gives connections up and makes them anew.

And that its clock was set back, which would hide what became readable just before.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from queenmq.clock import SYSTEM, Clock
from queenmq.config import DatabaseSettings
from queenmq.errors import StartupError
from queenmq.services.service import Service
from queenmq.storage.database import Database
from queenmq.storage.failures import DatabaseAway
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

_EVER = datetime.max.replace(tzinfo=UTC)
_AT_ONCE = 1000
# Transactions that began before the clock was set back may still commit: this is repeated until the clock
# has caught up, with this share of the time at most.
_PAUSES = 20


async def unhide(database: Database, upto: datetime = _EVER) -> int:
    """Make claimable what has been readable since a time that lies in the future. Returns how many rows that was."""
    moved = 0
    while True:
        step: int = await database.fetchval(statement("unhide"), upto, _AT_ONCE, repeatable=True)
        moved += step
        if step < _AT_ONCE:
            return moved


class DatabaseWatch(Service):
    """`come_up` connects and does what else a first or renewed contact needs."""

    name = "database watch"

    def __init__(
        self,
        database: Database,
        settings: DatabaseSettings,
        come_up: Callable[[], Awaitable[None]],
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(settings.ping_ms, clock)
        self._database = database
        self._patience_s = settings.outage_after_ms / 1000
        self._come_up = come_up
        self._unhide_due = 0.0
        self._complaints: set[str] = set()

    async def work(self) -> None:
        if not self._database.is_open:
            await self._try()
        elif not await self._database.is_alive(self._patience_s):
            if self._database.is_open:
                log.error("the database does not answer; its connections are closed until it does")
                self._database.abandon()
        elif self._database.clock.reached is not None:
            await self._unhide(self._database.clock.reached)

    async def _unhide(self, upto: datetime) -> None:
        started = self._clock.monotonic()
        if started < self._unhide_due:
            return
        moved = await unhide(self._database, upto)
        if moved:
            log.info(
                "the clock of the database was set back: %d partitions could not be read, and now can be read again",
                moved,
            )
        now = self._clock.monotonic()
        self._unhide_due = now + (now - started) * _PAUSES

    async def _try(self) -> None:
        try:
            await self._come_up()
        except StartupError as error:
            # It is tried several times a second, and what is wrong may be so for hours.
            level = logging.WARNING if isinstance(error, DatabaseAway) else logging.ERROR
            log.log(logging.DEBUG if str(error) in self._complaints else level, "%s", error)
            self._complaints.add(str(error))
        else:
            self._complaints.clear()
            log.info("the database is back")
