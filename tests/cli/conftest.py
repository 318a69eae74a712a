"""`queen` against real servers: one for the whole session, in a thread, and the command in this process or its own."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from server_settings import settings_with

from queenmq.cli.main import main
from queenmq.client import BlockingQueen
from queenmq.config import Settings
from queenmq.server import Server

if TYPE_CHECKING:
    from conftest import Postgres

QUEEN = "import sys; from queenmq.cli.main import main; sys.exit(main())"
PATIENCE_S = 60.0
OURS = ("QUEEN_", "PG_", "DATABASE_", "JWT_", "POP_WAIT_", "SYNC_")
OTHERS = ("HOST", "PORT", "NUM_WORKERS", "COLUMNS")


@dataclass(frozen=True)
class Running:
    url: str
    database_url: str


@contextmanager
def serving(settings: Settings, database_url: str) -> Iterator[Running]:
    """A server on an event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)

    server = Server(settings, database_url)
    run(server.start())
    try:
        host, port = server.address
        yield Running(f"http://{host}:{port}", database_url)
    finally:
        run(server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


@pytest.fixture(scope="session")
def running(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    url = asyncio.run(postgres.create())
    settings = settings_with(statistics={"interval_ms": 200}, journal={"folder": tmp_path_factory.mktemp("journal")})
    with serving(settings, url) as server:
        yield server
    asyncio.run(postgres.drop(url))


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Nothing that configures Queen is inherited, and no bundled PostgreSQL runs."""
    for name in os.environ:
        if name.startswith(OURS) or name in OTHERS:
            monkeypatch.delenv(name)
    monkeypatch.setenv("QUEEN_DATA_DIR", str(tmp_path / "data"))
    return monkeypatch


@pytest.fixture
def queen(running: Running, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process against the server of the session. Never a traceback."""
    environment.setenv("QUEEN_URL", running.url)

    def run(*arguments: str, stdin: str = "") -> Result:
        environment.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capsys.readouterr()
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return Result(status, printed.out, printed.err)

    return run


def until(look: Callable[[], Any], wanted: Any) -> None:
    """Wait for figures that a background service reckons."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := look()) != wanted:
        assert time.monotonic() < deadline, f"{found!r} is not {wanted!r}"


@pytest.fixture
def name() -> str:
    """A queue that no other test knows."""
    return f"q-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(running: Running) -> Iterator[BlockingQueen]:
    with BlockingQueen(running.url) as opened:
        yield opened


def spawned(*arguments: str, url: str, folder: Path, **options: Any) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(OURS) and n not in OTHERS}
    variables = {"QUEEN_URL": url, "QUEEN_DATA_DIR": str(folder), "PYTHONUNBUFFERED": "1"}
    more = options.pop("environment", {})
    return subprocess.Popen([sys.executable, "-c", QUEEN, *arguments], env=inherited | variables | more, **options)
