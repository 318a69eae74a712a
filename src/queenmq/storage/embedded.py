"""The bundled PostgreSQL: created on first use, started, watched, restarted when it dies, stopped.

`EmbeddedPostgres` owns the life of one database on one data folder. The layout of the folder is in
`datafolder`, the way programs are started in `launcher`, the handling of processes in `postmaster`, what is done as
superuser in `administrator`.
Start it from a thread that lives as long as the server: PostgreSQL stops when that thread is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import secrets
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final

import asyncpg

from queenmq.clock import SYSTEM
from queenmq.errors import StartupError
from queenmq.retry import Failure, Pauses, retried
from queenmq.storage import administrator, launcher, postmaster
from queenmq.storage.datafolder import (
    ADMINISTRATOR,
    SERVER,
    Credentials,
    DataFolder,
    default_data_dir,
    disk_full,
    explained,
    running_url,
)
from queenmq.storage.launcher import Launcher
from queenmq.storage.sqlstates import INVALID_PASSWORD, sqlstate_of

__all__ = ["EmbeddedPostgres", "default_data_dir", "free_port", "running_url"]

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
DATABASE: Final = "queen"
READY_S: Final = 300.0
PORT_TRIES: Final = 5
WATCH_S: Final = 0.1
RESTART_PAUSES: Final = Pauses(0.1, 5.0)
# A path of a socket has at most 107 bytes.
SOCKET_PATH_BYTES: Final = 100
SHOWN_LINES: Final = 3
SHOWN_CHARACTERS: Final = 600
FAILURES: Final = ("FATAL:", "PANIC:", "ERROR:", "error:")
SEVERITY: Final = re.compile(r"\b[A-Z]{3,}: ")
ROUTINE: Final = ("LOG:  starting PostgreSQL", "LOG:  listening on", "LOG:  database system is shut down")
DISK_FULL_TEXTS: Final = ("No space left on device", "Disk quota exceeded")
# What `initdb` needs, roughly; less than this explains a silent failure.
LEAST_FREE_BYTES: Final = 64 * 1024 * 1024
# Below the range that Linux gives to outgoing connections, so that none of them sits on our port.
PORTS: Final = range(20_000, 32_000)
ENVIRONMENT: Final = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath}
# What `initdb` found out about the machine first, then ours. ALTER SYSTEM wins over both.
CONFIG: Final = """\
# Written by Queen at every start. Use ALTER SYSTEM to change a setting for good.
include 'postgresql.conf'
fsync = on
synchronous_commit = on
jit = off
max_connections = 100
shared_buffers = '256MB'
max_wal_size = '4GB'
checkpoint_timeout = '15min'
random_page_cost = 1.1
wal_compression = off
password_encryption = 'scram-sha-256'
timezone = 'UTC'
log_timezone = 'UTC'
logging_collector = off
log_destination = 'stderr'
"""


class PortTaken(StartupError):
    """Another program took the port between our check and the start of PostgreSQL."""


class EmbeddedPostgres:
    """The bundled database of one data folder. It never takes the port `keep_off`, on which the server will listen."""

    def __init__(self, data_dir: Path, keep_off: int = 0) -> None:
        self._keep_off = keep_off
        self._folder = DataFolder(data_dir)
        self._launcher = Launcher()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def data_dir(self) -> Path:
        return self._folder.root

    @property
    def pid(self) -> int | None:
        """The process id of the postmaster, while there is one."""
        return None if self._process is None else self._process.pid

    async def start(self) -> str:
        """Bring the database up and answer its URL. After a StartupError nothing runs or is locked."""
        with explained(self._folder.root):
            try:
                self._folder.lock()
                credentials = await self._start()
            except BaseException:
                await self.stop()
                raise
        self._watcher = asyncio.create_task(self._watch(credentials), name="postgres-watcher")
        return credentials.url()

    async def stop(self) -> None:
        """Shut down cleanly and give the folder back. May be called in any state, also twice."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
            self._watcher = None
        await self._end_process()
        self._folder.unlock()

    async def _start(self) -> Credentials:
        user = launcher.database_user(self._folder.pgdata)
        self._launcher, bundled = launcher.find(self._folder.root, user)
        if not _holds_data(self._folder.pgdata):
            await self._create(user)
        launcher.require_owner(self._folder.pgdata)
        launcher.give_tree(self._folder.pgdata, user)
        _require_version(self._folder.pgdata, bundled)
        self._folder.save_config(CONFIG)
        superuser, server, is_new = self._credentials()
        port = await self._run_on_free_port(superuser or server)
        server = replace(server, port=port)
        if superuser is not None:
            await administrator.prepare(replace(superuser, port=port), server, self._folder.root, take_over=is_new)
        self._folder.save_credentials(server)
        return server

    def _credentials(self) -> tuple[Credentials | None, Credentials, bool]:
        """Those of the administrator, if they are there; those of the server, and whether these are new."""
        superuser = self._folder.administrator()
        if superuser is None or self._folder.has_credentials():
            found = self._folder.credentials()
            if found.user == SERVER:
                return superuser, found, False
            if superuser is None:
                # Made by a Queen that used its database as the administrator.
                self._folder.save_administrator(found)
                superuser = found
        return superuser, Credentials(superuser.port, SERVER, secrets.token_urlsafe(24), DATABASE), True

    async def _create(self, user: tuple[int, int]) -> None:
        """Make the data beside its place and rename it when complete: what is interrupted is thrown away."""
        log.info("creating a database in %s", self._folder.root)
        scratch = self._folder.make_scratch()
        launcher.give(scratch, user)
        superuser = Credentials(
            free_port(self._keep_off), ADMINISTRATOR, secrets.token_urlsafe(24), administrator.DATABASE
        )
        await self._initdb(scratch, superuser.password, user)
        self._folder.save_administrator(superuser)
        self._folder.drop_credentials()
        (scratch / "data").rename(self._folder.pgdata)
        self._folder.sync()
        shutil.rmtree(scratch)

    async def _initdb(self, scratch: Path, password: str, user: tuple[int, int]) -> None:
        secret, target = scratch / "password", scratch / "data"
        secret.touch(mode=0o600)
        secret.write_text(password)
        target.mkdir(mode=0o700)
        for path in (secret, target):
            launcher.give(path, user)
        offset = self._folder.log_size()
        self._process = self._spawn(_initdb_command(self._launcher, target), target)
        await postmaster.become(self._has_ended, READY_S)
        status = self._process.poll()
        await self._end_process()
        if status != 0:
            raise self._failure(offset, "the bundled PostgreSQL could not create its data")

    def _spawn(self, command: list[str], folder: Path) -> subprocess.Popen[bytes]:
        output = self._folder.open_log()
        try:
            return self._launcher.start(command, folder, output, ENVIRONMENT)
        finally:
            os.close(output)

    async def _run_on_free_port(self, credentials: Credentials) -> int:
        """Start on the port of last time if it is still free, else on another. Returns the port."""
        for _ in range(PORT_TRIES):
            if credentials.port == self._keep_off or not _is_free(credentials.port):
                credentials = replace(credentials, port=free_port(self._keep_off))
            try:
                await self._run(credentials)
            except PortTaken:
                continue
            return credentials.port
        raise StartupError(f"the bundled PostgreSQL found no free port on {HOST}")

    async def _run(self, credentials: Credentials) -> None:
        """Start PostgreSQL on exactly this port and wait until it answers."""
        await postmaster.clear_leftovers(self._folder)
        offset = self._folder.log_size()
        self._process = self._spawn(
            _postgres_command(self._launcher, self._folder, credentials.port), self._folder.pgdata
        )
        try:
            await self._answers(credentials, offset)
        except BaseException:
            await self._end_process()
            raise

    async def _answers(self, credentials: Credentials, offset: int) -> None:
        deadline = SYSTEM.monotonic() + READY_S
        while not await _accepts(credentials):
            if self._has_ended():
                raise self._failure(offset, "the bundled PostgreSQL did not start")
            if SYSTEM.monotonic() > deadline:
                raise StartupError(
                    f"the bundled PostgreSQL did not answer within {READY_S:.0f} s; see {self._folder.log}"
                )
            await asyncio.sleep(postmaster.POLL_S)

    def _failure(self, offset: int, what: str) -> StartupError:
        lines = self._folder.log_since(offset)
        if self._is_disk_full(lines):
            return StartupError(disk_full(self._folder.root))
        said = _meaningful(lines)
        if any("Address already in use" in line for line in lines):
            return PortTaken(f"{what}: {said}")
        return StartupError(f"{what}: {said or 'it said nothing'} (see {self._folder.log})")

    def _is_disk_full(self, lines: list[str]) -> bool:
        if any(text in line for line in lines for text in DISK_FULL_TEXTS):
            return True
        # The log lies on the same disk, so the complaint itself may be what did not fit.
        silent = not any(mark in line for line in lines for mark in FAILURES)
        return silent and shutil.disk_usage(self._folder.root).free < LEAST_FREE_BYTES

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    async def _end_process(self) -> None:
        if self._process is not None:
            await postmaster.end(self._process)
            self._process = None

    async def _watch(self, credentials: Credentials) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            self._folder.bound_log()
            if self._has_ended():
                log.error("PostgreSQL has died; restarting it")
                await self._restart(credentials)
                log.info("PostgreSQL is back")

    async def _restart(self, credentials: Credentials) -> None:
        """Try until it succeeds: a full disk may be cleared, children of the dead one may linger."""

        async def run() -> None:
            with explained(self._folder.root):
                await self._run(credentials)

        def is_worth_another(failure: Failure) -> bool:
            log.error("PostgreSQL is still down; next attempt in %.1f s: %s", failure.pause_s, failure.error)
            return True

        await retried(run, is_worth_another, RESTART_PAUSES, SYSTEM)


