"""Consumer routes: who gets a key, how long it stays, and when it is moved."""

from __future__ import annotations

import pytest

from queenmq.cluster.affinity import AffinityRoutes, rank
from queenmq.cluster.coordinator_bounds import CoordinatorBounds
from queenmq.cluster.load_tracker import LoadTracker, Sample

NOW = 1000.0
KEY = ("orders", "processor")
BOUNDS = CoordinatorBounds()


class Dice:
    """Gives always the same number."""

    value = 0.5

    def __call__(self) -> float:
        return self.value


class Cluster:
    """This server, a and b, with loads that are set in percent (by outstanding requests alone)."""

    def __init__(self, bounds: CoordinatorBounds = BOUNDS, **loads: float) -> None:
        self.tracker = LoadTracker(bounds, "here")
        self.tracker.see(["a", "b"])
        self.dice = Dice()
        self.routes = AffinityRoutes(bounds, self.tracker, self.dice)
        self.load(**({"here": 0.0, "a": 0.0, "b": 0.0} | loads))

    def load(self, **loads: float) -> None:
        for server, percent in loads.items():
            self.tracker.report(server, Sample(0, percent / 0.4, 0.0), life=object())

    def goes_to(self, now: float = NOW, key: object = KEY) -> str:
        return self.routes.route(key, now).server.id


@pytest.mark.parametrize(
    ("load", "better_by", "chance"),
    [
        # below 70 %: respected, whatever there is
        (0, 0, 0.0),
        (50, 50, 0.0),
        (69, 69, 0.0),
        # 70 to 90 %: only for more than 15 %, with the improvement as probability
        (70, 10, 0.0),
        (70, 14, 0.0),
        (75, 16, 0.16),
        (80, 20, 0.2),
        (80, 29, 0.29),
        (85, 31, 0.31),
        (85, 50, 0.5),
        (89, 80, 0.8),
        # above 90 %: broken
        (91, 2, 1.0),
        (91, 20, 1.0),
        (95, 90, 1.0),
        (150, 100, 1.0),
    ],
)
def test_the_decision_table(load: float, better_by: float, chance: float) -> None:
    for dice in (dice for dice in (0.0, chance - 0.005, chance + 0.005, 0.999) if 0 <= dice < 1):
        cluster = Cluster(here=300, a=0, b=300)
        assert cluster.goes_to() == "a"
        cluster.load(a=load, b=load - better_by)
        cluster.dice.value = dice
        assert cluster.goes_to(NOW + 1) == ("b" if dice < chance else "a"), dice


def test_a_full_server_is_not_left_for_one_that_is_as_full() -> None:
    cluster = Cluster(here=300, a=0, b=300)
    assert cluster.goes_to() == "a"
    cluster.load(a=110, b=100)
    assert cluster.goes_to(NOW + 1) == "a"
    cluster.load(a=120, b=100)
    assert cluster.goes_to(NOW + 2) == "b"


def first_of(key: object, *servers: str) -> str:
    return max(servers, key=lambda server: rank(key, server))


def keys_of(server: str, count: int) -> list[int]:
    """Keys that every server would send there."""
    return [key for key in range(1000) if first_of(key, "here", "a", "b") == server][:count]


@pytest.mark.parametrize(
    ("loads", "near"),
    [
        ((0, 0, 0), ("here", "a", "b")),
        ((30, 30, 50), ("here", "a")),
        ((30, 21, 50), ("here", "a")),
        ((30, 19, 50), ("a",)),
        ((30, 0, 5), ("a", "b")),
        ((10, 30, 30), ("here",)),
        ((99, 95, 97), ("here", "a", "b")),
    ],
)
def test_a_new_key_goes_where_its_hash_puts_it_among_those_that_can_bear_it(
    loads: tuple[float, float, float], near: tuple[str, ...]
) -> None:
    here, a, b = loads
    for key in range(20):
        assert Cluster(here=here, a=a, b=b).goes_to(key=key) == first_of(key, *near)


def test_a_key_comes_back_to_where_its_hash_puts_it() -> None:
    cluster = Cluster(here=50, a=50, b=0)
    [key] = keys_of("a", 1)
    assert cluster.goes_to(NOW, key) == "b"
    cluster.load(here=0, a=20, b=0)
    assert cluster.goes_to(NOW + 5, key) == "b"
    cluster.load(a=4)
    assert cluster.goes_to(NOW + 10, key) == "a"
    assert cluster.routes.gathered == 1


def test_a_key_that_is_served_here_leaves_with_the_chance_of_what_is_gained() -> None:
    for dice, expected in ((0.19, "a"), (0.21, "here")):
        cluster = Cluster()
        assert cluster.goes_to() == "here"
        cluster.load(here=30, a=10, b=20)
        cluster.dice.value = dice
        assert cluster.goes_to(NOW + 1) == expected


def test_this_server_does_not_hide_a_better_one_from_keys_that_are_elsewhere() -> None:
    """It is within the threshold of the best, but no relief; the best one is."""
    for here, expected in ((65, "b"), (61, "here"), (57, "here")):
        cluster = Cluster(here=90, a=0, b=90)
        assert cluster.goes_to() == "a"
        cluster.load(here=here, a=78, b=57)
        cluster.dice.value = 0.1
        assert cluster.goes_to(NOW + 1) == expected


def test_an_imbalance_that_stays_moves_keys_although_no_server_is_overloaded() -> None:
    cluster = Cluster(here=30, a=0, b=30)
    keys = keys_of("a", 5)
    for key in keys:
        assert cluster.goes_to(NOW, key) == "a"
    cluster.load(here=10, a=60, b=10)
    for second in range(round(BOUNDS.settle_s)):
        assert {cluster.goes_to(NOW + 1 + second, key) for key in keys} == {"a"}
    moved = [cluster.goes_to(NOW + 2 + BOUNDS.settle_s, key) for key in keys]
    assert 0 < len(keys) - moved.count("a") < len(keys)
    assert cluster.routes.migrated == len(keys) - moved.count("a")


