"""The cost of the coordinator's decision is measured for every kind of request that it decides about."""

from __future__ import annotations

from queen_bench.decision import decision_costs


async def test_every_kind_is_measured() -> None:
    costs = await decision_costs(rounds=3, requests=20)
    assert list(costs) == [
        "pop",
        "long_poll",
        "pop_partition",
        "push",
        "push_unread",
        "push_100",
        "ack",
        "ack_of_queue",
        "transaction",
    ]
    assert all(isinstance(cost, float) for cost in costs.values())
