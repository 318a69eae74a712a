"""The states of the circuit breaker, and that it lets one request through when it tries."""

from __future__ import annotations

import pytest

from queenmq.cluster.circuit_breaker import Circuit, CircuitBreaker
from queenmq.cluster.coordinator_bounds import CoordinatorBounds

NOW = 1000.0


def opened(at: float = NOW) -> CircuitBreaker:
    breaker = CircuitBreaker(CoordinatorBounds())
    for _ in range(3):
        assert breaker.enter(at)
        breaker.failed(at)
    return breaker


def test_three_failures_in_a_row_open_it() -> None:
    breaker = CircuitBreaker(CoordinatorBounds())
    for _ in range(2):
        breaker.failed(NOW)
    breaker.succeeded()
    for _ in range(2):
        breaker.failed(NOW)
    assert breaker.state(NOW) is Circuit.CLOSED
    breaker.failed(NOW)
    assert breaker.state(NOW) is Circuit.OPEN
    assert not breaker.enter(NOW + 4.99)


def test_after_the_wait_one_request_tries() -> None:
    breaker = opened()
    assert breaker.state(NOW + 5) is Circuit.HALF_OPEN
    assert breaker.enter(NOW + 5)
    assert not breaker.allows(NOW + 5)
    assert not breaker.enter(NOW + 5)
    breaker.succeeded()
    assert breaker.state(NOW + 5) is Circuit.CLOSED
    assert breaker.enter(NOW + 5)
    breaker.failed(NOW + 5)
    assert breaker.state(NOW + 5) is Circuit.CLOSED


def test_a_failed_try_doubles_the_wait_up_to_five_minutes() -> None:
    breaker, now, waits = opened(), NOW, []
    wait = 5.0
    for _ in range(9):
        now += wait
        assert not breaker.allows(now - 0.001)
        assert breaker.enter(now)
        breaker.failed(now)
        wait = min(wait * 2, 300.0)
        waits.append(wait)
        assert breaker.state(now + wait - 0.001) is Circuit.OPEN
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300, 300]
    assert breaker.enter(now + 300)
    breaker.succeeded()
    for _ in range(3):
        breaker.failed(now + 300)
    assert breaker.state(now + 304.9) is Circuit.OPEN
    assert breaker.state(now + 305) is Circuit.HALF_OPEN


def test_failures_from_before_it_opened_change_nothing() -> None:
    breaker = opened()
    breaker.failed(NOW + 4)
    assert breaker.state(NOW + 5) is Circuit.HALF_OPEN


def test_a_try_that_ended_otherwise_makes_room_for_the_next() -> None:
    breaker = opened()
    assert breaker.enter(NOW + 5)
    breaker.abandoned()
    assert breaker.enter(NOW + 5)


@pytest.mark.parametrize("failures", [1, 7])
def test_the_number_of_failures_is_a_setting(failures: int) -> None:
    breaker = CircuitBreaker(CoordinatorBounds(circuit_failures=failures))
    for number in range(failures):
        assert breaker.state(NOW) is Circuit.CLOSED, number
        breaker.failed(NOW)
    assert breaker.state(NOW) is Circuit.OPEN
