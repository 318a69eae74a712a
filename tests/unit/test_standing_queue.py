"""A burst is let through, a queue that stands is not."""

from __future__ import annotations

from queenmq.broker.standing_queue import MEMORY_S, StandingQueue


def test_a_burst_that_is_worked_off_never_stands() -> None:
    queue = StandingQueue(target_s=0.1, after_s=0.3)
    assert not any(queue.stands(now / 100, wait_s=(0.5 if now % 25 else 0.0)) for now in range(500))


def test_a_wait_that_stays_long_stands_after_a_while_and_ends_at_once() -> None:
    queue = StandingQueue(target_s=0.1, after_s=0.3)
    assert [queue.stands(now / 10, 0.2) for now in range(6)] == [False, False, False, True, True, True]
    assert not queue.stands(0.7, 0.1)


def test_soon_after_it_stood_it_stands_again_at_once() -> None:
    queue = StandingQueue(target_s=0.1, after_s=0.3)
    assert [queue.stands(now, 0.2) for now in (0.0, 0.3)] == [False, True]
    assert not queue.stands(0.4, 0.0)
    assert queue.stands(0.5, 0.2)
    assert not queue.stands(0.6, 0.0)
    assert not queue.stands(0.5 + MEMORY_S, 0.2)
