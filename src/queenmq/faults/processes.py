"""Families of processes, and signals to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def children(parent: int) -> list[int]:
    """The processes that this one has started and that live."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        # The name of the program, in parentheses, may have spaces.
        with suppress(OSError, ValueError, IndexError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(folder.name))
    return found


def is_alive(pid: int) -> bool:
    """Whether there is such a process. One that has ended and that nobody has waited for is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
