"""Counting what was done: by queue, taken away at intervals, never lost."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from queenmq.broker.activity import ALL_QUEUES, MOST_READERS_OF_GROUP, Activity
from queenmq.clock import ManualClock
from queenmq.core.consumer import consumer_of


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def activity(clock: ManualClock) -> Activity:
    return Activity(clock)


def test_what_was_done_is_taken_once_by_queue_and_together(activity: Activity) -> None:
    activity.pushed("a", 1, 5)
    activity.pushed("b", 2, 3)
    taken = activity.take()
    assert {queue: counts.push_messages for queue, counts in taken.items()} == {"a": 5, "b": 3, ALL_QUEUES: 8}
    assert activity.touched == {"a", "b"}
    assert list(activity.take()) == [ALL_QUEUES]
    assert activity.now().push_requests == 3


def test_the_lag_of_a_pop_is_that_of_its_first_message(activity: Activity, clock: ManualClock) -> None:
    now = datetime.fromtimestamp(clock.wall(), UTC)
    for age_s in (1, 3):
        activity.popped("a", 10, now - timedelta(seconds=age_s))
    activity.popped("a", 1, now + timedelta(seconds=5))  # of a clock that is ahead
    activity.popped("a", 0, None)
    counts = activity.take()["a"]
    assert (counts.pop_requests, counts.pop_messages, counts.pop_empty, counts.lag_count) == (4, 21, 1, 3)
    assert (counts.lag_sum_ms, counts.lag_max_ms) == (pytest.approx(4000), pytest.approx(3000))


def test_acknowledgements_are_counted_by_queue_and_result(activity: Activity) -> None:
    activity.acked(
        [("a", None, False, 1), ("a", None, True, 1), (None, "Message not found", False, 1), ("b", "x", False, 1)]
    )
    activity.acked_requests(2)
    taken = activity.take()
    assert (taken["a"].ack_success, taken["a"].dead_lettered, taken["b"].ack_failed) == (2, 1, 1)
    together = taken[ALL_QUEUES]
    assert (together.ack_success, together.ack_failed, together.ack_requests) == (2, 2, 2)
    assert activity.touched == {"a", "b"}


def test_what_was_put_back_is_taken_again_and_counted_once(activity: Activity) -> None:
    activity.pushed("a", 1, 5)
    activity.acked_requests(1)
    activity.put_back(activity.take())
    activity.pushed("a", 1, 2)
    taken = activity.take()
    assert (taken["a"].push_messages, taken[ALL_QUEUES].push_messages, taken[ALL_QUEUES].ack_requests) == (7, 7, 1)
    assert activity.now().push_messages == 7


def test_more_queues_than_the_bound_count_only_together(activity: Activity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenmq.broker.activity._MOST_QUEUES", 2)
    for queue in "abcd":
        activity.pushed(queue, 1, 1)
    taken = activity.take()
    assert taken.keys() == {"a", "b", ALL_QUEUES}
    assert taken[ALL_QUEUES].push_messages == 4


def test_a_group_that_comes_late_has_places_too(activity: Activity) -> None:
    for group in range(50):
        for number in range(1100):
            activity.read_by("crowded", str(group), consumer_of(b"name=%d" % number, None, None))
    taken = Counter(reader[:2] for reader in activity.readers)
    assert taken["crowded", "0"] == MOST_READERS_OF_GROUP
    assert taken["crowded", "49"] == 10
    for queue in range(5000):
        activity.read_by(str(queue), "g", consumer_of(b"name=a", None, None))
    assert len(activity.readers) < 20_000
    assert ("4999", "g", consumer_of(b"name=a", None, None).tag) in activity.readers


def test_readers_that_are_put_back_do_not_replace_newer_ones_beyond_the_bound(activity: Activity) -> None:
    for number in range(MOST_READERS_OF_GROUP):
        activity.read_by("q", "g", consumer_of(b"name=old-%d" % number, None, None))
    old = activity.take_readers()
    for number in range(400):
        activity.read_by("q", "g", consumer_of(b"name=new-%d" % number, None, None))
    activity.put_back_readers(old)
    names = [str(who.name) for who in activity.take_readers().values()]
    assert sum(name.startswith("new") for name in names) == 400
    assert len(names) == MOST_READERS_OF_GROUP
    assert activity.take_readers() == {}
