"""The replay guard: each packet once, nothing of a former life, bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.refusal import Refusal
from queenmq.cluster.replay import ReplayGuard

SMALL = ClusterBounds(replay_window=8, replay_age_s=10, max_senders=2, max_epoch_floors=3)


@pytest.fixture
def guard() -> ReplayGuard:
    return ReplayGuard(SMALL)


def admit(guard: ReplayGuard, *sequences: int, epoch: int = 1, now: float = 0) -> list[Refusal | None]:
    return [guard.admit("a", epoch, sequence, now) for sequence in sequences]


def test_each_once(guard: ReplayGuard) -> None:
    assert admit(guard, 1, 2, 2, 1) == [None, None, Refusal.REPLAYED, Refusal.REPLAYED]


def test_reordered_within_the_window(guard: ReplayGuard) -> None:
    assert admit(guard, 1, 9, 5, 3, 2, 5) == [None, None, None, None, None, Refusal.REPLAYED]


def test_below_the_window(guard: ReplayGuard) -> None:
    assert admit(guard, 1, 20, 12, 13) == [None, None, Refusal.TOO_OLD, None]


def test_what_was_sent_before_the_first_one_heard(guard: ReplayGuard) -> None:
    assert admit(guard, 5, 4) == [None, Refusal.TOO_OLD]


def test_a_newer_life_starts_anew_and_the_older_never_returns(guard: ReplayGuard) -> None:
    admit(guard, 100)
    assert admit(guard, 1, epoch=2) == [None]
    assert admit(guard, 101, 10**9) == [Refusal.OLD_EPOCH] * 2
    assert admit(guard, 2, 1, epoch=2) == [None, Refusal.REPLAYED]


def test_what_was_overtaken_long_ago_is_refused_within_the_window(guard: ReplayGuard) -> None:
    assert admit(guard, 1, 3, now=0) == [None, None]
    assert admit(guard, 4, now=11) == [None]
    assert admit(guard, 7, now=22) == [None]
    assert admit(guard, 2, 5, 6, now=22) == [Refusal.TOO_OLD, None, None]


def test_huge_leaps_cost_nothing(guard: ReplayGuard) -> None:
    assert admit(guard, 0, 2**64 - 1, 2**64 - 2, 0) == [None, None, None, Refusal.TOO_OLD]


@given(st.lists(st.integers(0, 60), max_size=80))
def test_nothing_is_ever_admitted_twice(sequences: list[int]) -> None:
    guard = ReplayGuard(SMALL)
    admitted = [s for s in sequences if guard.admit("a", 1, s, 0) is None]
    assert len(admitted) == len(set(admitted))


@given(st.permutations(range(8)))
def test_every_order_within_the_window_is_admitted_whole(order: list[int]) -> None:
    guard = ReplayGuard(SMALL)
    guard.admit("a", 1, 99, 0)
    assert [guard.admit("a", 1, 100 + step, 0) for step in order] == [None] * 8


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=60))
def test_epochs_never_go_back(packets: list[tuple[int, int]]) -> None:
    guard = ReplayGuard(SMALL)
    lives = [epoch for epoch, sequence in packets if guard.admit("a", epoch, sequence, 0) is None]
    assert lives == sorted(lives)


class TestFloors:
    def test_the_database_knows_a_newer_life(self, guard: ReplayGuard) -> None:
        guard.know_epochs({"a": 5}, read_started_at=0)
        assert admit(guard, 9, epoch=4) == [Refusal.OLD_EPOCH]
        assert admit(guard, 9, epoch=5) == [None]

    def test_it_ends_the_life_that_was_heard(self, guard: ReplayGuard) -> None:
        admit(guard, 1, epoch=4)
        guard.know_epochs({"a": 5}, read_started_at=0)
        assert admit(guard, 2, epoch=4) == [Refusal.OLD_EPOCH]

    def test_a_life_heard_since_the_reading_began_stays(self, guard: ReplayGuard) -> None:
        admit(guard, 1, epoch=6, now=10)
        guard.know_epochs({"a": 5}, read_started_at=9)
        assert admit(guard, 9, epoch=5) == [Refusal.OLD_EPOCH]

    def test_a_life_that_the_database_never_gave_out_was_a_lie(self, guard: ReplayGuard) -> None:
        admit(guard, 1, epoch=2**60, now=10)
        guard.know_epochs({"a": 5}, read_started_at=11)
        assert admit(guard, 9, epoch=5) == [None]

    def test_a_lie_is_found_out_even_when_its_sender_is_forgotten(self, guard: ReplayGuard) -> None:
        admit(guard, 1, epoch=2**60, now=10)
        for other in "bc":
            guard.admit(other, 1, 1, 10)
        guard.know_epochs({"a": 5}, read_started_at=11)
        assert admit(guard, 9, epoch=5) == [None]

    def test_the_life_that_is_heard_goes_on(self, guard: ReplayGuard) -> None:
        admit(guard, 3, epoch=5)
        guard.know_epochs({"a": 5}, read_started_at=9)
        assert admit(guard, 3, epoch=5) == [Refusal.REPLAYED]

    def test_who_is_forgotten_cannot_be_replayed(self, guard: ReplayGuard) -> None:
        admit(guard, 7, epoch=5)
        for other in "bc":
            guard.admit(other, 1, 1, 0)
        assert len(guard) == 2
        assert admit(guard, 9, epoch=4) == [Refusal.OLD_EPOCH]
        assert admit(guard, 7, epoch=5) == [Refusal.TOO_OLD]
        assert admit(guard, 8, epoch=5) == [None]

    def test_the_least_recently_heard_is_forgotten(self, guard: ReplayGuard) -> None:
        guard.admit("a", 1, 1, 0)
        guard.admit("b", 1, 1, 0)
        guard.admit("a", 1, 2, 0)
        guard.admit("c", 1, 1, 0)
        assert guard.admit("a", 1, 1, 0) is Refusal.REPLAYED
        assert guard.admit("b", 1, 1, 0) is Refusal.TOO_OLD

    def test_floors_are_bounded(self, guard: ReplayGuard) -> None:
        guard.know_epochs({str(number): 5 for number in range(100)}, read_started_at=0)
        assert [guard.admit(str(number), 4, 1, 0) for number in (96, 97, 98, 99)] == [None, *[Refusal.OLD_EPOCH] * 3]
