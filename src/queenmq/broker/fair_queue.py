"""What waits in a lane: keys take turns, so that many requests of one key do not keep those of others waiting."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """First in, first out within a key; one item of each key in turn between them."""

    def __init__(self, weigh: Callable[[Item], int]) -> None:
        self._weigh = weigh
        self._lines: OrderedDict[Hashable, deque[Item]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, key: Hashable, item: Item) -> None:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = deque()
        line.append(item)
        self._length += 1

    def take(self, count: int, weight: int, admit: Callable[[Item], bool] | None = None) -> list[Item]:
        """Up to `count` items of up to `weight` together, at least one if there is any that is admitted.

        A key whose next item is not admitted sits out this turn, so its order is kept. The key after the last one
        served is first in the next turn.
        """
        taken: list[Item] = []
        sitting_out: list[tuple[Hashable, deque[Item]]] = []
        while self._lines and len(taken) < count:
            key, line = next(iter(self._lines.items()))
            item = line[0]
            if taken and self._weigh(item) > weight:
                break
            if admit is not None and not admit(item):
                del self._lines[key]
                sitting_out.append((key, line))
                continue
            line.popleft()
            taken.append(item)
            weight -= self._weigh(item)
            if line:
                self._lines.move_to_end(key)
            else:
                del self._lines[key]
        for key, line in reversed(sitting_out):
            self._lines[key] = line
            self._lines.move_to_end(key, last=False)
        self._length -= len(taken)
        return taken
