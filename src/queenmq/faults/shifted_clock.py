"""`queen serve` on a clock that another process moves: a file has the seconds that are added to the wall clock.

Run as `python -m queenmq.faults.shifted_clock FILE serve …`. Only the server's own clock is moved; PostgreSQL keeps the
time of the machine, and a monotonic clock does not jump.
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path
from typing import Final

from queenmq.clock import SYSTEM, SystemClock

_SECONDS: Final = struct.Struct("<d")


def shift(file: Path, seconds: float) -> None:
    """The clock of the server with this file is wrong by so many seconds from now on."""
    if not file.exists():
        file.write_bytes(bytes(_SECONDS.size))
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), _SECONDS.size) as shared:
        _SECONDS.pack_into(shared, 0, seconds)


def main() -> int:
    file = Path(sys.argv.pop(1))
    with file.open("rb") as opened:
        shared = mmap.mmap(opened.fileno(), _SECONDS.size, access=mmap.ACCESS_READ)
    true = SYSTEM.wall

    def wall() -> float:
        moved: float = _SECONDS.unpack_from(shared)[0]
        return true() + moved

    # Before anything else of the server is loaded, so that nobody has the true one.
    SystemClock.wall = staticmethod(wall)
    from queenmq.cli.main import main as queen

    return queen()


if __name__ == "__main__":
    sys.exit(main())
