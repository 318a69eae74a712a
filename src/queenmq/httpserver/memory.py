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

_ROOM_SHARE = 8  # so large a part of the budget is freed at once: finding out for whom examines every connection


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


class IncomingRequests:
    """Requests that have not arrived whole, or wait behind others on their connection: how much of them is kept.

    Their senders need no token. So when it is too much, connections are closed, those first that have kept something
    here for longest. Others than that of a request that runs are tried first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.closed = 0
        self._kept: dict[Connection, int] = {}  # the oldest first

    def keeps(self, connection: Connection, size: int) -> None:
        """So much of what has come on this connection is kept now."""
        self.size += size - self._kept.get(connection, 0)
        if size:
            self._kept[connection] = size
        else:
            self._kept.pop(connection, None)
        if self.size > self.limit:
            self._make_room()

    def _make_room(self) -> None:
        enough = self.limit - self.limit // _ROOM_SHARE
        for is_busy in (False, True):
            for connection in [one for one in self._kept if one.is_busy is is_busy]:
                if self.size <= enough:
                    return
                self.size -= self._kept.pop(connection)
                self.closed += 1
                connection.abort()


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
    incoming: IncomingRequests
    answers: UnsentAnswers
    crowd: Crowd
    tls: Tls | None = None

    @classmethod
    def within(cls, limits: Limits, tls: Tls | None = None) -> HttpMemory:
        incoming = IncomingRequests(limits.input_bytes)
        return cls(BodyBudget(limits.budget_bytes), incoming, UnsentAnswers(limits.unsent_bytes), Crowd(limits), tls)

    def shared(self, limits: Limits) -> HttpMemory:
        """For another front of the same process."""
        return HttpMemory(self.bodies, self.incoming, UnsentAnswers(limits.unsent_bytes), self.crowd, self.tls)
