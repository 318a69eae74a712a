"""What the consumers of a connection have got, for the thread in which kombu works."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from queue import Empty
from typing import TYPE_CHECKING, Any

from queenmq.client import Message, Reject

if TYPE_CHECKING:
    from queenmq.integrations.kombu.channel import Channel


@dataclass(slots=True)
class Delivery:
    """A message of which kombu has not said yet what becomes of it."""

    channel: Channel
    queue: str
    tag: str
    raw: dict[str, Any]
    settled: asyncio.Future[Reject | None] | None = None
    """Of a consumer's handler."""
    message: Message | None = None
    """Of a message that was popped by itself."""


class Inbox:
    """What has arrived for the thread that drains: the highest priority first, and of one priority the oldest."""

    def __init__(self) -> None:
        self._numbers = count()
        self._waiting: list[tuple[int, int, Delivery | BaseException]] = []
        self._changed = threading.Condition()

    def put(self, priority: int, what: Delivery | BaseException) -> None:
        with self._changed:
            heapq.heappush(self._waiting, (-priority, next(self._numbers), what))
            self._changed.notify_all()

    def check_again(self) -> None:
        """Something may be deliverable that was not."""
        with self._changed:
            self._changed.notify_all()

    def get(self, timeout_s: float | None) -> Delivery:
        """Raises Empty after the time, or what has ended a consumer."""
        with self._changed:
            if not self._changed.wait_for(self._has_deliverable, timeout_s):
                raise Empty
            entry = next(self._deliverable())
            self._waiting.remove(entry)
            heapq.heapify(self._waiting)
        if isinstance(entry[2], BaseException):
            raise entry[2]
        return entry[2]

    def take_back(self, channel: Channel, queue: str) -> list[Delivery]:
        """What nobody wants any more."""
        with self._changed:
            found = [one for *_, one in self._waiting if isinstance(one, Delivery)]
            found = [one for one in found if one.channel is channel and one.queue == queue]
            self._waiting = [entry for entry in self._waiting if entry[2] not in found]
            heapq.heapify(self._waiting)
        return found

    def _has_deliverable(self) -> bool:
        return any(True for _ in self._deliverable())

    def _deliverable(self) -> Iterator[tuple[int, int, Delivery | BaseException]]:
        for entry in sorted(self._waiting, key=lambda one: one[:2]):
            if isinstance(entry[2], BaseException) or entry[2].channel.qos.can_consume():
                yield entry
