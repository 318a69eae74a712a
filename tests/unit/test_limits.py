"""Limits as they are given."""

from __future__ import annotations

import pytest

from queenmq.core.limits import KeyLimits, LimitPolicy, most_at_once
from queenmq.errors import InvalidRequest


@pytest.mark.parametrize(
    ("given", "bucket"),
    [
        (LimitPolicy(leases=3), None),
        (LimitPolicy(rate=0.5), 1.0),
        (LimitPolicy(rate=20.0), 20.0),
        (LimitPolicy(rate=20.0, burst=5), 5.0),
    ],
)
def test_the_size_of_the_bucket(given: LimitPolicy, bucket: float | None) -> None:
    given.check()
    assert most_at_once(given) == bucket


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (LimitPolicy(), "leases, rate or perKey is required"),
        (LimitPolicy(leases=1, burst=5), "limits: burst needs a rate"),
        (LimitPolicy(per_key=KeyLimits()), "of perKey is required"),
        (LimitPolicy(rate=2.0, per_key=KeyLimits(leases=1, burst=5)), "burst of perKey needs a rate"),
    ],
)
def test_what_limits_nothing_is_refused(given: LimitPolicy, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        given.check()
