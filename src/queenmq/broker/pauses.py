"""Pauses of queues, groups and single partitions of a group.

They are kept in the database, and a pop finds them there: when a pause is stored, no later pop of any server delivers.
What this server remembers of them only saves work: a long poll that a pause keeps waiting does not ask again at every
push, but every few seconds, or when the pause ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from queenmq.clock import Clock
from queenmq.errors import Conflict, NotFound
from queenmq.storage.database import Database
from queenmq.storage.failures import after_commit
from queenmq.storage.statements import statement

ASK_AGAIN_S = 2.0
_MOST_KNOWN = 10_000


@dataclass(frozen=True, slots=True)
class PausePlace:
    """A queue, a group of it, or a partition of that group."""

    queue: str
    group: str | None = None
    partition: str | None = None

    @property
    def names(self) -> tuple[str, str, str]:
        return self.queue, self.group or "", self.partition or ""


@dataclass(frozen=True, slots=True)
class Pause:
    at: datetime
    by: str | None
    reason: str | None
    is_new: bool


class KnownPauses:
    """The claims that were found paused, each for a few seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, dict[tuple[str | None, str], float]] = {}  # by queue: (partition, group)
        self._count = 0

    def note(self, queue: str, partition: str | None, group: str) -> None:
        if self._count >= _MOST_KNOWN:
            self._until.clear()
            self._count = 0
        known = self._until.setdefault(queue, {})
        self._count += (partition, group) not in known
        known[partition, group] = self._clock.monotonic() + ASK_AGAIN_S

    def holds(self, queue: str, partition: str | None, group: str) -> bool:
        """Whether it was paused a moment ago."""
        known = self._until.get(queue)
        return known is not None and known.get((partition, group), 0.0) > self._clock.monotonic()

    def forget(self, queue: str) -> bool:
        """True if something of the queue was known to be paused."""
        known = self._until.pop(queue, None)
        self._count -= 0 if known is None else len(known)
        return known is not None

    def __bool__(self) -> bool:
        return bool(self._until)


class Pauses:
    """`publish` tells every server that something of a queue has changed, and `wake` wakes its long polls."""

    def __init__(
        self,
        database: Database,
        known: KnownPauses,
        publish: Callable[[str], Awaitable[None]],
        wake: Callable[[str], None],
    ) -> None:
        self._database = database
        self._known = known
        self._publish = publish
        self._wake = wake

    async def pause(self, place: PausePlace, by: str | None, reason: str | None) -> Pause:
        """When this returns, no later pop delivers what is paused. One that is paused stays paused as it was.

        Raises NotFound if there is no such queue, and Conflict if it has too many pauses.
        """
        row = await self._database.fetchrow(statement("pause"), *place.names, by, reason, repeatable=True)
        if row is None or row["is_new"] is None:
            raise NotFound("Queue not found")
        if row["paused_at"] is None:
            raise Conflict("the queue has 1000 pauses already: pause the group or the queue instead")
        return Pause(row["paused_at"], row["paused_by"], row["reason"], row["is_new"])

    async def resume(self, place: PausePlace) -> bool:
        """False if exactly this was not paused. Raises NotFound if there is no such queue."""
        was_paused: bool | None = await self._database.fetchval(statement("resume"), *place.names, repeatable=True)
        if was_paused is None:
            raise NotFound("Queue not found")
        with after_commit():
            await self._publish(place.queue)
        self._known.forget(place.queue)
        self._wake(place.queue)
        return was_paused
