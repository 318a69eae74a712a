"""A command at a pseudo-terminal: what it draws, and the keys that are pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Self

from cli.conftest import OTHERS, OURS, PATIENCE_S, QUEEN

ROWS, COLUMNS = 40, 120
# In a session of its own, with the terminal as its own: so that Ctrl-C becomes a signal.
LAUNCHER = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.executable, [sys.executable, '-c', *sys.argv[1:]])"
)


class Terminal:
    def __init__(self, *arguments: str, url: str, folder: Path, columns: int = COLUMNS) -> None:
        self._main, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(OURS) and n not in OTHERS}
        variables = {"QUEEN_URL": url, "QUEEN_DATA_DIR": str(folder), "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, QUEEN, *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=inherited | variables,
            start_new_session=True,
        )
        self._terminal = terminal
        self.drawn = ""

    def until(self, text: str, after: int = 0) -> int:
        """Read until the text is drawn; where it begins."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.drawn.find(text, after)) < 0:
            assert time.monotonic() < deadline, f"{text!r} is not drawn:\n{self.drawn}"
            assert self.process.poll() is None or self._ready(), f"it ended:\n{self.drawn}"
            if self._ready():
                self.drawn += os.read(self._main, 65536).decode(errors="replace")
        return found

    def _ready(self) -> bool:
        return bool(select.select([self._main], [], [], 0.1)[0])

    def press(self, keys: bytes) -> None:
        os.write(self._main, keys)

    def end(self) -> int:
        """Its status, once it has ended. What it draws last is read, so that it need not wait for us."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end:\n{self.drawn}"
            if self._ready():
                self.drawn += os.read(self._main, 65536).decode(errors="replace")
        while self._ready():
            self.drawn += os.read(self._main, 65536).decode(errors="replace")
        return self.process.wait()

    @property
    def echoes(self) -> bool:
        """Whether keys are shown, as a shell expects it."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)
        os.close(self._terminal)
