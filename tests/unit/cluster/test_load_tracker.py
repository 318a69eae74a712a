"""The score of a server, its average, and who can be used."""

from __future__ import annotations

import pytest

from queenmq.cluster.coordinator_bounds import CoordinatorBounds
from queenmq.cluster.imbalance import imbalance
from queenmq.cluster.load_tracker import LoadTracker, Sample
from queenmq.cluster.own_load import OwnLoad

NOW = 1000.0
IDLE = Sample(0, 0, 0.0)


def tracker(*peers: str) -> LoadTracker:
    made = LoadTracker(CoordinatorBounds(), "here")
    made.see(peers)
    made.report("here", IDLE)
    for peer in peers:
        made.report(peer, IDLE)
    return made


@pytest.mark.parametrize(
    ("sample", "score"),
    [
        (IDLE, 0.0),
        (Sample(0, 100, 0.0), 0.4),
        (Sample(200, 0, 0.0), 0.3),
        (Sample(0, 0, 1.0), 0.3),
        (Sample(200, 100, 1.0), 1.0),
        (Sample(2000, 0, 0.0), 3.0),
    ],
)
def test_the_score(sample: Sample, score: float) -> None:
    loads = LoadTracker(CoordinatorBounds(smoothing=1.0), "here")
    for _ in range(2):
        loads.report("a", sample)
    assert loads.of("a").score == pytest.approx(score)


def test_reports_are_averaged_with_thirty_percent() -> None:
    loads = tracker("a")
    seen = []
    for _ in range(3):
        loads.report("a", Sample(0, 100, 0.0))
        seen.append(loads.of("a").score)
    assert seen == pytest.approx([0.4 * 0.3, 0.4 * 0.51, 0.4 * 0.657])


def test_a_new_life_begins_a_new_average() -> None:
    loads = tracker("a")
    loads.report("a", Sample(0, 100, 0.0), life=2)
    assert loads.of("a").score == pytest.approx(0.4)


def test_the_cpu_of_a_start_counts_little() -> None:
    loads = tracker()
    loads.report("a", Sample(0, 0, 1.0))
    assert loads.of("a").score == 0.0
    loads.report("a", Sample(0, 0, 0.1))
    assert loads.of("a").score == pytest.approx(0.3 * 0.03)


def test_the_dead_and_those_never_heard_are_out() -> None:
    loads = tracker("a", "b")
    loads.report("here", Sample(0, 900, 0.0), life=2)
    loads.see(["b", "silent"])
    assert loads.least_loaded(NOW).id == "b"
    loads.see(["silent"])
    assert loads.least_loaded(NOW).id == "here"


def test_a_server_that_was_tried_is_out() -> None:
    loads = tracker("a", "b")
    loads.report("here", Sample(0, 900, 0.0), life=2)
    loads.report("a", Sample(0, 10, 0.0))
    assert loads.least_loaded(NOW).id == "b"
    assert loads.least_loaded(NOW, tried=("b",)).id == "a"
    assert loads.least_loaded(NOW, tried=("a", "b")).id == "here"


def test_servers_that_are_forgotten_are_gone() -> None:
    loads = tracker("a", "b")
    loads.forget(["b"])
    assert {load.id for load in loads} == {"here", "b"}


@pytest.mark.parametrize(
    ("loads", "score"),
    [([], 0.0), ([0.7], 0.0), ([0.45, 0.52], 0.07), ([0.1, 0.9, 0.2], 0.8), ([5.0, 6.0], 0.2), ([0.0, 2.0], 2.0)],
)
def test_the_imbalance(loads: list[float], score: float) -> None:
    assert imbalance(loads) == pytest.approx(score)


def test_the_own_load_is_measured_between_two_looks() -> None:
    used = [1.0]
    own = OwnLoad(lambda: (7, 3), lambda: used[0], NOW)
    used[0] = 1.5
    assert own.measure(NOW + 2) == Sample(7, 3, 0.25)
    assert own.measure(NOW + 3) == Sample(7, 3, 0.0)
    assert own.measure(NOW + 3) == Sample(7, 3, 0.0)
