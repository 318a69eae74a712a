"""Which PostgreSQL is the newest of those that were written to: which one is the primary now.

A copy of a PostgreSQL (backup, standby) has the system identifier of the original. Each promotion of a standby begins a
timeline with a higher number, so that a former primary has a lower one than its successor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Lineage:
    system: int
    timeline: int


class Verdict(Enum):
    SAME = "same"
    NEWER = "newer"
    OLDER = "older"


class Lineages:
    """Those that this process has written to. None stands for a PostgreSQL that does not say; it is taken as it is."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}  # the highest timeline of each system
        self._current: Lineage | None = None

    def judge(self, found: Lineage | None) -> Verdict:
        """A system that was never seen is newer (an upgrade, a restored dump); one that was left is older."""
        if found is None or found == self._current:
            return Verdict.SAME
        if self._current is None:
            return Verdict.NEWER
        newest = self._newest.get(found.system)
        if newest is None or (found.system == self._current.system and found.timeline > newest):
            return Verdict.NEWER
        return Verdict.OLDER

    def accept(self, found: Lineage | None) -> None:
        """It is written to from now on."""
        if found is None:
            return
        self._current = found
        self._newest[found.system] = max(found.timeline, self._newest.get(found.system, 0))
