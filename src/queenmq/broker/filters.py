"""Filters of groups: which messages of a queue a group gets. A pop finds them in the database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from queenmq.core.filters import Filter
from queenmq.errors import InvalidRequest, NotFound
from queenmq.storage.database import Database
from queenmq.storage.failures import after_commit
from queenmq.storage.statements import statement


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """`passed_over`: how many messages it has kept from the group."""

    text: str | None
    set_at: datetime | None
    set_by: str | None
    passed_over: int


class Filters:
    def __init__(self, database: Database, wake: Callable[[str], None]) -> None:
        self._database = database
        self._wake = wake

    async def set(self, queue: str, group: str, given: Filter | None, by: str | None) -> GroupFilter:
        """When this returns, every later pop of the group follows it. None lets everything through.

        Raises NotFound if there is no such queue, and InvalidRequest for a filter over payloads that are encrypted.
        """
        fields = (None, None, False) if given is None else (given.text, given.path, given.reads_payload)
        row = await self._database.fetchrow(statement("set_filter"), queue, group, *fields, by, repeatable=True)
        if row is None or row["problem"] == "no queue":
            raise NotFound("Queue not found")
        if row["problem"] == "encrypted":
            raise InvalidRequest(
                "filter: the payloads of this queue are encrypted, so only headers can be filtered", "filter"
            )
        self._wake(queue)
        with after_commit():
            return await self.find(queue, group)

    async def find(self, queue: str, group: str) -> GroupFilter:
        """Raises NotFound if there is no such queue."""
        row = await self._database.fetchrow(statement("find_filter"), queue, group, repeatable=True)
        if row is None:
            raise NotFound("Queue not found")
        return GroupFilter(row["filter"], row["set_at"], row["set_by"], row["passed_over"])
