"""The options of queues. The newest database version wins, whoever tells it. No I/O.

A deletion leaves a tombstone for a while, so that an older SET that comes late does not bring the queue back. What the
database says at a refresh is the truth, except where something newer was heard since the reading began.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from queenmq.core.options import OptionValues


class OptionRow(NamedTuple):
    """A queue as the database has it."""

    queue: str
    options: OptionValues
    version: int


class _Known(NamedTuple):
    options: OptionValues
    version: int
    heard_at: float


class _Tombstone(NamedTuple):
    version: int
    heard_at: float


class OptionCache:
    def __init__(self, most: int, most_tombstones: int, tombstone_s: float) -> None:
        self._most = most
        self._most_tombstones = most_tombstones
        self._tombstone_s = tombstone_s
        self._known: OrderedDict[str, _Known] = OrderedDict()  # the least recently used first
        self._tombstones: OrderedDict[str, _Tombstone] = OrderedDict()  # the oldest first
        self._horizon = -1
        self.hits = 0
        self.misses = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, queue: str) -> OptionValues | None:
        known = self._known.get(queue)
        if known is None:
            self.misses += 1
            return None
        self.hits += 1
        self._known.move_to_end(queue)
        return known.options

    def has_all(self, queues: Iterable[str]) -> bool:
        """Whether the options of all these queues are known; counted like as many questions if they are."""
        known = self._known
        if not all(map(known.__contains__, queues)):
            return False
        for queue in queues:
            self.hits += 1
            known.move_to_end(queue)
        return True

    def peek(self, queue: str) -> OptionValues | None:
        """The options without counting the question."""
        known = self._known.get(queue)
        return None if known is None else known.options

    def version(self, queue: str) -> int | None:
        known = self._known.get(queue)
        return None if known is None else known.version

    def heard(self, queue: str, options: OptionValues, version: int, now: float) -> bool:
        """Another server says so. True if it is news."""
        if version <= self._horizon and queue not in self._known:
            return False  # the last refresh would have had it
        return self.loaded(queue, options, version, now)

    def loaded(self, queue: str, options: OptionValues, version: int, now: float) -> bool:
        """The database says so. True if it is news."""
        known = self._known.get(queue)
        tombstone = self._tombstones.get(queue)
        if (known is not None and known.version >= version) or (tombstone is not None and tombstone.version >= version):
            return False
        self._tombstones.pop(queue, None)
        self._put(queue, _Known(options, version, now))
        return known is None or known.options != options

    def corrected(self, queue: str, options: OptionValues, version: int, now: float) -> None:
        """The database says so, and has shown that what was believed is wrong, whatever version it claimed."""
        self._tombstones.pop(queue, None)
        self._put(queue, _Known(options, version, now))

    def forget(self, queue: str) -> None:
        """The database does not know the queue, whatever was heard of it."""
        self._known.pop(queue, None)

    def deleted(self, queue: str, version: int, now: float) -> bool:
        """True if it is news that the queue is gone."""
        known = self._known.get(queue)
        tombstone = self._tombstones.get(queue)
        if (known is not None and known.version > version) or (tombstone is not None and tombstone.version >= version):
            return False
        self._known.pop(queue, None)
        self._tombstones[queue] = _Tombstone(version, now)
        self._tombstones.move_to_end(queue)
        if len(self._tombstones) > self._most_tombstones:
            self._tombstones.popitem(last=False)
        return True

    def replace_all(
        self, rows: Iterable[OptionRow], version_horizon: int, read_started_at: float, now: float
    ) -> list[str]:
        """All that the database has; it has nothing else up to `version_horizon`. Returns the queues that changed."""

        def newer(heard: _Known | _Tombstone | None) -> bool:
            return heard is not None and heard.version > version_horizon and heard.heard_at >= read_started_at

        self._horizon = version_horizon
        present = {row.queue: row for row in rows}
        gone = [queue for queue, known in self._known.items() if queue not in present and not newer(known)]
        for queue in gone:
            del self._known[queue]
        return gone + [
            queue
            for queue, row in present.items()
            if not newer(self._known.get(queue)) and not newer(self._tombstones.get(queue)) and self._take(row, now)
        ]

    def expire(self, now: float) -> None:
        while self._tombstones:
            queue, tombstone = next(iter(self._tombstones.items()))
            if now - tombstone.heard_at < self._tombstone_s:
                break
            del self._tombstones[queue]

    def statistics(self) -> dict[str, object]:
        asked = self.hits + self.misses
        return {
            "size": len(self._known),
            "max_size": self._most,
            "hits": self.hits,
            "misses": self.misses,
            "hit_rate": self.hits / asked if asked else 0.0,
            "evictions": self.evictions,
            "tombstones": len(self._tombstones),
        }

    def _take(self, row: OptionRow, now: float) -> bool:
        """What a refresh brings. True if it is news."""
        known = self._known.get(row.queue)
        if known is None and len(self._known) >= self._most:
            return False  # what is in use is worth more than what nobody has asked for
        self._tombstones.pop(row.queue, None)
        self._put(row.queue, _Known(row.options, row.version, now))
        return known is None or known.options != row.options

    def _put(self, queue: str, known: _Known) -> None:
        self._known[queue] = known
        if len(self._known) > self._most:
            self._known.popitem(last=False)
            self.evictions += 1
