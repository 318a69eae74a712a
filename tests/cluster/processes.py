"""`queen serve` as real processes that can be killed and started again."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from integration.queen import Queen
from server_settings import NEVER_BUSY

PATIENCE_S = 60.0
SECRET = "5e" * 32
QUEEN = "import sys; from queenmq.cli.main import main; sys.exit(main())"


def environment(**variables: str) -> dict[str, str]:
    """Nothing that configures a server is inherited."""
    ours = ("QUEEN_", "PG_", "DATABASE_", "POP_WAIT_", "SYNC_", "JWT_")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ours) and name not in ("HOST", "PORT", "NUM_WORKERS")
    }
    return inherited | {"PORT": "0", "PYTHONUNBUFFERED": "1"} | variables


class ServeProcess:
    """One `queen serve`. What it printed in all its lives is in two files."""

    def __init__(self, folder: Path, name: str, *arguments: str, **variables: str) -> None:
        self.name = name
        self.arguments = arguments
        self.variables = {"QUEEN_SERVER_ID": name} | NEVER_BUSY | variables
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self._process: subprocess.Popen[bytes] | None = None
        self._printed_before = 0
        self.url = ""

    def launch(self) -> None:
        """Start it without waiting for it."""
        self._printed_before = self._out.stat().st_size if self._out.exists() else 0
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-c", QUEEN, "serve", *self.arguments],
                stdout=out,
                stderr=err,
                env=environment(**self.variables),
            )

    def until_up(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.is_up:
            assert self.process.poll() is None, f"{self.name} ended:\n{self.log}"
            assert time.monotonic() < deadline, f"{self.name} does not come up:\n{self.log}"
            time.sleep(0.02)
        found = re.search(r"listens on (https?://\S+)", self._announcement)
        assert found
        self.url = found[1]

    async def start(self) -> None:
        self.launch()
        await asyncio.to_thread(self.until_up)

    @property
    def is_up(self) -> bool:
        return "Ctrl-C stops" in self._announcement

    @property
    def _announcement(self) -> str:
        return self._out.read_bytes()[self._printed_before :].decode()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._err.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Nothing of it runs any more, but its sockets stay open."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """Its exit status, when it has ended."""
        return self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """End it as an operator does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def make_sure_it_is_gone(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()


class Remote:
    """A server that is spoken to only over HTTP."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.queen = Queen(http)

    async def figures(self) -> dict[str, Any]:
        answer = await self.http.get("/internal/api/shared-state/stats")
        assert answer.status_code == 200, answer.text
        figures: dict[str, Any] = answer.json()
        return figures

    async def alive(self) -> int:
        """How many others it believes to live."""
        return int((await self.figures())["server_health"]["servers_alive"])

    async def idle(self, polls: int) -> bool:
        """Whether that many long polls are held and nothing is being asked."""
        figures = await self.figures()
        pops = figures["sidecar"]["operations"]["pop"]
        return bool(figures["pop_wait"]["waiters"] == polls and pops["pending"] == pops["in_flight"] == 0)
