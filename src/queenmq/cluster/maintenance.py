"""The two maintenance switches. The newest database version wins; at a refresh the database is the truth."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Switch(Enum):
    PUSH = "push"
    POP = "pop"


class _Position(NamedTuple):
    on: bool
    version: int
    heard_at: float


class Maintenance:
    def __init__(self) -> None:
        self._positions = {switch: _Position(False, -1, 0.0) for switch in Switch}

    def is_on(self, switch: Switch) -> bool:
        return self._positions[switch].on

    def heard(self, switch: Switch, on: bool, version: int, now: float) -> bool:
        """True if the switch has moved."""
        before = self._positions[switch]
        if version <= before.version:
            return False
        self._positions[switch] = _Position(on, version, now)
        return on != before.on

    def refreshed(self, switch: Switch, on: bool, version: int, read_started_at: float, now: float) -> bool:
        """What the database has. True if the switch has moved."""
        before = self._positions[switch]
        if before.version > version and before.heard_at >= read_started_at:
            return False
        self._positions[switch] = _Position(on, version, now)
        return on != before.on
