"""Options: the newest database version wins, the database has the last word, and nothing grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.broker.caches import OptionCache, OptionRow

A, B = {"leaseTime": 1}, {"leaseTime": 2}
NONSENSE = 2**63 - 1


@pytest.fixture
def configs() -> OptionCache:
    return OptionCache(most=3, most_tombstones=2, tombstone_s=100)


def test_hits_and_misses(configs: OptionCache) -> None:
    assert configs.get("q") is None
    configs.receive("q", A, 1, 0)
    assert configs.get("q") == A
    assert configs.statistics()["hit_rate"] == 0.5


def test_all_or_none_are_hits(configs: OptionCache) -> None:
    configs.receive("q", A, 1, 0)
    assert not configs.has_all(["q", "r"])
    configs.receive("r", A, 1, 0)
    assert configs.has_all(["q", "r", "q"])
    assert (configs.hits, configs.misses) == (3, 0)


def test_the_newest_version_wins_in_any_order(configs: OptionCache) -> None:
    assert configs.receive("q", B, 2, 0)
    assert not configs.receive("q", A, 1, 0)
    assert configs.get("q") == B


def test_a_late_set_does_not_bring_a_deleted_queue_back(configs: OptionCache) -> None:
    configs.receive("q", A, 1, 0)
    assert configs.deleted("q", 3, 0)
    assert not configs.receive("q", B, 2, 0)
    assert configs.get("q") is None
    assert configs.receive("q", B, 4, 0), "made anew"


def test_a_late_deletion_does_not_take_a_new_queue_away(configs: OptionCache) -> None:
    configs.receive("q", B, 4, 0)
    assert not configs.deleted("q", 3, 0)
    assert configs.get("q") == B


@given(
    st.permutations([("set", 1), ("set", 2), ("delete", 3), ("set", 4), ("delete", 5), ("set", 6)]), st.integers(1, 6)
)
def test_every_order_ends_the_same(order: list[tuple[str, int]], newest: int) -> None:
    configs = OptionCache(most=10, most_tombstones=10, tombstone_s=100)
    for what, version in order:
        if version <= newest and what == "set":
            configs.receive("q", {"leaseTime": version}, version, 0)
        elif version <= newest:
            configs.deleted("q", version, 0)
    assert configs.get("q") == (None if newest in (3, 5) else {"leaseTime": newest})


class TestRefresh:
    def test_the_database_replaces_everything(self, configs: OptionCache) -> None:
        configs.receive("stale", A, 1, 0)
        configs.receive("gone", A, 2, 0)
        assert sorted(configs.replace_all([OptionRow("stale", B, 3), OptionRow("new", A, 4)], 4, 10, 11)) == [
            "gone",
            "new",
            "stale",
        ]
        assert [configs.get(queue) for queue in ("stale", "gone", "new")] == [B, None, A]

    def test_what_did_not_change_is_not_told(self, configs: OptionCache) -> None:
        configs.receive("q", A, 1, 0)
        assert configs.replace_all([OptionRow("q", A, 1)], 1, 10, 11) == []

    def test_what_was_heard_since_the_reading_began_stays(self, configs: OptionCache) -> None:
        configs.receive("set", B, 7, 10.5)
        configs.receive("new", A, 8, 10.5)
        configs.deleted("deleted", 9, 10.5)
        configs.replace_all([OptionRow("set", A, 1), OptionRow("deleted", A, 2)], 6, 10, 11)
        assert [configs.get(queue) for queue in ("set", "new", "deleted")] == [B, A, None]

    def test_a_lie_lasts_until_the_refresh(self, configs: OptionCache) -> None:
        configs.receive("q", A, NONSENSE, 0)
        configs.receive("never", A, NONSENSE, 0)
        configs.deleted("real", NONSENSE, 0)
        configs.replace_all([OptionRow("q", B, 5), OptionRow("real", B, 6)], 6, 10, 11)
        assert [configs.get(queue) for queue in ("q", "never", "real")] == [B, None, B]

    def test_what_the_database_did_not_have_is_not_believed_later(self, configs: OptionCache) -> None:
        configs.replace_all([], 6, 10, 11)
        assert not configs.receive("deleted", A, 5, 12)
        assert configs.receive("new", A, 7, 12)
        assert configs.loaded("read", A, 5, 12), "unless it is the database that says so"

    def test_more_queues_than_there_is_room_for(self, configs: OptionCache) -> None:
        configs.loaded("used", A, 1, 0)
        configs.replace_all([OptionRow(str(n), A, 2) for n in range(9)] + [OptionRow("used", A, 1)], 2, 10, 11)
        assert len(configs) == 3
        assert configs.get("used") == A


class TestBounds:
    def test_the_least_recently_used_goes(self, configs: OptionCache) -> None:
        for queue in "abc":
            configs.loaded(queue, A, 1, 0)
        configs.get("a")
        configs.loaded("d", A, 1, 0)
        assert [configs.get(queue) is not None for queue in "abcd"] == [True, False, True, True]
        assert configs.evictions == 1

    def test_tombstones_are_bounded_and_expire(self, configs: OptionCache) -> None:
        for queue in "abc":
            configs.deleted(queue, 5, 0)
        assert configs.statistics()["tombstones"] == 2
        configs.expire(100)
        assert configs.statistics()["tombstones"] == 0
