"""The frameworks as a user has them: the files that a guide shows, run by real processes against a real server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.conftest import Running, name, running  # noqa: F401 - fixtures

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
SERVER = "127.0.0.1:6632"
PATIENCE_S = 120
PROGRAM = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Example:
    """The programs of a guide in a folder of their own, and the processes that run them."""

    def __init__(self, guide: str, folder: Path, server: Running) -> None:
        self.folder = folder
        self.ledger = folder / "ledger.txt"
        self.environment = os.environ | {"LEDGER": str(self.ledger), "DATABASE_URL": server.database_url}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._address = server.url.removeprefix("http://")
        for file, code in PROGRAM.findall((GUIDES / guide).read_text()):
            (folder / file).write_text(code.replace(SERVER, self._address))

    def run(self, *arguments: str) -> str:
        """A program that ends by itself; what it prints."""
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A worker, with all processes that it starts, in a group of its own."""
        with (self.folder / "workers.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    @staticmethod
    def kill(worker: subprocess.Popen[bytes]) -> None:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(PATIENCE_S)

    def end(self, worker: subprocess.Popen[bytes]) -> None:
        worker.terminate()
        assert worker.wait(PATIENCE_S) == 0, self.log()

    def done(self) -> list[int]:
        """What the tasks have written, in order."""
        return [int(line) for line in self.ledger.read_text().split()] if self.ledger.exists() else []

    def until(self, holds: Callable[[list[int]], bool]) -> list[int]:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(found := self.done()):
            assert time.monotonic() < deadline, f"{found}\n{self.log()}"
            time.sleep(0.02)
        return found

    def log(self) -> str:
        path = self.folder / "workers.log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                self.kill(process)


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path, running: Running) -> Iterator[Example]:  # noqa: F811
    """Of the guide that the module names."""
    made = Example(request.module.GUIDE, tmp_path, running)
    yield made
    made.close()
