"""Tier 2: who has consumers of what, in whatever order the news come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.messages import MAX_HASH
from queenmq.cluster.own_consumers import OwnConsumers
from queenmq.cluster.packing import name_hash
from queenmq.cluster.presence import Presence


@pytest.fixture
def presence() -> Presence:
    return Presence(ClusterBounds(presence_max=4, presence_fade_s=20))


def test_nothing_known_is_not_nobody(presence: Presence) -> None:
    assert presence.servers_for("q") is None
    presence.registered("a", (1, 1), ["q"], 0)
    assert presence.servers_for("q") == ["a"]
    presence.deregistered("a", (1, 2), ["q"], 0)
    assert presence.servers_for("q") == []


def test_the_newest_word_of_a_server_wins(presence: Presence) -> None:
    presence.deregistered("a", (1, 2), ["q"], 0)
    presence.registered("a", (1, 1), ["q"], 0)
    assert presence.servers_for("q") == []
    presence.registered("a", (2, 1), ["q"], 0)
    assert presence.servers_for("q") == ["a"]


def test_a_snapshot_corrects_what_is_older_and_nothing_newer(presence: Presence) -> None:
    presence.registered("a", (1, 1), ["stale"], 0)
    presence.registered("a", (1, 9), ["newer"], 0)
    presence.deregistered("a", (1, 9), ["left"], 0)
    presence.snapshot("a", (1, 5), 0, MAX_HASH, ["left", "kept"], 0)
    assert presence.queues_of("a") == {"newer", "kept"}


def test_a_part_of_a_snapshot_speaks_only_for_its_range(presence: Presence) -> None:
    presence.registered("a", (1, 1), ["one", "two"], 0)
    low, high = sorted([name_hash("one"), name_hash("two")])
    presence.snapshot("a", (1, 2), low, high, [], 0)
    assert {name_hash(queue) for queue in presence.queues_of("a")} == {high}


def test_a_snapshot_says_nothing_of_other_servers(presence: Presence) -> None:
    presence.registered("b", (1, 1), ["q"], 0)
    presence.snapshot("a", (1, 2), 0, MAX_HASH, [], 0)
    assert presence.servers_for("q") == ["b"]


def test_a_dead_server_has_no_consumers(presence: Presence) -> None:
    presence.registered("a", (1, 1), ["q", "r"], 0)
    presence.registered("b", (1, 1), ["q"], 0)
    presence.forget_server("a")
    assert presence.servers_for("q") == ["b"]
    assert presence.servers_for("r") is None
    assert len(presence) == 1


def test_a_deleted_queue_goes_for_every_server(presence: Presence) -> None:
    presence.registered("a", (1, 1), ["q", "r"], 0)
    presence.registered("b", (1, 1), ["q"], 0)
    presence.forget_queue("q")
    assert presence.servers_for("q") is None
    assert (presence.servers_for("r"), len(presence)) == (["a"], 1)


def test_what_no_snapshot_confirms_fades(presence: Presence) -> None:
    presence.registered("a", (1, 1), ["lost", "kept"], 0)
    presence.snapshot("a", (1, 2), name_hash("kept"), name_hash("kept") + 1, ["kept"], 10)
    presence.expire(20)
    assert presence.queues_of("a") == {"kept"}
    assert presence.servers_for("lost") is None


def test_a_server_that_claims_too_much_hears_everything(presence: Presence) -> None:
    presence.registered("b", (1, 1), ["1"], 0)
    presence.registered("a", (1, 1), [str(number) for number in range(100)], 0)
    assert len(presence) == 4
    assert set(presence.servers_for("1") or ()) == {"a", "b"}
    presence.forget_server("a")
    assert presence.servers_for("1") == ["b"]


def test_claiming_too_much_ends(presence: Presence) -> None:
    presence.registered("b", (1, 1), list("wxyz"), 0)
    presence.registered("a", (1, 1), ["more"], 0)
    presence.registered("b", (1, 2), list("wxyz"), 19)
    assert set(presence.servers_for("w") or ()) == {"a", "b"}
    presence.expire(20)
    assert presence.servers_for("w") == ["b"]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("came"), st.sampled_from("abcde")),
            st.tuples(st.just("went"), st.sampled_from("abcde")),
            st.just(("snapshot", "")),
        ),
        max_size=25,
    ),
    st.randoms(use_true_random=False),
)
def test_in_any_order_the_truth_comes_out(actions: list[tuple[str, str]], random: object) -> None:
    """Every packet arrives, in any order: what is known then is what the server said last."""
    truth: set[str] = set()
    packets = []
    for sequence, (what, queue) in enumerate(actions, 1):
        if what == "came":
            truth.add(queue)
        elif what == "went":
            truth.discard(queue)
        packets.append((sequence, what, queue, sorted(truth)))
    random.shuffle(packets)  # type: ignore[attr-defined]
    presence = Presence(ClusterBounds())
    for sequence, what, queue, queues in packets:
        if what == "came":
            presence.registered("a", (1, sequence), [queue], 0)
        elif what == "went":
            presence.deregistered("a", (1, sequence), [queue], 0)
        else:
            presence.snapshot("a", (1, sequence), 0, MAX_HASH, queues, 0)
    assert presence.queues_of("a") == truth


def test_the_parts_remembered_are_bounded(presence: Presence) -> None:
    for sequence in range(1000):
        presence.snapshot("a", (1, sequence), sequence, MAX_HASH, [], 0)
    assert len(presence._covered["a"]) == 64


class TestOwnConsumers:
    def test_the_first_is_told_and_the_going_after_a_pause(self) -> None:
        own = OwnConsumers(pause_s=1)
        assert own.came("q")
        assert not own.came("q")
        own.went("q", 0)
        assert (own.gone(0.9), own.gone(1), own.gone(2)) == ([], ["q"], [])
        assert own.came("q")

    def test_who_comes_back_at_once_is_not_told_again(self) -> None:
        own = OwnConsumers(pause_s=1)
        own.came("q")
        own.went("q", 0)
        assert not own.came("q")
        assert own.gone(9) == []
        assert own.queues() == ["q"]

    def test_going_without_having_come(self) -> None:
        own = OwnConsumers(pause_s=0)
        own.went("q", 0)
        assert own.gone(1) == []
