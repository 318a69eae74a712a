"""What is done in the bundled PostgreSQL as its administrator: the role and the database of the server.

The server itself connects as an ordinary role that owns its database, so nothing that it can be made to execute
reaches files of the machine or other databases.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import asyncpg

from queenmq.errors import StartupError
from queenmq.storage.datafolder import Credentials, disk_full
from queenmq.storage.sqlstates import DISK_FULL, sqlstate_of
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

# Where the administrator connects; it is there from the beginning.
DATABASE: Final = "postgres"
CONNECT_S: Final = 3.0
COMMAND_S: Final = 60.0


async def connect(credentials: Credentials, database: str) -> asyncpg.Connection[asyncpg.Record]:
    return await asyncpg.connect(
        host="127.0.0.1",
        port=credentials.port,
        user=credentials.user,
        password=credentials.password,
        database=database,
        ssl=False,
        timeout=CONNECT_S,
        command_timeout=COMMAND_S,
    )


async def prepare(administrator: Credentials, server: Credentials, root: Path, *, take_over: bool) -> None:
    """Make the role and the database of the server, unless they are there. May be repeated after any interruption.

    With `take_over` the role gets its password, and everything that the administrator owns in that database.
    """
    try:
        connection = await connect(administrator, DATABASE)
        try:
            await _ensure_role(connection, server, take_over=take_over)
            await _ensure_database(connection, server)
        finally:
            await connection.close()
        if take_over:
            await _take_over(administrator, server)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if sqlstate_of(error) == DISK_FULL:
            raise StartupError(disk_full(root)) from None
        raise StartupError(f"the bundled PostgreSQL could not create its database: {error}") from error


async def _ensure_role(connection: asyncpg.Connection[asyncpg.Record], server: Credentials, *, take_over: bool) -> None:
    exists = await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", server.user)
    if exists and not take_over:
        return
    async with connection.transaction():
        # A person may have set PostgreSQL to log statements, and this one has the password.
        await connection.execute("SET LOCAL log_statement = none; SET LOCAL log_min_duration_statement = -1")
        await connection.execute("SET LOCAL log_min_error_statement = panic")
        if not exists:
            await connection.execute(f"CREATE ROLE {server.user} LOGIN")
            # So that reports can name the sessions of others that are in the way.
            await connection.execute(f"GRANT pg_read_all_stats TO {server.user}")
            # What the administrator, whose name is the schema's, finds without naming the schema.
            await connection.execute(f"ALTER ROLE {server.user} SET search_path = queen, public")
        quoted = await connection.fetchval("SELECT quote_literal($1)", server.password)
        await connection.execute(f"ALTER ROLE {server.user} PASSWORD {quoted}")


async def _ensure_database(connection: asyncpg.Connection[asyncpg.Record], server: Credentials) -> None:
    owner = await connection.fetchval(
        "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = $1", server.database
    )
    if owner is None:
        await connection.execute(f"CREATE DATABASE {server.database} OWNER {server.user}")
    elif owner != server.user:
        log.info("the database %s now belongs to the ordinary role %s", server.database, server.user)
        await connection.execute(f"ALTER DATABASE {server.database} OWNER TO {server.user}")


async def _take_over(administrator: Credentials, server: Credentials) -> None:
    connection = await connect(administrator, server.database)
    try:
        await connection.execute(statement("take_over"))
    finally:
        await connection.close()
