"""How a consumer finds out how many messages to ask for at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from queenmq.client.sizing import BatchSize, Size

WAIT_S = 0.004


def settled(handling_s: float, *, wait_s: float = WAIT_S, ready: int = 10_000, spread: int | None = None) -> Size:
    """The size after many batches of a backlog, whose messages take so long each. `spread` have each partition."""
    sizes = BatchSize()
    for _ in range(200):
        now = sizes.now
        got = min(now.batch, ready if spread is None else spread * now.partitions)
        sizes.learn(Size(got, now.partitions), wait_s, got * handling_s)
    return sizes.now


def test_it_begins_with_one_message() -> None:
    assert BatchSize().now == Size(1, 1)


@pytest.mark.parametrize(
    ("handling_s", "least", "most"), [(1.0, 1, 1), (0.01, 2, 8), (0.001, 20, 80), (0.00001, 999, 1000)]
)
def test_waiting_for_a_batch_takes_about_a_tenth_of_its_handling(handling_s: float, least: int, most: int) -> None:
    assert least <= settled(handling_s).batch <= most


def test_partitions_that_have_few_messages_are_read_together() -> None:
    size = settled(0.0001, spread=1)
    assert size.partitions >= 50
    assert settled(0.0001).partitions == 1
    assert settled(0.1, spread=1) == Size(1, 1)


def test_a_number_of_partitions_that_was_asked_for_stays() -> None:
    sizes = BatchSize(3)
    for _ in range(20):
        sizes.learn(Size(3, 3), WAIT_S, 0.0)
    assert sizes.now.partitions == 3
    sizes.learn(Size(3, 3), WAIT_S, 0.0, failed=True)
    assert sizes.now == Size(1, 3)


def test_an_idle_queue_does_not_make_it_greedy() -> None:
    """What was waited for was not pushed before."""
    assert settled(0.001, wait_s=30.0, ready=1).batch <= 2


def test_a_failure_is_isolated() -> None:
    sizes = BatchSize()
    for _ in range(10):
        sizes.learn(sizes.now, WAIT_S, 0.0)
    assert sizes.now.batch > 100
    sizes.learn(sizes.now, WAIT_S, 0.0, failed=True)
    assert sizes.now == Size(1, 1)


def test_it_follows_a_handler_that_becomes_slow() -> None:
    sizes = BatchSize()
    for handling_s in (0.0, 0.01):
        for _ in range(20):
            sizes.learn(sizes.now, WAIT_S, sizes.now.batch * handling_s)
    assert sizes.now.batch <= 8


seconds = some.floats(0, 100)


@given(some.lists(some.tuples(some.integers(1, 2000), some.integers(1, 2000), seconds, seconds, some.booleans())))
def test_it_is_bounded(batches: list[tuple[int, int, float, float, bool]]) -> None:
    sizes = BatchSize()
    for batch, partitions, waited_s, handled_s, failed in batches:
        sizes.learn(Size(batch, partitions), waited_s, handled_s, failed=failed)
        assert 1 <= sizes.now.partitions <= min(100, sizes.now.batch)
        assert sizes.now.batch <= 1000
