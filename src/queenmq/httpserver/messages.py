"""What passes between the HTTP front and the routes: `Request`, `Response` and `StreamedResponse`, and how the latter
two are written.

Owns the decoding of query strings and the header blocks of answers. Parsing requests from the wire
belongs to `protocol`, path parameters to `router`, and errors as answers to `refusals`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

import msgspec

from queenmq.errors import InvalidRequest

JSON = b"application/json"
BODILESS = frozenset({204, 304})

Header = tuple[bytes, bytes]

TRANSPORT = "transport"  # under this key of `Request.connection`

_LENGTH = b"Content-Length: "
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}

_encode_json = msgspec.json.Encoder().encode


CERTIFIED = "certified"
"""In `Request.connection` if the client has shown a certificate that the server trusts."""
PROVEN = "proven"
"""In `Request.connection` if the application knows for certain that the other end is one that it must keep."""


class Request(msgspec.Struct, eq=False):
    """One request, complete with its body. Header names are lower case; `path` is still escaped.

    `origin` names a request that may be carried out on more than one server: it gives the ids of everything it makes,
    so that a repetition makes the same. `parsed` is the body, if it was decoded already. `forwarded` says that it
    comes from another server, which serves it itself if this one refuses. `valid_until` is when the token of its sender
    expires, in seconds since 1970. `admitted`, `caller` and `connection` belong
    to the application: what it found out about the request and its sender when it admitted it, and what it remembers of
    the connection.
    """

    method: str
    path: str
    query_string: bytes = b""
    headers: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    body: bytes = b""
    keep_alive: bool = True
    params: tuple[str, ...] = ()
    subject: str | None = None
    role: int = 0
    token_id: str | None = None
    valid_until: float = float("inf")
    held: bool = False
    half_closed: bool = False
    origin: str | None = None
    parsed: object = None
    forwarded: bool = False
    admitted: object = None
    caller: Any = None
    connection: dict[str, Any] = msgspec.field(default_factory=dict)
    _query: dict[str, str] | None = None

    @property
    def query(self) -> dict[str, str]:
        """The decoded query parameters; of a repeated one the last. Raises InvalidRequest if not UTF-8."""
        if self._query is None:
            self._query = parse_query(self.query_string)
        return self._query

    @property
    def address(self) -> str | None:
        """The address from which the connection comes: that of a proxy, if there is one."""
        transport: asyncio.BaseTransport | None = self.connection.get(TRANSPORT)
        peer = None if transport is None else transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else None

    def hold(self) -> None:
        """Declare that the answer may take long (a long poll): call it before waiting or taking a lease.

        From here on a client that closes its sending side counts as gone and the handler is cancelled
        at once. Raises CancelledError if the client has done so already.
        """
        if self.half_closed:
            raise asyncio.CancelledError
        self.held = True


class Response(msgspec.Struct, eq=False):
    """`value` is what the answer says: it becomes the body, as JSON, when the answer is written. An answer that is not
    JSON, or is JSON already, has only a body."""

    status: int
    value: object = None
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[Header, ...] = ()

    def encode(self) -> bytes:
        """Make the body if there is none yet, and return it."""
        if self.value is not None and not self.body:
            self.body = _encode_json(self.value)
        return self.body


Application = Callable[[Request], Awaitable[Response]]
"""What serves requests; it raises HttpError to refuse one."""


class Source(Protocol):
    """Where the body of a streamed answer comes from."""

    async def read(self) -> bytes | None:
        """Wait for the next part; None at the end. It is cancelled when the client goes away."""

    def close(self) -> None:
        """Nobody reads any more. Called once, whichever way the answer ends."""


class StreamedResponse(Response, kw_only=True):
    """An answer whose body comes part by part and ends with the connection.

    The next part is asked for only when the client has taken the one before, so a source that always gives its newest
    part leaves out what a slow client would have missed. For the client going away the request counts as held.
    """

    source: Source


def head_of(response: Response, keep_alive: bool) -> bytes:
    """Everything of the answer that goes before its body, the empty line included."""
    block = _head_block(response.status, response.content_type, keep_alive)
    extra = b"".join([b"%b: %b\r\n" % header for header in response.headers]) if response.headers else b""
    if response.status in BODILESS:
        return b"%b%b\r\n" % (block, extra)
    if isinstance(response, StreamedResponse):
        return b"%b%b\r\n" % (block.removesuffix(_LENGTH), extra)
    return b"%b%d\r\n%b\r\n" % (block, len(response.body), extra)


@lru_cache(maxsize=256)
def _head_block(status: int, content_type: bytes, keep_alive: bool) -> bytes:
    # "keep-alive" is always sent, because HTTP/1.0 clients need it.
    connection = b"keep-alive" if keep_alive else b"close"
    head = b"HTTP/1.1 %d %b\r\nConnection: %b\r\n" % (status, _REASONS.get(status, b"Unknown"), connection)
    if status in BODILESS:
        return head
    # Answers of the API are for the caller alone, and for no cache. What is not JSON says itself how long it lasts.
    kept = b"Cache-Control: no-store\r\n" if content_type == JSON else b""
    return b"%bContent-Type: %b\r\nX-Content-Type-Options: nosniff\r\n%b%b" % (head, content_type, kept, _LENGTH)


def parse_query(query_string: bytes) -> dict[str, str]:
    query = {}
    for pair in query_string.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            decoded = _decode_name(name)
            query[decoded] = _decode_value(decoded, value)
    return query


def _decode_name(raw: bytes) -> str:
    try:
        return _unescape(raw).decode()
    except UnicodeDecodeError:
        shown = raw.decode("ascii", "backslashreplace")
        raise InvalidRequest(f"the name of query parameter {shown!r} is not valid UTF-8", shown) from None


def _decode_value(name: str, raw: bytes) -> str:
    try:
        return _unescape(raw).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"query parameter {name!r} is not valid UTF-8", name) from None


def _unescape(raw: bytes) -> bytes:
    if b"+" in raw:
        raw = raw.replace(b"+", b" ")
    return unquote_to_bytes(raw) if b"%" in raw else raw
