"""A WebSocket (RFC 6455) on an HTTP connection: the opening handshake, messages in and out, pings, and the close.

The frames are wsproto's. Owns what is on the wire after the handshake, how much may wait to be read, and when a silent
client counts as gone; what the messages mean is the session's, and the connection below is `connection`'s.

Decisions:

* Only text, no extensions: a compressed message would have no bound before it is unpacked.
* What a client sends and the session has not read is bounded: beyond it nothing more is read from the connection, nor
  parsed of what has been read.
* What costs work and says nothing is bounded: fragments of a message, and pings in a second.
* A client that has been silent gets a ping; one that does not answer is cut off at the third. It may be alive and busy,
  so the session learns of it (`is_silent`). While nothing is read from it, it is not silent.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from wsproto.connection import Connection as Frames
from wsproto.connection import ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.utilities import ProtocolError

from queenmq.errors import InvalidRequest, RequestError
from queenmq.httpserver.messages import Header, Request, Response

if TYPE_CHECKING:
    from queenmq.httpserver.connection import Connection

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED: Final = 1003
INVALID: Final = 1007
REFUSED: Final = 1008
TOO_LARGE: Final = 1009
FAILED: Final = 1011
TRY_LATER: Final = 1013

KEY: Final = b"sec-websocket-key"

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_VERSION: Final = b"13"
_KEY_BYTES: Final = 16
_MOST_UNREAD_BYTES: Final = 64 * 1024
_MESSAGE_BYTES: Final = 64  # that one takes beside its text, also an empty one
_MOST_PARTS: Final = 1024
_MOST_FRAGMENTS: Final = 1024  # of one message
_MOST_CONTROLS: Final = 100  # pings and pongs between two calls of `expire`
_MOST_IN_A_TURN: Final = 8
_SLICE_BYTES: Final = 4096
_MOST_REASON_BYTES: Final = 123
_PINGS: Final = 2  # so many are sent without an answer before the client is given up


class UpgradeRequired(RequestError):
    status = 426
    code = "upgrade_required"

    def __init__(self, message: str = "this is a WebSocket: send Upgrade: websocket and Connection: Upgrade") -> None:
        super().__init__(message)


class SocketClosed(Exception):
    """The session ends: the client gets the code and the reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


Session = Callable[["WebSocket"], Awaitable[None]]


class UpgradedResponse(Response, kw_only=True):
    """The answer to a request that becomes a WebSocket: from then on the connection belongs to the session."""

    session: Session


def accept(request: Request, session: Session, *headers: Header) -> UpgradedResponse:
    """Raises UpgradeRequired or InvalidRequest if the request opens no WebSocket."""
    given = request.headers
    named = {token.strip().lower() for token in given.get(b"connection", b"").split(b",")}
    # A request of HTTP/1.0, or one that wants the connection closed, has no `keep_alive`.
    if given.get(b"upgrade", b"").lower() != b"websocket" or b"upgrade" not in named or not request.keep_alive:
        raise UpgradeRequired
    if request.body:
        raise UpgradeRequired("a request that opens a WebSocket has no body")
    if given.get(b"sec-websocket-version") != _VERSION:
        raise UpgradeRequired("Sec-WebSocket-Version must be 13")
    key = given.get(KEY, b"")
    try:
        is_key = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except binascii.Error:
        is_key = False
    if not is_key:
        raise InvalidRequest("Sec-WebSocket-Key must be 16 bytes in base64")
    token = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
    return UpgradedResponse(101, headers=((b"Sec-WebSocket-Accept", token), *headers), session=session)


