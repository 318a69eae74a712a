"""However a retry policy is written, it is a list of delays."""

from __future__ import annotations

import msgspec
import pytest

from queenmq.core.retry_policy import LONGEST_MS, BreakerPolicy, RetryPolicy
from queenmq.errors import InvalidRequest


@pytest.mark.parametrize(
    ("policy", "delays", "part"),
    [
        (RetryPolicy(), None, 0),
        (RetryPolicy(poison="skip", jitter=0.25), None, 0.25),
        (RetryPolicy(strategy="fixed", delay_ms=0), [0], 0),
        (RetryPolicy(strategy="list", delays_ms=[5, 1]), [5, 1], 0),
        (RetryPolicy(strategy="exponential", delay_ms=1000, max_delay_ms=5000), [1000, 2000, 4000, 5000], 0.5),
        (RetryPolicy(strategy="exponential", delay_ms=9, max_delay_ms=5, jitter=0), [5], 0),
        (RetryPolicy(strategy="exponential", delay_ms=7, factor=1), [7], 0.5),
        (RetryPolicy(strategy="exponential", delay_ms=0), [0], 0.5),
        (RetryPolicy(strategy="exponential", delay_ms=10, factor=10, max_delay_ms=250), [10, 100, 250], 0.5),
    ],
)
def test_delays(policy: RetryPolicy, delays: list[int] | None, part: float) -> None:
    assert (policy.delays(), policy.least_part) == (delays, part)


def test_slow_growth_is_bounded() -> None:
    delays = RetryPolicy(strategy="exponential", delay_ms=1, factor=1.001, max_delay_ms=LONGEST_MS).delays()
    assert delays is not None
    assert (len(delays), delays) == (100, sorted(delays))


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (RetryPolicy(delay_ms=1), "delayMs needs a strategy"),
        (RetryPolicy(strategy="fixed"), "strategy 'fixed' needs delayMs"),
        (RetryPolicy(strategy="fixed", delay_ms=1, factor=2), "strategy 'fixed' has no factor"),
        (RetryPolicy(strategy="list", delay_ms=1), "strategy 'list' has no delayMs"),
        (RetryPolicy(strategy="list"), "strategy 'list' needs delaysMs"),
    ],
)
def test_contradictions_are_refused(policy: RetryPolicy, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        policy.delays()


@pytest.mark.parametrize(
    "text",
    [
        '{"poison": "drop"}',
        '{"strategy": "random"}',
        '{"jitter": 1.5}',
        '{"delaysMs": []}',
        '{"delayMs": -1}',
        '{"poisson": "skip"}',
        '{"factor": 0.5}',
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=RetryPolicy)


def test_a_breaker_that_could_never_open_is_refused() -> None:
    BreakerPolicy(failures=0, of=1).check()
    with pytest.raises(InvalidRequest, match="never opens"):
        BreakerPolicy(failures=3, of=3).check()
