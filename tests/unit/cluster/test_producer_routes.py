"""Producer routes: to the consumers, if they are somewhere else."""

from __future__ import annotations

import pytest

from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.coordinator_bounds import CoordinatorBounds
from queenmq.cluster.load_tracker import LoadTracker, Sample
from queenmq.cluster.own_consumers import OwnConsumers
from queenmq.cluster.presence import Presence
from queenmq.cluster.producer_routes import ProducerRoutes

NOW = 1000.0


class Producers:
    def __init__(self) -> None:
        self.tracker = LoadTracker(CoordinatorBounds(), "here")
        self.presence = Presence(ClusterBounds())
        self.own = OwnConsumers(0.0)
        self.tracker.see(["a", "b"])
        for server in ("here", "a", "b"):
            self.tracker.report(server, Sample(0, 0, 0.0))
        self.routes = ProducerRoutes(self.tracker, self.presence, self.own)

    def consumers(self, *servers: str) -> None:
        for server in servers:
            if server == "here":
                self.own.came("q")
            else:
                self.presence.registered(server, (1, 1), ["q"], NOW)

    def goes_to(self, tried: tuple[str, ...] = ()) -> str:
        target = self.routes.route("q", NOW, tried)
        return "here" if target is None else target.id


@pytest.mark.parametrize(
    ("consumers", "expected"),
    [((), "here"), (("here",), "here"), (("a",), "a"), (("a", "here"), "here"), (("a", "b"), "b"), (("gone",), "here")],
)
def test_where_a_push_goes(consumers: tuple[str, ...], expected: str) -> None:
    producers = Producers()
    producers.tracker.report("a", Sample(0, 50, 0.0))
    producers.consumers(*consumers)
    assert producers.goes_to() == expected


def test_a_server_that_failed_is_left_out() -> None:
    producers = Producers()
    producers.consumers("a", "b")
    first = producers.goes_to()
    second = producers.goes_to(tried=(first,))
    assert {first, second} == {"a", "b"}
    assert producers.goes_to(tried=("a", "b")) == "here"


def test_a_server_whose_consumers_went_is_left_out() -> None:
    producers = Producers()
    producers.consumers("a")
    producers.presence.deregistered("a", (1, 2), ["q"], NOW)
    assert producers.goes_to() == "here"


def test_the_dead_get_nothing() -> None:
    producers = Producers()
    producers.consumers("a")
    producers.tracker.see(["b"])
    assert producers.goes_to() == "here"