def _holds_data(pgdata: Path) -> bool:
    """Whether there is a database; an empty folder is none. Anything else is not ours to touch."""
    if (pgdata / "PG_VERSION").exists():
        return True
    if pgdata.exists() and any(pgdata.iterdir()):
        raise StartupError(f"{pgdata} contains files that are not PostgreSQL data; move them away")
    return False


def _require_version(pgdata: Path, bundled: int) -> None:
    found = (pgdata / "PG_VERSION").read_text().strip()
    if found == str(bundled):
        return
    root = pgdata.parent
    kept = root / f"postgresql-{found}"
    raise StartupError(
        f"the data in {pgdata} is of PostgreSQL {found}, but this Queen bundles PostgreSQL {bundled}, which cannot "
        f"read it; nothing was changed. Set it aside with `mkdir {kept} && mv {pgdata} {root}/database.json "
        f"{root}/administrator.json {kept}/`, run the Queen that wrote it there (QUEEN_DATA_DIR={kept}) to dump it "
        f'with `pg_dump --format=custom --schema=queen --file=queen.dump "$(QUEEN_DATA_DIR={kept} queen db url)"`, and '
        "restore the dump as docs/how-to/upgrade.md shows; or choose another folder with QUEEN_DATA_DIR"
    )


def _initdb_command(way: Launcher, target: Path) -> list[str]:
    folder = way.name_of(target)
    return [
        way.binary("initdb"),
        f"--pgdata={folder}",
        f"--username={ADMINISTRATOR}",
        f"--pwfile={folder}/../password",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
        "--no-instructions",
    ]


