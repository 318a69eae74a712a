"""Where a request should go, where if that fails, and what is counted while it is there."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol
from urllib.parse import quote, unquote

from queenmq.broker.broker import Broker
from queenmq.cluster.coordinator import Coordinator
from queenmq.cluster.load_tracker import ServerLoad
from queenmq.http.peer_connection import Late
from queenmq.http.requests import PushItem
from queenmq.httpserver.messages import Header
from queenmq.ids import is_uuid

LEASE: Final = b"x-queen-lease"  # on the answer to a forwarded pop: the lease and the queue of its messages


class Plan(Protocol):
    @property
    def wait_s(self) -> float:
        """Longest time that the request may be held, beside the time for forwarding it."""

    @property
    def late(self) -> Late | None:
        """Called with the headers of an answer that no client waits for any more. If it is not None, a client that
        closes its sending side counts as gone."""

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


def lease_header(lease_id: str, queue: str) -> Header:
    return LEASE, f"{lease_id} {quote(queue, safe='')}".encode()


def give_back(broker: Broker, headers: Mapping[bytes, bytes]) -> None:
    """No client waits any more for the answer of a pop, which had these headers: end its lease."""
    lease_id, _, queue = headers.get(LEASE, b"").decode("latin-1").partition(" ")
    if is_uuid(lease_id) and queue:
        broker.give_back((lease_id, unquote(queue)))
