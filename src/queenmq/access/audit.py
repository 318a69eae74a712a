"""The audit log: who has changed or was refused what, when, from where, and with which outcome.

Changes are written before their answers. Refusals (401 and 403) are counted in memory and written once a minute, so
that nobody can fill the database or hold it up with them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import asyncpg
import msgspec

from queenmq.clock import utc_now
from queenmq.config import AuditSettings
from queenmq.errors import HttpError
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

# Of the refusals of a minute, so many kinds get rows of their own; the rest share one.
MOST_KINDS: Final = 20
# Of what could not be written because the database was away.
MOST_WAITING: Final = 1000
MOST_TEXT: Final = 2000
OTHERS: Final = "others"

log = logging.getLogger(__name__)
_lines = logging.getLogger("queenmq.audit")
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`count` requests from `at` to `until`; one, unless they were refused. `address` is where the connection is from,
    `forwarded_for` what the request says about that."""

    at: datetime
    until: datetime
    count: int = 1
    subject: str | None = None
    role: str | None = None
    token_id: str | None = None
    action: str
    target: str | None = None
    detail: str | None = None
    address: str | None = None
    forwarded_for: str | None = None
    status: int
    error: str | None = None
    operation_id: str | None = None
    server: str = ""


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
        self._refused: OrderedDict[tuple[object, ...], Entry] = OrderedDict()
        self.lost = 0

    @property
    def enabled(self) -> bool:
        return self._settings.enabled

    async def write(self, entry: Entry) -> None:
        """Write what was done. If the database does not take it now, it is written later; raises nothing."""
        entry = replace(entry, server=self._server)
        self._log(entry)
        try:
            await self._insert([entry])
        except HttpError as error:
            log.warning("the audit log cannot be written now and will be later: %s", error)
            self._keep([entry])

    def refused(self, entry: Entry) -> None:
        """Note a refusal; those that are alike become one row."""
        entry = replace(entry, server=self._server)
        kind: tuple[object, ...] = (entry.status, entry.address, entry.subject, entry.action)
        if kind not in self._refused and len(self._refused) >= MOST_KINDS:
            kind = (entry.status, OTHERS)
            entry = replace(entry, address=OTHERS, subject=None, action=OTHERS, target=None, forwarded_for=None)
        former = self._refused.get(kind)
        if former is None:
            self._log(entry)
            self._refused[kind] = entry
        else:
            self._refused[kind] = replace(former, count=former.count + 1, until=entry.until)

    async def flush(self) -> None:
        """Write what waits. Raises what the database raises; then it waits on."""
        entries = [*self._waiting, *self._refused.values()]
        self._waiting.clear()
        self._refused.clear()
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
        """Delete what is older than QUEEN_AUDIT_RETENTION_DAYS, and the oldest rows beyond QUEEN_AUDIT_MAX_ROWS."""
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
        if len(self._waiting) > MOST_WAITING:
            self.lost += len(self._waiting) - MOST_WAITING
            log.error("%d entries of the audit log are lost: the database has been away for too long", self.lost)
            del self._waiting[:-MOST_WAITING]

    def _log(self, entry: Entry) -> None:
        if self._settings.log:
            shown = {name: getattr(entry, name) for name in _COLUMNS if getattr(entry, name) is not None}
            _lines.info(_encode(shown).decode())


def entry(action: str, status: int, **known: str | None) -> Entry:
    """An entry of now; texts that are too long are cut."""
    now = utc_now()
    cut = {name: None if text is None else _storable(text) for name, text in known.items()}
    return Entry(at=now, until=now, action=action, status=status, **cut)  # type: ignore[arg-type]


def _storable(text: str) -> str:
    """What PostgreSQL can store: no NUL, no half of a character."""
    return text[:MOST_TEXT].replace("\0", "").encode(errors="replace").decode()
