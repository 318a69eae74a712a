"""A primary and its standby, two PostgreSQL of the bundled kind, and what an operator does with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import psutil
from ports import free_port

from queenmq.storage import launcher
from queenmq.storage.embedded import ENVIRONMENT

PATIENCE_S = 60.0
USER = "queen"
DATABASE = "queen"
CONFIG = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 100
shared_buffers = '64MB'
wal_keep_size = '512MB'
max_wal_senders = 5
wal_receiver_timeout = '5s'
fsync = off
full_page_writes = off
"""
BROKEN = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
CAUGHT_UP = "SELECT bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication"


class Postgres:
    """One of them, on a port of its own in all its lives. Everybody who reaches the port may do everything."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"postgresql://{USER}@{self.host}/{DATABASE}"
        self._folder = folder / name
        self._data = self._folder / "data"
        self._folder.mkdir()
        self._user = launcher.database_user(self._data)
        launcher.give(self._folder, self._user)
        self._launcher, _ = launcher.find(self._folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        if not self._data.exists():
            self._data.mkdir(mode=0o700)
            launcher.give(self._data, self._user)
        command = [self._launcher.binary(program), "-D", self._launcher.name_of(self._data), *arguments]
        log = os.open(self._folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        try:
            return self._launcher.start(command, self._data, log, ENVIRONMENT)
        finally:
            os.close(log)

    async def _done(self, program: str, *arguments: str) -> None:
        process = self._run(program, *arguments)
        async with asyncio.timeout(PATIENCE_S):
            while process.poll() is None:
                await asyncio.sleep(0.01)
        assert process.returncode == 0, self.log

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()[-4000:]

    async def create(self) -> None:
        await self._done("initdb", "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(CONFIG)

    async def copy(self, primary: Postgres) -> None:
        """Become a standby of `primary`, whatever it was before."""
        shutil.rmtree(self._data, ignore_errors=True)
        source = f"host=127.0.0.1 port={primary.port} user={USER} application_name={self.name}"
        await self._done("pg_basebackup", *("-d", source, "-R", "-X", "stream", "-c", "fast", "--no-sync"))

    async def start(self) -> None:
        self._process = self._run("postgres", "-p", str(self.port))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                assert self._process.poll() is None, self.log
                with contextlib.suppress(*BROKEN):
                    await self.execute("SELECT 1", database="postgres")
                    return
                await asyncio.sleep(0.05)

    def kill(self) -> None:
        """kill -9, the postmaster first so that it notices nothing."""
        assert self._process is not None
        children = psutil.Process(self._process.pid).children()
        self._process.kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._process.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.wait(PATIENCE_S)

    async def stop(self) -> None:
        """Orderly: sessions are ended, and the standby gets everything."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            while self._process.poll() is None:
                await asyncio.sleep(0.01)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def fetchval(self, query: str, *, database: str = DATABASE) -> object:
        url = self.url.rpartition("/")[0] + "/" + database
        connection = await asyncpg.connect(url, timeout=PATIENCE_S, command_timeout=PATIENCE_S)
        try:
            return await connection.fetchval(query)
        finally:
            connection.terminate()

    async def execute(self, *statements: str, database: str = DATABASE) -> None:
        for statement in statements:
            await self.fetchval(statement, database=database)

    async def set(self, name: str, value: str) -> None:
        await self.execute(f"ALTER SYSTEM SET {name} = '{value}'", "SELECT pg_reload_conf()", database="postgres")

    async def until(self, query: str) -> None:
        """Until it answers that question with yes."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self.fetchval(query, database="postgres"):
                await asyncio.sleep(0.02)


class Pair:
    def __init__(self, folder: Path, *, synchronous: bool = True) -> None:
        self.primary, self.standby = Postgres(folder, "a"), Postgres(folder, "b")
        self._synchronous = synchronous
        self.url = f"postgresql://{USER}@{self.primary.host},{self.standby.host}/{DATABASE}"

    async def start(self) -> None:
        await self.primary.create()
        await self.primary.start()
        await self.primary.execute(f"CREATE DATABASE {DATABASE}", database="postgres")
        await self.attach()

    async def attach(self) -> None:
        """The standby is a new copy of the primary, and waited for by commits if it is synchronous."""
        if self.standby.is_running():
            self.standby.kill()
        await self.standby.copy(self.primary)
        await self.standby.start()
        await self.primary.until("SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'")
        if self._synchronous:
            await self.primary.set("synchronous_standby_names", "*")
            await self.primary.until("SELECT bool_or(sync_state = 'sync') FROM pg_stat_replication")

    async def promote(self) -> None:
        """The standby becomes the primary; the other one is what it was before, running or not."""
        # Nobody copies it yet, and its commits would wait for that.
        await self.standby.set("synchronous_standby_names", "")
        await self.standby.execute(f"SELECT pg_promote(true, {PATIENCE_S:.0f})", database="postgres")
        self.primary, self.standby = self.standby, self.primary

    async def stop(self) -> None:
        for one in (self.primary, self.standby):
            if one.is_running():
                one.kill()


@contextlib.asynccontextmanager
async def pair(folder: Path, *, synchronous: bool = True) -> AsyncIterator[Pair]:
    running = Pair(folder, synchronous=synchronous)
    try:
        await running.start()
        yield running
    finally:
        await running.stop()
