"""Which task reads what: ranges of offsets become a few slices of about the same size. Pure.

A big partition is cut into several slices, many small ones share one. The pieces of a partition lie in ascending
slices, and in ascending order within each: a sink that keeps the order of tasks and rows keeps the order of the
partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

# Less is not worth a task; more would make a retry expensive.
LEAST_OFFSETS: Final = 10_000
MOST_OFFSETS: Final = 250_000
# A portion is cut into at least so many ranges, none of them with more offsets than this: one is sent as one row, which
# PostgreSQL and the reader hold several times over.
PIECES: Final = 8
MOST_IN_PIECE: Final = 512

# Of a slice, for one statement: the index of a range in the slice, the first and the last offset.
Portion = list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, first and last included."""

    partition_id: str
    partition: str
    first: int
    last: int

    @property
    def offsets(self) -> int:
        return self.last - self.first + 1


@dataclass(slots=True)
class Slice:
    """What one task reads."""

    ranges: list[Range] = field(default_factory=list)

    @property
    def offsets(self) -> int:
        return sum(part.offsets for part in self.ranges)


def slices(ranges: Iterable[Range], wanted: int) -> list[Slice]:
    """Deal `ranges` out to about `wanted` slices (more if they would become too big, fewer if too small)."""
    given = [part for part in ranges if part.offsets > 0]
    total = sum(part.offsets for part in given)
    if not total:
        return []
    size = min(MOST_OFFSETS, max(LEAST_OFFSETS, -(-total // max(1, wanted))))
    dealt = [Slice()]
    room = size
    for part in given:
        for piece in _cut(part, room, size):
            if room == 0:
                dealt.append(Slice())
                room = size
            dealt[-1].ranges.append(piece)
            room -= piece.offsets
    return dealt


def _cut(part: Range, room: int, size: int) -> Iterator[Range]:
    """Pieces of `part`: the first fits into `room`, the others into a slice each."""
    first = part.first
    room = room or size
    while first <= part.last:
        last = min(part.last, first + room - 1)
        yield Range(part.partition_id, part.partition, first, last)
        first = last + 1
        room = size


def portions(ranges: Iterable[Range], size: Iterable[int]) -> Iterator[Portion]:
    """Cut a slice into statements, each with at most as many offsets as `size` says next."""
    sizes = iter(size)
    portion: Portion = []
    room = next(sizes)
    piece = _piece(room)
    for index, part in enumerate(ranges):
        first = part.first
        while first <= part.last:
            last = min(part.last, first + min(room, piece) - 1)
            portion.append((index, first, last))
            room -= last - first + 1
            first = last + 1
            if room == 0:
                yield portion
                portion = []
                room = next(sizes)
                piece = _piece(room)
    if portion:
        yield portion


def _piece(room: int) -> int:
    return max(1, min(MOST_IN_PIECE, room // PIECES))


def admit(backlog: dict[int, int], most: int) -> dict[int, int]:
    """How many offsets of each partition a trigger may read: all of them if they fit into `most`, else a fair share.

    Every partition with a backlog moves by one at least as long as `most` allows it, the big ones by their share.
    """
    total = sum(backlog.values())
    if total <= most:
        return dict(backlog)
    admitted: dict[int, int] = {}
    left = most
    # From the small ones to the big ones, so that what a share rounds away is used up by the end.
    for number, waiting in sorted(backlog.items(), key=lambda item: (item[1], item[0])):
        share = min(waiting, left, max(1, waiting * most // total))
        if share:
            admitted[number] = share
            left -= share
    return admitted
