"""What a server needs of its journal, whichever of its processes keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from queenmq.core.message import Message
from queenmq.journal.board import JournalFigures
from queenmq.journal.files import JournalBounds
from queenmq.journal.push_records import Partition


@dataclass(frozen=True, slots=True)
class JournalledOperation:
    """A push in the journal, or with `error`, one in its quarantine. Its first partition is empty if nobody can say."""

    operation_id: str
    queue: str
    partition: str
    messages: int
    error: str | None = None
    quarantined_at: datetime | None = None


class Journal(Protocol):
    @property
    def bounds(self) -> JournalBounds: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def holds(self, messages: Iterable[Message]) -> bool:
        """Whether their partitions may have journalled messages. Asked before every push, so it never waits."""

    def holds_any(self, partitions: Iterable[Partition]) -> bool:
        """The same for partitions."""

    async def turn(self, partitions: Iterable[Partition], timeout_s: float) -> bool:
        """Return True when the partitions have no journalled messages any more, False if that takes too long."""

    async def require_turn(self, messages: Sequence[Message], timeout_s: float) -> None:
        """For what is never journalled: wait until nothing of its partitions is. Raises DatabaseUnavailable."""

    async def put(self, messages: Sequence[Message]) -> tuple[str, int]:
        """Journal a push; returns when it is on disk, with the id of its operation and the number of those before it.

        Raises Overloaded or JournalFailed, and then nothing is kept.
        """

    async def find(self, operation_id: str) -> JournalledOperation | None:
        """A push that is not replayed yet."""

    async def find_quarantined(self, operation_id: str) -> JournalledOperation | None:
        """A push that was set aside, with the reason."""

    async def held_in(self, queue: str, partition: str | None) -> dict[str, int]:
        """How many journalled pushes a queue has, by partition; or only those of one partition."""

    @property
    def messages(self) -> int:
        """How many journalled messages this process knows of."""

    def messages_of(self, queue: str) -> int:
        """How many journalled messages a queue has, as far as this process knows: they take up room, too."""

    def figures(self) -> JournalFigures: ...
