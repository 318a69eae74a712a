"""Limits as they are given."""

from __future__ import annotations

import pytest

from queenmq.core.limits import LimitPolicy
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
    assert given.most_at_once == bucket


@pytest.mark.parametrize(
    ("given", "why"), [(LimitPolicy(), "leases or rate is required"), (LimitPolicy(leases=1, burst=5), "needs a rate")]
)
def test_what_limits_nothing_is_refused(given: LimitPolicy, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        given.check()
