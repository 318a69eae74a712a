"""`queen serve` as a process that can be killed, paused, misled about the time, and started again on the same port."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from queenmq.errors import StartupError
from queenmq.faults import shifted_clock

START_S: Final = 120.0
STOP_S: Final = 30.0
UP: Final = b"Ctrl-C stops"
REMEMBERED_LINES: Final = 10_000
# What configures the user's own servers must not reach these.
_NOT_PASSED_ON: Final = ("QUEEN_", "PG_", "DATABASE_", "POP_WAIT_", "SYNC_", "JWT_", "OTEL_", "FILE_BUFFER_")
_NOT_PASSED_ON_EITHER: Final = ("HOST", "PORT", "NUM_WORKERS")


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_NOT_PASSED_ON) and name not in _NOT_PASSED_ON_EITHER
    }


class ServerProcess:
    """Its last lines, of all its lives, are in `lines`."""

    def __init__(self, folder: Path, name: str, port: int, variables: Mapping[str, str]) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.lines: deque[str] = deque(maxlen=REMEMBERED_LINES)
        self._variables = {"PORT": str(port), "QUEEN_SERVER_ID": name, "PYTHONUNBUFFERED": "1"} | dict(variables)
        self._clock = folder / f"{name}.clock"
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when it listens. Raises StartupError."""
        shifted_clock.shift(self._clock, 0)
        setpriv = shutil.which("setpriv")
        prefix = (setpriv, "--pdeathsig", "KILL") if setpriv else ()
        command = (*prefix, sys.executable, "-m", shifted_clock.__name__, str(self._clock), "serve")
        self._process = await asyncio.create_subprocess_exec(
            *command, env=_environment() | self._variables, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=STDOUT
        )
        up = asyncio.Event()
        # A pipe rather than a file: what the server says must get through when files cannot be written.
        self._reader = asyncio.create_task(self._read(self._process, up))
        try:
            async with asyncio.timeout(START_S):
                await up.wait()
        except TimeoutError:
            raise StartupError(f"the server {self.name} does not come up: {self.last_words}") from None
        if self._process.returncode is not None:
            raise StartupError(f"the server {self.name} has ended: {self.last_words}")

    async def _read(self, process: Process, up: asyncio.Event) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip())
            if UP in line:
                up.set()
        await process.wait()
        up.set()

    @property
    def last_words(self) -> str:
        return " | ".join([line for line in self.lines if line][-10:])

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        await self._ended()

    def pause(self) -> None:
        """Nothing of it runs any more, but its sockets stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def shift_clock(self, seconds: float) -> None:
        shifted_clock.shift(self._clock, seconds)

    def fill_disk(self) -> None:
        """From now on the kernel refuses what it writes to files (EFBIG), as a full disk does."""
        self._bound_files(0)

    def free_disk(self) -> None:
        self._bound_files(resource.RLIM_INFINITY)

    def _bound_files(self, most: int) -> None:
        if self.pid is not None:
            _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (most if most == 0 else hard, hard))

    async def stop(self) -> None:
        """As an operator does it, or by force if that takes too long."""
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await self._ended()
        except TimeoutError:
            await self.kill()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _ended(self) -> None:
        if self._reader is not None:
            await asyncio.shield(self._reader)
