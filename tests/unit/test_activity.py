"""Counting what was done: by queue, taken away at intervals, never lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from queenmq.broker.activity import ALL_QUEUES, Activity
from queenmq.clock import ManualClock


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
