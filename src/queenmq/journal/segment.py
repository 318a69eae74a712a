"""One file of the journal: appended to, synced, read back, recovered. The calls block.

The name of the file has its number and the salt of its records, so that no damage inside can take them away.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from queenmq.journal.records import SALT_BYTES, Damaged, Record, Torn, read, scan

SUFFIX: Final = ".journal"
MAX_BYTES: Final = 64 * 1024 * 1024  # then the next file is begun


@dataclass(slots=True, eq=False)
class Segment:
    path: Path
    number: int
    salt: bytes
    size: int = 0
    records: int = 0  # pushes written into it
    open_records: int = 0  # of them, not replayed yet

    @classmethod
    def create(cls, folder: Path, number: int) -> Segment:
        salt = os.urandom(SALT_BYTES)
        segment = cls(folder / f"{number:012d}-{salt.hex()}{SUFFIX}", number, salt)
        os.close(os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        sync_folder(folder)
        return segment

    @classmethod
    def named(cls, path: Path) -> Segment | None:
        """The segment that a file is, by its name; None if it is something else."""
        number, _, salt = path.name.removesuffix(SUFFIX).partition("-")
        if path.suffix != SUFFIX or not number.isdecimal():
            return None
        try:
            return cls(path, int(number), bytes.fromhex(salt))
        except ValueError:
            return None

    def is_full(self, most_records: int) -> bool:
        return self.records >= most_records or self.size >= MAX_BYTES

    def append(self, data: bytes) -> None:
        """Write and sync. After an OSError nothing of it is there, as far as the system lets us say so."""
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            os.lseek(descriptor, self.size, os.SEEK_SET)
            _write_all(descriptor, data)
            os.fdatasync(descriptor)
        except OSError:
            os.ftruncate(descriptor, self.size)
            raise
        finally:
            os.close(descriptor)
        self.size += len(data)

    def read(self, start: int, end: int) -> Record | None:
        """The record in this place; None if it cannot be read any more."""
        with self.path.open("rb") as file:
            file.seek(start)
            return read(self.salt, file.read(end - start))

    def recover(self) -> Recovered:
        """Read everything. A torn tail is cut off, damaged places are named."""
        data = self.path.read_bytes()
        found = Recovered()
        self.size = len(data)
        for part in scan(self.salt, data):
            match part:
                case Record():
                    found.records.append(part)
                case Damaged():
                    found.damaged.append((part, data[part.start : part.end]))
                case Torn():
                    found.torn_bytes = len(data) - part.start
                    self._cut(part.start)
        return found

    def _cut(self, size: int) -> None:
        with self.path.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())
        self.size = size

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


@dataclass(slots=True)
class Recovered:
    records: list[Record] = field(default_factory=list)
    damaged: list[tuple[Damaged, bytes]] = field(default_factory=list)
    torn_bytes: int = 0


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
