"""The HTTP listener: the socket, the open connections and their bounds, counters, and the orderly stop.

Owns what the connections share. What happens on one connection is `protocol`; what a request means is
the handler's. All timeouts of all connections are checked by one periodic sweep, so a request sets no timer;
they are exact to one sweep interval.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable

from queenmq.clock import SYSTEM, Clock
from queenmq.errors import StartupError
from queenmq.httpserver.connection import Connection
from queenmq.httpserver.handshake import Handshake
from queenmq.httpserver.limits import Limits
from queenmq.httpserver.memory import HttpMemory
from queenmq.httpserver.messages import Application, Request
from queenmq.httpserver.origins import Origins
from queenmq.httpserver.protocol import HttpProtocol

FAREWELL_S = 1.0

_REASONS = {
    errno.EADDRINUSE: "the address is already in use",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
    errno.EACCES: "this user may not listen there",
}


class HttpFront:
    """One listening address. `handler` gets every request but OPTIONS and raises HttpError to refuse it.

    `admit` gets the requests that have more than a small body before that is read, and raises HttpError to refuse them.

    When the stop begins, `stopping` is set and every callback of `on_stop` is called: code that holds
    requests for long must let go of them then.
    """

    def __init__(
        self,
        handler: Application,
        limits: Limits,
        clock: Clock = SYSTEM,
        *,
        admit: Callable[[Request], Awaitable[object]] | None = None,
        origins: Origins | None = None,
        memory: HttpMemory | None = None,
    ) -> None:
        self.admit = admit
        memory = memory or HttpMemory.within(limits)
        self.bodies = memory.bodies
        self.incoming = memory.incoming
        self.answers = memory.answers
        self.crowd = memory.crowd
        self.tls = memory.tls
        self.handler = handler
        self.limits = limits
        self.origins = origins if origins is not None and origins.permits_some else None
        self.stopping = asyncio.Event()
        self.on_stop: list[Callable[[], None]] = []
        self.connections: set[Connection] = set()
        self.lingering: set[Connection] = set()
        self.handshakes: set[Handshake] = set()
        self.connections_total = 0
        self.requests_total = 0
        self.refusals_total = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self._clock = clock
        # Read at every request instead of the clock; as fine as the sweep.
        self.now = self._clock.monotonic()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    @property
    def connections_open(self) -> int:
        return len(self.connections) + len(self.lingering)

    @property
    def is_listening(self) -> bool:
        return self._server is not None and bool(self._server.sockets)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are listened on. Raises RuntimeError before `start` and after `stop`."""
        if self._server is None or not self._server.sockets:
            raise RuntimeError("the HTTP front is not listening")
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def start(self, host: str, port: int, *, shared: bool = False) -> None:
        """Listen; port 0 takes a free one. `shared` lets other processes of the same user listen there, too: the system
        deals the connections out. Raises StartupError if the address cannot be used."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: self._protocol(loop),
                host,
                port,
                backlog=self.limits.backlog,
                reuse_address=True,
                reuse_port=shared,
            )
        except OSError as error:
            raise StartupError(f"cannot listen on {host}:{port}: {_reason(error)}") from None
        self._sweep_later(loop)

    def _protocol(self, loop: asyncio.AbstractEventLoop) -> asyncio.Protocol:
        protocol = HttpProtocol(self, loop)
        return protocol if self.tls is None else Handshake(self, loop, self.tls, protocol)

    async def stop(self, grace_s: float) -> None:
        """Stop accepting, give running requests `grace_s` to finish, then cancel them, and close everything."""
        if self._server is not None:
            self._server.close()
        self.stopping.set()
        for callback in self.on_stop:
            callback()
        for handshake in tuple(self.handshakes):
            handshake.abort()
        for connection in tuple(self.connections):
            connection.retire()
        await self._wait_until(lambda: not self.connections, grace_s)
        for connection in tuple(self.connections):
            connection.interrupt()
        await self._wait_until(lambda: not self.connections_open, FAREWELL_S)
        for connection in (*self.connections, *self.lingering):
            connection.abort()
        await self._wait_until(lambda: not self.connections_open, FAREWELL_S)
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def _wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass

    def connected(self, connection: Connection, address: str) -> bool:
        """Take note of a new connection; False if there are too many that are in use."""
        self.connections.add(connection)
        self.connections_total += 1
        return self.crowd.enter(connection, address, self.now)

    def lingers(self, connection: Connection) -> None:
        """The connection has given its last answer and only waits for its client to read it."""
        self.connections.discard(connection)
        self.crowd.leave(connection)
        self.lingering.add(connection)
        self._changed.set()
        if len(self.lingering) > self.limits.max_lingering:
            connection.abort()

    def disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.crowd.leave(connection)
        self.lingering.discard(connection)
        self._changed.set()

    def sweep(self) -> None:
        """End every connection that has been idle, silent or stuck for too long."""
        self.now = self._clock.monotonic()
        for connection in (*self.connections, *self.lingering):
            connection.expire(self.now)
        for handshake in tuple(self.handshakes):
            handshake.expire(self.now)
        for connection in self.answers.slowest(self.now - self.limits.unread_s):
            connection.give_up()
        self.crowd.tell(self.now)
        if self.tls is not None:
            self.tls.check()

    def _sweep_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = loop.call_later(self.limits.sweep_interval_s, self._sweep_and_repeat, loop)

    def _sweep_and_repeat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep_later(loop)
        self.sweep()


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    return _REASONS.get(error.errno or 0, error.strerror or str(error))
