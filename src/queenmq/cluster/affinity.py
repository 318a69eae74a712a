"""Consumer routes: the consumers of one queue and group go to one server, as long as that one can bear it.

Every server chooses for itself, and all choose the same: of the servers that are no more loaded than others by the
threshold, the one that a hash of the key and the server puts first. It stays while it is used, unless its server is
overloaded: then it migrates with a probability that grows with what is gained, and beyond a second threshold at once.
Keys that are served here follow the other rule, that this server keeps what it serves no worse than others. A key that
is elsewhere than where the hash puts it, because servers came and went, goes there when that server can bear it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable

from queenmq.cluster.coordinator_bounds import CoordinatorBounds
from queenmq.cluster.imbalance import relief
from queenmq.cluster.load_tracker import POLL_WEIGHT, LoadTracker, Rate, ServerLoad
from queenmq.cluster.rebalancing import Rebalancing

_GATHER_EVERY_S = 2.0


class Route:
    """Where a key goes. It outlives its place in the table while long polls of it are under way."""

    __slots__ = ("gather_at", "polls", "requests", "server", "settled_at", "used_at")

    def __init__(self, server: ServerLoad, now: float) -> None:
        self.server = server
        self.used_at = now
        self.settled_at = now
        self.gather_at = now + _GATHER_EVERY_S
        self.polls = 0
        self.requests = Rate()

    def used(self, now: float) -> None:
        self.used_at = now
        self.requests.note(now)
        self.server.requests.note(now)

    def began(self, there: ServerLoad) -> None:
        """A long poll of the key was sent to a server."""
        self.polls += 1
        self.server.placed += 1
        there.there += 1

    def ended(self, there: ServerLoad) -> None:
        self.polls -= 1
        self.server.placed -= 1
        there.there -= 1

    def move(self, server: ServerLoad, now: float) -> None:
        """To another server, and with it what it makes of the load of the present one."""
        before = self.server
        work = self._work(now)
        before.placed -= self.polls
        before.moved -= work
        server.placed += self.polls
        server.moved += work
        self.server = server

    def weight(self, now: float) -> float:
        """What it makes of the load of its server, as far as this server has part in it."""
        return self.polls * POLL_WEIGHT + self._work(now)

    def _work(self, now: float) -> float:
        requests = self.server.requests.at(now)
        return self.server.work * min(1.0, self.requests.at(now) / requests) if requests else 0.0


class AffinityRoutes:
    def __init__(self, bounds: CoordinatorBounds, tracker: LoadTracker, random: Callable[[], float]) -> None:
        self._bounds = bounds
        self._tracker = tracker
        self._random = random
        self._rebalancing = Rebalancing(bounds, tracker, random)
        self._routes: OrderedDict[Hashable, Route] = OrderedDict()  # the least recently used first
        self._groups: OrderedDict[str, OrderedDict[str, float]] = OrderedDict()  # by queue, when each was last seen
        self.assigned = 0
        self.migrated = 0
        self.broken = 0
        self.gathered = 0

    def __len__(self) -> int:
        return len(self._routes)

    def queue_key(self, queue: str, group: str, now: float) -> Hashable:
        """(queue, group), or the queue alone if it has many groups."""
        groups = self._groups.get(queue)
        if groups is None:
            groups = self._groups[queue] = OrderedDict()
            if len(self._groups) > self._bounds.affinity_max:
                self._groups.popitem(last=False)
        most = self._bounds.queue_threshold
        if group in groups or len(groups) <= most:
            groups[group] = now
        return queue if len(groups) > most else (queue, group)

    def route(self, key: Hashable, now: float) -> Route:
        """Where a request of the key goes now."""
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = Route(self._shared(key, now), now)
            self.assigned += 1
            if len(self._routes) > self._bounds.affinity_max:
                self._routes.popitem(last=False)
            route.used(now)
            return route
        self._routes.move_to_end(key)
        if now - route.used_at > self._bounds.affinity_ttl_s or not self._tracker.usable(route.server, now):
            route.move(self._shared(key, now), now)
            route.settled_at = now
            self.assigned += 1
        elif now >= route.settled_at:
            self._evaluate(key, route, now)
        route.used(now)
        return route

    def expire(self, now: float) -> None:
        """Drop what was not used for long."""
        oldest = now - self._bounds.affinity_ttl_s
        while self._routes and next(iter(self._routes.values())).used_at < oldest:
            self._routes.popitem(last=False)
        for queue, groups in list(self._groups.items()):
            for group in [group for group, seen in groups.items() if seen < oldest]:
                del groups[group]
            if not groups:
                del self._groups[queue]

    def _best(self, now: float) -> ServerLoad:
        return self._tracker.least_loaded(now) or self._tracker.local

    def _shared(self, key: Hashable, now: float) -> ServerLoad:
        """What every server chooses: the first for the key among those that are within the threshold."""
        usable = [load for load in self._tracker if self._tracker.usable(load, now)]
        lowest = min(load.expected for load in usable)
        near = [load for load in usable if relief(load.expected, lowest) <= self._bounds.forward_threshold]
        return max(near, key=lambda load: rank(key, load.id))

    def _gather(self, key: Hashable, route: Route, now: float) -> None:
        """To the server where all others send the key, if that one is hardly more loaded then."""
        route.gather_at = now + _GATHER_EVERY_S
        usable = [load for load in self._tracker if self._tracker.usable(load, now)]
        first = max(usable, key=lambda load: rank(key, load.id))
        if first is route.server:
            return
        lowest = min(load.expected for load in usable)
        if relief(first.expected + route.weight(now), lowest) <= self._bounds.forward_threshold / 2:
            self.gathered += 1
            self._move(route, first, now)

    def _evaluate(self, key: Hashable, route: Route, now: float) -> None:
        at_home = route.server is self._tracker.local
        if at_home or route.server.expected >= self._bounds.migrate_threshold:
            best = self._best(now) if at_home else self._way_out(route.server, now)
            if best is not route.server and self._relieved(route, best, now):
                return
        target = self._rebalancing.target(route.server, lambda: route.weight(now), now)
        if target is not None:
            self.migrated += 1
            self._move(route, target, now)
            route.gather_at = now + self._bounds.affinity_ttl_s
        elif now >= route.gather_at:
            self._gather(key, route, now)

    def _way_out(self, server: ServerLoad, now: float) -> ServerLoad:
        """Here only if that is enough of a relief: that another would be hardly better does not make it one."""
        local = self._tracker.local
        best = self._best(now)
        if best is local and relief(server.expected, local.expected) <= self._bounds.min_improvement:
            return self._tracker.least_loaded(now, tried=(local.id,)) or local
        return best

    def _relieved(self, route: Route, best: ServerLoad, now: float) -> bool:
        """Whether the key has gone to a better server."""
        bounds = self._bounds
        load = route.server.expected
        gain = relief(load, best.expected)
        if load >= bounds.break_threshold:
            # From one full server to another only if that helps.
            if best.expected >= bounds.break_threshold and gain <= bounds.min_improvement:
                return False
            self.broken += 1
        else:
            least = bounds.min_improvement if load >= bounds.migrate_threshold else bounds.forward_threshold
            if gain <= least or self._random() >= gain:
                return False
            self.migrated += 1
        self._move(route, best, now)
        # What the load has moved is not brought back at once, or both would go on for ever.
        route.gather_at = now + bounds.affinity_ttl_s
        return True

    def _move(self, route: Route, server: ServerLoad, now: float) -> None:
        route.move(server, now)
        route.settled_at = now + self._bounds.settle_s


def rank(key: Hashable, server: str) -> bytes:
    """The same on every server, and another order of the servers for each key."""
    return hashlib.blake2b(f"{key!r} {server}".encode(errors="surrogatepass"), digest_size=8).digest()
