"""What the process that keeps the journal lets the other workers of its server see: memory that they share.

For each partition a bucket counts the journalled pushes that belong to it, or to another one of the same bucket: zero
means for certain that nothing of a partition is journalled. Only the keeper writes; it counts a push before it is
accepted, and no longer once the database has it. A keeper that dies leaves its counts, until its successor has counted
anew, so a reader never sees less than there is. The figures of the journal are there, too.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import Final

BUCKETS: Final = 16_384  # two partitions of a thousand share one with a probability of 3 %
# Native and aligned, so that a count is written at once: a reader never sees half of one.
_COUNT: Final = struct.Struct("@I")


@dataclass(slots=True, kw_only=True)
class JournalFigures:
    """Of all journals that a server replays."""

    operations: int = 0
    messages: int = 0
    partitions: int = 0
    bytes: int = 0
    replayed_messages: int = 0
    syncs: int = 0
    damaged: int = 0
    torn_bytes: int = 0
    healthy: int = 1
    quarantined: int = 0
    quarantined_bytes: int = 0
    stuck: int = 0  # operations that could not be stored at the last try, and those behind them
    waiting_for_key: int = 0  # operations that cannot be opened without another key
    replay_failures: int = 0
    failing: int = 0  # whether the last try to replay failed


_NAMES: Final = tuple(field.name for field in fields(JournalFigures))
_FIGURES: Final = struct.Struct(f"@{len(_NAMES)}Q")
_TOTAL_AT: Final = _FIGURES.size
_BUCKETS_AT: Final = _TOTAL_AT + _COUNT.size
_BYTES: Final = _BUCKETS_AT + BUCKETS * _COUNT.size


class JournalBoard:
    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor of what `create` has made, in this process or in the one that started it."""
        self._memory = mmap.mmap(descriptor, _BYTES)
        os.close(descriptor)

    @staticmethod
    def create() -> int:
        """A descriptor for the memory, which has no name and goes with the last process that has it."""
        if sys.platform == "linux":
            descriptor = os.memfd_create("queen-journal")
        else:
            with tempfile.TemporaryFile() as unnamed:
                descriptor = os.dup(unnamed.fileno())
        os.ftruncate(descriptor, _BYTES)
        return descriptor

    def close(self) -> None:
        self._memory.close()

    # Reading

    def holds(self, marks: Iterable[int]) -> bool:
        """Whether there may be journalled pushes of one of the partitions."""
        memory = self._memory
        return any(_COUNT.unpack_from(memory, _at(mark))[0] for mark in marks)

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is journalled."""
        return not _COUNT.unpack_from(self._memory, _TOTAL_AT)[0]

    def figures(self) -> JournalFigures:
        return JournalFigures(**dict(zip(_NAMES, _FIGURES.unpack_from(self._memory), strict=True)))

    # Writing

    def reset(self, held: Iterable[Iterable[int]], everything: bool) -> None:
        """Count anew: the marks of each push, and whether some may be about any partition."""
        counts: Counter[int] = Counter()
        total = 0
        for marks in held:
            total += 1
            counts.update(_at(mark) for mark in marks)
        buckets = bytearray(_COUNT.pack(int(everything)) * BUCKETS)
        for at, count in counts.items():
            _COUNT.pack_into(buckets, at - _BUCKETS_AT, count + everything)
        self._memory[_BUCKETS_AT:_BYTES] = bytes(buckets)
        _COUNT.pack_into(self._memory, _TOTAL_AT, total)

    def add(self, marks: Iterable[int], change: int) -> None:
        """Count a push (1), or count it no longer (-1)."""
        memory = self._memory
        for at in (_TOTAL_AT, *(_at(mark) for mark in marks)):
            _COUNT.pack_into(memory, at, _COUNT.unpack_from(memory, at)[0] + change)

    def publish(self, figures: JournalFigures) -> None:
        _FIGURES.pack_into(self._memory, 0, *astuple(figures))


def _at(mark: int) -> int:
    return _BUCKETS_AT + mark % BUCKETS * _COUNT.size
