"""What the integrations with task frameworks share: a task is a message, and the order of tasks does not matter.

So each goes to a random partition of its queue: as many tasks run at the same time as there are partitions, and one
that takes long holds up only those that came to its own partition after it. A task for later is a timer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from random import randrange
from typing import Any, Final

from msgspec import Raw

from queenmq.client import Consumer, Item, Message, NotFound, Queen, Queue, RequestError
from queenmq.clock import utc_now

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
        """Store a task, now or as a timer. Repeating it with the same key stores it once."""
        await self.declare(name)
        queue = self._any_partition(name)
        if at is not None and at > utc_now():
            await queue.schedule(task, key=key, at=at)
        else:
            await queue.push(Item(task, transaction_id=key))

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
