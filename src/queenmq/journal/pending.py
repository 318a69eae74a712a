"""Which pushes are in the journal, in memory: their order, their partitions, and the requests that wait for them.

A push is in line to be replayed, or parked: it could not be stored at its last try, or one before it in a partition
could not. Or it is locked: it needs another key. What is behind a parked or locked push in its partitions waits, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from queenmq.clock import SYSTEM, Clock
from queenmq.journal.files import JournalFiles, RecordRef
from queenmq.journal.push_records import Partition, mark_of

_BEHIND = float("inf")  # when to try what is behind something else: not before that


@dataclass(slots=True, eq=False, kw_only=True)
class JournalledPush:
    """A push in the journal. `ref` is known once it is on disk; `marks` are None if it may be about any partition."""

    operation_id: str
    count: int
    partitions: tuple[Partition, ...]
    marks: tuple[int, ...] | None
    files: JournalFiles
    ref: RecordRef | None = None
    written: asyncio.Future[RecordRef | None] | None = None
    needs_key: str | None = None  # the fingerprint of the key that it waits for
    number: int = 0  # pushes are replayed in the order of their numbers
    tries: int = 0
    due: float = 0.0  # when it is tried again, if it is parked
    queues: Mapping[str, int] = field(default_factory=dict)  # how many of its messages each queue gets, if known


class PendingPushes:
    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._number = 0
        self.line: dict[int, JournalledPush] = {}
        self.parked: dict[int, JournalledPush] = {}
        self.locked: list[JournalledPush] = []
        self.by_id: dict[str, JournalledPush] = {}
        self.messages = 0
        self.messages_of: Counter[str] = Counter()  # by queue
        self.partitions: dict[Partition, int] = {}  # how many pushes each has, without locked ones
        self.locked_marks: dict[int, int] = {}  # and the number of the first push with that mark
        self.locked_all: int | None = None  # the number of the first push that may be about any partition
        self._parked_partitions: set[Partition] = set()
        self._waiting: dict[Partition, list[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self.line) + len(self.parked) + len(self.locked)

    def __iter__(self) -> Iterator[JournalledPush]:
        yield from self.line.values()
        yield from self.parked.values()
        yield from self.locked

    # In and out

    def add(self, push: JournalledPush) -> None:
        self._number += 1
        push.number = self._number
        self.messages += push.count
        self.messages_of.update(push.queues)
        if push.operation_id:
            self.by_id[push.operation_id] = push
        if push.needs_key is not None:
            self._lock(push)
            return
        self.line[push.number] = push
        for partition in push.partitions:
            self.partitions[partition] = self.partitions.get(partition, 0) + 1

    def remove(self, push: JournalledPush) -> bool:
        """False if it was removed before. Requests that wait for its partitions may go on."""
        if self.line.pop(push.number, None) is None:
            if self.parked.pop(push.number, None) is None:
                return False
            self._parked_partitions = {partition for one in self.parked.values() for partition in one.partitions}
        self.by_id.pop(push.operation_id, None)
        self.messages -= push.count
        for queue, count in push.queues.items():
            self.messages_of[queue] -= count
            if not self.messages_of[queue]:
                del self.messages_of[queue]
        for partition in push.partitions:
            self.partitions[partition] -= 1
            if not self.partitions[partition]:
                del self.partitions[partition]
                self._wake(partition)
        return True

    def _lock(self, push: JournalledPush) -> None:
        self.locked.append(push)
        if push.marks is None:
            self.locked_all = self.locked_all or push.number
            return
        for mark in push.marks:
            self.locked_marks.setdefault(mark, push.number)

    def remove_locked(self, push: JournalledPush) -> None:
        """Its key is given up: what is behind it may go on."""
        self.locked.remove(push)
        self.by_id.pop(push.operation_id, None)
        self.messages -= push.count
        still, self.locked_marks, self.locked_all, self.locked = self.locked, {}, None, []
        for one in still:
            self._lock(one)
        self.try_behind()

    # Waiting behind them

    def holds(self, partitions: Iterable[Partition]) -> bool:
        """Whether any of the partitions has journalled messages."""
        pending, locked = self.partitions, self.locked_marks
        if self.locked_all is not None:
            return True
        if not pending and not locked:
            return False
        return any(one in pending or (locked and mark_of(*one) in locked) for one in partitions)

    async def turn(self, partitions: Iterable[Partition], timeout_s: float) -> bool:
        """Return True when the partitions have no journalled messages any more, False if that takes too long.

        When it returns True, nothing of them is journalled at this very moment.
        """
        wanted = set(partitions)
        deadline = self._clock.monotonic() + timeout_s
        while self.holds(wanted):
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0 or self._is_stuck(wanted) or not await self._wait(wanted & self.partitions.keys(), left_s):
                return False
        return True

    def _is_stuck(self, partitions: set[Partition]) -> bool:
        """Whether waiting for the partitions makes no sense."""
        if self.locked_all is not None or not self._parked_partitions.isdisjoint(partitions):
            return True
        return bool(self.locked) and any(mark_of(*one) in self.locked_marks for one in partitions)

    async def _wait(self, partitions: Iterable[Partition], timeout_s: float) -> bool:
        waiting = []
        for partition in partitions:
            cleared = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(partition, []).append(cleared)
            waiting.append(cleared)
        with suppress(TimeoutError):
            async with self._clock.timeout(timeout_s):
                await asyncio.wait(waiting)
        late = [cleared for cleared in waiting if not cleared.done()]
        for cleared in late:
            cleared.cancel()
        return not late

    def _wake(self, partition: Partition) -> None:
        for cleared in self._waiting.pop(partition, ()):
            if not cleared.done():
                cleared.set_result(None)

    def count_in(self, queue: str, partition: str | None) -> dict[str, int]:
        """How many journalled pushes a queue has, by partition; or only those of one partition."""
        if partition is None:
            return {other: count for (name, other), count in self.partitions.items() if name == queue}
        count = self.partitions.get((queue, partition), 0)
        count += sum(mark_of(queue, partition) in (push.marks or ()) for push in self.locked)
        return {partition: count} if count else {}

    # Order of the replay

    def park_if_behind(self, push: JournalledPush) -> bool:
        """Park a push that is behind a parked or locked one; returns whether it is."""
        if self._is_behind(push):
            self.park(push, _BEHIND)
            return True
        return False

    def _is_behind(self, push: JournalledPush) -> bool:
        if not self._parked_partitions.isdisjoint(push.partitions):
            return True
        if self.locked_all is not None and self.locked_all < push.number:
            return True
        locked = self.locked_marks
        return bool(locked) and any(locked.get(mark, push.number) < push.number for mark in push.marks or ())

    def park(self, push: JournalledPush, until: float) -> None:
        push.due = until
        if self.line.pop(push.number, None) is None:
            return
        self.parked[push.number] = push
        self._parked_partitions.update(push.partitions)
        # Requests that wait for its partitions would wait in vain: they are journalled behind it.
        for partition in push.partitions:
            self._wake(partition)

    def unpark(self, now: float) -> bool:
        """Put what is due back into the line, in its place, and what may be behind it. False if nothing is due."""
        if not any(push.due <= now for push in self.parked.values()):
            return False
        failed = {number: push for number, push in self.parked.items() if now < push.due < _BEHIND}
        free = {number: push for number, push in self.parked.items() if number not in failed}
        self.line = dict(sorted((free | self.line).items()))
        self.parked = failed
        self._parked_partitions = {partition for push in failed.values() for partition in push.partitions}
        return True

    def try_behind(self) -> None:
        """What was parked because of another push is due now."""
        for push in self.parked.values():
            if push.due == _BEHIND:
                push.due = 0.0
