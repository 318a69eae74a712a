"""A primary and its standby, two PostgreSQL of the bundled kind, and what an operator or a fault does with them."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import asyncpg

from queenmq.clock import SYSTEM
from queenmq.errors import StartupError
from queenmq.faults.processes import children, is_alive, send
from queenmq.storage import launcher
from queenmq.storage.embedded import ENVIRONMENT, free_port

PATIENCE_S: Final = 60.0
USER: Final = "queen"
DATABASE: Final = "queen"
CONFIG: Final = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 100
shared_buffers = '64MB'
wal_keep_size = '512MB'
max_wal_senders = 5
wal_receiver_timeout = '5s'
"""
WITHOUT_FSYNC: Final = """
fsync = off
full_page_writes = off
"""
BROKEN: Final = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
CAUGHT_UP: Final = "SELECT bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication"


class Postgres:
    """One of them, on a port of its own in all its lives. Its password is in its URL."""

    def __init__(self, folder: Path, name: str, password: str | None = None, *, fsync: bool = True) -> None:
        self.name = name
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.password = password or secrets.token_urlsafe(16)
        self.url = f"postgresql://{USER}:{self.password}@{self.host}/{DATABASE}"
        self._config = CONFIG if fsync else CONFIG + WITHOUT_FSYNC
        self._folder = folder / name
        self.log_file = self._folder / "log"
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
        log = os.open(self.log_file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        try:
            # Not as an argument: everybody can see those.
            return self._launcher.start(command, self._data, log, ENVIRONMENT | {"PGPASSWORD": self.password})
        finally:
            os.close(log)

    async def _done(self, program: str, *arguments: str) -> None:
        process = self._run(program, *arguments)
        async with asyncio.timeout(PATIENCE_S):
            while process.poll() is None:
                await SYSTEM.sleep(0.01)
        if process.returncode:
            raise StartupError(f"{program} failed: {self.log}")

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")[-4000:]

    async def create(self) -> None:
        secret = self._folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        launcher.give(secret, self._user)
        way = f"--pwfile={self._launcher.name_of(self._data)}/../password"
        await self._done("initdb", "-U", USER, "-A", "scram-sha-256", way, "-E", "UTF8", "--no-sync")
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(self._config)

    async def copy(self, primary: Postgres) -> None:
        """Become a standby of `primary`, whatever it was before."""
        shutil.rmtree(self._data, ignore_errors=True)
        source = f"host=127.0.0.1 port={primary.port} user={USER} application_name={self.name}"
        await self._done("pg_basebackup", *("-d", source, "-R", "-X", "stream", "-c", "fast", "--no-sync"))

    async def start(self) -> None:
        self._process = self._run("postgres", "-p", str(self.port))
        await self.answers()

    async def answers(self) -> None:
        """Return when it takes sessions. Raises StartupError if it has ended."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if not self.is_running():
                    raise StartupError(f"PostgreSQL has ended: {self.log}")
                with suppress(*BROKEN):
                    await self.execute("SELECT 1", database="postgres")
                    return
                await SYSTEM.sleep(0.05)

    @property
    def pids(self) -> list[int]:
        """The postmaster first, so that it notices nothing of what happens to the others."""
        return [self._process.pid, *children(self._process.pid)] if self._process is not None else []

    def fill_disk(self) -> None:
        """From now on the kernel refuses what it writes to files (EFBIG), as a full disk does. Raises StartupError."""
        self._bound_files("0")

    def free_disk(self) -> None:
        self._bound_files("unlimited")

    def _bound_files(self, most: str) -> None:
        # As the user of these processes: not even root may do it in many containers.
        for pid in self.pids:
            if self._launcher.run("prlimit", f"--pid={pid}", f"--fsize={most}:") is None and is_alive(pid):
                raise StartupError("files of PostgreSQL cannot be bounded: the program prlimit is missing or refuses")

    def kill(self) -> None:
        """kill -9 of all of it."""
        if self._process is None:
            return
        family = self.pids
        send(family, signal.SIGKILL)
        self._process.wait()
        deadline = SYSTEM.monotonic() + PATIENCE_S
        # The others are children of nobody by now: when they are gone, the port and the shared memory are free.
        while any(is_alive(pid) for pid in family) and SYSTEM.monotonic() < deadline:
            time.sleep(0.01)

    async def stop(self) -> None:
        """Orderly: sessions are ended, and the standby gets everything."""
        if self._process is None or not self.is_running():
            return
        self._process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            while self.is_running():
                await SYSTEM.sleep(0.01)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def connect(self, database: str = DATABASE) -> asyncpg.Connection:
        url = self.url.rpartition("/")[0] + "/" + database
        return await asyncpg.connect(url, timeout=PATIENCE_S, command_timeout=PATIENCE_S)

    async def fetchval(self, query: str, *, database: str = DATABASE) -> object:
        connection = await self.connect(database)
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
                await SYSTEM.sleep(0.02)


class Pair:
    """Without a standby at first: `attach` makes it."""

    def __init__(self, folder: Path, *, synchronous: bool = True, fsync: bool = True) -> None:
        password = secrets.token_urlsafe(16)
        self.primary, self.standby = (Postgres(folder, name, password, fsync=fsync) for name in "ab")
        self._synchronous = synchronous
        self.url = f"postgresql://{USER}:{password}@{self.primary.host},{self.standby.host}/{DATABASE}"

    async def start(self) -> None:
        await self.primary.create()
        await self.primary.start()
        await self.primary.execute(f"CREATE DATABASE {DATABASE}", database="postgres")

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


@asynccontextmanager
async def pair(folder: Path, *, synchronous: bool = True, fsync: bool = True) -> AsyncIterator[Pair]:
    """A primary with its standby."""
    running = Pair(folder, synchronous=synchronous, fsync=fsync)
    try:
        await running.start()
        await running.attach()
        yield running
    finally:
        await running.stop()
