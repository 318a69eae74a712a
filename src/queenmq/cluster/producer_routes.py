"""Producer routes: what is written goes to a server that has consumers of the queue, so that they are woken at once."""

from __future__ import annotations

from collections.abc import Iterable

from queenmq.cluster.load_tracker import LoadTracker, ServerLoad
from queenmq.cluster.own_consumers import OwnConsumers
from queenmq.cluster.presence import Presence


class ProducerRoutes:
    def __init__(self, tracker: LoadTracker, presence: Presence, own: OwnConsumers) -> None:
        self._tracker = tracker
        self._presence = presence
        self._own = own

    def route(self, queue: str, now: float, tried: Iterable[str] = ()) -> ServerLoad | None:
        """The least loaded server that has consumers of the queue; None for this one, which is best if it has some
        itself, and if nobody has."""
        if queue in self._own:
            return None
        servers = self._presence.servers_for(queue)
        if not servers:
            return None
        among = [self._tracker.of(server) for server in servers]
        return self._tracker.least_loaded(now, among, tried)
