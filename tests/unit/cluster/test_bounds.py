"""Memory: 100,000 partitions and 1,000 queues leave every table within its bound."""

from __future__ import annotations

import tracemalloc

from queenmq.broker.caches import CacheBounds, OptionRow
from queenmq.clock import ManualClock
from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.events import deliver
from queenmq.cluster.state import SharedState
from unit.broker.remembering import Remembering
from unit.cluster.pair import AT_ONCE, RING

QUEUES, PARTITIONS = 1_000, 100
MEBIBYTE = 2**20


def fill(state: SharedState, caches: Remembering, names: list[str], now: float) -> None:
    """What 100,000 partitions of 1,000 queues on three other servers would bring."""
    options = {"leaseTime": 300, "encryptionEnabled": False}
    caches.options.replace_all([OptionRow(queue, options, 1) for queue in names], 1, now, now)
    for number, server in enumerate(("b", "c", "d")):
        state.presence.registered(server, (1, 1), names[number::2], now)
    for queue in names:
        for number in range(PARTITIONS):
            partition = f"customer-{number}"
            caches.partition_ids.put(queue, partition, f"0190-{queue}-{number}", now)
            state.lease_hints.acquired("b", (1, 1), (queue, partition, "workers"), 60, now)


def test_a_hundred_thousand_partitions() -> None:
    state = SharedState(AT_ONCE, RING, "a", 1, random=lambda: 0.5)
    caches = Remembering(CacheBounds(), ManualClock())
    names = [f"queue-{number}" for number in range(QUEUES)]
    tracemalloc.start()
    try:
        fill(state, caches, names, 0)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 16 * MEBIBYTE
    fill(state, caches, [f"other-{name}" for name in names], 1)
    assert len(caches.partition_ids) == len(state.lease_hints) == 10_000
    assert len(caches.options) == QUEUES
    assert len(state.presence) < 3 * QUEUES


def test_more_of_everything_than_there_is_room_for() -> None:
    bounds = ClusterBounds(
        presence_max=50,
        lease_hints_max=50,
        max_members=5,
        max_senders=5,
        max_epoch_floors=5,
        max_greeted=5,
    )
    state = SharedState(bounds, RING, "a", 1, random=lambda: 0.5)
    caches = Remembering(CacheBounds(queues=50, tombstones=50, partition_ids=50), ManualClock())
    for number in range(200):
        other = SharedState(bounds, RING, f"server-{number}", 1, random=lambda: 0, peers=[("host", 1)])
        name = f"name-{number}"
        for packets in (
            other.tick(0).outgoing,
            other.consumer_registered(name),
            other.config_set(name, {}, number),
            other.config_deleted([(name + "x", 1)]),
            other.lease_acquired([(name, name, name, 100)]),
        ):
            for _, datagram in packets:
                for event in state.receive(datagram, ("host", number + 2), number):
                    deliver(caches, event)
        caches.partition_ids.put(name, name, name, number)
        state.tick(number)
        assert max(len(caches.options), len(state.presence), len(caches.partition_ids), len(state.lease_hints)) <= 50
        assert max(len(state.members), len(state.replay), len(state.replay._floors)) <= 5
        assert len(caches.options._tombstones) <= 50


def test_indexes_are_emptied_with_what_they_index() -> None:
    state = SharedState(AT_ONCE, RING, "a", 1, random=lambda: 0.5)
    caches = Remembering(CacheBounds(), ManualClock())
    names = [f"queue-{number}" for number in range(100)]
    fill(state, caches, names, 0)
    for name in names:
        state.config_deleted([(name, 2)])
        caches.delete_queue(name, 2)
    tables = (
        caches.partition_ids._by_queue,
        state.lease_hints._by_queue,
        state.lease_hints._by_server,
        state.presence._by_queue,
        state.presence._by_server,
    )
    assert [len(table) for table in tables] == [0] * 5
