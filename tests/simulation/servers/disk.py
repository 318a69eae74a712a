"""A disk that keeps what was synced. The files are real ones; of the rest, a power cut leaves what chance wants."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

from simulation.servers.loop import PowerCut

_TORN = 0.02  # how many of the writes are cut off by a power cut, while there are any


class Disk:
    """`os.fdatasync` and `os.fsync` of the simulation."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._contents: dict[Path, bytes] = {}  # of files, when they were last synced
        self._names: dict[Path, set[str]] = {}  # of folders, when they were last synced
        self.is_full = False
        self.is_dangerous = False
        self.cuts = 0

    def sync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            self._names[path] = {entry.name for entry in path.iterdir()}
            return
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.is_dangerous and self._chance.random() < _TORN:
            raise PowerCut
        self._contents[path] = path.read_bytes()

    def cut_power(self, folder: Path) -> None:
        """Have below `folder` what a disk may have: all that was synced, and any part of what was not."""
        self.cuts += 1
        for place in [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]:
            self._lose_in(place)

    def _lose_in(self, folder: Path) -> None:
        certain, now = self._names.get(folder, set()), {path.name for path in folder.iterdir() if path.is_file()}
        for name in sorted(certain | now):
            path = folder / name
            if path.is_dir() or not name.endswith(".journal"):
                continue
            synced = self._contents.get(path, b"")
            if name not in now:
                if self._chance.random() < 0.5:
                    path.write_bytes(synced)  # it was removed, and that was not synced
            elif name not in certain and self._chance.random() < 0.5:
                path.unlink()
            else:
                data = path.read_bytes()
                rest = data[len(synced) :] if data.startswith(synced) else b""
                path.write_bytes(synced + rest[: self._chance.randint(0, len(rest))])
