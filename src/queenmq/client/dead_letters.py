"""The query for dead letters: `queue.dlq().limit(10).get()`. The filters are here; the two clients implement `get`."""

from __future__ import annotations

from typing import Any, Self

from queenmq.client.models import DeadLetters
from queenmq.client.session import Session


class DeadLetterFilter:
    def __init__(self, session: Session, queue: str | None, group: str | None, partition: str | None) -> None:
        self._session = session
        self._params: dict[str, Any] = {"queue": queue, "consumerGroup": group, "partition": partition}

    def limit(self, count: int) -> Self:
        """At most so many; 100 if nothing is said."""
        self._params["limit"] = count
        return self

    def offset(self, count: int) -> Self:
        """Leave out so many of the newest."""
        self._params["offset"] = count
        return self

    def from_(self, timestamp: str) -> Self:
        """Only what failed at or after this moment (ISO 8601)."""
        self._params["from"] = timestamp
        return self

    def to(self, timestamp: str) -> Self:
        """Only what failed at or before this moment (ISO 8601)."""
        self._params["to"] = timestamp
        return self

    async def _get(self) -> DeadLetters:
        return await self._session.verbs.dead_letters(self._params)


class DeadLetterQuery(DeadLetterFilter):
    async def get(self) -> DeadLetters:
        """The dead letters, newest failure first, and how many there are in all."""
        return await self._get()
