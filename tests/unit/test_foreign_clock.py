"""Another machine's clock, seen from here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from queenmq.core.foreign_clock import ForeignClock

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_a_step_back_is_noticed_until_the_clock_has_caught_up() -> None:
    clock = ForeignClock()
    assert clock.observe(at(0), 100.0, 100.01) is None
    assert clock.observe(at(1), 101.0, 101.01) is None
    step = clock.observe(at(-38), 102.0, 102.01)
    assert step is not None
    assert abs(step.total_seconds() - 40) < 0.1
    assert clock.steps == 1
    assert clock.reached is not None
    assert at(2) <= clock.reached < at(2.1)
    assert clock.observe(at(-37), 103.0, 103.01) is None
    assert clock.reached is not None
    assert clock.observe(at(2.5), 142.5, 142.51) is None
    assert clock.reached is None


def test_a_second_step_does_not_forget_the_first() -> None:
    clock = ForeignClock()
    clock.observe(at(0), 0.0, 0.0)
    clock.observe(at(-40), 1.0, 1.0)
    reached = clock.reached
    clock.observe(at(-60), 2.0, 2.0)
    assert (clock.steps, clock.reached) == (2, reached)


def test_a_step_forward_is_none() -> None:
    clock = ForeignClock()
    clock.observe(at(0), 0.0, 0.0)
    assert clock.observe(at(3600), 1.0, 1.0) is None
    assert clock.observe(at(3601), 2.0, 2.0) is None
    assert clock.reached is None


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10), st.floats(0, 1)), max_size=20))
def test_a_clock_that_runs_on_is_never_suspected(looks: list[tuple[float, float, float]]) -> None:
    """However long questions and answers are under way, and whenever between them it is read."""
    clock, now = ForeignClock(), 1000.0
    for pause, took, share in looks:
        asked, heard = now + pause, now + pause + took
        assert clock.observe(at(asked + took * share), asked, heard) is None
        now = heard
    assert (clock.steps, clock.reached) == (0, None)