def upgrade_head(response: Response) -> bytes:
    lines = [b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade"]
    return b"\r\n".join([*lines, *(b"%b: %b" % header for header in response.headers), b"", b""])


class WebSocket:
    """What a session works with. `connection` feeds it and writes for it."""

    def __init__(self, connection: Connection, transport: asyncio.Transport, now: float) -> None:
        self.retired = asyncio.Event()
        """The server stops: the session should end soon."""
        self.is_silent = False
        """The client was given up: it did not answer, or did not read."""
        self.ping_s = 15.0
        self.max_bytes = 1024 * 1024
        """Largest message that the client may send."""
        self._connection = connection
        self._transport = transport
        self._frames = Frames(ConnectionType.SERVER)
        self._unread: deque[str] = deque()
        self._unread_bytes = 0
        self._part: list[str] = []
        self._part_bytes = 0
        self._fragments = 0
        self._controls = 0
        self._received = 0  # messages, since others have had their turn
        self._unparsed = b""
        self._is_held = False  # nothing is read from the transport
        self._arrived = asyncio.Event()
        self._ended: SocketClosed | None = None
        self._heard = now
        self._pings = 0

    # What the session calls.

    async def receive(self) -> str:
        """The next message. Raises SocketClosed when the client has closed, or has broken the protocol."""
        while not self._unread:
            if self._ended is not None:
                raise self._ended
            self._arrived.clear()
            await self._arrived.wait()
            self._received = 0
        self._received += 1
        if self._received > _MOST_IN_A_TURN:
            self._received = 0
            await asyncio.sleep(0)
        text = self._unread.popleft()
        self._unread_bytes -= len(text) + _MESSAGE_BYTES
        if self._is_held and self._unread_bytes <= _MOST_UNREAD_BYTES:
            await self._let_go()
        return text

    async def _let_go(self) -> None:
        """Read on, after others have had their turn."""
        await asyncio.sleep(0)
        self._is_held = False
        unparsed, self._unparsed = self._unparsed, b""
        self._parse(unparsed)
        if not self._is_held:
            self._transport.resume_reading()

    def send(self, text: str) -> None:
        if self._frames.state is ConnectionState.OPEN:
            self._connection.write(self._frames.send(TextMessage(data=text)))

    @property
    def is_lost(self) -> bool:
        """Nobody is at the other end any more."""
        return self._connection.is_gone

    @property
    def has_room(self) -> bool:
        return not self._connection.write_paused

    async def room(self) -> None:
        """Wait until the client has read most of what it was sent."""
        await self._connection.writable()

    def close(self, code: int, reason: str = "") -> None:
        """Say why it ends; nothing can be sent after that."""
        if self._frames.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            shortened = reason.encode()[:_MOST_REASON_BYTES].decode(errors="ignore")
            self._connection.write(self._frames.send(CloseConnection(code=code, reason=shortened or None)))
        self._end(code, reason)

    # What the connection calls.

    def feed(self, data: bytes, now: float) -> None:
        if self._has_ended():
            return
        self._heard, self._pings = now, 0
        self._parse(self._unparsed + data)

    def _parse(self, data: bytes) -> None:
        self._unparsed = b""
        for begin in range(0, len(data), _SLICE_BYTES):
            if self._has_ended():
                return
            if self._is_held:
                self._unparsed = data[begin:]
                return
            try:
                self._frames.receive_data(data[begin : begin + _SLICE_BYTES])
                self._take_events()
            except ProtocolError as error:
                self.close(PROTOCOL_ERROR, str(error))

    def _take_events(self) -> None:
        for event in self._frames.events():
            match event:
                case TextMessage():
                    self._take(event)
                case BytesMessage():
                    self.close(UNSUPPORTED, "messages must be text, not binary")
                case Ping() | Pong():
                    self._take_control(event)
                case CloseConnection():
                    self._closed_by_client(event)
            if self._has_ended():
                return

    def _take_control(self, event: Ping | Pong) -> None:
        self._controls += 1
        if self._controls > _MOST_CONTROLS:
            self.close(REFUSED, f"more than {_MOST_CONTROLS} pings in a second")
        elif isinstance(event, Ping) and not self._connection.write_paused:
            self._connection.write(self._frames.send(event.response()))

    def expire(self, now: float) -> None:
        """Ping a client that has been silent, and give it up if it does not answer. Called every second."""
        self._controls = 0
        if self._is_held:
            self._heard, self._pings = now, 0
        if now - self._heard < self.ping_s * (self._pings + 1) or self._ended is not None:
            return
        if self._pings >= _PINGS:
            self.is_silent = True
            self._transport.abort()
            return
        self._pings += 1
        if not self._connection.write_paused:
            self._connection.write(self._frames.send(Ping()))

    def _has_ended(self) -> bool:
        return self._ended is not None

    def _take(self, event: TextMessage) -> None:
        self._part_bytes += len(event.data)
        if self._part_bytes > self.max_bytes:
            self.close(TOO_LARGE, f"a message may have {self.max_bytes} characters at most")
            return
        self._fragments += event.frame_finished
        if self._fragments > _MOST_FRAGMENTS:
            self.close(TOO_LARGE, f"a message may have {_MOST_FRAGMENTS} fragments at most")
            return
        self._part.append(event.data)
        if len(self._part) > _MOST_PARTS:
            self._part = ["".join(self._part)]
        if event.message_finished:
            self._unread.append("".join(self._part))
            self._unread_bytes += self._part_bytes + _MESSAGE_BYTES
            self._part.clear()
            self._part_bytes = self._fragments = 0
            self._arrived.set()
            if self._unread_bytes > _MOST_UNREAD_BYTES and not self._is_held:
                self._is_held = True
                self._transport.pause_reading()

    def _closed_by_client(self, event: CloseConnection) -> None:
        """It has closed, or sent what is no WebSocket frame (wsproto tells that in the same way)."""
        if self._frames.state is ConnectionState.REMOTE_CLOSING:
            self._connection.write(self._frames.send(event.response()))
            self._end(event.code, event.reason or "")
        else:
            self.close(event.code, event.reason or "this is no WebSocket frame")

    def _end(self, code: int, reason: str) -> None:
        if self._ended is None:
            self._ended = SocketClosed(code, reason)
            self._arrived.set()