def test_what_was_moved_stays_until_its_load_shows() -> None:
    cluster = Cluster(here=300, a=0, b=300)
    cluster.goes_to()
    cluster.load(a=95, b=10)
    assert cluster.goes_to(NOW + 1) == "b"
    cluster.load(a=10, b=95)
    assert cluster.goes_to(NOW + 2) == "b"
    assert cluster.goes_to(NOW + 1 + BOUNDS.settle_s) == "a"
    assert cluster.routes.broken == 2


def test_a_key_in_use_stays_and_one_that_was_idle_is_assigned_anew() -> None:
    cluster = Cluster(here=30, a=0, b=20)
    for step in range(4):
        assert cluster.goes_to(NOW + step * 299) == "a"
    cluster.load(a=60, b=0)
    assert cluster.goes_to(NOW + 3 * 299 + 300) == "a"
    assert cluster.goes_to(NOW + 3 * 299 + 300 + 301) == "b"


def test_the_keys_of_a_dead_server_are_assigned_anew() -> None:
    cluster = Cluster(here=30, a=0, b=15)
    assert cluster.goes_to() == "a"
    cluster.tracker.see(["b"])
    assert cluster.goes_to(NOW + 1) == "b"
    cluster.tracker.see(["a", "b"])
    assert cluster.goes_to(NOW + 2) == "b"


def test_the_keys_of_a_server_with_an_open_circuit_are_assigned_anew() -> None:
    cluster = Cluster(here=30, a=0, b=15)
    assert cluster.goes_to() == "a"
    for _ in range(BOUNDS.circuit_failures):
        cluster.tracker.of("a").breaker.failed(NOW)
    assert cluster.goes_to(NOW + 1) == "b"


def test_alone_everything_stays_here() -> None:
    cluster = Cluster(here=500)
    cluster.tracker.see([])
    assert cluster.goes_to() == "here"


def test_groups_have_keys_of_their_own_until_there_are_too_many() -> None:
    routes = Cluster().routes
    for number in range(10):
        assert routes.queue_key("orders", f"g{number}", NOW) == ("orders", f"g{number}")
    assert routes.queue_key("orders", "g10", NOW) == "orders"
    assert routes.queue_key("orders", "g0", NOW) == "orders"
    assert routes.queue_key("other", "g0", NOW) == ("other", "g0")


def test_groups_that_are_gone_do_not_count() -> None:
    routes = Cluster().routes
    for number in range(11):
        routes.queue_key("orders", f"g{number}", NOW)
    routes.queue_key("orders", "g0", NOW + 200)
    routes.expire(NOW + 301)
    assert routes.queue_key("orders", "g0", NOW + 301) == ("orders", "g0")


def test_the_table_is_bounded_and_forgets_the_least_used() -> None:
    cluster = Cluster(CoordinatorBounds(affinity_max=3), here=30, a=0, b=5)
    for number in range(3):
        cluster.goes_to(NOW, number)
    cluster.goes_to(NOW, 0)
    cluster.goes_to(NOW, 3)
    assert len(cluster.routes) == 3
    cluster.load(a=60, b=0)
    assert cluster.goes_to(NOW, 0) == "a"
    assert cluster.goes_to(NOW, 1) == "b"


def test_idle_routes_are_dropped() -> None:
    cluster = Cluster()
    cluster.goes_to(NOW)
    cluster.goes_to(NOW + 100, "other")
    cluster.routes.expire(NOW + 350)
    assert len(cluster.routes) == 1


def test_what_is_placed_counts_at_once_and_moves_along() -> None:
    cluster = Cluster(here=30, b=30)
    route = cluster.routes.route(KEY, NOW)
    tracker = cluster.tracker
    a, b = tracker.of("a"), tracker.of("b")
    assert route.server is a
    for _ in range(100):
        route.began(a)
    assert a.expected == pytest.approx(0.15)
    route.move(b, NOW)
    assert (a.expected, b.expected) == (0, pytest.approx(0.45))
    for _ in range(100):
        route.ended(a)
    assert (a.placed, a.there, b.placed, b.there) == (0, 0, 0, 0)


def test_what_a_report_has_by_now_is_not_counted_twice() -> None:
    cluster = Cluster(here=30, b=30)
    route = cluster.routes.route(KEY, NOW)
    a = cluster.tracker.of("a")
    for _ in range(100):
        route.began(a)
    for _ in range(30):
        cluster.tracker.report("a", Sample(100, 0, 0.0), life=a.life)
        assert a.expected == pytest.approx(0.15)
    assert a.score == pytest.approx(0.15, rel=0.01)


def test_other_work_moves_by_its_share_of_the_requests_until_the_reports_have_it() -> None:
    cluster = Cluster(here=90, a=0, b=90)
    for key in range(4):
        for _ in range(3):
            assert cluster.goes_to(NOW, key) == "a"
    cluster.load(a=80, b=10)
    a, b = cluster.tracker.of("a"), cluster.tracker.of("b")
    cluster.dice.value = 0.0
    assert cluster.goes_to(NOW + 1, 0) == "b"
    assert (a.expected, b.expected) == (pytest.approx(0.6), pytest.approx(0.3))
    for server, percent in (("a", 60), ("b", 30)):
        for _ in range(30):
            cluster.tracker.report(server, Sample(0, percent / 0.4, 0.0), life=cluster.tracker.of(server).life)
            assert cluster.tracker.of(server).expected == pytest.approx(percent / 100)
