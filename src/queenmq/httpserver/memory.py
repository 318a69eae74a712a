"""The memory that large request bodies and unread answers may take, and what happens when it is used up."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from queenmq.httpserver.crowd import Crowd
from queenmq.httpserver.limits import Limits
from queenmq.tls import Tls

if TYPE_CHECKING:
    from queenmq.httpserver.connection import Connection


class BodyBudget:
    """Room for request bodies: how many bytes of them may be in memory together.

    A body that is not small gets its whole room before it is read, and keeps it until its request is answered. While
    there is none, nothing is read, so that its sender waits; room is given in the order of the requests. Because it is
    given as a whole, bodies that are being read never wait for each other.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0
        self.waited_total = 0
        self.timeouts = 0  # bodies that came too slowly
        self._waiting: OrderedDict[asyncio.Future[None], int] = OrderedDict()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def reserve(self, size: int) -> None:
        """Wait for room; the caller gives it back with `release`. A waiter that is cancelled has none."""
        if not self._waiting and self.reserved + size <= self.limit:
            self.reserved += size
            return
        self.waited_total += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = size
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.pop(turn, None) is None:
                # It was given in the very moment in which it was given up.
                self.release(size)
            else:
                self._give_out()
            raise

    def release(self, size: int) -> None:
        self.reserved -= size
        self._give_out()

    def _give_out(self) -> None:
        while self._waiting:
            turn, size = next(iter(self._waiting.items()))
            if self.reserved + size > self.limit:
                return
            del self._waiting[turn]
            self.reserved += size
            turn.set_result(None)


class UnsentAnswers:
    """Answers that are written and not read yet: how many bytes of them wait, and for whom.

    While there are too many, no further request that may bring a large answer begins; and those clients are given up
    that have taken the longest for theirs.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.too_many = False
        self.given_up = 0
        self._slow: dict[Connection, tuple[float, int]] = {}  # since when, and how much; the oldest first
        self._room = asyncio.Event()

    def waits_for(self, connection: Connection, size: int, now: float) -> None:
        """The client does not read as fast as it is written to."""
        self.reads_again(connection)
        self._slow[connection] = now, size
        self._change(size)

    def reads_again(self, connection: Connection) -> None:
        """It has read nearly everything, or it is gone."""
        _, size = self._slow.pop(connection, (0.0, 0))
        self._change(-size)
        if size and not self.too_many:
            self._room.set()
            self._room = asyncio.Event()

    def _change(self, size: int) -> None:
        self.size += size
        self.too_many = self.size > self.limit

    async def room(self) -> None:
        while self.too_many:
            await self._room.wait()

    def slowest(self, since: float) -> list[Connection]:
        """Whom to give up now: of those that have been slow since then, as many as it takes."""
        left = self.size
        found = []
        for connection, (began, size) in self._slow.items():
            if left <= self.limit or began > since:
                break
            found.append(connection)
            left -= size
        self.given_up += len(found)
        return found


@dataclass(frozen=True, slots=True)
class HttpMemory:
    """What a front holds for its clients, and what the fronts of a process share."""

    bodies: BodyBudget
    answers: UnsentAnswers
    crowd: Crowd
    tls: Tls | None = None

    @classmethod
    def within(cls, limits: Limits, tls: Tls | None = None) -> HttpMemory:
        return cls(BodyBudget(limits.budget_bytes), UnsentAnswers(limits.unsent_bytes), Crowd(limits), tls)

    def shared(self, limits: Limits) -> HttpMemory:
        """For another front of the same process."""
        return HttpMemory(self.bodies, UnsentAnswers(limits.unsent_bytes), self.crowd, self.tls)
