"""What processes have used, read from /proc: CPU of whole trees with their dead children, and resident memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
LISTENING: Final = "0A"


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    name: str
    cpu_s: float  # its own and that of its children that have ended
    ended_s: float = 0.0  # of the latter alone


@dataclass(frozen=True)
class Usage:
    """What was used so far; None where the processes are not known."""

    server_cpu_s: float | None = None
    postgres_cpu_s: float | None = None
    server_rss_kb: int | None = None
    postgres_pss_kb: int | None = None


class Watch:
    """A server and its database: both are trees of processes, one may lie within the other.

    What a process has used that ended between two looks counts as far as it was seen, whether or not its parent asked
    for it: the daemon that starts the workers of PySpark does not.
    """

    def __init__(self, server: int | None, postgres: int | None = None) -> None:
        self._server = server
        self._postgres = postgres
        self._server_cpu = _Cpu()
        self._postgres_cpu = _Cpu()

    def look(self) -> None:
        """Note what was used so far, before processes end."""
        server, database = self._trees()
        self._server_cpu.of(server)
        self._postgres_cpu.of(database)

    def _trees(self) -> tuple[dict[int, Process], dict[int, Process]]:
        table = processes()
        all_of_server = tree(self._server, table)
        database = tree(self._postgres or postmaster_among(all_of_server), table)
        return {pid: process for pid, process in all_of_server.items() if pid not in database}, database

    def usage(self) -> Usage:
        server, database = self._trees()
        return Usage(
            server_cpu_s=self._server_cpu.of(server),
            postgres_cpu_s=self._postgres_cpu.of(database),
            server_rss_kb=_memory_kb(server, "status", "VmRSS:"),
            # Shared memory is divided among those who share it.
            postgres_pss_kb=_memory_kb(database, "smaps_rollup", "Pss:"),
        )


class _Cpu:
    """What a tree has used, from one look to the next."""

    def __init__(self) -> None:
        self._before: dict[int, Process] = {}
        self._lost_s = 0.0

    def of(self, family: dict[int, Process]) -> float | None:
        self._lost_s += _lost_s(self._before, family)
        self._before = family
        return sum(process.cpu_s for process in family.values()) + self._lost_s if family else None


def _lost_s(before: dict[int, Process], now: dict[int, Process]) -> float:
    """What processes had used that have ended since, without what their parents know of it."""
    gone = {pid: one for pid, one in before.items() if pid not in now}
    below: dict[int, float] = {}

    def whole(pid: int) -> float:
        return gone[pid].cpu_s + sum(whole(child) for child, one in gone.items() if one.parent == pid)

    for pid, one in gone.items():
        if one.parent in now:
            below[one.parent] = below.get(one.parent, 0.0) + whole(pid)
    known = {pid: now[pid].ended_s - (before[pid].ended_s if pid in before else 0.0) for pid in below}
    return sum(max(0.0, used - known[pid]) for pid, used in below.items())


def processes() -> dict[int, Process]:
    found = map(_read, _pids())
    return {process.pid: process for process in found if process is not None}


def _pids() -> list[int]:
    return [int(folder.name) for folder in PROC.iterdir() if folder.name.isdecimal()]


def tree(root: int | None, table: dict[int, Process]) -> dict[int, Process]:
    """A process and everything below it; nothing if it is not known."""
    if root is None:
        return {}
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    return {pid: table[pid] for pid in _descend(root, children) if pid in table}


def _descend(root: int, children: dict[int, list[int]]) -> Iterator[int]:
    yield root
    for child in children.get(root, ()):
        yield from _descend(child, children)


def postmaster_among(family: dict[int, Process]) -> int | None:
    """The topmost PostgreSQL of a tree: those below it are its sessions."""
    return next((pid for pid, process in family.items() if process.name == "postgres"), None)


def _read(pid: int) -> Process | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name stands in brackets and may itself have brackets and spaces.
    before, _, after = text.rpartition(")")
    fields = after.split()
    own, ended = (sum(map(int, part)) / TICKS_PER_S for part in (fields[11:13], fields[13:15]))
    return Process(pid, int(fields[1]), before.partition("(")[2], own + ended, ended)


def resident_kb(root: int) -> int:
    """Memory of a process and everything below it that is no PostgreSQL. Cheap enough to ask several times a second."""
    family = tree(root, processes())
    database = tree(postmaster_among(family), family)
    return _memory_kb({pid: one for pid, one in family.items() if pid not in database}, "status", "VmRSS:") or 0


def _memory_kb(family: dict[int, Process], file: str, key: str) -> int | None:
    return sum(_field_kb(pid, file, key) for pid in family) if family else None


def _field_kb(pid: int, file: str, key: str) -> int:
    try:
        lines = (PROC / str(pid) / file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), 0)


def listener(port: int) -> int | None:
    """The process of this machine that listens on a TCP port, if we may see it."""
    sockets = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(table, port)}
    return next((pid for pid in _pids() if not sockets.isdisjoint(_open_files(pid))), None)


def _listening(table: str, port: int) -> Iterator[str]:
    try:
        lines = (PROC / "net" / table).read_text().splitlines()[1:]
    except OSError:
        return
    for fields in map(str.split, lines):
        if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
            yield fields[9]


def _open_files(pid: int) -> set[str]:
    found: set[str] = set()
    with suppress(OSError):
        for file in (PROC / str(pid) / "fd").iterdir():
            # One that was closed meanwhile says nothing about the others.
            with suppress(OSError):
                found.add(str(file.readlink()))
    return found
