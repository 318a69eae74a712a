"""The safety net of parked long polls, and the adaptive number of calls at once."""

from __future__ import annotations

from queenmq.broker.lane import Vegas
from queenmq.config import ConcurrencySettings
from queenmq.core.group_backoff import BackoffSettings, GroupBackoff


def test_the_interval_grows_after_three_empty_looks_up_to_a_second() -> None:
    backoff = GroupBackoff(BackoffSettings)
    seen = []
    for _ in range(8):
        backoff.found_nothing()
        seen.append(round(backoff.interval_s, 3))
    assert seen == [0.1, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert backoff.backed_off


def test_activity_resets_it() -> None:
    backoff = GroupBackoff(BackoffSettings)
    for _ in range(8):
        backoff.found_nothing()
    backoff.reset()
    assert (backoff.interval_s, backoff.backed_off) == (0.1, False)


def test_other_settings_hold_from_the_next_empty_look_on() -> None:
    settings = BackoffSettings()
    backoff = GroupBackoff(lambda: settings)
    for _ in range(8):
        backoff.found_nothing()
    settings = BackoffSettings(base_s=2, threshold=9, multiplier=3, longest_s=10)
    seen = []
    for _ in range(5):
        backoff.found_nothing()
        seen.append(backoff.interval_s)
    assert seen == [6, 10, 10, 10, 10]


def play(vegas: Vegas, seconds: float, weight: int = 10, calls: int = 40, start: float = 0.0) -> float:
    """Finished calls, each of `seconds`; the time after the last."""
    now = start
    for _ in range(calls):
        now += 1.0
        vegas.record(now, seconds, weight)
    return now


def test_the_limit_grows_while_calls_stay_quick() -> None:
    vegas = Vegas(ConcurrencySettings(max_limit=8))
    play(vegas, 0.01)
    assert vegas.limit == 8


def test_the_limit_shrinks_when_calls_queue() -> None:
    vegas = Vegas(ConcurrencySettings(rtt_min_window_s=1000, rtt_window_samples=5), initial=32)
    vegas.record(0.5, 0.01, 10)
    play(vegas, 1.0, calls=100)
    # Down to where not more than beta calls queue: 12 of 12 or 13.
    assert vegas.limit < 14


def test_large_calls_are_not_compared_with_small_ones() -> None:
    vegas = Vegas(ConcurrencySettings(max_limit=6, rtt_min_window_s=1000))
    now = play(vegas, 0.001, weight=1, calls=1)
    play(vegas, 0.5, weight=1000, start=now)
    assert vegas.limit == 6


def test_the_limit_never_leaves_its_bounds() -> None:
    vegas = Vegas(ConcurrencySettings(min_limit=2, max_limit=3, alpha=1.0, beta=1.0, rtt_min_window_s=10_000))
    vegas.record(0.0, 0.0001, 10)
    play(vegas, 10.0)
    assert vegas.limit == 2
