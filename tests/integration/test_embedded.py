"""The bundled PostgreSQL in real life: first start, restart, crashes, full disks, odd folders."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from queenmq.errors import StartupError
from queenmq.storage import embedded, launcher, postmaster
from queenmq.storage.datafolder import DataFolder, default_data_dir, is_alive
from queenmq.storage.embedded import EmbeddedPostgres, running_url

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
HALF_DONE = 'mkdir "$0" && echo 18 >"$0/PG_VERSION" && exec sleep 600'
HALF_HOLDER = f"""
from queenmq.storage import embedded
embedded._initdb_command = lambda target, secret: ["sh", "-c", {HALF_DONE!r}, str(target)]
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
    command = embedded._postgres_command(folder, folder.credentials().port)
    orphan = way.start(command, subprocess.DEVNULL, embedded.ENVIRONMENT)
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
        patch.setattr(embedded, "_initdb_command", lambda target, _: ["sh", "-c", HALF_DONE, str(target)])
        await start_and_cancel(tmp_path)
    async with running(tmp_path) as (_, url):
        assert await value(url, "SELECT 1") == 1


async def start_and_cancel(tmp_path: Path) -> None:
    start = asyncio.create_task(EmbeddedPostgres(tmp_path).start())
    await until(lambda: bool(unfinished(tmp_path)))
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start


@needs_root
async def test_root_with_a_folder_that_others_cannot_reach(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    async with running(closed / "data") as (_, url):
        assert await value(url, "SELECT 1") == 1
    assert (closed / "data" / "postgres").stat().st_uid != 0


@needs_root
async def test_root_with_a_folder_that_others_can_reach() -> None:
    with tempfile.TemporaryDirectory(prefix="queen-open-") as name:
        folder = Path(name)
        allow(folder, 0o755)
        async with running(folder) as (_, url):
            assert await value(url, "SELECT 1") == 1
        way, _ = launcher.find(folder, launcher.database_user(folder / "postgres"))
        assert "--ambient-caps" not in way.prefix


@needs_root
@pytest.mark.parametrize("right", launcher.PASSING_RIGHTS)
async def test_either_right_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str) -> None:
    monkeypatch.setattr(launcher, "PASSING_RIGHTS", ("no_such_right", right))
    allow(tmp_path, 0o700)
    async with running(tmp_path) as (_, url):
        assert await value(url, "SELECT 1") == 1


@needs_root
async def test_without_any_right_root_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "PASSING_RIGHTS", ())
    allow(tmp_path, 0o700)
    message = await refusal(tmp_path)
    assert str(tmp_path) in message
    assert "QUEEN_DATA_DIR" in message


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
    assert set(owners) >= {"queen.lock", "database.json", "postgres.log", "postgresql.conf"}
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
        assert await value(url, "SHOW unix_socket_directories") == ""


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
