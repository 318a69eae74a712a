"""Leases: renewing them, and giving back those whose client went away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from queenmq.broker.lock_wait import LockWait
from queenmq.broker.locked_rows import lease
from queenmq.broker.locking_lane import LockingLane
from queenmq.broker.long_polls import LongPolls
from queenmq.broker.merging import Policy
from queenmq.errors import QueenError
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Renewal:
    lease_id: str
    seconds: int


class Leases:
    def __init__(self, database: Database, policy: Policy, long_polls: LongPolls[Any], locks: LockWait) -> None:
        self._database = database
        self._locks = locks
        self._long_polls = long_polls
        self._releasing: set[asyncio.Task[None]] = set()
        self._told_of: int | None = None  # the outage, by how often the database had been opened before
        self.lane: LockingLane[Renewal, datetime | None] = LockingLane(
            "renew", self._run, policy, locks=locks, rows=lambda renewal: frozenset((lease(renewal.lease_id),))
        )

    async def renew(self, lease_id: str, seconds: int) -> datetime | None:
        """The new expiry, or None if the lease is not live. Never shortens it."""
        return await self.lane.submit(Renewal(lease_id, seconds), lease_id)

    async def _run(self, renewals: list[Renewal], lock_timeout: str) -> list[datetime | None]:
        rows = await self._database.fetch(
            statement("renew"),
            [r.lease_id for r in renewals],
            [r.seconds for r in renewals],
            lock_timeout,
            repeatable=True,
        )
        expiries = {str(row["lease_id"]): row["expires_at"] for row in rows}
        return [expiries.get(renewal.lease_id) for renewal in renewals]

    def release_soon(self, *leases: tuple[str, str]) -> asyncio.Task[None]:
        """Free leases, each given with its queue, in the background; if that fails, their expiry does it."""
        task = asyncio.get_running_loop().create_task(self._release_quietly(leases))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)
        return task

    async def _release_quietly(self, leases: Sequence[tuple[str, str]]) -> None:
        try:
            await self.release(leases)
        except QueenError as error:
            # An outage may last for hours, and every pop that it interrupts comes here: one line an outage.
            level = logging.DEBUG if self._told_of == self._database.opened else logging.WARNING
            log.log(level, "leases could not be given back and are held until they expire: %s", error)
            self._told_of = self._database.opened

    async def release(self, leases: Sequence[tuple[str, str]]) -> None:
        """Free leases, each given with its queue; those that are not live are left alone."""
        ids = [lease_id for lease_id, _ in leases]
        await self._locks.through(
            frozenset(lease(lease_id) for lease_id in ids),
            lambda lock_timeout: self._database.fetchval(statement("release"), ids, lock_timeout, repeatable=True),
        )
        for queue in {queue for _, queue in leases}:
            self._long_polls.wake(queue)

    async def close(self) -> None:
        """Wait for releases that are under way."""
        if self._releasing:
            await asyncio.wait(self._releasing)
