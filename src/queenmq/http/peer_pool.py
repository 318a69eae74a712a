"""The connections to one other server: kept open between requests, and never more than allowed."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import NamedTuple

from queenmq.clock import SYSTEM, Clock
from queenmq.cluster.keys import KeyRing
from queenmq.cluster.peer_session import Ends
from queenmq.http.peer_connection import Late, PeerAnswer, PeerConnection, PeerFailure, PeerSilent
from queenmq.http.peer_messages import RequestHead
from queenmq.tls import Tls

IDLE_S = 30.0  # shorter than a server keeps an idle connection


class PoolExhausted(Exception):
    """There is no room for one more request to this peer; nothing was sent."""


class Times(NamedTuple):
    """Longest times for a connection, which is the system's work, and for the answer to the greeting, for which the
    peer must come to it."""

    connect_s: float
    greet_s: float


class PeerPool:
    def __init__(
        self,
        address: tuple[str, int],
        ring: KeyRing,
        ends: Ends,
        clock: Clock = SYSTEM,
        *,
        max_connections: int,
        times: Times,
        tls: Tls | None = None,
    ) -> None:
        self.address = address
        self._ring = ring
        self._ends = ends
        self._clock = clock
        self._max = max_connections
        self._times = times
        self._tls = tls
        self._connecting = 0
        self._idle: list[PeerConnection] = []
        self._open: set[PeerConnection] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def exchange(self, head: RequestHead, body: bytes, deadline: float, late: Late | None) -> PeerAnswer:
        """Send a request and wait for its answer until the clock shows `deadline`.

        Raises PeerFailure, or PoolExhausted. For `late` see `PeerConnection.send`.
        """
        connection = self._reusable() or await self._connect(deadline)
        answer = connection.send(head, body, late)
        try:
            async with self._clock.timeout(deadline - self._clock.monotonic()):
                return await answer
        except TimeoutError:
            if _has_come(answer):
                return answer.result()
            connection.withdraw()
            raise PeerSilent("it did not answer in time") from None
        except asyncio.CancelledError:
            if not _has_come(answer):
                connection.withdraw()
            elif late is not None and answer.result().is_proven:
                late(answer.result().headers)
            raise

    def fail(self, reason: str) -> None:
        """End everything that is under way with PeerFailure."""
        for connection in tuple(self._open):
            connection.fail(reason)

    def close(self) -> None:
        for connection in tuple(self._open):
            connection.abort()

    def _reusable(self) -> PeerConnection | None:
        oldest = self._clock.monotonic() - IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self, deadline: float) -> PeerConnection:
        """The one place where a connection to another server is opened; it is usable when the server has proved itself.

        Raises PeerFailure, or PoolExhausted.
        """
        if len(self._open) + self._connecting >= self._max:
            raise PoolExhausted
        self._connecting += 1
        try:
            async with self._clock.timeout(min(deadline - self._clock.monotonic(), self._times.connect_s)):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: PeerConnection(self._released, self._closed),
                    *self.address,
                    ssl=None if self._tls is None else self._tls.outgoing,
                )
        except TimeoutError:
            raise PeerFailure("no connection within the time for it") from None
        except ssl.SSLError as error:
            raise PeerFailure(
                f"TLS failed ({error.reason or error}): do both servers have it, of one authority?"
            ) from None
        except OSError as error:
            raise PeerFailure(error.strerror or str(error)) from None
        finally:
            self._connecting -= 1
        self._open.add(connection)
        try:
            async with self._clock.timeout(min(deadline - self._clock.monotonic(), self._times.greet_s)):
                await connection.greet(self._ring, self._ends)
        except TimeoutError:
            connection.abort()
            raise PeerFailure("it did not answer the greeting in time") from None
        except BaseException:
            connection.abort()
            raise
        return connection

    def _released(self, connection: PeerConnection) -> None:
        connection.idle_since = self._clock.monotonic()
        self._idle.append(connection)

    def _closed(self, connection: PeerConnection) -> None:
        self._open.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)


def _has_come(answer: asyncio.Future[PeerAnswer]) -> bool:
    """In the very moment in which it was given up."""
    return answer.done() and not answer.cancelled() and answer.exception() is None
