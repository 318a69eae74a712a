"""A connection before its TLS handshake is over: it counts as one that has sent nothing, and has little time.

The event loop tells nobody of a connection whose handshake is not over, so that such connections could be neither
counted nor closed. So this protocol takes the connection, checks the first byte, and has the event loop begin TLS
with the certificate of that moment. Plain HTTP gets an answer that says what is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from queenmq.errors import HttpError
from queenmq.httpserver.connection import Connection
from queenmq.httpserver.messages import head_of
from queenmq.httpserver.refusals import PlainHttp, error_response
from queenmq.tls import Tls

if TYPE_CHECKING:
    from queenmq.httpserver.front import HttpFront

HANDSHAKE_S = 10.0
SHUTDOWN_S = 5.0

_HANDSHAKE_RECORD = 22  # the first byte of every TLS connection

_log = logging.getLogger(__name__)


class Handshake(asyncio.Protocol):
    spare_rank = 0

    def __init__(self, front: HttpFront, loop: asyncio.AbstractEventLoop, tls: Tls, protocol: Connection) -> None:
        self._front = front
        self._loop = loop
        self._tls = tls
        self._protocol = protocol
        self._transport: asyncio.Transport
        self._since = front.now
        self._starting: Coroutine[Any, Any, asyncio.Transport | None] | None = None
        self._early: list[bytes] = []  # what came between the end of the handshake and our knowledge of it

    def make_room(self) -> None:
        self._transport.abort()

    abort = make_room

    def expire(self, now: float) -> None:
        if now - self._since > HANDSHAKE_S:
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        if self._front.stopping.is_set() or not self._front.crowd.enter(self, address, self._front.now):
            # An answer would need the handshake, and room for it.
            self._front.crowd.leave(self)
            self._transport.abort()
            return
        self._front.handshakes.add(self)

    def data_received(self, data: bytes) -> None:
        if self._starting is not None:
            self._early.append(data)
        elif data[0] == _HANDSHAKE_RECORD:
            self._begin(data)
        elif not self._transport.is_closing():
            self._refuse(PlainHttp())

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def _begin(self, data: bytes) -> None:
        self._transport.pause_reading()
        self._starting = self._loop.start_tls(
            self._transport,
            self,
            self._tls.incoming,
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )
        # By hand rather than in a task: what has come must reach TLS after its beginning and before anything that is
        # still to come, and both are only certain in this very turn of the event loop.
        handshake: asyncio.Future[None] = self._starting.send(None)
        self._loop.call_soon(self._hand_over, data)
        handshake.add_done_callback(self._begun)

    def _hand_over(self, data: bytes) -> None:
        protocol = cast("asyncio.BufferedProtocol", self._transport.get_protocol())
        rest = memoryview(data)
        while rest:
            buffer = memoryview(protocol.get_buffer(len(rest)))
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            protocol.buffer_updated(size)
            rest = rest[size:]

    def _begun(self, _: asyncio.Future[None]) -> None:
        """The handshake is over, well or badly."""
        self._leave()
        if self._starting is None:
            raise AssertionError("the handshake has not begun")
        try:
            self._starting.send(None)
        except StopIteration as done:
            transport: asyncio.Transport | None = done.value
        except (OSError, ssl.SSLError, asyncio.CancelledError) as error:
            self._tls.handshakes_failed += 1
            _log.debug("TLS handshake failed: %s", error)
            return
        if transport is None or transport.is_closing():
            return
        transport.set_protocol(self._protocol)
        self._protocol.runs_over(self._transport)
        self._protocol.connection_made(transport)
        if self._early:
            self._protocol.data_received(b"".join(self._early))

    def _refuse(self, error: HttpError) -> None:
        self._tls.handshakes_failed += 1
        self._front.refusals_total += 1
        response = error_response(error)
        self._transport.write(head_of(response, False) + response.body)
        self._transport.close()

    def _leave(self) -> None:
        self._front.handshakes.discard(self)
        self._front.crowd.leave(self)
