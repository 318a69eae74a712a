"""Histograms, and how Prometheus is told of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queenmq.core.histogram import COUNTS, Histogram
from queenmq.http.exposition import Exposition


@given(st.lists(st.floats(0, 1000)))
def test_each_bound_counts_what_is_not_above_it(values: list[float]) -> None:
    measured = Histogram(COUNTS)
    for value in values:
        measured.add(value)
    assert measured.count == len(values)
    assert measured.cumulative() == [
        (bound, sum(value <= bound for value in values)) for bound in (*COUNTS, float("inf"))
    ]


def test_prometheus_is_told_of_every_bound_the_sum_and_the_count() -> None:
    measured = Histogram((1, 2.5))
    for value in (1, 2, 3):
        measured.add(value)
    told = Exposition()
    told.histogram("h", "About.", measured, op="push")
    assert told.text().decode().splitlines() == [
        "# HELP h About.",
        "# TYPE h histogram",
        'h_bucket{op="push",le="1"} 1',
        'h_bucket{op="push",le="2.5"} 2',
        'h_bucket{op="push",le="+Inf"} 3',
        'h_sum{op="push"} 6.0',
        'h_count{op="push"} 3',
    ]