def _postgres_command(way: Launcher, folder: DataFolder, port: int) -> list[str]:
    pgdata = way.name_of(folder.pgdata)
    settings = {
        "config_file": f"{pgdata}/{folder.config.name}",
        "listen_addresses": HOST,
        "port": str(port),
        "unix_socket_directories": _socket_folder(Path(pgdata), port),
    }
    command = [way.binary("postgres"), "-D", pgdata]
    return command + [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]


def _socket_folder(pgdata: Path, port: int) -> str:
    """The data itself, which nobody else can enter; quoted, because the setting is a list."""
    if len(os.fsencode(pgdata / f".s.PGSQL.{port}")) >= SOCKET_PATH_BYTES:
        return ""
    return '"' + str(pgdata).replace('"', '""') + '"'


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True


def free_port(keep_off: int = 0) -> int:
    for port in random.SystemRandom().sample(PORTS, 100):
        if port != keep_off and _is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


async def _accepts(credentials: Credentials) -> bool:
    try:
        connection = await administrator.connect(credentials, administrator.DATABASE)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if sqlstate_of(error) == INVALID_PASSWORD:
            file = "database.json" if credentials.user == SERVER else "administrator.json"
            raise StartupError(f"the bundled PostgreSQL refuses the password in {file}; restore that file") from None
        return False
    await connection.close()
    return True


def _meaningful(lines: list[str]) -> str:
    """The last lines of a log that say something, without time stamps, in one line."""
    said = [_without_stamp(line) for line in lines if not any(text in line for text in ROUTINE)]
    return "; ".join(text for text in said[-SHOWN_LINES:] if text)[:SHOWN_CHARACTERS]


def _without_stamp(line: str) -> str:
    found = SEVERITY.search(line)
    return " ".join(line[found.start() :].split()) if found else line.strip()
