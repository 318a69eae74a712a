"""How busy the servers of the cluster are, as this one sees it.

Reports come with the heartbeats, once a second, and are averaged, so they are about the past. What this server itself
has sent to each of them it knows better: the long polls that it has placed there count as soon as they are placed, and
the part of them that the average has by now is taken off again. In the same way the other work of what is moved from
one server to another counts at once, by its share of the requests. Without that, every new consumer of a second would
be sent to the same server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from queenmq.cluster.circuit_breaker import CircuitBreaker
from queenmq.cluster.coordinator_bounds import CoordinatorBounds
from queenmq.cluster.imbalance import relief

OUTSTANDING_WEIGHT = 0.4 / 100
POLL_WEIGHT = 0.3 / 200
CPU_WEIGHT = 0.3
FADE = 0.9  # a second


class Sample(NamedTuple):
    """What a server says of itself. `cpu` is the share of one core that its process uses."""

    parked_polls: int
    outstanding_requests: int
    cpu: float


class Rate:
    """Events of about the last ten seconds; older ones fade."""

    __slots__ = ("_at", "_count")

    def __init__(self) -> None:
        self._count = 0.0
        self._at = 0.0

    def note(self, now: float) -> None:
        self._count = self.at(now) + 1
        self._at = now

    def at(self, now: float) -> float:
        return self._count * FADE ** (now - self._at) if self._count else 0.0


class ServerLoad:
    __slots__ = (
        "averaged",
        "breaker",
        "cpu",
        "id",
        "life",
        "moved",
        "outstanding",
        "placed",
        "polls",
        "reported",
        "requests",
        "seen",
        "there",
        "url",
    )

    def __init__(self, id: str, breaker: CircuitBreaker) -> None:
        self.id = id
        self.breaker = breaker
        self.url = ""
        self.life: object = None
        self.reported = False
        self.seen = False  # it lives and takes requests of others
        self.polls = self.outstanding = self.cpu = 0.0
        self.placed = 0  # long polls through this server that belong there
        self.there = 0  # that are there
        self.averaged = 0.0  # the average of `there` over the same reports
        self.requests = Rate()  # that this server sends there
        self.moved = 0.0  # load that was moved there, or away, and is not in the reports yet

    @property
    def score(self) -> float:
        """By its reports alone."""
        return self.work + self.polls * POLL_WEIGHT

    @property
    def expected(self) -> float:
        """The score when everything has arrived that was placed there."""
        return max(0.0, self.score + (self.placed - self.averaged) * POLL_WEIGHT + self.moved)

    @property
    def work(self) -> float:
        """The part of the score that is not long polls."""
        return self.outstanding * OUTSTANDING_WEIGHT + self.cpu * CPU_WEIGHT

    def report(self, sample: Sample, life: object, smoothing: float) -> None:
        """The first report of a life counts whole, but for the CPU: a server that starts is busy with itself."""
        if not self.reported or life != self.life:
            smoothing = 1.0
            self.cpu = 0.0
        else:
            self.cpu += (sample.cpu - self.cpu) * smoothing
        self.reported, self.life = True, life
        self.polls += (sample.parked_polls - self.polls) * smoothing
        self.outstanding += (sample.outstanding_requests - self.outstanding) * smoothing
        self.averaged += (self.there - self.averaged) * smoothing
        self.moved -= self.moved * smoothing


class LoadTracker:
    def __init__(self, bounds: CoordinatorBounds, local: str) -> None:
        self._bounds = bounds
        self._loads: dict[str, ServerLoad] = {}
        self._living: set[str] = {local}
        self.local = self.of(local)

    def __iter__(self) -> Iterator[ServerLoad]:
        return iter(self._loads.values())

    def of(self, server: str) -> ServerLoad:
        load = self._loads.get(server)
        if load is None:
            load = self._loads[server] = ServerLoad(server, CircuitBreaker(self._bounds))
            load.seen = server in self._living
        return load

    def report(self, server: str, sample: Sample, life: object = None) -> None:
        """A heartbeat. `life` changes when the server has restarted: then nothing of before counts."""
        self.of(server).report(sample, life, self._bounds.smoothing)

    def see(self, living: Iterable[str]) -> None:
        """These, and this server, live and take requests; all others are out."""
        self._living = {self.local.id, *living}
        for load in self._loads.values():
            load.seen = load.id in self._living

    def forget(self, known: Iterable[str]) -> None:
        """Drop the servers that are not known any more."""
        names = {*known, self.local.id}
        for server in [server for server in self._loads if server not in names]:
            del self._loads[server]

    def usable(self, load: ServerLoad, now: float) -> bool:
        if load is self.local:
            return True
        return load.seen and load.reported and load.breaker.allows(now)

    def least_loaded(
        self, now: float, among: Iterable[ServerLoad] | None = None, tried: Iterable[str] = ()
    ) -> ServerLoad | None:
        """Of those that can be used and were not tried; this one if it is among them and not worse by the threshold."""
        best: ServerLoad | None = None
        lowest = 0.0
        local_in = False
        for load in self._loads.values() if among is None else among:
            if load.id in tried or not self.usable(load, now):
                continue
            if load is self.local:
                local_in = True
            expected = load.expected
            if best is None or expected < lowest:
                best, lowest = load, expected
        if local_in and relief(self.local.expected, lowest) <= self._bounds.forward_threshold:
            return self.local
        return best
