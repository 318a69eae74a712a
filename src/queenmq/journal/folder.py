"""The folder of a journal: which process has it, its segments, and what was set aside in it.

Several processes may use one parent folder (the workers of one server do): each takes a numbered folder of its own by
a lock that ends with the process, and takes over those that a process which is gone has left.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from queenmq.journal.segment import Segment, sync_folder

LOCK: Final = "lock"
ASIDE: Final = "quarantine"
RETRY: Final = "retry"  # set aside, and to be replayed after all by the server that has the folder
WHY: Final = ".why"
GIVEN_UP: Final = "given-up"  # a file with fingerprints of keys that are lost: whatever waits for them is set aside


class JournalFolder:
    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.aside = path / ASIDE
        self.retry = path / RETRY
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

    def set_aside(self, name: str, data: bytes, why: str) -> bool:
        """Keep bytes that cannot be used, for a person to inspect. False if they are there already."""
        self.aside.mkdir(exist_ok=True, mode=0o700)
        if (self.aside / name).exists():
            return False
        # The reason first: what is there with its own name is complete.
        _keep(self.aside / (name + WHY), why.encode())
        unfinished = self.aside / f".{name}"
        _keep(unfinished, data)
        unfinished.rename(self.aside / name)
        sync_folder(self.aside)
        return True

    def aside_sizes(self) -> list[int]:
        """The sizes of what was set aside."""
        return [path.stat().st_size for path in records_in(self.aside)]

    def given_up(self) -> list[str]:
        """The fingerprints of keys that a person has given up."""
        path = self.path / GIVEN_UP
        return path.read_text().split() if path.exists() else []

    def forget_given_up(self) -> None:
        (self.path / GIVEN_UP).unlink(missing_ok=True)

    def forget_why(self, name: str) -> None:
        (self.aside / (name + WHY)).unlink(missing_ok=True)

    def to_retry(self) -> list[Path]:
        """What a person wants to have replayed, in the order in which it was journalled."""
        return records_in(self.retry)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def records_in(folder: Path) -> list[Path]:
    """The records in a quarantine, oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if not path.name.startswith(".") and path.suffix != WHY]
    return sorted(found, key=lambda path: _order_of(path.name))


def _order_of(name: str) -> tuple[str, int]:
    """Their names are those of the files that they were in, and where."""
    segment, _, start = name.rpartition(".")
    return segment, int(start) if start.isdecimal() else 0


def _keep(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


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
