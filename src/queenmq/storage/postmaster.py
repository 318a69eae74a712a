"""The processes of one PostgreSQL: are they alive, end them, clear what an earlier life left behind.

Leftovers are recognised by their program and working directory, never by a process id alone: the
number in a stale postmaster.pid may by now belong to somebody else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from queenmq.clock import SYSTEM
from queenmq.errors import StartupError
from queenmq.storage.datafolder import DataFolder, is_alive

log = logging.getLogger(__name__)

POLL_S: Final = 0.05
# SIGINT is the fast shutdown (with a checkpoint), SIGQUIT the immediate one (recovery at the next start).
FAST_S: Final = 60.0
IMMEDIATE_S: Final = 10.0


async def become(condition: Callable[[], bool], within_s: float) -> bool:
    """Wait until the condition holds; False if it does not in time."""
    deadline = SYSTEM.monotonic() + within_s
    while not condition():
        if SYSTEM.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


async def end(process: subprocess.Popen[bytes]) -> None:
    """Stop our own postmaster: politely, then less so."""
    for number, patience_s in (
        (signal.SIGINT, FAST_S),
        (signal.SIGQUIT, IMMEDIATE_S),
        (signal.SIGKILL, IMMEDIATE_S),
    ):
        process.send_signal(number)
        if await become(lambda: process.poll() is not None, patience_s):
            return
        log.warning("PostgreSQL does not react to %s", number.name)


def living(pgdata: Path) -> set[int]:
    """Processes of a PostgreSQL that works in this folder. Without /proc none are found."""
    place = pgdata.resolve()
    return {int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _works_in(entry, place)}


def _works_in(process: Path, place: Path) -> bool:
    try:
        # "postgres (deleted)" after a reinstallation.
        program = (process / "exe").readlink().name.split()
        return program[:1] == ["postgres"] and (process / "cwd").readlink() == place
    except OSError:
        return False


async def clear_leftovers(folder: DataFolder) -> None:
    """End what still runs on the data and belongs to nobody, because we hold the lock of the folder."""
    if living(folder.pgdata):
        log.warning("a PostgreSQL without a server is still running on %s; stopping it", folder.pgdata)
        await _end_leftovers(folder)
    _drop_stale_files(folder)


async def _end_leftovers(folder: DataFolder) -> None:
    def gone() -> bool:
        return not living(folder.pgdata)

    postmaster = living(folder.pgdata) & {folder.postmaster_pid() or 0}
    if postmaster:
        _send(postmaster, signal.SIGINT)
        if await become(gone, FAST_S):
            return
    for number in (signal.SIGQUIT, signal.SIGKILL):
        _send(living(folder.pgdata), number)
        if await become(gone, IMMEDIATE_S):
            return
    raise StartupError(
        f"an old PostgreSQL on {folder.pgdata} does not stop (processes {sorted(living(folder.pgdata))})"
    )


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _drop_stale_files(folder: DataFolder) -> None:
    """Remove a postmaster.pid whose number now belongs to somebody else: PostgreSQL would believe it.

    Two servers on the same data stay impossible: the shared memory block is checked independently.
    """
    pid = folder.postmaster_pid()
    if pid is not None and is_alive(pid) and Path("/proc").is_dir():
        (folder.pgdata / "postmaster.pid").unlink(missing_ok=True)
        for stale in folder.pgdata.glob(".s.PGSQL.*"):
            stale.unlink(missing_ok=True)
