"""The audit log: who has changed or was refused what, when, from where, and with which outcome.

Changes are written before their answers. Refusals (401 and 403), and changes by others than administrators that come in
great numbers, are counted in memory and written once a minute, so that nobody can fill the database, hold it up, or
hide behind them what was done.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import asyncpg
import msgspec

from queenmq.access.counted import Counted
from queenmq.access.entry import Entry
from queenmq.config import AuditSettings
from queenmq.errors import HttpError
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

# Changes of one subject without the role admin, and of all of them, that get rows of their own in a minute.
MOST_CHANGES_OF_ONE: Final = 60
MOST_CHANGES: Final = 600
# Of what could not be written because the database was away.
MOST_WAITING: Final = 1000

log = logging.getLogger(__name__)
_lines = logging.getLogger("queenmq.audit")
_encode = msgspec.json.Encoder().encode


_COLUMNS: Final = (
    "at",
    "until",
    "count",
    "subject",
    "role",
    "token_id",
    "action",
    "target",
    "detail",
    "address",
    "forwarded_for",
    "status",
    "error",
    "operation_id",
    "server",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    subject: str | None = None
    action: str | None = None
    status: int | None = None
    since: datetime | None = None
    until: datetime | None = None


class AuditLog:
    def __init__(self, database: Database, settings: AuditSettings, server: str) -> None:
        self._database = database
        self._settings = settings
        self._server = server
        self._waiting: list[Entry] = []
        # Apart: those who have no token cannot hide what somebody with a token tries.
        self._strangers = Counted()
        self._refused = Counted()
        self._changes = Counted()  # beyond those with rows of their own
        self._written: Counter[str | None] = Counter()
        self.lost = 0

    @property
    def enabled(self) -> bool:
        return self._settings.enabled

    async def write(self, entry: Entry) -> None:
        """Write what was done. If the database does not take it now, it is written later; raises nothing."""
        entry = replace(entry, server=self._server)
        if not entry.is_administrative and not self._has_a_row(entry):
            await self._count(entry)
            return
        self._log(entry)
        try:
            await self._insert([entry])
        except HttpError as error:
            log.warning("the audit log cannot be written now and will be later: %s", error)
            self._keep([entry])

    async def _count(self, entry: Entry) -> None:
        """Without a row of its own. An operation has its subject all the same."""
        if self._changes.add(entry):
            self._log(entry)
        elif entry.operation_id is not None and entry.subject is not None:
            with suppress(HttpError):
                await self._database.fetchval(statement("note_subject"), entry.operation_id, entry.subject)

    def _has_a_row(self, entry: Entry) -> bool:
        source = entry.subject or entry.address
        if self._written[source] >= MOST_CHANGES_OF_ONE or self._written.total() >= MOST_CHANGES:
            return False
        self._written[source] += 1
        return True

    def refused(self, entry: Entry) -> None:
        """Note a refusal; those that are alike become one row."""
        entry = replace(entry, server=self._server)
        if (self._strangers if entry.subject is None and entry.token_id is None else self._refused).add(entry):
            self._log(entry)

    async def flush(self) -> None:
        """Write what waits. Raises what the database raises; then it waits on."""
        entries = [*self._waiting, *self._changes.take(), *self._refused.take(), *self._strangers.take()]
        self._waiting.clear()
        self._written.clear()
        if not entries:
            return
        try:
            await self._insert(entries)
        except HttpError:
            self._keep(entries)
            raise

    async def close(self) -> None:
        """Write what waits, if the database takes it."""
        try:
            await self.flush()
        except HttpError as error:
            log.error("%d entries of the audit log are lost: %s", len(self._waiting), error)

    async def forget(self) -> None:
        """Delete what is older than QUEEN_AUDIT_RETENTION_DAYS, and the oldest beyond QUEEN_AUDIT_MAX_ROWS: of what
        administrators did, and of everything else."""
        await self._database.fetchval(statement("forget_audit"), self._settings.retention_days, self._settings.max_rows)

    async def page(self, which: AuditFilter, limit: int, offset: int) -> Sequence[asyncpg.Record]:
        """Newest first."""
        return await self._database.fetch(
            statement("audit_listed"),
            which.subject,
            which.action,
            which.status,
            which.since,
            which.until,
            limit,
            offset,
            repeatable=True,
        )

    async def _insert(self, entries: list[Entry]) -> None:
        columns = [[getattr(entry, column) for entry in entries] for column in _COLUMNS]
        await self._database.fetchval(statement("add_audit"), *columns)

    def _keep(self, entries: list[Entry]) -> None:
        self._waiting += entries
        excess = len(self._waiting) - MOST_WAITING
        if excess > 0:
            self.lost += excess
            log.error("%d entries of the audit log are lost: the database has been away for too long", self.lost)
            # Those of others than administrators go first, and of each the oldest; a stable sort keeps the order.
            self._waiting.sort(key=lambda entry: entry.is_administrative)
            del self._waiting[:excess]

    def _log(self, entry: Entry) -> None:
        if self._settings.log:
            shown = {name: getattr(entry, name) for name in _COLUMNS if getattr(entry, name) is not None}
            _lines.info(_encode(shown).decode())
