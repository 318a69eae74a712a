"""How many messages a consumer asks for at once, if it is to find that out by itself (`batch("auto")`).

What a batch costs beside its handling is the time that the worker waits for it. It should be small against the handling
and no smaller: a worker that takes more than that keeps messages from others, acknowledges them later, and has more to
do again after a crash. A queue whose messages are in many partitions gives few of each, so partitions are counted, too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_MOST: Final = 1000
_MOST_PARTITIONS: Final = 100
_WORK: Final = 10  # times the wait for a batch is what its handling should take
# What a batch costs the server counts also if nobody waits; a wait for messages that are not pushed yet does not.
_LEAST_WAIT_S: Final = 0.002
_MOST_WAIT_S: Final = 0.02
_NEWEST: Final = 0.2


class Size(NamedTuple):
    """Most messages, of most partitions."""

    batch: int
    partitions: int = 1


class BatchSize:
    """`now` is what to ask for. A number of partitions that was asked for stays."""

    def __init__(self, partitions: int | None = None) -> None:
        self.now = Size(1, partitions or 1)
        self._partitions = partitions
        self._wait_s = _LEAST_WAIT_S

    def learn(self, got: Size, waited_s: float, handled_s: float, *, failed: bool = False) -> None:
        """A batch came after so long and was handled in so long. One that `failed` as a whole: who is to blame is found
        out with batches of one."""
        self._wait_s += (min(max(waited_s, _LEAST_WAIT_S), _MOST_WAIT_S) - self._wait_s) * _NEWEST
        goal_s = _WORK * self._wait_s
        batch, partitions = self.now
        if failed:
            batch = partitions = 1
        elif handled_s > 2 * goal_s:
            batch = max(1, batch // 2)
            partitions = min(partitions, batch)
        elif handled_s < goal_s / 2:
            # There may be more of what it is full of.
            if got.batch >= batch:
                batch = min(2 * batch, _MOST)
            elif got.partitions >= partitions:
                partitions = min(2 * partitions, _MOST_PARTITIONS, batch)
        self.now = Size(batch, self._partitions or partitions)
