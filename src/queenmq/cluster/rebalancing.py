"""What is done against an imbalance that stays, although no server is overloaded.

Keys are placed by what is known of the load at that moment, and what they grow to shows later. Below the threshold for
migration they would stay where they are for ever. So while the most loaded server is worse than the least loaded one
for longer than it takes a move to show, keys of the one go to the other, in rounds: in each of them every server moves
its share of half the difference, and then waits until that shows. It ends well below the difference at which it begins.
"""

from __future__ import annotations

from collections.abc import Callable

from queenmq.cluster.coordinator_bounds import CoordinatorBounds
from queenmq.cluster.imbalance import relief
from queenmq.cluster.load_tracker import LoadTracker, ServerLoad

LOOK_S = 1.0
MOST_KEYS = 20  # in a round: the least of keys weigh nothing
ENDS_AT = 2 / 3  # of the difference at which it begins
HELPS = 0.75  # a key that weighs more of the difference only turns it round


class Rebalancing:
    def __init__(self, bounds: CoordinatorBounds, tracker: LoadTracker, random: Callable[[], float]) -> None:
        self._settle_s = bounds.settle_s
        self._begins = max(bounds.min_improvement, bounds.forward_threshold)
        self._ends = self._begins * ENDS_AT
        self._tracker = tracker
        self._random = random
        self._look_due = 0.0
        self._uneven = False
        self._round_due = 0.0
        self._least: ServerLoad | None = None
        self._keys = 0  # that may still be moved in this round
        self._budget = 0.0  # what they may weigh

    def target(self, server: ServerLoad, weigh: Callable[[], float], now: float) -> ServerLoad | None:
        """Where a key that is at this server goes now; None if it stays. What goes is counted."""
        if now >= self._look_due:
            self._look_due = now + LOOK_S
            self._look(now)
        least = self._least
        if self._keys <= 0 or least is None or server is least:
            return None
        difference = relief(server.expected, least.expected)
        weight = weigh() / max(1.0, least.expected)
        if difference <= self._ends or weight > difference * HELPS:
            return None
        if weight > self._budget:
            # One more with the chance that keeps the mean, and the round is over.
            self._keys = 0
            return least if self._random() * weight < self._budget else None
        self._keys -= 1
        self._budget -= weight
        return least

    def _look(self, now: float) -> None:
        """Begin a round, if it is time for one."""
        usable = [load for load in self._tracker if load.reported and self._tracker.usable(load, now)]
        if not usable:
            return
        least = min(usable, key=_expected)
        difference = relief(max(map(_expected, usable)), least.expected)
        if difference <= (self._ends if self._uneven else self._begins):
            self._uneven = False
            self._keys = 0
        elif not self._uneven:
            self._uneven = True
            self._round_due = now + self._settle_s
        elif now >= self._round_due:
            self._round_due = now + self._settle_s
            self._least = least
            self._keys = MOST_KEYS
            self._budget = difference / 2 / len(usable)


def _expected(load: ServerLoad) -> float:
    return load.expected
