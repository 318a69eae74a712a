"""Metrics of groups and queues: what they say, and that their number is bounded."""

from __future__ import annotations

import pytest
from server_settings import settings_with

from integration.queen import Queen, another_server
from integration.test_metrics import scrape
from queenmq.broker.activity import Activity
from queenmq.server import Server

LABELS = 'queue="orders",namespace="billing",group="g"'


async def test_a_group_has_its_own_figures(queen: Queen, server: Server) -> None:
    await queen.configure("orders", namespace="billing", retryLimit=5)
    await queen.push("orders", "a", "b", "c", "d")
    done, dead, failed = await queen.pop("orders", consumerGroup="g", batch=3)
    await queen.ack_batch([done, dead, failed], "completed", "dlq", "failed")
    await server.broker.statistics.store_activity({})
    await server.broker.statistics.store_readers()
    await server.broker.statistics.refresh(everything=True)
    samples, _ = await scrape(queen)
    expected = {
        "queen_group_unread_messages": 2,
        "queen_group_due_messages": 2,
        "queen_group_finished_total": 2,
        "queen_group_leases": 0,
        "queen_group_consumers": 1,
        "queen_group_failing_partitions": 1,
        "queen_group_dead_letters": 1,
    }
    assert {name: samples[f"{name}{{{LABELS}}}"] for name in expected} == expected
    assert samples[f"queen_group_lag_seconds{{{LABELS}}}"] >= 0
    assert samples["queen_groups_left_out"] == 0
    assert samples['queen_worker_queue_pushed_messages_total{queue="orders"}'] == 4
    assert samples['queen_worker_queue_popped_messages_total{queue="orders"}'] == 3
    assert samples['queen_worker_queue_acks_total{queue="orders",result="success"}'] == 3


@pytest.mark.parametrize("most", [0, 3])
async def test_how_many_there_are_is_bounded(queen: Queen, server: Server, database_url: str, most: int) -> None:
    for number in range(5):
        await queen.push("orders", "a")
        await queen.pop("orders", consumerGroup=f"g{number}")
    await server.broker.statistics.refresh(everything=True)
    async with another_server(settings_with(statistics={"metrics_max_groups": most}), database_url) as other:
        samples, _ = await scrape(other)
    of_groups = {name for name in samples if name.startswith("queen_group_")}
    assert len(of_groups) == 8 * most
    assert samples.get("queen_groups_left_out") == (2 if most else None)


def test_the_busiest_queues_are_chosen() -> None:
    activity = Activity()
    for number in range(5):
        activity.pushed(f"q{number}", 1, number)
    activity.take()
    activity.pushed("q0", 1, 100)
    activity.take()
    assert set(activity.busiest(2)) == {"q0", "q4"}
    assert activity.busiest(2)["q0"].push_messages == 100
    assert len(activity.busiest(10)) == 5
