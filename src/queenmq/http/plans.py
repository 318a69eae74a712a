"""Where a request should go, where if that fails, and what is counted while it is there."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from queenmq.broker.broker import Broker
from queenmq.cluster.coordinator import Coordinator
from queenmq.cluster.load_tracker import ServerLoad
from queenmq.http.peer_connection import Late
from queenmq.http.requests import PushItem

_LEASE: Final = re.compile(rb'"leaseId":"([0-9a-f-]{36})"')
_OF_QUEUE: Final = re.compile(rb'"queue":("(?:[^"\\]|\\.)*")')
_decode_text = msgspec.json.Decoder(str).decode


class Plan(Protocol):
    @property
    def wait_s(self) -> float:
        """Longest time that the request may be held, beside the time for passing it on."""

    @property
    def late(self) -> Late | None:
        """Told of an answer that nobody waits for any more; with it, a client that closes its side counts as gone."""

    def first(self) -> ServerLoad | None:
        """None: here."""

    def next(self, now: float, tried: tuple[str, ...]) -> ServerLoad | None:
        """None: here."""

    def began(self, server: ServerLoad) -> None:
        """The request goes to that server."""

    def ended(self, server: ServerLoad) -> None:
        """It is no longer there."""


class ProducerPlan:
    """To a server that has consumers of the queue."""

    wait_s = 0.0
    late = None

    def __init__(self, coordinator: Coordinator, queue: str, target: ServerLoad) -> None:
        self._coordinator = coordinator
        self._queue = queue
        self._target = target

    def first(self) -> ServerLoad | None:
        return self._target

    def next(self, now: float, tried: tuple[str, ...]) -> ServerLoad | None:
        return self._coordinator.producer_route(self._queue, now, tried)

    def began(self, server: ServerLoad) -> None:
        pass

    def ended(self, server: ServerLoad) -> None:
        pass


class ConsumerPlan:
    """To the server of the key; what waits there is counted."""

    __slots__ = ("_coordinator", "_route", "late", "wait_s")

    def __init__(self, coordinator: Coordinator, key: Hashable, now: float, wait_s: float, late: Late) -> None:
        self._coordinator = coordinator
        self._route = coordinator.consumer_route(key, now)
        self.wait_s = wait_s
        self.late: Late | None = late

    def first(self) -> ServerLoad | None:
        server = self._route.server
        return None if server is self._coordinator.local else server

    def next(self, now: float, tried: tuple[str, ...]) -> ServerLoad | None:
        return self._coordinator.next_best(now, tried)

    def began(self, server: ServerLoad) -> None:
        if self.wait_s:
            self._route.began(server)

    def ended(self, server: ServerLoad) -> None:
        if self.wait_s:
            self._route.ended(server)


def consumer_plan(broker: Broker, key: Hashable, wait_s: float) -> Plan:
    """The plan for a pop; `key` is the same for pops that should meet at one server."""
    node = broker.node
    return ConsumerPlan(node.coordinator, key, node.now, wait_s, partial(give_back, broker))


def producer_plan(broker: Broker, queues: Sequence[str | None]) -> Plan | None:
    """The plan for what is written to these queues: to the consumers of the queue, if it is one."""
    if not queues or not queues[0]:
        return None
    queue = queues[0]
    coordinator = broker.node.coordinator
    target = coordinator.producer_route(queue, broker.node.now)
    if target is None or queues.count(queue) < len(queues):
        return None
    return ProducerPlan(coordinator, queue, target)


def push_plan(broker: Broker, items: Sequence[PushItem]) -> Plan | None:
    """As `producer_plan`, but nothing is forwarded past journalled messages of its partitions: they come first."""
    journal = broker.journal
    if journal is not None and journal.holds_any({(item.queue, item.partition) for item in items}):
        return None
    return producer_plan(broker, [item.queue for item in items])


def give_back(broker: Broker, answer: bytes) -> None:
    """The answer of a pop, or a part of it, has come for nobody: end its lease."""
    lease, queue = _LEASE.search(answer), _OF_QUEUE.search(answer)
    if lease is not None and queue is not None:
        broker.give_back(lease[1].decode(), _decode_text(queue[1]))
