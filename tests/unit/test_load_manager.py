"""The decision between executing, queueing and refusing, and the two estimates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.broker.load_manager import Choice, Load, Thresholds, decide, estimated_wait_s, retry_after_s

LIMITS = Thresholds(pool_used=0.7, wait_s=0.5, loop_delay_s=0.5, queue_depth=100)


def test_an_idle_server_executes() -> None:
    assert decide(Load(), LIMITS).choice is Choice.EXECUTE


def test_a_full_pool_alone_is_no_overload_as_long_as_nobody_waits_for_it_for_long() -> None:
    assert decide(Load(pool_used=1.0), LIMITS).choice is Choice.EXECUTE
    assert decide(Load(pool_used=1.0, pool_waiting=1), LIMITS).choice is Choice.EXECUTE
    assert decide(Load(pool_used=1.0, pool_waiting=1, pool_stands=True), LIMITS).reason == "pool_exhausted"
    assert decide(Load(pool_used=0.7, pool_waiting=1, pool_stands=True), LIMITS).choice is Choice.EXECUTE


@pytest.mark.parametrize(
    "load",
    [Load(wait_s=0.6), Load(loop_delay_s=0.6), Load(pool_used=0.8, pool_waiting=3, pool_stands=True)],
    ids=["wait", "loop", "pool"],
)
def test_each_measure_queues_and_a_full_queue_refuses(load: Load) -> None:
    load.queue_depth = 99
    assert decide(load, LIMITS).choice is Choice.QUEUE
    load.queue_depth = 100
    refused = decide(load, LIMITS)
    assert (refused.choice, refused.reason) == (Choice.REJECT, "operation_queue_full")


def test_a_full_queue_refuses_nothing_that_can_be_executed() -> None:
    assert decide(Load(queue_depth=10_000), LIMITS).choice is Choice.EXECUTE


def test_the_wait_is_position_over_drain_rate() -> None:
    assert estimated_wait_s(50, 20.0) == 2.5
    assert estimated_wait_s(50, 0.0) is None


@given(st.integers(0, 10**6), st.floats(0, 10**6))
def test_retry_after_is_bounded_and_grows_with_the_depth(depth: int, rate: float) -> None:
    shorter = retry_after_s(Load(queue_depth=depth // 2, drain_rate=rate))
    longer = retry_after_s(Load(queue_depth=depth, drain_rate=rate))
    assert 1 <= shorter <= longer <= 30


def test_retry_after_is_a_guess_until_the_queue_had_time_to_move() -> None:
    assert retry_after_s(Load(queue_depth=10_000)) == 5
    assert retry_after_s(Load(queue_depth=10)) == 1
    assert retry_after_s(Load(queue_depth=10, is_stalled=True)) == 30


def test_retry_after_is_when_a_tenth_is_done() -> None:
    assert retry_after_s(Load(queue_depth=10_000, drain_rate=200.0)) == 5
