"""The folder of a journal: which process has it, its segments, and what was set aside in it.

Several processes may use one parent folder (the workers of one server do): each takes a numbered folder of its own by
a lock that ends with the process, and takes over those that a process which is gone has left.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from queenmq.overload.journal_segment import Segment, sync_folder

LOCK: Final = "lock"
ASIDE: Final = "quarantine"


class JournalFolder:
    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.aside = path / ASIDE
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> JournalFolder | None:
        """Take a folder for this process; None if another one has it. Raises OSError if it cannot be used."""
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(path, descriptor)

    def segments(self) -> list[Segment]:
        """Its files, oldest first."""
        found = [segment for path in self.path.iterdir() if (segment := Segment.named(path))]
        return sorted(found, key=lambda segment: segment.number)

    def set_aside(self, name: str, data: bytes) -> bool:
        """Keep bytes that cannot be used, for a person to look at. False if they are there already."""
        self.aside.mkdir(exist_ok=True, mode=0o700)
        try:
            descriptor = os.open(self.aside / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.aside)
        return True

    def aside_sizes(self) -> list[int]:
        """The sizes of what was set aside."""
        return [path.stat().st_size for path in self.aside.iterdir()] if self.aside.is_dir() else []

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def take_all(parent: Path) -> list[JournalFolder]:
    """The folder for this process, and after it those that nobody has any more."""
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    numbers = sorted(int(path.name) for path in parent.iterdir() if path.name.isdecimal())
    taken = [folder for number in numbers if (folder := JournalFolder.take(parent / str(number)))]
    number = numbers[-1] + 1 if numbers else 0
    while not taken:
        folder = JournalFolder.take(parent / str(number))
        if folder is not None:
            taken.append(folder)
        number += 1
    return taken
