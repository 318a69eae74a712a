"""Leases: renewing them, and giving back those whose client went away."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime

from queenmq.engine.sidecar import Lane, Policy
from queenmq.engine.wake_ups import Wake
from queenmq.errors import QueenError
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Renewal:
    lease_id: str
    seconds: int


class Leases:
    def __init__(self, database: Database, policy: Policy, freed: Wake) -> None:
        self._database = database
        self._freed = freed
        self._releasing: set[asyncio.Task[None]] = set()
        self.lane: Lane[Renewal, datetime | None] = Lane("renew", self._run, policy)

    async def renew(self, lease_id: str, seconds: int) -> datetime | None:
        """The new expiry, or None if the lease is not live. Never shortens it."""
        return await self.lane.submit(Renewal(lease_id, seconds), lease_id)

    async def _run(self, renewals: list[Renewal]) -> list[datetime | None]:
        rows = await self._database.fetch(
            statement("renew"), [r.lease_id for r in renewals], [r.seconds for r in renewals]
        )
        expiries = {str(row["lease_id"]): row["expires_at"] for row in rows}
        return [expiries.get(renewal.lease_id) for renewal in renewals]

    def release_soon(self, lease_id: str, queue: str) -> None:
        """Free a lease in the background; if that fails, its expiry does it."""
        task = asyncio.get_running_loop().create_task(self._release(lease_id, queue))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release(self, lease_id: str, queue: str) -> None:
        try:
            await self._database.fetchval(statement("release"), [lease_id])
        except QueenError as error:
            log.warning("could not give back lease %s: %s", lease_id, error)
        else:
            self._freed(queue)

    async def close(self) -> None:
        """Wait for releases that are under way."""
        if self._releasing:
            await asyncio.wait(self._releasing)
