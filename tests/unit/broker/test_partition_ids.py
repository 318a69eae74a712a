"""Partition ids: least recently used, with a time, and a queue removable at the cost of its entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.broker.caches import PartitionIds


@pytest.fixture
def ids() -> PartitionIds:
    return PartitionIds(3, 300)


def test_the_least_recently_used_goes(ids: PartitionIds) -> None:
    for name in "abc":
        ids.put("q", name, "id-" + name, 0)
    ids.get("q", "a", 1)
    ids.put("q", "d", "id-d", 1)
    assert [ids.get("q", name, 1) for name in "abcd"] == ["id-a", None, "id-c", "id-d"]
    assert (ids.evictions, ids.hits, ids.misses) == (1, 4, 1)


def test_use_does_not_prolong_the_time(ids: PartitionIds) -> None:
    ids.put("q", "a", "id", 0)
    assert ids.get("q", "a", 299) == "id"
    assert ids.get("q", "a", 300) is None
    assert (ids.expired, len(ids)) == (1, 0)


def test_a_queue_is_not_its_namesake_with_more_letters(ids: PartitionIds) -> None:
    ids.put("orders", "a", "1", 0)
    ids.put("orders:new", "a", "2", 0)
    ids.forget_queue("orders")
    assert ids.get("orders", "a", 0) is None
    assert ids.get("orders:new", "a", 0) == "2"


def test_one_can_be_forgotten(ids: PartitionIds) -> None:
    ids.put("q", "a", "1", 0)
    ids.forget("q", "a")
    ids.forget("q", "never")
    assert len(ids) == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "get", "forget", "queue"]), st.sampled_from("qr"), st.sampled_from("abcd"))
    )
)
def test_the_index_fits_the_entries(actions: list[tuple[str, str, str]]) -> None:
    ids = PartitionIds(3, 300)
    for now, (what, queue, partition) in enumerate(actions):
        if what == "put":
            ids.put(queue, partition, "id", now)
        elif what == "get":
            ids.get(queue, partition, now)
        elif what == "forget":
            ids.forget(queue, partition)
        else:
            ids.forget_queue(queue)
        indexed = {(q, p) for q, partitions in ids._by_queue.items() for p in partitions}
        assert indexed == set(ids._known)
        assert len(ids) <= 3
        assert all(ids._by_queue.values())
