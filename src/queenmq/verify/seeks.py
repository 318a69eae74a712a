"""The seeks of a group: into which epochs they part its history, and what they may have passed over."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

from queenmq.verify.history import FOREVER, Seek


class Sought(NamedTuple):
    begun: float
    ended: float
    """FOREVER if nobody knows whether it took place."""
    request: Seek


class Seeks:
    """The seeks of a group, in the order of their beginnings. What overlaps one belongs to no epoch.

    One with an unknown outcome begins no epoch. It may move each partition once, at any time after its beginning.
    """

    def __init__(self) -> None:
        self.all: list[Sought] = []
        self.certain: list[Sought] = []
        self._begun: list[float] = []
        self._ended: list[float] = []
        self._unknown: list[float] = []
        self._overs: list[float] = []
        self._earliest: list[float] = []
        self._floors: list[float] = [-FOREVER]
        self._unknown_forward = FOREVER
        self.last_floor = -FOREVER
        """What was pushed after that has certainly not been passed over when all is done."""

    def add(self, one: Sought) -> None:
        self.all.append(one)
        if one.ended < FOREVER:
            self.certain.append(one)
            self._begun.append(one.begun)
            self._ended.append(max([one.ended, *self._ended[-1:]]))
        else:
            self._unknown.append(one.begun)

    def arrange(self, seen: Callable[[Seek], float]) -> None:
        """When all are known. `seen` is when somebody had the message of a seek to its moment."""
        ends = sorted((one.ended, one.begun) for one in self.all)
        self._overs = [over for over, _ in ends]
        self._earliest = list(accumulate((begun for _, begun in reversed(ends)), min))[::-1]
        back = max((one.begun for one in self.certain if one.request.to == "beginning"), default=-FOREVER)
        for number, one in enumerate(self.certain):
            floor = {"beginning": -FOREVER, "end": one.ended}.get(one.request.to, seen(one.request))
            overlaps = number > 0 and self._ended[number - 1] >= one.begun
            self._floors.append(max(floor, self._floors[-1]) if overlaps else floor)
            if one.ended >= back:
                self.last_floor = max(self.last_floor, floor)
        forward = [one.begun for one in self.all if one.ended == FOREVER and one.request.to != "beginning"]
        if forward:
            self._unknown_forward, self.last_floor = min(forward), FOREVER

    def first_over_after(self, moment: float) -> float:
        """When the first of those began that were not over at that moment; FOREVER if there is none."""
        index = bisect_right(self._overs, moment)
        return self._earliest[index] if index < len(self._earliest) else FOREVER

    def unknown_before(self, ended: float) -> int:
        """How many with an unknown outcome may have moved a partition by then."""
        return bisect_left(self._unknown, ended)

    def epoch(self, begun: float, ended: float) -> int | None:
        before = bisect_left(self._ended, begun)
        return before if bisect_left(self._begun, ended) == before else None

    def floor(self, epoch: int, ended: float) -> float:
        """What was pushed after that has certainly not been passed over, in an epoch and by then."""
        return FOREVER if ended > self._unknown_forward else self._floors[epoch]

    def alone(self, epoch: int) -> Sought | None:
        """The seek that began an epoch, unless it overlapped another one."""
        if epoch == 0 or (epoch > 1 and self._ended[epoch - 2] >= self._begun[epoch - 1]):
            return None
        return self.certain[epoch - 1]
