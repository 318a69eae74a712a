"""Tier 4: hints are believed only while everything speaks for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.lease_hints import LeaseHints
from queenmq.cluster.port import Advice

LEASE = ("q", "p", "g")
BOUNDS = ClusterBounds(lease_hints_max=3, lease_hint_longest_s=600, lease_release_memory_s=10)


class Hints(LeaseHints):
    """With hands on who lives and on chance."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.chance = 0.5
        super().__init__(BOUNDS, is_alive=lambda server: server not in self.dead, random=lambda: self.chance)

    def ask(self, now: float = 0) -> Advice:
        return self.advice(*LEASE, now)


@pytest.fixture
def hints() -> Hints:
    return Hints()


def test_no_hint_no_skipping(hints: Hints) -> None:
    assert hints.ask() is Advice.TRY
    assert hints.used == 0


def test_a_hint_is_believed_for_its_time(hints: Hints) -> None:
    hints.acquired("a", (1, 1), LEASE, 60, 0)
    assert hints.ask(0.9) is Advice.SKIP
    assert hints.ask(59) is Advice.VERIFY
    assert hints.ask(60) is Advice.TRY
    assert len(hints) == 0


def test_a_hint_is_checked_once_a_second(hints: Hints) -> None:
    hints.acquired("a", (1, 1), LEASE, 60, 0)
    assert hints.ask(1) is Advice.VERIFY
    hints.verified(*LEASE, 1, was_wrong=False)
    assert hints.ask(1.9) is Advice.SKIP
    assert hints.ask(2) is Advice.VERIFY
    hints.verified(*LEASE, 2, was_wrong=True)
    assert hints.ask(2) is Advice.TRY


def test_no_hint_lasts_for_ever(hints: Hints) -> None:
    hints.acquired("a", (1, 1), LEASE, 10**6, 0)
    assert hints.ask(600) is Advice.TRY


def test_a_hint_of_the_dead_is_ignored_and_removed(hints: Hints) -> None:
    hints.acquired("a", (1, 1), LEASE, 60, 0)
    hints.dead.add("a")
    assert hints.ask() is Advice.TRY
    hints.dead.clear()
    assert hints.ask() is Advice.TRY
    assert hints.of_the_dead == 1


def test_one_in_a_hundred_is_checked(hints: Hints) -> None:
    hints.acquired("a", (1, 1), LEASE, 60, 0)
    hints.chance = 0.0099
    assert hints.ask() is Advice.VERIFY
    hints.chance = 0.01
    assert hints.ask() is Advice.SKIP
    assert hints.used == 2


def test_accuracy_is_that_of_what_was_checked(hints: Hints) -> None:
    assert hints.statistics()["accuracy"] is None
    for wrong in (False, False, False, True):
        hints.acquired("a", (1, 1), LEASE, 60, 0)
        hints.verified(*LEASE, 0, was_wrong=wrong)
    assert hints.statistics()["accuracy"] == 0.75
    assert hints.ask() is Advice.TRY, "the wrong one is gone"


def test_a_release_ends_a_hint_and_outlives_the_hint_that_it_overtook(hints: Hints) -> None:
    hints.acquired("a", (1, 1), LEASE, 60, 0)
    hints.released("a", (1, 2), LEASE, 0)
    assert hints.ask() is Advice.TRY
    hints.acquired("a", (1, 1), LEASE, 60, 0)
    assert hints.ask() is Advice.TRY
    hints.acquired("a", (1, 3), LEASE, 60, 0)
    assert hints.ask() is Advice.SKIP


def test_a_late_release_does_not_end_a_newer_hint(hints: Hints) -> None:
    hints.acquired("a", (1, 3), LEASE, 60, 0)
    hints.released("a", (1, 2), LEASE, 0)
    assert hints.ask() is Advice.SKIP


def test_in_doubt_there_is_no_hint(hints: Hints) -> None:
    hints.acquired("b", (1, 1), LEASE, 60, 0)
    hints.released("a", (1, 2), LEASE, 0)
    assert hints.ask() is Advice.TRY


@pytest.mark.parametrize(
    "forget",
    [
        lambda hints: hints.forget("q", "p", "g"),
        lambda hints: hints.forget_partition("q", "p"),
        lambda hints: hints.forget_queue("q"),
        lambda hints: hints.forget_server("a"),
    ],
)
def test_forgetting_takes_what_it_names_and_nothing_else(hints: Hints, forget: object) -> None:
    hints.acquired("a", (1, 1), LEASE, 60, 0)
    hints.acquired("b", (1, 1), ("q:", "p", "g"), 60, 0)
    forget(hints)  # type: ignore[operator]
    assert hints.ask() is Advice.TRY
    assert hints.advice("q:", "p", "g", 0) is Advice.SKIP
    assert (hints.held_by("a"), hints.held_by("b")) == (0, 1)


def test_the_oldest_goes_when_there_are_too_many(hints: Hints) -> None:
    for name in "abcd":
        hints.acquired("a", (1, 1), ("q", name, "g"), 60, 0)
    assert [hints.advice("q", name, "g", 0) for name in "ad"] == [Advice.TRY, Advice.SKIP]
    assert (len(hints), hints.evictions) == (3, 1)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["acquired", "released", "forget", "partition", "queue", "server", "expire", "ask"]),
            st.sampled_from("ab"),
            st.tuples(st.sampled_from("qr"), st.sampled_from("pP"), st.sampled_from("gG")),
        ),
        max_size=40,
    )
)
def test_the_indexes_fit_the_hints(actions: list[tuple[str, str, tuple[str, str, str]]]) -> None:
    hints = Hints()
    for now, (what, server, lease) in enumerate(actions):
        match what:
            case "acquired":
                hints.acquired(server, (1, now), lease, 5, now)
            case "released":
                hints.released(server, (1, now), lease, now)
            case "forget":
                hints.forget(*lease)
            case "partition":
                hints.forget_partition(*lease[:2])
            case "queue":
                hints.forget_queue(lease[0])
            case "server":
                hints.forget_server(server)
            case "expire":
                hints.expire(now)
            case "ask":
                hints.advice(*lease, now)
        by_queue = {(q, p, g) for q, ps in hints._by_queue.items() for p, gs in ps.items() for g in gs}
        by_server = {lease for leases in hints._by_server.values() for lease in leases}
        assert by_queue == by_server == set(hints._hints)
        assert len(hints) <= 3
        assert all(hints._by_server.values())
        assert all(all(partitions.values()) and partitions for partitions in hints._by_queue.values())
