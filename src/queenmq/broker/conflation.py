"""Groups that get only the newest message of each partition. A pop finds in the database whether its group does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from queenmq.errors import NotFound
from queenmq.storage.database import Database
from queenmq.storage.failures import after_commit
from queenmq.storage.statements import statement


@dataclass(frozen=True, slots=True)
class GroupConflation:
    """`passed_over`: how many messages the group was not given because there were newer ones."""

    enabled: bool
    set_at: datetime | None
    set_by: str | None
    passed_over: int


class Conflation:
    def __init__(self, database: Database, wake: Callable[[str], None]) -> None:
        self._database = database
        self._wake = wake

    async def declare(self, queue: str, group: str) -> bool:
        """A consumer asks for it: whether the group gets only the newest. One that reads the queue already stays as it
        is. In a queue that does not exist yet it will, if nobody else reads as that group first."""
        conflates: bool | None = await self._database.fetchval(
            statement("declare_conflation"), queue, group, repeatable=True
        )
        return conflates is not False

    async def set(self, queue: str, group: str, enabled: bool, by: str | None) -> GroupConflation:
        """When this returns, every later pop of the group follows it. Raises NotFound if there is no such queue."""
        if not await self._database.fetchval(statement("set_conflation"), queue, group, enabled, by, repeatable=True):
            raise NotFound("Queue not found")
        self._wake(queue)
        with after_commit():
            return await self.find(queue, group)

    async def find(self, queue: str, group: str) -> GroupConflation:
        """Raises NotFound if there is no such queue."""
        row = await self._database.fetchrow(statement("find_conflation"), queue, group, repeatable=True)
        if row is None:
            raise NotFound("Queue not found")
        return GroupConflation(row["enabled"], row["set_at"], row["set_by"], row["passed_over"])
