"""Which server serves a request best. It decides and counts; `http.forwarder` forwards requests.

Everything it goes by is advice: a wrong decision costs a detour, never a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable

from queenmq.cluster.affinity import AffinityRoutes, Route
from queenmq.cluster.coordinator_bounds import CoordinatorBounds
from queenmq.cluster.imbalance import BALANCED_BELOW, imbalance
from queenmq.cluster.load_tracker import LoadTracker, Sample, ServerLoad
from queenmq.cluster.membership import Address, Member
from queenmq.cluster.messages import Heartbeat
from queenmq.cluster.producer_routes import ProducerRoutes
from queenmq.cluster.state import SharedState

FAILURES = ("unreachable", "refused", "overloaded", "no_connection_left", "would_journal")
_EXPIRE_EVERY_S = 10.0


class Coordinator:
    def __init__(
        self, bounds: CoordinatorBounds, state: SharedState, *, enabled: bool, random: Callable[[], float]
    ) -> None:
        self.enabled = enabled
        self.tracker = LoadTracker(bounds, state.server_id)
        self.consumers = AffinityRoutes(bounds, self.tracker, random)
        self._members = state.members
        self._producers = ProducerRoutes(self.tracker, state.presence, state.own_consumers)
        self._received: dict[str, tuple[object, float]] = {}
        self._expire_due = 0.0
        self.forwarded = 0
        self.fallbacks = 0
        self.failed_attempts = Counter(dict.fromkeys(FAILURES, 0))  # by reason

    @property
    def local(self) -> ServerLoad:
        return self.tracker.local

    def observe(self, now: float) -> None:
        """Take in the heartbeats that have come, and who lives. To be called several times a heartbeat."""
        members = self._members.members()
        for member in members:
            stamp = (member.heartbeat.started_at_ms, member.heartbeat_at)
            if self._received.get(member.id) != stamp:
                self._received[member.id] = stamp
                self.tracker.of(member.id).url = url_of(member.http_address)
                self.tracker.report(member.id, sample_of(member.heartbeat), member.heartbeat.started_at_ms)
        self.tracker.see(member.id for member in members if _takes_requests(member))
        if now >= self._expire_due:
            self._expire_due = now + _EXPIRE_EVERY_S
            self.consumers.expire(now)
            known = {member.id for member in members}
            self.tracker.forget(known)
            self._received = {server: stamp for server, stamp in self._received.items() if server in known}

    def measured(self, sample: Sample) -> None:
        """The load that this server reports to the others."""
        self.tracker.report(self.local.id, sample)

    def consumer_route(self, key: Hashable, now: float) -> Route:
        return self.consumers.route(key, now)

    def producer_route(self, queue: str, now: float, tried: Iterable[str] = ()) -> ServerLoad | None:
        """None: here."""
        return self._producers.route(queue, now, tried)

    def next_best(self, now: float, tried: Iterable[str]) -> ServerLoad | None:
        """For a consumer whose server has failed; None: here."""
        best = self.tracker.least_loaded(now, tried=tried)
        return None if best is self.local else best

    def http_address(self, server: str) -> Address | None:
        member = self._members.get(server)
        return None if member is None or not member.alive else member.http_address

    def balance(self, now: float) -> dict[str, object]:
        """The load of every known server, and how far apart those are that can be used."""
        loads = sorted(self.tracker, key=lambda load: load.id)
        spread = imbalance([load.score for load in loads if load.reported and self.tracker.usable(load, now)])
        return {
            "balanced": spread < BALANCED_BELOW,
            "imbalance_score": round(spread, 4),
            "coordinator_enabled": self.enabled,
            "forwarded": self.forwarded,
            "fallbacks": self.fallbacks,
            "affinity": {
                "routes": len(self.consumers),
                "assigned": self.consumers.assigned,
                "migrated": self.consumers.migrated,
                "broken": self.consumers.broken,
                "gathered": self.consumers.gathered,
            },
            "servers": [self._shown(load, now) for load in loads if load.reported],
        }

    def _shown(self, load: ServerLoad, now: float) -> dict[str, object]:
        return {
            "server_id": load.id,
            "url": load.url,
            "load_score": round(load.score, 4),
            "healthy": self.tracker.usable(load, now),
            "local": load is self.local,
            "parked_polls": round(load.polls, 1),
            "outstanding_requests": round(load.outstanding, 1),
            "cpu_percent": round(load.cpu * 100, 1),
            "circuit": load.breaker.state(now).value,
        }


def url_of(address: Address) -> str:
    host, port = address
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def sample_of(heartbeat: Heartbeat) -> Sample:
    return Sample(heartbeat.parked_polls, heartbeat.outstanding_requests, heartbeat.cpu_per_mille / 1000)


def _takes_requests(member: Member) -> bool:
    return member.alive and member.heartbeat.coordinates and member.heartbeat.http_port > 0
