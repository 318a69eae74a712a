"""Short transactions that change the schema while servers run.

A statement that waits for a lock on a table keeps everybody out who comes after it. So each waits only for a moment,
gives way, says who holds the lock, and tries again. One transaction does so at a time, in all servers and commands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias, TypeVar

import asyncpg

from queenmq.clock import SYSTEM
from queenmq.errors import QueenError
from queenmq.retry import Pauses
from queenmq.storage.database import Database
from queenmq.storage.failures import TryAgain
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Report = Callable[[str], None]
Result = TypeVar("Result")

_LOCK: Final = 0x5175_6565_6F
# Of versions that had no slices: "Queen".
_FORMER_LOCK: Final = 0x5175_6565_6E
_TURN_S: Final = 0.1
_WAIT_MS: Final = 300
_PAUSES: Final = Pauses(0.2, 5.0)
_SAID_EVERY_S: Final = 10.0
_BLOCKER_LIMIT_S: Final = 2.0


async def in_slice(
    database: Database, what: str, work: Callable[[Connection], Awaitable[Result]], report: Report
) -> Result:
    """What `work` returns, done in a transaction of its own, as often as it takes to get its locks.

    Raises what `work` raises for any other reason; then nothing is changed.
    """
    failures, said_at = 0, 0.0
    while True:
        blockers: list[str] = []
        try:
            async with database.connection(bounded=False) as connection, connection.transaction():
                if await _is_alone(connection):
                    async with _watched(database, connection, blockers):
                        return await work(connection)
            await SYSTEM.sleep(_TURN_S)
            continue
        except TryAgain:
            failures += 1
        now = SYSTEM.monotonic()
        if failures == 1 or now - said_at >= _SAID_EVERY_S:
            said_at = now
            report(f"{what}: waiting for a lock, attempt {failures}; {' and '.join(blockers) or 'somebody'} holds it")
        await SYSTEM.sleep(_PAUSES.after(failures))


async def keep_former_versions_out(connection: Connection) -> None:
    """Until the end of the transaction, versions that had no slices do not make or change the schema."""
    await connection.execute("SET LOCAL lock_timeout = 0")
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _FORMER_LOCK)
    await connection.execute(f"SET LOCAL lock_timeout = {_WAIT_MS}")


async def _is_alone(connection: Connection) -> bool:
    # Not waited for in the database: the snapshot of a statement that waits would hold up an index that is being built.
    if not await connection.fetchval("SELECT pg_try_advisory_xact_lock($1)", _LOCK):
        return False
    await connection.execute(
        f"SET LOCAL lock_timeout = {_WAIT_MS}; SET LOCAL statement_timeout = 0; "
        "SET LOCAL idle_in_transaction_session_timeout = 0"
    )
    return True


@asynccontextmanager
async def _watched(database: Database, connection: Connection, blockers: list[str]) -> AsyncIterator[None]:
    """Meanwhile, find out on another connection for whom this one waits."""
    pid: int = await connection.fetchval("SELECT pg_backend_pid()")
    watch = asyncio.create_task(_find(database, pid, blockers))
    try:
        yield
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


async def _find(database: Database, pid: int, blockers: list[str]) -> None:
    while True:
        await SYSTEM.sleep(_WAIT_MS / 2000)
        found = await blockers_of(database, pid)
        if found:
            blockers[:] = found


async def blockers_of(database: Database, pid: int) -> list[str]:
    """For people: the transactions for which a session waits."""
    try:
        async with SYSTEM.timeout(_BLOCKER_LIMIT_S):
            rows = await database.fetch(statement("blockers"), pid)
    except (QueenError, TimeoutError):
        return []
    return [described_holder(row) for row in rows]


def described_holder(row: asyncpg.Record) -> str:
    """A transaction that holds a lock, from its `pid`, `application`, `username`, `state`, `open_s` and `prepared`."""
    if row["prepared"] is not None:
        return f"the prepared transaction {row['prepared']!r}, open for {row['open_s']:.1f} s"
    open_s = "" if row["open_s"] is None else f", open for {row['open_s']:.1f} s"
    since = row.get("query_start")
    query = "" if since is None else f", last query at {since:%H:%M:%S} UTC"
    return (
        f"a transaction of {row['application'] or 'an unnamed application'!r} (pid {row['pid']}, user "
        f"{row['username']}, {row['state'] or 'state unknown'}{open_s}{query})"
    )


async def outside_transaction(database: Database, what: str, sql: str, report: Report) -> None:
    """Execute a statement that cannot run in a transaction, such as CREATE INDEX CONCURRENTLY. It locks nobody out.

    So it waits for as long as it takes, and says for whom. Behind a pooler, whose sessions cannot be set, it has the
    time of any other statement.
    """
    async with database.connection(bounded=False) as connection:
        pid: int = await connection.fetchval("SELECT pg_backend_pid()")
        if not database.is_pooled:
            await connection.execute("SET lock_timeout = 0; SET statement_timeout = 0")
        saying = asyncio.create_task(_say(database, pid, what, report))
        try:
            await connection.execute(sql)
        finally:
            saying.cancel()
            with suppress(asyncio.CancelledError):
                await saying
            if not database.is_pooled and not connection.is_closed():
                await connection.execute("RESET lock_timeout; RESET statement_timeout")


async def _say(database: Database, pid: int, what: str, report: Report) -> None:
    while True:
        await SYSTEM.sleep(_SAID_EVERY_S)
        if found := await blockers_of(database, pid):
            report(f"{what}: waiting for {' and '.join(found)}")
