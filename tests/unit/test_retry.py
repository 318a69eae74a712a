"""Trying again: after which errors, how often, and with which pauses."""

from __future__ import annotations

import asyncio

import pytest
from passing_time import pass_time

from queenmq.clock import ManualClock
from queenmq.retry import Failure, Pauses, retried

PLAIN = Pauses(0.1, 1.0, spread=0.0)


class Attempts:
    """Fails as often as it is told to, and notes when it was made."""

    def __init__(self, *errors: BaseException) -> None:
        self.clock = ManualClock(0.0)
        self.at: list[float] = []
        self._errors = list(errors)

    async def make(self) -> str:
        self.at.append(round(self.clock.monotonic(), 6))
        await asyncio.sleep(0)
        if self._errors:
            raise self._errors.pop(0)
        return "done"


def test_pauses_grow_to_a_bound_and_stay_there_for_ever() -> None:
    pauses = [PLAIN.after(failures) for failures in (*range(1, 20), 10_000, 10_000_000)]
    assert pauses[:5] == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 1.0


def test_pauses_are_spread_around_what_they_would_be() -> None:
    pauses = [Pauses(1.0, 1.0, spread=0.25).after(1) for _ in range(1000)]
    assert 0.75 <= min(pauses) < 0.85
    assert 1.15 < max(pauses) <= 1.25
    assert len(set(pauses)) > 900


async def test_what_succeeds_is_done_once_and_nobody_is_asked() -> None:
    attempts = Attempts()
    assert await retried(attempts.make, lambda _: pytest.fail("asked"), PLAIN, attempts.clock) == "done"
    assert attempts.at == [0.0]


async def test_it_is_tried_again_with_growing_pauses() -> None:
    attempts = Attempts(*[OSError()] * 5)
    result = asyncio.create_task(retried(attempts.make, lambda _: True, PLAIN, attempts.clock))
    await pass_time(attempts.clock, 100)
    assert await result == "done"
    assert attempts.at == [0.0, 0.1, 0.3, 0.7, 1.5, 2.5]


async def test_the_last_error_is_raised_when_it_is_enough() -> None:
    errors = [OSError("first"), OSError("second"), OSError("third")]
    attempts = Attempts(*errors)
    seen: list[Failure] = []

    def is_worth_another(failure: Failure) -> bool:
        seen.append(failure)
        return failure.attempts < 2

    result = asyncio.create_task(retried(attempts.make, is_worth_another, PLAIN, attempts.clock))
    await pass_time(attempts.clock, 100)
    with pytest.raises(OSError, match="second"):
        await result
    assert seen == [Failure(errors[0], 1, 0.0, 0.1), Failure(errors[1], 2, 0.1, 0.2)]


async def test_a_cancellation_is_never_tried_again() -> None:
    attempts = Attempts(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await retried(attempts.make, lambda _: True, PLAIN, attempts.clock)
    assert len(attempts.at) == 1


async def test_a_cancellation_ends_a_pause() -> None:
    attempts = Attempts(OSError(), OSError())
    result = asyncio.create_task(retried(attempts.make, lambda _: True, PLAIN, attempts.clock))
    await pass_time(attempts.clock, 0.05)
    result.cancel()
    await pass_time(attempts.clock, 10)
    assert result.cancelled()
    assert len(attempts.at) == 1
