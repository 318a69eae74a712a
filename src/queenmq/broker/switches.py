"""The maintenance switches as this server knows them. No I/O.

The newest database version wins; at a refresh the database is the truth.
"""

from __future__ import annotations

from typing import NamedTuple

from queenmq.core.maintenance import Switch


class _Position(NamedTuple):
    on: bool
    version: int
    received_at: float


class Switches:
    """`pushes_allowed` and `pops_allowed` are False until the switches have been read from the database for the first
    time (`were_read`): until then nobody knows."""

    def __init__(self) -> None:
        self._positions = {switch: _Position(False, -1, 0.0) for switch in Switch}
        self.were_read = False
        self.pushes_allowed = False
        self.pops_allowed = False

    def is_on(self, switch: Switch) -> bool:
        return self._positions[switch].on

    def receive(self, switch: Switch, on: bool, version: int, now: float) -> bool:
        """True if the switch has moved."""
        before = self._positions[switch]
        return version > before.version and self._set(switch, _Position(on, version, now))

    def refreshed(self, switch: Switch, on: bool, version: int, read_started_at: float, now: float) -> bool:
        """What the database has. True if the switch has moved."""
        before = self._positions[switch]
        if before.version > version and before.received_at >= read_started_at:
            return False
        return self._set(switch, _Position(on, version, now))

    def all_read(self) -> None:
        """Every switch was refreshed."""
        self.were_read = True
        self._allow()

    def _set(self, switch: Switch, position: _Position) -> bool:
        before, self._positions[switch] = self._positions[switch], position
        self._allow()
        return position.on != before.on

    def _allow(self) -> None:
        self.pushes_allowed = self.were_read and not self.is_on(Switch.PUSH)
        self.pops_allowed = self.were_read and not self.is_on(Switch.POP)
