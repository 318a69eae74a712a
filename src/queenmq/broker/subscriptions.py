"""Subscribes groups in steps: in a queue with very many partitions, the first messages need not wait for the last row.

The server that subscribes a group makes the rest of its rows in the background. If it dies, another one goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

import asyncpg

from queenmq.broker.lock_wait import LockWait
from queenmq.broker.locked_rows import queue_itself
from queenmq.broker.wake_ups import Wake
from queenmq.core.names import Start
from queenmq.errors import QueenError, QuotaExceeded
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

_STEP = 1000
_MOST_RESUMED = 100
_ANY_START = Start("all", None)  # where a group starts is written down with its first step

_Key = tuple[str, str | None, str, bool]  # the last: only goes on


def begun_of(
    rows: list[asyncpg.Record], begun: Collection[str], full: Mapping[str, QuotaExceeded]
) -> list[asyncpg.Record]:
    """Of the queues to try, those that the group is subscribed to by now. Raises QuotaExceeded if only a lack of room
    is why there is none."""
    found = [row for row in rows if row["name"] not in full and (row["subscribed"] or row["name"] in begun)]
    if full and not found:
        raise next(iter(full.values()))
    return found


class Subscriptions:
    """`readable` is called after a step that may have made something readable."""

    def __init__(self, database: Database, locks: LockWait, readable: Wake, most_groups: int) -> None:
        self._most_groups = most_groups
        self._database = database
        self._locks = locks
        self._readable = readable
        self._steps: dict[_Key, asyncio.Task[bool]] = {}
        self._finishing: dict[_Key, asyncio.Task[None]] = {}

    async def step(self, queue: str, partition: str | None, group: str, start: Start) -> bool:
        """Subscribe a group, or go on with it; whether that is all. Who wants the same meanwhile shares a statement.

        Raises QuotaExceeded if there are as many groups as there may be.
        """
        return await self._shared((queue, partition, group, False), start)

    async def begin(self, queues: list[str], group: str, start: Start) -> dict[str, QuotaExceeded]:
        """Subscribe a group to these queues, the rest of it in the background. Returns those without room for it."""
        full: dict[str, QuotaExceeded] = {}
        for queue in queues:
            try:
                if not await self.step(queue, None, group, start):
                    self.finish(queue, group)
            except QuotaExceeded as refusal:
                full[queue] = refusal
        return full

    def finish(self, queue: str, group: str) -> None:
        """Go on in the background until the group has all of its rows, or is deleted."""
        key = (queue, None, group, True)
        if key not in self._finishing:
            task = asyncio.get_running_loop().create_task(self._finish(key))
            self._finishing[key] = task
            task.add_done_callback(lambda _: self._finishing.pop(key, None))

    async def resume(self) -> None:
        """Go on with what other servers have begun and may not finish."""
        for row in await self._database.fetch(statement("groups_unplaced"), _MOST_RESUMED, repeatable=True):
            self.finish(row["queue_name"], row["name"])

    async def close(self) -> None:
        tasks = tuple(self._finishing.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _shared(self, key: _Key, start: Start) -> bool:
        task = self._steps.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._step(key, start))
            self._steps[key] = task
            task.add_done_callback(lambda done: self._stepped(key, done))
        return await asyncio.shield(task)

    def _stepped(self, key: _Key, task: asyncio.Task[bool]) -> None:
        self._steps.pop(key, None)
        if not task.cancelled():
            task.exception()  # all who waited for it may have gone

    async def _step(self, key: _Key, start: Start) -> bool:
        queue, partition, group, only_goes_on = key
        if not only_goes_on and await self._database.fetchval(
            statement("too_many_groups"), queue, partition, group, self._most_groups, repeatable=True
        ):
            raise QuotaExceeded(
                f"queue {queue} has {self._most_groups} groups, as many as it may have: delete what nobody needs, "
                "or raise QUEEN_MAX_GROUPS; connection refused for now (ECONNREFUSED)",
                retry_after_s=60,
            )
        what = (queue, partition, group, start.mode, start.since)
        complete: bool = await self._locks.through(
            frozenset((queue_itself(queue),)),
            lambda lock_timeout: self._database.fetchval(
                statement("subscribe"), *what, lock_timeout, _STEP, only_goes_on, repeatable=True
            ),
        )
        return complete

    async def _finish(self, key: _Key) -> None:
        queue, _, group, _ = key
        try:
            while not await self._shared(key, _ANY_START):
                self._readable(queue)
            self._readable(queue)
        except QueenError as error:
            # Nothing is lost: a later `resume` goes on, here or elsewhere.
            log.warning("subscribing group %s to queue %s was interrupted and will be resumed: %s", group, queue, error)
