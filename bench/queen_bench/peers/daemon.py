"""How the program of a peer is run: in a temporary folder, never as root, stopped with us; and its client library."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from queen_bench.errors import BenchError, PeerMissing
from queen_bench.server import at_our_death, stop

READY_S: Final = 60.0
POLL_S: Final = 0.1
SHOWN_CHARACTERS: Final = 500


class Daemon:
    """Where a peer lives and as whom: its own system user if there is one, else nobody; we ourselves if not root."""

    def __init__(self, folder: Path, user: str) -> None:
        self.folder = folder
        self._account = _account(user) if os.geteuid() == 0 else None
        if self._account is not None:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)

    def write(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.write_text(content)
        path.chmod(0o644)
        return path

    @asynccontextmanager
    async def running(
        self, command: Sequence[str], environment: dict[str, str] | None = None
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        with (self.folder / "output.log").open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *at_our_death(),
                *self._as_user(),
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=os.environ | {"HOME": str(self.folder)} | (environment or {}),
                start_new_session=True,
            )
        try:
            yield process
        finally:
            await stop(process)

    def _as_user(self) -> list[str]:
        """Changing the user clears the wish of `at_our_death`, so it is repeated."""
        if self._account is None:
            return []
        user = [f"--reuid={self._account.pw_uid}", f"--regid={self._account.pw_gid}", "--clear-groups"]
        return ["setpriv", *user, "--pdeathsig", "TERM"]

    async def answers(self, process: asyncio.subprocess.Process, port: int) -> None:
        """Wait until it listens."""
        deadline = asyncio.get_running_loop().time() + READY_S
        while not await _listens(port):
            if process.returncode is not None or asyncio.get_running_loop().time() > deadline:
                raise BenchError(f"{self.folder.name} did not start: {self._said()}")
            await asyncio.sleep(POLL_S)

    def _said(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")[-SHOWN_CHARACTERS:].strip() or "it said nothing"


@asynccontextmanager
async def temporary(scratch: Path | None, name: str) -> AsyncIterator[Path]:
    """A folder that others may enter, because a peer does not run as root."""
    folder = tempfile.mkdtemp(prefix=f"queen-bench-{name}-", dir=scratch)
    os.chmod(folder, 0o755)  # noqa: PTH101, S103
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def library(name: str) -> Any:
    """The module that speaks to a peer. Raises PeerMissing if it is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise PeerMissing(f"{name} is not installed: make bench installs it, or pip install './bench[peers]'") from None


def output_of(*command: str) -> str:
    """What a program prints, or nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=READY_S)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _account(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        return pwd.getpwnam("nobody")
