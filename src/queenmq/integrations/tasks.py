"""What the integrations with task frameworks share: a task is a message, and the order of tasks does not matter.

So each goes to a random partition of its queue: as many tasks run at the same time as there are partitions, and one
that takes long holds up only those that came to its own partition after it. A task for later is a timer.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from random import randrange
from typing import Any, Final, TypeVar

from msgspec import Raw

from queenmq.client import Consumer, Item, Message, NotFound, Queen, QueenError, Queue, Reject, RequestError
from queenmq.client.portal import Portal
from queenmq.clock import utc_now

T = TypeVar("T")

GIVEN_BACK: Final = Reject("given back", "retry")
REFUSED: Final = Reject("rejected by the consumer")
PARTITIONS: Final = 1000
# Of a queue that a framework makes. Leases are renewed while a task runs, and given back when a worker disappears.
OPTIONS: Final[Mapping[str, Any]] = {
    "leaseTime": 60,
    "retentionEnabled": True,
    "completedRetentionSeconds": 3600,
}
_RENEW_MS: Final = 15_000


class TaskQueues:
    """Queues of tasks. A queue that exists keeps its options; one that does not gets these when it is first used."""

    def __init__(self, queen: Queen, options: Mapping[str, Any] = OPTIONS, partitions: int = PARTITIONS) -> None:
        self.queen = queen
        self._options = options
        self._partitions = partitions
        self._known: set[str] = set()

    async def declare(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        if name in self._known:
            return
        # A token that may push or pop need not be allowed more: then the queue gets the defaults with its first push.
        with suppress(RequestError):
            try:
                await self.queen.admin.get_queue(name, limit=1)
            except NotFound:
                await self.queen.queue(name).config(self._options if options is None else options).create()
        self._known.add(name)

    async def send(self, name: str, task: Any, key: str, at: datetime | None = None) -> None:
        """Store a task, now or as a timer. `key` is of this call alone: a task that has one already is not stored."""
        await self.declare(name)
        queue = self._any_partition(name)
        if at is not None and at > utc_now():
            await queue.schedule(task, key=key, at=at)
        else:
            await queue.push(Item(task, transaction_id=key))

    async def clear(self, name: str) -> None:
        """Delete all tasks of a queue."""
        with suppress(NotFound):
            await self.queen.admin.clear_queue(name)

    def consume(
        self,
        name: str,
        handler: Callable[[Message], Awaitable[object]],
        concurrency: int,
        group: str | None = None,
        since: str | None = None,
    ) -> Consumer:
        """Call `handler` for up to `concurrency` tasks at a time. Raise `Reject` in it to give a task back or up."""
        queue = self.queen.queue(name).concurrency(concurrency).renew_lease(True, _RENEW_MS)
        if group is not None:
            queue = queue.group(group).subscription_from(since or "now")
        return queue.consume(handler, handle_signals=False)

    def _any_partition(self, name: str) -> Queue[Message]:
        return self.queen.queue(name).partition(str(randrange(self._partitions)))  # noqa: S311 - not a secret


def as_task(data: bytes) -> Raw:
    """JSON that a framework has written, to be sent as it is."""
    return Raw(data)


class Arrival:
    """A task that has come, and waits until its framework says what becomes of it."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.settled: asyncio.Future[Reject | None] = asyncio.get_running_loop().create_future()

    def settle(self, reject: Reject | None = None) -> None:
        """It is finished, or rejected. Only the first call counts."""
        if not self.settled.done():
            self.settled.set_result(reject)


class Arrivals:
    """The tasks of a queue one after the other, for a framework that asks for the next one. Leases are renewed until a
    task is settled."""

    def __init__(self, queues: TaskQueues, name: str, concurrency: int) -> None:
        self._waiting: asyncio.Queue[Arrival] = asyncio.Queue()
        self._open: set[Arrival] = set()
        self._consumer = queues.consume(name, self._arrive, concurrency)
        self._running = asyncio.ensure_future(self._consumer)

    async def _arrive(self, message: Message) -> None:
        arrival = Arrival(message)
        self._open.add(arrival)
        self._waiting.put_nowait(arrival)
        try:
            reject = await arrival.settled
        finally:
            self._open.discard(arrival)
        if reject is not None:
            raise reject

    async def next(self, timeout_s: float | None = None) -> Arrival | None:
        """None after the time. Raises what has ended the consumer."""
        coming = asyncio.ensure_future(self._waiting.get())
        try:
            ends = (coming, self._running)
            await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                return coming.result()
            if self._running.done():
                self._running.result()
            return None
        except asyncio.CancelledError:
            if coming.done() and not coming.cancelled():
                coming.result().settle(GIVEN_BACK)
            raise
        finally:
            coming.cancel()

    def stop(self) -> None:
        """Nothing more comes, and what was not asked for is given back."""
        self._consumer.stop()
        while not self._waiting.empty():
            self._waiting.get_nowait().settle(GIVEN_BACK)

    async def close(self) -> None:
        """Give everything back that is not settled."""
        self.stop()
        for arrival in list(self._open):
            arrival.settle(GIVEN_BACK)
        with suppress(QueenError):
            await self._running


class ThreadedTaskQueues:
    """Task queues for a framework without asyncio: on an event loop in a thread, of the process that uses them, because
    threads do not survive a fork. Opened when they are first used, closed at the end of the process at the latest."""

    def __init__(self, make: Callable[[], TaskQueues]) -> None:
        self._make = make
        self._opened: tuple[int, Portal, TaskQueues] | None = None
        self._at_exit: weakref.finalize[..., Any] | None = None

    @property
    def portal(self) -> Portal:
        return self._open()[1]

    def run(self, work: Callable[[TaskQueues], Awaitable[T]]) -> T:
        _, portal, queues = self._open()
        return portal.run(lambda: work(queues))

    def start(self, work: Callable[[TaskQueues], Awaitable[T]]) -> Future[T]:
        """The same without waiting."""
        _, portal, queues = self._open()
        return portal.start(lambda: work(queues))

    def close(self) -> None:
        self._opened = None
        if self._at_exit is not None:
            self._at_exit()

    def _open(self) -> tuple[int, Portal, TaskQueues]:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), Portal(), self._make()
            self._at_exit = weakref.finalize(self, _close, *self._opened)
        return self._opened


def _close(pid: int, portal: Portal, queues: TaskQueues) -> None:
    if pid == os.getpid():
        portal.run(queues.queen.close)
        portal.close()
