"""Entries of the audit log that share rows, so that nobody can fill it, nor hide in it behind many others. No I/O.

The source of an entry (a subject, or an address) has a number of kinds of its own, and all of them together have one.
What goes beyond is counted in one row for the source, and at last in one for all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from queenmq.access.entry import Entry

MOST_KINDS: Final = 200
MOST_KINDS_OF_ONE: Final = 20
OTHERS: Final = "others"


class Counted:
    def __init__(self) -> None:
        self._rows: dict[tuple[object, ...], Entry] = {}
        self._kinds: dict[object, int] = {}

    def add(self, entry: Entry) -> bool:
        """Whether it is the first of its kind."""
        source = entry.subject or entry.address
        kind: tuple[object, ...] = (entry.status, entry.address, entry.subject, entry.action)
        if kind not in self._rows:
            if self._kinds.get(source, 0) >= MOST_KINDS_OF_ONE:
                kind = (entry.status, source, OTHERS)
                entry = replace(entry, action=OTHERS, target=None, detail=None, forwarded_for=None)
            if kind not in self._rows and len(self._rows) >= MOST_KINDS:
                kind = (entry.status, OTHERS)
                entry = replace(
                    entry, address=OTHERS, subject=None, token_id=None, action=OTHERS, target=None, forwarded_for=None
                )
        former = self._rows.get(kind)
        if former is not None:
            self._rows[kind] = replace(former, count=former.count + 1, until=entry.until)
            return False
        self._rows[kind] = entry
        self._kinds[source] = self._kinds.get(source, 0) + 1
        return True

    def take(self) -> list[Entry]:
        """What was counted since the last time."""
        rows = list(self._rows.values())
        self._rows.clear()
        self._kinds.clear()
        return rows
