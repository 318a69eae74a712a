"""Where to begin reading the outbox. No I/O."""

from __future__ import annotations

from collections import deque
from typing import Final

_MOST_MARKS: Final = 1000


class OutboxFloor:
    """A number below which no commit of the outbox is left to be pushed.

    It saves walking over the removed ones, which PostgreSQL keeps while somebody holds the horizon back. It must never
    hide a commit that got its number, but becomes visible later. So it is raised only to a number that was visible when
    a transaction of this server began, and only once all transactions before that one have ended: one that had drawn a
    lower number by then was among them.
    """

    def __init__(self) -> None:
        self.number = 0
        self._marks: deque[tuple[int, int]] = deque()

    def reset(self) -> None:
        self.number = 0
        self._marks.clear()

    def moved(self, last: int, transaction: int, finished_below: int) -> None:
        """Everything that was visible from the floor up to the number `last`, or a part of its messages, was moved by
        `transaction`, which got its id after it had read; all transactions below `finished_below` had ended before."""
        while self._marks and self._marks[0][1] <= finished_below:
            number, _ = self._marks.popleft()
            self.number = max(self.number, min(number + 1, last))
        if len(self._marks) < _MOST_MARKS:
            self._marks.append((last, transaction))
