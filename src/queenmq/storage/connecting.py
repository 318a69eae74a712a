"""Connections to the writer: where PostgreSQL is, and that the one that answers may be written to.

A URL may name several hosts, of which one is the primary; and behind a single address there may be another PostgreSQL
today than yesterday. So every connection is asked whether it can write, and which PostgreSQL it has reached
(`core.lineage`): one that is read-only, or that another has replaced since, is not used.

Behind a pooler such as PgBouncer each transaction may run in another session. A connection through one has no prepared
statements and no settings of its own; what Queen needs of those, the role or the database has to have.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Awaitable
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

import asyncpg
from asyncpg.protocol import protocol

from queenmq.config import DatabaseSettings
from queenmq.core.lineage import Lineage, Lineages, Verdict
from queenmq.errors import StartupError
from queenmq.storage.failures import NotTheWriter, is_connection_lost, known_if_cut, without_details
from queenmq.storage.sqlstates import Cause, cause_of
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

# The driver asks of each element of an array whether it is an array, too: it asks two abstract classes, which for text
# and bytes takes longer than encoding them. The question stays the same, but those types come first.
for _question in ("IterableABC", "SizedABC"):
    if isinstance(kind := getattr(protocol, _question, None), type):
        setattr(protocol, _question, (str, bytes, kind))

# When a writer is found: how long others are waited for, of which one may be newer.
_OTHERS_S = 1.0
# What poolers keep for each of their clients. They refuse others at the beginning of a connection.
_KEPT_BY_POOLERS = frozenset({"application_name", "timezone"})
_URL = re.compile(r"(?P<before>[^/]*//(?:[^/?#]*@)?)(?P<hosts>[^/?#]*)(?P<after>.*)", re.DOTALL)

_Answer = TypeVar("_Answer")
_Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


def dsn(database: DatabaseSettings) -> str:
    """The URL of the existing PostgreSQL that the settings select."""
    if database.url is not None:
        return database.url
    user, password = quote(database.user, safe=""), quote(database.password, safe="")
    hosts = [_with_port(host.strip(), database.port) for host in (database.host or "localhost").split(",")]
    return f"postgresql://{user}:{password}@{','.join(hosts)}/{quote(database.name, safe='')}"


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{quote(host, safe='')}:{port}"


def url_of_each_host(url: str) -> dict[str, str]:
    """The URLs of the hosts that a URL names, by host and port, in its order."""
    parts = _URL.fullmatch(url)
    if parts is None or "," not in parts["hosts"].strip(","):
        return {place_of(url).partition("/")[0]: url}
    return {host: f"{parts['before']}{host}{parts['after']}" for host in parts["hosts"].split(",") if host}


def place_of(url: str) -> str:
    """Hosts and database of a URL; its user, password and parameters stay out."""
    parts = _URL.fullmatch(url)
    if parts is None:
        return "on this machine"
    return (parts["hosts"] or "on this machine") + re.split(r"[?#]", parts["after"], maxsplit=1)[0]


def _tls(database: DatabaseSettings) -> ssl.SSLContext | None:
    if not database.use_ssl:
        return None
    context = ssl.create_default_context()
    if not database.ssl_reject_unauthorized:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def session_settings(settings: DatabaseSettings) -> dict[str, str]:
    """What sessions of the server have set, unless there is a pooler."""
    return {
        "application_name": "queen",
        "timezone": "UTC",
        "jit": "off",
        "default_transaction_isolation": "read committed",
        "statement_timeout": str(settings.statement_timeout_ms),
        "lock_timeout": str(settings.lock_timeout_ms),
        # Every hot statement has its index. Without this a plan made while a table was small would stay a scan.
        "enable_seqscan": "off",
        # Planning the functions' statements anew for every call costs more than running them.
        "plan_cache_mode": "force_generic_plan",
    }


class Connector:
    """Connects to the writer among the hosts of one URL."""

    def __init__(self, settings: DatabaseSettings, url: str) -> None:
        self._within_s = settings.connection_timeout_ms / 1000
        self._settings = settings
        self._urls = url_of_each_host(url)
        self._writer = next(iter(self._urls.values()))
        self._lineages = Lineages()
        self._refused = False  # to say which PostgreSQL it is
        self._pooled: dict[str, bool] = {}
        self.is_pooled = False

    async def find(self) -> None:
        """Find the newest host that can be written to; connections go there from now on.

        Raises NotTheWriter if there is none, or what the driver raised if the only host cannot be reached.
        """
        writers: dict[str, Lineage | None] = {}
        errors: dict[str, Exception] = {}
        asking = {asyncio.ensure_future(self._probe(url)): host for host, url in self._urls.items()}
        pending = set(asking)
        try:
            while pending:
                done, pending = await asyncio.wait(
                    pending, timeout=_OTHERS_S if writers else None, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                for task in done:
                    try:
                        writers[asking[task]] = task.result()
                    except Exception as error:
                        errors[asking[task]] = error
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        self._choose({host: writers[host] for host in self._urls if host in writers}, errors)

    def _choose(self, writers: dict[str, Lineage | None], errors: dict[str, Exception]) -> None:
        for host, found in tuple(writers.items()):
            if self._lineages.judge(found) is Verdict.OLDER:
                errors[host] = _older(found)
                del writers[host]
        if not writers:
            if len(errors) == 1 or not any(is_connection_lost(error) for error in errors.values()):
                raise next(iter(errors.values()))
            reasons = (f"{host}: {errors[host]}" for host in self._urls if host in errors)
            raise NotTheWriter(f"no host of the database can be written to ({'; '.join(reasons)})")
        if len({found.system for found in writers.values() if found is not None}) > 1:
            raise NotTheWriter(
                f"{' and '.join(writers)} can be written to and are copies of different databases: "
                "name only one of them in DATABASE_URL"
            )
        host = max(writers, key=lambda host: 0 if (found := writers[host]) is None else found.timeline)
        if len(writers) > 1:
            log.error(
                "%s can be written to: %s is used, because it is the first of those that were promoted last; a former "
                "primary has to be stopped or made a standby",
                " and ".join(writers),
                host,
            )
        if self._lineages.judge(writers[host]) is Verdict.NEWER:
            self._lineages.accept(writers[host])
        self._writer = self._urls[host]
        if self._pooled[self._writer] != self.is_pooled:
            self.is_pooled = not self.is_pooled
            log.info(
                "PostgreSQL is reached through a pooler: no prepared statements, no settings for a session"
                if self.is_pooled
                else "PostgreSQL is reached without a pooler"
            )

    async def _probe(self, url: str) -> Lineage | None:
        connection = await self._open(url, {"statement_cache_size": 0})
        try:
            return await self._within(connection, self._lineage_of_writer(url, connection))
        finally:
            connection.terminate()

    async def connect(self, _url: str | None = None, **options: Any) -> _Connection:
        """A connection to the PostgreSQL that was found. Raises NotTheWriter if another is there now.

        As asyncpg.connect, for its pool; there is no need for a URL.
        """
        if self.is_pooled:
            session: dict[str, str] = options.get("server_settings") or {}
            kept = {name: value for name, value in session.items() if name in _KEPT_BY_POOLERS}
            options = options | {"server_settings": kept, "statement_cache_size": 0}
        connection = await self._open(self._writer, options)
        try:
            row = await self._within(connection, self.require_writer(connection))
            if self._settings.pooler == "auto" and not self.is_pooled and row["pid"] != connection.get_server_pid():
                raise NotTheWriter("a pooler has come between the server and PostgreSQL")
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _open(self, url: str, options: dict[str, Any]) -> _Connection:
        given = {"timeout": self._within_s, "ssl": _tls(self._settings), "target_session_attrs": "read-write"} | options
        try:
            connection: _Connection = await asyncpg.connect(url, **given)
        except asyncpg.TargetServerAttributeNotMatched:
            raise _read_only() from None
        return connection

    async def _within(self, connection: _Connection, answer: Awaitable[_Answer]) -> _Answer:
        # Cut and not cancelled: asyncpg would try to tell that to a server that does not answer.
        deadline = asyncio.get_running_loop().call_later(self._within_s, connection.terminate)
        try:
            return await answer
        finally:
            deadline.cancel()

    async def require_writer(self, connection: _Connection) -> asyncpg.Record:
        """Raises NotTheWriter unless it leads to the PostgreSQL that was found. Returns what `writable` says."""
        with known_if_cut(connection):
            row = await self._require_writable(connection)
            found = await self._lineage(connection)
        match self._lineages.judge(found):
            case Verdict.OLDER:
                raise _older(found)
            case Verdict.NEWER:
                raise NotTheWriter("another PostgreSQL has become the primary")
        return row

    async def _lineage_of_writer(self, url: str, connection: _Connection) -> Lineage | None:
        row = await self._require_writable(connection)
        found = row["pid"] != connection.get_server_pid()
        self._pooled[url] = found if self._settings.pooler == "auto" else self._settings.pooler == "yes"
        return await self._lineage(connection)

    async def _require_writable(self, connection: _Connection) -> asyncpg.Record:
        row = await connection.fetchrow(statement("writable"))
        if row is None or not row["writable"]:
            raise _read_only()
        return row

    async def _lineage(self, connection: _Connection) -> Lineage | None:
        """None if the database refuses to say, or the URL leads to databases of which one has refused."""
        if self._refused:
            return None
        try:
            row = await connection.fetchrow(statement("lineage"))
        except asyncpg.PostgresError as error:
            if cause_of(error.sqlstate) is not Cause.UNKNOWN:
                raise
            self._refused = True
            self._lineages = Lineages()
            log.warning(
                "the database does not say which one it is, so a former primary that comes back after a failover is "
                "not recognised: %s",
                without_details(error),
            )
            return None
        return None if row is None else Lineage(row["system_identifier"], row["timeline"])


def _read_only() -> NotTheWriter:
    return NotTheWriter("the database is read-only: it is a standby, or default_transaction_read_only is on")


def _older(found: Lineage | None) -> NotTheWriter:
    return NotTheWriter(
        f"this PostgreSQL ({found}) was replaced by a newer one and must not be written to any more: "
        "stop it or make it a standby; if it is the right one, restart the server"
    )


async def require_settings(connection: _Connection, wanted: dict[str, str]) -> None:
    """Behind a pooler: see whether the role or the database has the settings that sessions of the server would have.

    Raises StartupError for the one without which answers would be wrong; others only cost time, and are logged.
    """
    rows = await connection.fetch(
        statement("session_settings"), [name for name in wanted if name not in _KEPT_BY_POOLERS]
    )
    missing = {row["name"]: wanted[row["name"]] for row in rows if row["setting"] != wanted[row["name"]]}
    role = rows[0]["role"] if rows else ""
    commands = " ".join(f"ALTER ROLE {role} SET {name} = '{value}';" for name, value in missing.items())
    if "default_transaction_isolation" in missing:
        raise StartupError(
            f"Queen needs transactions that are read committed, and through the pooler they are not: execute {commands}"
        )
    if missing:
        log.warning("the server cannot set these through the pooler, and is slower without them: %s", commands)
