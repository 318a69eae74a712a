"""Ten minutes of a cluster with all consumers connected to one server: the load spreads, and then it is quiet."""

from __future__ import annotations

import os

import pytest

from queenmq.cluster.imbalance import BALANCED_BELOW
from simulation.balance import Balance, Costs

MINUTES = 10
SEEDS = range(20 if os.environ.get("QUEEN_LONG") == "1" else 1)
SETTLE_S = 60.0
QUIET = 3  # moves a minute, of many keys


def run(balance: Balance) -> None:
    balance.run(MINUTES * 60)


def check(balance: Balance, settled_s: float = SETTLE_S, moves_a_minute: int = QUIET) -> None:
    assert balance.settled_after(BALANCED_BELOW) <= settled_s, [s for _, s in balance.history[-20:]]
    assert max(balance.moves[minute] for minute in range(2, MINUTES)) <= moves_a_minute, balance.moves


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("consumers", [120, 400, 1200])
def test_many_small_groups_on_one_server(seed: int, consumers: int) -> None:
    balance = Balance(seed)
    for number in range(consumers):
        balance.consume(0, number % (consumers // 5), (2.0, 8.0))
    run(balance)
    check(balance)


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_that_grow_after_they_were_placed(seed: int) -> None:
    balance = Balance(seed)

    def grow() -> None:
        for key in range(60):
            balance.consume(0, key, (2.0, 8.0))

    for minute in range(4):
        balance.after(minute * 10.0, grow)
    run(balance)
    check(balance)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_groups_of_one_server_grow_and_none_is_overloaded(seed: int) -> None:
    """Each of its keys could stay, as no server comes near the threshold for migration."""
    balance = Balance(seed)
    for key in range(200):
        balance.consume(0, key, (2.0, 8.0))
    balance.run(10)
    there = balance.keys_at("s1")
    for number in range(240):
        balance.consume(0, there[number % len(there)], (2.0, 8.0))
    before = sum(balance.moves.values())
    run(balance)
    check(balance)
    assert sum(balance.moves.values()) - before <= 60
    assert max(load.score for load in balance.nodes[0].tracker) < balance.settings.migrate_threshold


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fronts", [1, 3])
def test_groups_of_very_different_sizes(seed: int, fronts: int) -> None:
    balance = Balance(seed)
    for number in range(900):
        key = int(40 * balance.chance.random() ** 3)
        at_s = balance.chance.random() * 20
        balance.after(at_s, lambda at=number % fronts, key=key: balance.consume(at, key, (2.0, 8.0)))
    run(balance)
    check(balance)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_that_is_heavier_than_all_others_together_does_not_wander(seed: int) -> None:
    balance = Balance(seed)
    for number in range(300):
        balance.consume(0, "heavy", (2.0, 8.0))
        if number % 5 == 0:
            balance.consume(0, number % 20, (2.0, 8.0))
    run(balance)
    assert sum(balance.moves[minute] for minute in range(2, MINUTES)) <= QUIET, balance.moves


@pytest.mark.parametrize("seed", SEEDS)
def test_busy_consumers(seed: int) -> None:
    """Served so often that the CPU decides."""
    balance = Balance(seed, costs=Costs(serve_s=0.004))
    for number in range(150):
        balance.consume(0, number % 50, (0.2, 0.6))
    run(balance)
    check(balance)


@pytest.mark.parametrize("seed", SEEDS)
def test_consumers_on_all_servers_do_not_chase_each_other(seed: int) -> None:
    balance = Balance(seed)
    for number in range(1500):
        balance.consume(number % 3, number % 100, (2.0, 8.0))
    run(balance)
    check(balance)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_server_that_dies_and_returns(seed: int) -> None:
    balance = Balance(seed)
    for number in range(600):
        balance.consume(0, number % 100, (2.0, 8.0))
    balance.run(120)
    for node in balance.nodes:
        node.tracker.see(["s0", "s1"])
    balance.run(60)
    assert balance.nodes[2].parked == 0
    for node in balance.nodes:
        node.tracker.see(["s0", "s1", "s2"])
    before = sum(balance.moves.values())
    balance.run(300)
    assert sum(balance.moves.values()) - before <= 60


def servers_of(balance: Balance, key: object) -> set[str]:
    """Where the servers send a key."""
    return {node.routes.route(key, balance.now).server.id for node in balance.nodes}


@pytest.mark.parametrize("seed", SEEDS)
def test_consumers_of_a_group_come_together_across_servers(seed: int) -> None:
    balance = Balance(seed)
    for key in range(30):
        for at in range(3):
            balance.consume(at, key, (2.0, 8.0))
    balance.run(60)
    assert [key for key in range(30) if len(servers_of(balance, key)) > 1] == []
    assert len(set().union(*(servers_of(balance, key) for key in range(30)))) == 3
    check_quiet = sum(balance.moves.values())
    balance.run(240)
    assert sum(balance.moves.values()) - check_quiet <= QUIET


@pytest.mark.parametrize("seed", SEEDS)
def test_they_come_together_although_each_server_began_alone(seed: int) -> None:
    balance = Balance(seed)
    for node in balance.nodes:
        node.tracker.see([node.name])
    for key in range(30):
        for at in range(3):
            balance.consume(at, key, (2.0, 8.0))
    balance.run(30)
    assert all(len(servers_of(balance, key)) == 3 for key in range(30))
    for node in balance.nodes:
        node.tracker.see(["s0", "s1", "s2"])
    balance.run(90)
    assert [key for key in range(30) if len(servers_of(balance, key)) > 1] == []


def test_all_groups_of_a_queue_with_many_have_one_server() -> None:
    balance = Balance(1)
    balance.run(5)
    keys = [
        [node.routes.queue_key("q", f"g{number}", balance.now) for number in range(12)][-1] for node in balance.nodes
    ]
    assert keys == ["q"] * 3
    assert len(servers_of(balance, "q")) == 1
