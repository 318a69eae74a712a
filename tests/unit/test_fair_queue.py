"""The fair queue: order within a key, turns between keys."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from queenmq.broker.lane import FairQueue


def fill(*items: tuple[str, int], weight: int = 1) -> FairQueue[tuple[str, int]]:
    queue: FairQueue[tuple[str, int]] = FairQueue(lambda _item: weight)
    for item in items:
        queue.put(item[0], item)
    return queue


def test_a_flooded_key_does_not_starve_another() -> None:
    queue = fill(*[("flood", n) for n in range(1000)], ("quiet", 0))
    assert ("quiet", 0) in queue.take(2, 1000)


def test_turns_go_on_in_the_next_take() -> None:
    queue = fill(("a", 1), ("a", 2), ("b", 1), ("c", 1))
    assert queue.take(2, 9) == [("a", 1), ("b", 1)]
    assert queue.take(2, 9) == [("c", 1), ("a", 2)]


def test_one_item_is_taken_however_heavy() -> None:
    queue = fill(("a", 1), ("b", 1), weight=100)
    assert queue.take(9, 1) == [("a", 1)]
    assert len(queue) == 1


def test_a_key_that_is_not_admitted_keeps_its_order_and_its_turn() -> None:
    queue = fill(("a", 1), ("a", 2), ("b", 1))
    assert queue.take(9, 9, lambda item: item[0] != "a") == [("b", 1)]
    assert queue.take(9, 9) == [("a", 1), ("a", 2)]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99))),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9))),
)
def test_nothing_is_lost_and_each_key_stays_in_order(
    items: list[tuple[str, int]], takes: list[tuple[int, int]]
) -> None:
    queue = fill(*items)
    taken: list[tuple[str, int]] = []
    for count, weight in takes:
        some = queue.take(count, weight)
        assert len(some) <= count
        taken += some
    while queue:
        taken += queue.take(1, 1)
    before, after = defaultdict(list), defaultdict(list)
    for key, number in items:
        before[key].append(number)
    for key, number in taken:
        after[key].append(number)
    assert before == after
