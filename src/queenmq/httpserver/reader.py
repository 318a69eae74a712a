"""Bytes into requests, without I/O: framing, header and body limits, Expect and Upgrade.

Owns the parser of one connection. When to read, what to answer and how long to wait is `protocol`.

An upgrade to another protocol is ignored, as RFC 9110 allows: the request is served as plain HTTP/1.1. Only a GET that
asks for a WebSocket keeps its headers: its handler decides. Its client sends nothing before the answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from queenmq.errors import HttpError, MethodNotAllowed, TooLarge
from queenmq.httpserver.limits import Limits
from queenmq.httpserver.messages import CERTIFIED, PROVEN, TRANSPORT, Request
from queenmq.httpserver.refusals import BadHttp, HeadersTooLarge, TargetTooLong

MAX_REPEATED_HEADERS = 100

_HEADER_BYTES = 128  # that one takes beside its text
_SHORT_TARGET_BYTES = 1024
_METHODS = {name.encode(): name for name in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH")}
_NOT_REPEATABLE = frozenset({b"host", b"authorization", b"content-type", b"content-length", b"expect"})
_DROPPED_WITH_UPGRADE = frozenset({b"upgrade", b"connection", b"http2-settings"})
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


class RequestReader:
    """Appends every complete request to `ready`.

    Feed it slices no larger than `Limits.max_header_bytes`: limits are checked between slices, so memory may
    exceed them by one.
    """

    __slots__ = (
        "_admitted",
        "_barren",
        "_body",
        "_connection",
        "_current",
        "_head_bytes",
        "_headers",
        "_limits",
        "_parser",
        "_pieces",
        "_ready",
        "_repeated",
        "_upgrade",
        "ended",
        "expects_continue",
        "on_body",
        "on_url",
        "partial",
        "unadmitted",
    )

    def __init__(self, limits: Limits, ready: list[Request]) -> None:
        self.partial = False
        """The last slice ended in the middle of a request."""
        self.expects_continue = False
        """The client waits for "100 Continue" before it sends the body."""
        self.unadmitted = False
        """The body that has begun is more than a small one: `admit` its request before anything else is fed."""
        self.ended = False
        """The last request has been read; what follows is not HTTP."""
        self._limits = limits
        self._ready = ready
        # The parser puts pieces of the target, then of the body here. The list's own method spares it a
        # Python call for each.
        self._pieces: list[bytes] = []
        self.on_url = self.on_body = self._pieces.append
        self._headers: dict[bytes, bytes] = {}
        self._repeated = 0
        self._current: Request | None = None  # from the end of its headers to the end of its body
        self._body: bytearray | None = None
        self._admitted = False
        self._barren = 0
        self._head_bytes = 0
        self._upgrade: tuple[Request, bytes] | None = None
        self._connection: dict[str, Any] = {}
        self._parser = HttpRequestParser(self)

    def comes_from(self, transport: asyncio.BaseTransport) -> None:
        """Requests can say where they come from (`Request.address`)."""
        self._connection[TRANSPORT] = transport

    @property
    def arriving(self) -> Request | None:
        """The request whose body is being read."""
        return self._current

    @property
    def expected_bytes(self) -> int:
        """Most bytes that the body of that request can have."""
        length = None if self._current is None else self._current.headers.get(b"content-length")
        return self._limits.max_body_bytes if length is None else int(length)

    @property
    def is_proven(self) -> bool:
        """Whether the other end has proved that it is no stranger."""
        return CERTIFIED in self._connection or PROVEN in self._connection

    def certified(self) -> None:
        """The client has shown a certificate, and it is valid."""
        self._connection[CERTIFIED] = True

    def admit(self) -> None:
        self.unadmitted = False
        self._admitted = True

    @property
    def body_bytes(self) -> int:
        """How much of the body of a partial request has come."""
        return len(self._body or b"")

    @property
    def kept_bytes(self) -> int:
        """What a partial request takes, without a body for which there is room in the budget. Not less than that."""
        if not self.partial:
            return 0
        headers = self._headers if self._current is None else self._current.headers
        return self._head_bytes + len(headers) * _HEADER_BYTES + (0 if self._admitted else self.body_bytes)

    def feed(self, data: bytes | memoryview) -> None:
        """Raises the HttpError that refuses what was sent; nothing may be fed after that."""
        try:
            while True:
                try:
                    self._parser.feed_data(data)
                    break
                except HttpParserUpgrade as upgrade:
                    data = self._without_upgrade(bytes(data[upgrade.args[0] :]))
        except HttpParserError as error:
            if not self.ended:
                raise _refusal(error) from None
        if self._current is not None or self._pieces:
            self._read_part(len(data))

    def discard(self) -> None:
        """Nothing more is fed: give the memory of a body back that was being read."""
        self._body = None
        self._pieces.clear()

    def close(self) -> None:
        """Break the cycle between the parser and this object, and give the memory back."""
        del self._parser
        self._body = self._current = None
        self._pieces.clear()

    # What the parser calls. An HttpError raised here ends the parsing.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._current is not None:
            return  # a trailer
        name = name.lower()
        headers = self._headers
        if name in headers:
            value = self._joined(name, headers[name], value)
        headers[name] = value

    def on_headers_complete(self) -> None:
        pieces = self._pieces
        target = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        headers = self._headers
        self._headers = {}
        if self.partial or self._repeated or len(target) > _SHORT_TARGET_BYTES:
            self._check_head(target, headers)
        parser = self._parser
        method = parser.get_method()
        path, _, query_string = target.partition(b"?")
        request = Request(
            _METHODS.get(method) or method.decode(),
            path.decode("latin-1") if path.startswith(b"/") else _path_of(path),
            query_string,
            headers,
            b"",
            parser.should_keep_alive(),
            connection=self._connection,
        )
        if parser.should_upgrade():
            self._upgrade = request, target
        else:
            self._current = request

    def on_message_complete(self) -> None:
        request = self._current
        if request is None:
            return  # an upgrade, which is fed again without it
        self._current = None
        pieces = self._pieces
        if self.partial:
            request.body = self._whole_body()
        elif pieces:
            request.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
        if len(request.body) > self._limits.max_body_bytes:
            raise self._too_large()
        if not request.keep_alive:
            self.ended = True
        self._ready.append(request)

    def _joined(self, name: bytes, first: bytes, second: bytes) -> bytes:
        # Joining is quadratic, so it has a bound of its own.
        self._repeated += 1
        if self._repeated > MAX_REPEATED_HEADERS:
            raise HeadersTooLarge(f"more than {MAX_REPEATED_HEADERS} headers are repeated")
        if name in _NOT_REPEATABLE:
            raise BadHttp(f"header {name.decode('latin-1')} is repeated")
        return first + (b"; " if name == b"cookie" else b", ") + second

    def _check_head(self, target: bytes, headers: dict[bytes, bytes]) -> None:
        self._repeated = 0
        if len(target) > self._limits.max_target_bytes:
            raise TargetTooLong(f"the request target is over {self._limits.max_target_bytes} bytes")
        size = sum([len(name) + len(value) + 4 for name, value in headers.items()])
        if size > self._limits.max_header_bytes:
            raise self._headers_too_large()

    def _whole_body(self) -> bytes:
        body = b"".join([self._body or b"", *self._pieces])
        self._pieces.clear()
        self._body = None
        self.partial = self.expects_continue = self._admitted = False
        return body

    # A request that comes in more than one slice.

    def _read_part(self, size: int) -> None:
        if not self.partial:
            self.partial = True
            self._barren = 0
            self._head_bytes = size
            size = 0  # most of this slice may belong to the requests before
        elif self._body is None:
            self._head_bytes += size
        if self._current is None:
            self._count_barren(size, self._headers_too_large())
        elif self._body is None:
            self._begin_body(self._current)
        elif self._pieces:
            self._barren = 0
            self._extend_body(self._body)
        else:
            self._count_barren(size, BadHttp("malformed HTTP: chunks without content"))

    def _count_barren(self, size: int, refusal: HttpError) -> None:
        """Headers, chunk extensions and trailers may not go on for ever."""
        self._barren += size
        if self._barren > self._limits.max_header_bytes:
            raise refusal

    def _begin_body(self, request: Request) -> None:
        headers = request.headers
        if int(headers.get(b"content-length", b"0")) > self._limits.max_body_bytes:
            raise self._too_large()
        if not self._pieces and self._parser.get_http_version() != "1.0":
            self.expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        self._barren = 0
        self._body = bytearray()
        self.unadmitted = int(headers.get(b"content-length", b"0")) > self._limits.unchecked_body_bytes
        self._extend_body(self._body)

    def _extend_body(self, body: bytearray) -> None:
        body += b"".join(self._pieces)
        self._pieces.clear()
        if len(body) > self._limits.max_body_bytes:
            raise self._too_large()
        if len(body) > self._limits.unchecked_body_bytes and not self._admitted:
            self.unadmitted = True

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The request that asked for an upgrade, as if it had not, and what was sent after its headers."""
        if self._upgrade is None:
            raise BadHttp("malformed HTTP: upgrade without request")
        request, target = self._upgrade
        self._upgrade = None
        headers = request.headers
        if (
            request.method == "GET"
            and headers.get(b"upgrade", b"").lower() == b"websocket"
            and _FRAMING.isdisjoint(headers)
        ):
            self._whole_body()
            self._ready.append(request)
            return rest
        if request.method == "CONNECT":
            raise MethodNotAllowed("CONNECT", "GET, POST, PUT, DELETE, OPTIONS")
        lines = [b"%b %b HTTP/1.1" % (request.method.encode(), target)]
        kept = [item for item in request.headers.items() if item[0] not in _DROPPED_WITH_UPGRADE]
        lines += [b"%b: %b" % item for item in kept]
        lines.append(b"Connection: keep-alive" if request.keep_alive else b"Connection: close")
        return b"\r\n".join([*lines, b"", rest])

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the request body is over {self._limits.max_body_bytes} bytes")

    def _headers_too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"the request headers are over {self._limits.max_header_bytes} bytes")


def _path_of(target: bytes) -> str:
    """The path of an absolute target (`http://host/path`); `*` stays what it is."""
    _, scheme_end, rest = target.partition(b"://")
    if not scheme_end:
        return target.decode("latin-1")
    return "/" + rest.partition(b"/")[2].decode("latin-1")


def _refusal(error: HttpParserError) -> HttpError:
    cause = error.__context__
    return cause if isinstance(cause, HttpError) else BadHttp(f"malformed HTTP: {error}")
