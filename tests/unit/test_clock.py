"""The clock that is moved by hand: it must wait and wake as the real one does."""

from __future__ import annotations

import asyncio

import pytest
from passing_time import pass_time, settle

from queenmq.clock import SYSTEM, Clock, ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


def test_timers_fire_at_their_moments_and_in_order(clock: ManualClock) -> None:
    fired: list[tuple[str, float]] = []

    def fire(name: str) -> None:
        fired.append((name, clock.monotonic()))

    clock.call_later(2.0, fire, "second")
    clock.call_later(1.0, fire, "first")
    clock.call_later(1.0, fire, "with the first")
    clock.call_later(1.5, fire, "never").cancel()
    clock.advance(1.9)
    assert fired == [("first", 1001.0), ("with the first", 1001.0)]
    clock.advance(0.2)
    assert fired[2:] == [("second", 1002.0)]
    assert (clock.monotonic(), clock.next_s) == (1002.1, None)


def test_a_timer_may_set_another_that_is_due_as_well(clock: ManualClock) -> None:
    fired: list[float] = []
    clock.call_later(1.0, lambda: clock.call_later(1.0, lambda: fired.append(clock.monotonic())))
    clock.advance(5.0)
    assert fired == [1002.0]


def test_a_clock_that_is_set_back_fires_nothing(clock: ManualClock) -> None:
    clock.call_later(1.0, pytest.fail)
    clock.advance(-100.0)
    assert clock.next_s == 101.0


async def test_sleep(clock: ManualClock) -> None:
    asleep = asyncio.create_task(clock.sleep(10.0))
    await pass_time(clock, 9.9)
    assert not asleep.done()
    await pass_time(clock, 0.1)
    await asleep
    await clock.sleep(0.0)


async def test_a_sleeper_that_is_cancelled_in_the_moment_it_would_wake(clock: ManualClock) -> None:
    asleep = asyncio.create_task(clock.sleep(10.0))
    await settle()
    asleep.cancel()
    clock.advance(10.0)
    with pytest.raises(asyncio.CancelledError):
        await asleep


@pytest.mark.parametrize("real", [False, True])
async def test_a_timeout_ends_what_takes_longer(clock: ManualClock, real: bool) -> None:
    chosen: Clock = SYSTEM if real else clock

    async def wait() -> None:
        async with chosen.timeout(0.01):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    if not real:
        await pass_time(clock, 0.009)
        assert not waiting.done()
        await pass_time(clock, 0.001)
    with pytest.raises(TimeoutError):
        await waiting


@pytest.mark.parametrize("real", [False, True])
async def test_a_timeout_leaves_alone_what_is_quicker(clock: ManualClock, real: bool) -> None:
    chosen: Clock = SYSTEM if real else clock
    async with chosen.timeout(30.0):
        pass
    assert clock.next_s is None
    clock.advance(100.0)
    await settle()


async def test_a_timeout_passes_other_errors_and_cancellations_on(clock: ManualClock) -> None:
    with pytest.raises(OSError, match="broken"):
        async with clock.timeout(30.0):
            raise OSError("broken")

    async def wait() -> None:
        async with clock.timeout(30.0):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
