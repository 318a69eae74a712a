"""What this server did, by queue, since it last said so: the source of rates and histories.

Counting costs a few additions a request and no database call. Another part takes the counts away at intervals and
stores them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from heapq import nlargest

from queenmq.clock import SYSTEM, Clock
from queenmq.core.consumer import Consumer

ALL_QUEUES = ""  # cannot be a queue's name
_MOST_QUEUES = 10_000
# Of a group in a queue, and of all of them; groups that come later have few.
MOST_READERS_OF_GROUP = 1000
_MANY_READERS = 10_000
_MOST_READERS = 2 * _MANY_READERS
_FEW_READERS = 10

Reader = tuple[str, str, str]
"""A consumer that reads: queue, group, and its tag."""


@dataclass(slots=True, kw_only=True)
class Counts:
    push_requests: int = 0
    push_messages: int = 0
    pop_requests: int = 0
    pop_messages: int = 0
    pop_empty: int = 0
    ack_requests: int = 0
    ack_success: int = 0
    ack_failed: int = 0
    dead_lettered: int = 0
    transactions: int = 0
    retained: int = 0
    evicted: int = 0
    db_errors: int = 0
    lag_count: int = 0
    lag_sum_ms: float = 0.0
    lag_max_ms: float = 0.0

    def add(self, other: Counts) -> None:
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lag_max_ms = max(self.lag_max_ms, other.lag_max_ms)


COUNTED = tuple(field.name for field in fields(Counts) if field.name != "lag_max_ms")


class Activity:
    """`total` is since the start; `take` gives what came since it was last called; `touched` are the queues that it was
    about. Queues beyond a bound count only in the total."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.total = Counts()
        self.touched: set[str] = set()
        self._clock = clock
        self._recent: dict[str, Counts] = {}
        self._unsaved: dict[str, Counts] = {}
        self._by_queue: dict[str, Counts] = {}
        self.readers: dict[Reader, Consumer] = {}  # who has popped since they were last taken
        self._readers_of: dict[tuple[str, str], int] = {}

    def of(self, queue: str) -> Counts:
        """Where to count what was done to `queue`, and changed it."""
        if queue != ALL_QUEUES:
            self.touched.add(queue)
        return self._of(queue)

    def _of(self, queue: str) -> Counts:
        counts = self._recent.get(queue)
        if counts is None:
            name = queue if len(self._recent) < _MOST_QUEUES else ALL_QUEUES
            counts = self._recent.setdefault(name, Counts())
        return counts

    def pushed(self, queue: str, requests: int, messages: int) -> None:
        counts = self.of(queue)
        counts.push_requests += requests
        counts.push_messages += messages

    def popped(self, queue: str, messages: int, oldest: datetime | None) -> None:
        """One pop; `oldest` is when the first of its messages was pushed."""
        if oldest is None:
            counts = self._of(queue)
            counts.pop_requests += 1
            counts.pop_empty += 1
            return
        counts = self.of(queue)
        counts.pop_requests += 1
        lag_ms = max(0.0, (self._clock.wall() - oldest.timestamp()) * 1000)
        counts.pop_messages += messages
        counts.lag_count += 1
        counts.lag_sum_ms += lag_ms
        if lag_ms > counts.lag_max_ms:
            counts.lag_max_ms = lag_ms

    def read_by(self, queue: str, group: str, consumer: Consumer) -> None:
        """A consumer asks for messages. Those of a group beyond a bound are not remembered."""
        reader, readers = (queue, group, consumer.tag), self.readers
        if reader not in readers:
            known = self._readers_of.get((queue, group), 0)
            most = MOST_READERS_OF_GROUP if len(readers) < _MANY_READERS else _FEW_READERS
            if known >= most or len(readers) >= _MOST_READERS:
                return
            self._readers_of[queue, group] = known + 1
        readers[reader] = consumer

    def take_readers(self) -> dict[Reader, Consumer]:
        """Who has popped since the last time."""
        readers, self.readers, self._readers_of = self.readers, {}, {}
        return readers

    def put_back_readers(self, readers: dict[Reader, Consumer]) -> None:
        """They could not be stored: the next time they are taken again, unless others have their places."""
        for (queue, group, _), consumer in readers.items():
            self.read_by(queue, group, consumer)

    def acked(self, outcomes: Iterable[tuple[str | None, str | None, bool, int]]) -> None:
        """(queue, problem, dead letter, messages) of acknowledgements."""
        counted, counts = ALL_QUEUES, self.of(ALL_QUEUES)
        for queue, problem, dead_lettered, messages in outcomes:
            if queue != counted:
                counted = queue or ALL_QUEUES
                counts = self.of(counted)
            if problem is None:
                counts.ack_success += messages
            else:
                counts.ack_failed += messages
            if dead_lettered:
                counts.dead_lettered += messages

    def finished(self, queue: str, messages: int, dead_lettered: int) -> None:
        """The rest of a lease was acknowledged."""
        counts = self.of(queue)
        counts.ack_success += messages
        counts.dead_lettered += dead_lettered

    def acked_requests(self, count: int) -> None:
        self.of(ALL_QUEUES).ack_requests += count

    def take(self) -> dict[str, Counts]:
        """What came since the last time, by queue, and all of it together under the empty name."""
        recent, self._recent = self._recent, {}
        together = Counts()
        for queue, counts in recent.items():
            together.add(counts)
            if queue != ALL_QUEUES and (queue in self._by_queue or len(self._by_queue) < _MOST_QUEUES):
                self._by_queue.setdefault(queue, Counts()).add(counts)
        self.total.add(together)
        recent[ALL_QUEUES] = together
        unsaved, self._unsaved = self._unsaved, {}
        for queue, counts in unsaved.items():
            recent.setdefault(queue, Counts()).add(counts)
        return recent

    def put_back(self, taken: dict[str, Counts]) -> None:
        """It could not be stored: the next `take` has it again."""
        self._unsaved = taken

    def busiest(self, most: int) -> dict[str, Counts]:
        """What was done to queues since the start and until the last `take`, of so many to which most was done."""
        if len(self._by_queue) <= most:
            return self._by_queue
        chosen = nlargest(most, self._by_queue.items(), key=lambda one: one[1].push_messages + one[1].pop_messages)
        return dict(chosen)

    def now(self) -> Counts:
        """The total with what was not yet taken."""
        whole = Counts()
        whole.add(self.total)
        for counts in self._recent.values():
            whole.add(counts)
        return whole
