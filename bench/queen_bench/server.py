"""Our own server for a benchmark: `queen serve` as a process of its own, on a database in a temporary folder."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg

from queen_bench.errors import BenchError
from queen_bench.processes import Watch
from queen_bench.subject import HttpSubject
from queenmq.storage.embedded import running_url

QUEEN: Final = "import sys; from queenmq.cli.main import main; sys.exit(main())"
LISTENS: Final = " listens on http"
START_S: Final = 120.0
STOP_S: Final = 60.0
SHOWN_LINES: Final = 5
# Settings of whoever runs the benchmark that would make it another server than the one to be measured.
NOT_PASSED_ON: Final = ("HOST", "PORT", "QUEEN_DATA_DIR", "DATABASE_URL", "PG_HOST", "JWT_ENABLED", "LOG_LEVEL")
SHOWN_SETTINGS: Final = ("server_version", "fsync", "synchronous_commit", "shared_buffers")


class OwnServer:
    """A fresh server with a fresh database each time it is brought up."""

    def __init__(self, scratch: Path | None = None, name: str = "queen") -> None:
        self.name = name
        self._scratch = scratch
        self._facts: dict[str, str] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[HttpSubject]:
        folder = Path(tempfile.mkdtemp(prefix="queen-bench-", dir=self._scratch))
        try:
            async with _process(folder) as (process, port):
                self._facts = await _database_facts(folder / "data")
                yield HttpSubject("127.0.0.1", port, Watch(process.pid), folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def takes(self, scenario: str, peers: bool) -> bool:
        return True

    def facts(self) -> dict[str, str]:
        return self._facts


@asynccontextmanager
async def with_settings(parent: Path, settings: dict[str, str]) -> AsyncIterator[HttpSubject]:
    """A further server with a database of its own, which runs with these settings of PostgreSQL."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    async with _process(folder):
        connection = await asyncpg.connect(running_url(folder / "data", administrator=True))
        try:
            for name, value in settings.items():
                await connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        finally:
            await connection.close()
    async with _process(folder) as (process, port):
        yield HttpSubject("127.0.0.1", port, Watch(process.pid), folder)


@asynccontextmanager
async def companion(folder: Path, name: str, **variables: str) -> AsyncIterator[HttpSubject]:
    """Another server on the database of the one that runs in `folder`."""
    url = {"DATABASE_URL": running_url(folder / "data")}
    async with _process(folder, f"{name}.log", url | variables) as (process, port):
        yield HttpSubject("127.0.0.1", port, Watch(process.pid), folder)


@asynccontextmanager
async def _process(
    folder: Path, log_name: str = "server.log", variables: dict[str, str] | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    log = folder / log_name
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *at_our_death(), *_command(folder / "data"), stdout=asyncio.subprocess.PIPE, stderr=output,
            env=_environment() | (variables or {}), start_new_session=True,
        )  # fmt: skip
    try:
        yield process, await _port(process, log)
    except BenchError as error:
        if process.returncode is None:
            raise
        raise BenchError(f"{error}; the server has ended with status {process.returncode}: {_tail(log)}") from None
    finally:
        await stop(process)


def _command(data: Path) -> list[str]:
    return [sys.executable, "-c", QUEEN, "serve", "--host", "127.0.0.1", "--port", "0",
            "--data-dir", str(data), "--log-level", "warning"]  # fmt: skip


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}


def at_our_death() -> tuple[str, ...]:
    """A prefix by which a process is told to stop when we are gone, however that happened."""
    found = shutil.which("setpriv")
    return (found, "--pdeathsig", "TERM") if found else ()


async def _port(process: asyncio.subprocess.Process, log: Path) -> int:
    """Read what the server prints until it says where it listens."""
    assert process.stdout is not None  # noqa: S101 - it was asked for
    try:
        async with asyncio.timeout(START_S):
            async for line in process.stdout:
                if LISTENS in (text := line.decode().strip()):
                    return int(text.rpartition(":")[2])
    except TimeoutError:
        raise BenchError(f"the server did not start within {START_S:.0f} s: {_tail(log)}") from None
    raise BenchError(f"the server did not start: {_tail(log)}")


def _tail(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])


async def stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _database_facts(data: Path) -> dict[str, str]:
    connection = await asyncpg.connect(running_url(data))
    try:
        return {name: str(await connection.fetchval("SELECT current_setting($1)", name)) for name in SHOWN_SETTINGS}
    finally:
        await connection.close()
