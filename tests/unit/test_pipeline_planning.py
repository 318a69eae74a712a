"""Ranges become slices and portions: everything once, in order, none too big."""

from __future__ import annotations

from itertools import pairwise, repeat

from hypothesis import given
from hypothesis import strategies as st

from queenmq.pipeline import packed, planning
from queenmq.pipeline.planning import Range, admit, portions, slices

RANGES = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 700_000)), max_size=30).map(
    lambda given: [Range(f"id{n:03}", f"p{n}", first, first + count - 1) for n, (first, count) in enumerate(given)]
)


def joined(pieces: list[Range]) -> list[Range]:
    """Pieces that follow each other put together again."""
    found: list[Range] = []
    for piece in pieces:
        if found and found[-1].partition == piece.partition and found[-1].last + 1 == piece.first:
            found[-1] = Range(piece.partition_id, piece.partition, found[-1].first, piece.last)
        else:
            found.append(piece)
    return found


@given(RANGES, st.integers(1, 50))
def test_slices_hold_every_offset_once_and_in_order(ranges: list[Range], wanted: int) -> None:
    dealt = slices(ranges, wanted)
    assert joined([part for one in dealt for part in one.ranges]) == [part for part in ranges if part.offsets > 0]
    assert all(0 < one.offsets <= planning.MOST_OFFSETS for one in dealt)
    assert all(one.offsets == dealt[0].offsets for one in dealt[:-1])


def test_small_partitions_share_a_slice_and_big_ones_are_split() -> None:
    small = [Range(f"{n}", f"{n}", 1, 10) for n in range(10_000)]
    assert len(slices(small, 4)) == 4
    assert len(slices([Range("a", "a", 1, 1_000_000)], 2)) == 4
    assert len(slices([Range("a", "a", 1, 5_000)], 100)) == 1


@given(RANGES, st.integers(1, 100_000))
def test_portions_hold_every_offset_once_and_in_order(ranges: list[Range], size: int) -> None:
    cut = list(portions(ranges, repeat(max(size, sum(r.offsets for r in ranges) // 50 or 1))))
    again = [Range(ranges[i].partition_id, ranges[i].partition, a, b) for one in cut for i, a, b in one]
    assert joined(again) == [part for part in ranges if part.offsets > 0]


def test_what_is_sent_as_one_row_is_never_large() -> None:
    pieces = [piece for portion in portions([Range("a", "a", 1, 250_000)], repeat(100_000)) for piece in portion]
    assert max(last - first + 1 for _, first, last in pieces) * packed.LARGEST <= 8 * 1024 * 1024


@given(st.dictionaries(st.integers(1, 50), st.integers(1, 10_000), max_size=40), st.integers(1, 20_000))
def test_a_trigger_admits_a_fair_share_and_never_nothing(backlog: dict[int, int], most: int) -> None:
    admitted = admit(backlog, most)
    assert sum(admitted.values()) <= max(most, 0) or admitted == backlog
    assert all(0 < count <= backlog[number] for number, count in admitted.items())
    assert bool(admitted) == bool(backlog)
    if sum(backlog.values()) <= most:
        assert admitted == backlog


def test_repeated_admission_reads_everything() -> None:
    backlog = {1: 7, 2: 100_000, 3: 1}
    rounds = 0
    while backlog:
        for number, count in admit(backlog, 1000).items():
            backlog[number] -= count
        backlog = {number: count for number, count in backlog.items() if count}
        rounds += 1
        assert rounds < 150
    assert [a < b for a, b in pairwise((0, rounds))] == [True]
