"""An imbalance that stays is worked off in rounds, key by key, and the work ends."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

import pytest

from queenmq.cluster.coordinator_bounds import CoordinatorBounds
from queenmq.cluster.load_tracker import LoadTracker, Sample
from queenmq.cluster.rebalancing import LOOK_S, MOST_KEYS, Rebalancing

NOW = 1000.0
SETTLE_S = CoordinatorBounds().settle_s


class Cluster:
    """Three servers with loads in percent (by outstanding requests alone)."""

    def __init__(self, *, random: Callable[[], float] = lambda: 0.5, **bounds: float) -> None:
        given = CoordinatorBounds(**bounds)
        self.tracker = LoadTracker(given, "here")
        self.tracker.see(["a", "b"])
        self.rebalancing = Rebalancing(given, self.tracker, random)

    def load(self, **loads: float) -> None:
        for server, percent in loads.items():
            self.tracker.report(server, Sample(0, round(percent / 0.4), 0.0), life=object())

    def target(self, server: str, percent: float, at_s: float) -> str | None:
        target = self.rebalancing.target(self.tracker.of(server), lambda: percent / 100, NOW + at_s)
        return None if target is None else target.id


def uneven(**loads: float) -> Cluster:
    """An imbalance that was seen first at 0."""
    cluster = Cluster()
    cluster.load(**({"here": 30, "a": 60, "b": 20} | loads))
    assert cluster.target("a", 1, 0) is None
    return cluster


def test_only_an_imbalance_that_stays_is_worked_off() -> None:
    cluster = uneven()
    assert cluster.target("a", 1, SETTLE_S - LOOK_S) is None
    assert cluster.target("a", 1, SETTLE_S) == "b"

    cluster = uneven()
    cluster.load(a=28)
    assert cluster.target("a", 1, SETTLE_S / 2) is None
    cluster.load(a=60)
    assert cluster.target("a", 1, SETTLE_S / 2 + LOOK_S) is None
    assert cluster.target("a", 1, SETTLE_S + LOOK_S) is None
    assert cluster.target("a", 1, SETTLE_S * 1.5 + LOOK_S) == "b"


@pytest.mark.parametrize(("difference", "begins"), [(14, False), (16, True)])
def test_it_begins_where_a_migration_would_pay(difference: float, begins: bool) -> None:
    cluster = uneven(here=20, a=20 + difference, b=20)
    assert (cluster.target("a", 1, SETTLE_S) is not None) == begins


def test_it_goes_on_until_the_difference_is_well_below_that() -> None:
    cluster = uneven()
    for round, (load, goes) in enumerate([(40, True), (31, True), (29, False), (34, False), (36, False)], start=1):
        cluster.load(a=load)
        assert (cluster.target("a", 1, SETTLE_S * round) is not None) == goes, load


def test_a_round_moves_this_servers_share_of_half_the_difference() -> None:
    cluster = uneven(a=80)
    moved = sum(cluster.target("a", 1, SETTLE_S) is not None for _ in range(100))
    assert moved == 60 / 2 / 3
    assert cluster.target("a", 1, SETTLE_S * 2 - LOOK_S) is None
    assert cluster.target("a", 1, SETTLE_S * 2) == "b"


def test_the_number_of_keys_of_a_round_is_bounded() -> None:
    cluster = uneven()
    assert sum(cluster.target("a", 0, SETTLE_S) is not None for _ in range(100)) == MOST_KEYS


def test_keys_leave_every_server_that_is_worse_and_only_those() -> None:
    cluster = uneven(here=58)
    assert cluster.target("a", 1, SETTLE_S) == "b"
    assert cluster.target("here", 1, SETTLE_S) == "b"
    assert cluster.target("b", 1, SETTLE_S) is None
    cluster = uneven()
    assert cluster.target("here", 1, SETTLE_S) is None


def test_a_key_that_would_only_turn_the_difference_round_stays() -> None:
    cluster = uneven()
    assert cluster.target("a", 31, SETTLE_S) is None
    assert cluster.target("a", 1, SETTLE_S) == "b", "the others may go"


@pytest.mark.parametrize(("dice", "expected"), [(0.32, "b"), (0.34, None)])
def test_a_key_that_is_heavier_than_the_share_goes_with_the_chance_that_keeps_the_mean(
    dice: float, expected: str | None
) -> None:
    cluster = Cluster(random=repeat(dice).__next__)
    cluster.load(here=30, a=80, b=20)
    cluster.target("a", 30, 0)
    assert cluster.target("a", 30, SETTLE_S) == expected
    assert cluster.target("a", 1, SETTLE_S) is None, "that was this round"


def test_above_a_full_server_differences_are_relative() -> None:
    assert uneven(here=510, a=560, b=500).target("a", 1, SETTLE_S) is None
    assert uneven(here=510, a=600, b=500).target("a", 1, SETTLE_S) == "b"


def test_servers_that_cannot_be_used_count_for_nothing() -> None:
    cluster = uneven()
    cluster.tracker.see(["a"])
    assert cluster.target("a", 1, SETTLE_S) == "here"
    cluster.tracker.see([])
    assert cluster.target("a", 1, SETTLE_S * 3) is None


def test_who_forwards_only_for_more_begins_later() -> None:
    cluster = Cluster(forward_threshold=1.0)
    cluster.load(here=30, a=110, b=20)
    for second in range(100):
        assert cluster.target("a", 1, second) is None
