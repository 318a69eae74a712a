"""Servers, consumers and the heartbeats between them on a virtual clock, with the real tracker and routes on each."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from queenmq.cluster.affinity import AffinityRoutes, Route
from queenmq.cluster.coordinator_bounds import CoordinatorBounds
from queenmq.cluster.imbalance import imbalance
from queenmq.cluster.load_tracker import CPU_WEIGHT, OUTSTANDING_WEIGHT, POLL_WEIGHT, LoadTracker, Sample, ServerLoad

HEARTBEAT_S = 1.0


@dataclass
class Costs:
    """What requests take: CPU seconds where they are served and where they are passed on, and time at work."""

    serve_s: float = 0.002
    pass_on_s: float = 0.0003
    work_s: float = 0.02
    noise: float = 0.05  # of the CPU, up and down


@dataclass
class Server:
    name: str
    tracker: LoadTracker
    routes: AffinityRoutes
    parked: int = 0
    working: int = 0
    cpu_s: float = 0.0
    sample: Sample = Sample(0, 0, 0.0)
    started: bool = True

    @property
    def load(self) -> float:
        """The true one, at the last heartbeat."""
        polls, outstanding, cpu = self.sample
        return polls * POLL_WEIGHT + outstanding * OUTSTANDING_WEIGHT + cpu * CPU_WEIGHT


@dataclass
class Balance:
    seed: int
    servers: int = 3
    costs: Costs = field(default_factory=Costs)
    settings: CoordinatorBounds = field(default_factory=CoordinatorBounds)

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self.now = 0.0
        self._coming: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()
        self.nodes = [self._server(f"s{number}") for number in range(self.servers)]
        self._by_name = {node.name: node for node in self.nodes}
        self.history: list[tuple[float, float]] = []  # when, imbalance of the true loads averaged like the reports
        self.moves: Counter[int] = Counter()  # by minute
        self._moved = 0
        self._last: dict[object, str] = {}
        self._watch = LoadTracker(self.settings, "s0")
        for node in self.nodes:
            self.after(self.chance.random() * HEARTBEAT_S, self._heartbeat, node)
        self.after(HEARTBEAT_S, self._look)

    def _server(self, name: str) -> Server:
        tracker = LoadTracker(self.settings, name)
        tracker.see(f"s{number}" for number in range(self.servers))
        return Server(name, tracker, AffinityRoutes(self.settings, tracker, self.chance.random))

    def after(self, delay_s: float, action: Callable[..., None], *given: Any) -> None:
        heapq.heappush(self._coming, (self.now + delay_s, next(self._numbers), action, given))

    def run(self, seconds: float) -> None:
        end, coming = self.now + seconds, self._coming
        while coming and coming[0][0] <= end:
            self.now, _, action, given = heapq.heappop(coming)
            action(*given)
        self.now = end

    def consume(self, at: int, key: object, poll_s: tuple[float, float]) -> None:
        """A consumer of the key that is connected to a server and polls for ever; each poll ends after that time."""

        front, costs, by_name, last, after = self.nodes[at], self.costs, self._by_name, self._last, self.after
        uniform, work_s = self.chance.uniform, self.costs.work_s

        def poll() -> None:
            route = front.routes.route(key, self.now)
            there = route.server
            serving = by_name[there.id]
            route.began(there)
            last[key] = there.id
            serving.parked += 1
            if serving is not front:
                front.cpu_s += costs.pass_on_s
            after(uniform(*poll_s), woken, route, there, serving)

        def woken(route: Route, there: ServerLoad, serving: Server) -> None:
            route.ended(there)
            serving.parked -= 1
            serving.working += 1
            serving.cpu_s += costs.serve_s
            after(work_s, worked, serving)

        def worked(serving: Server) -> None:
            serving.working -= 1
            poll()

        after(self.chance.random() * 0.1, poll)

    def keys_at(self, server: str) -> list[object]:
        """Whose last poll went there."""
        return [key for key, there in self._last.items() if there == server]

    def _heartbeat(self, node: Server) -> None:
        cpu = node.cpu_s / HEARTBEAT_S + self.chance.uniform(0, self.costs.noise)
        node.cpu_s = 0.0
        node.sample = Sample(node.parked, node.working, cpu)
        self._watch.report(node.name, node.sample)
        for other in self.nodes:
            if other is node:
                other.tracker.report(node.name, node.sample)
            elif self.chance.random() > 0.02:  # a packet may get lost
                self.after(self.chance.uniform(0, 0.01), other.tracker.report, node.name, node.sample)
        self.after(HEARTBEAT_S, self._heartbeat, node)

    def _look(self) -> None:
        self.history.append((self.now, imbalance([load.score for load in self._watch])))
        moved = sum(node.routes.migrated + node.routes.broken for node in self.nodes)
        self.moves[int(self.now // 60)] += moved - self._moved
        self._moved = moved
        self.after(HEARTBEAT_S, self._look)

    def settled_after(self, below: float) -> float:
        """From when on the imbalance has been below."""
        above = [when for when, score in self.history if score >= below]
        return max(above, default=0.0)
