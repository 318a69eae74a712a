"""Where a request should go, where if that fails, and what is counted while it is there."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from queenmq.cluster.coordinator import Coordinator
from queenmq.cluster.load_tracker import ServerLoad
from queenmq.http.peer_connection import Late


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
