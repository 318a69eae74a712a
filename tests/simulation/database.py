"""Stands in for PostgreSQL: the truth about queues, switches and boot epochs, with one counter of versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from queenmq.broker.caches import OptionRow
from queenmq.core.maintenance import Switch
from queenmq.core.options import OptionValues


class Reading(NamedTuple):
    rows: list[OptionRow]
    switches: dict[Switch, tuple[bool, int]]
    epochs: dict[str, int]
    version: int


@dataclass(slots=True)
class Database:
    version: int = 0
    rows: dict[str, OptionRow] = field(default_factory=dict)
    switches: dict[Switch, tuple[bool, int]] = field(default_factory=lambda: dict.fromkeys(Switch, (False, 0)))
    epochs: dict[str, int] = field(default_factory=dict)

    def next_version(self) -> int:
        self.version += 1
        return self.version

    def boot(self, server: str) -> int:
        self.epochs[server] = self.epochs.get(server, 0) + 1
        return self.epochs[server]

    def set(self, queue: str, options: OptionValues) -> OptionRow:
        row = self.rows[queue] = OptionRow(queue, options, self.next_version())
        return row

    def delete(self, queue: str) -> int:
        self.rows.pop(queue, None)
        return self.next_version()

    def read(self) -> Reading:
        return Reading(list(self.rows.values()), dict(self.switches), dict(self.epochs), self.version)
