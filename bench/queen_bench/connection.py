"""A bare HTTP/1.1 client for the load generator.

It shares two cores with what it measures, so it does no more than it must: one request at a time per connection,
answers with Content-Length only.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, cast

from queen_bench.errors import BenchError

Answer = tuple[int, bytes]

NO_CONTENT: Final = 204


def get_request(target: str) -> bytes:
    """The bytes of a GET, to be made once and sent often."""
    return b"GET %b HTTP/1.1\r\nHost: queen\r\n\r\n" % target.encode()


def post_request(target: bytes, body: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: queen\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (target, len(body)) + body


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._answer: asyncio.Future[Answer] | None = None

    @classmethod
    async def open(cls, host: str, port: int, trusted: ssl.SSLContext | None = None) -> Connection:
        """With TLS if it is said whose certificates to trust."""
        try:
            _, protocol = await asyncio.get_running_loop().create_connection(cls, host, port, ssl=trusted)
        except OSError as error:
            raise BenchError(f"cannot connect to {host}:{port}: {error}") from None
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own does not inherit from it

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BenchError(f"the server closed the connection ({error or 'end of file'})"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def get(self, target: str) -> asyncio.Future[Answer]:
        return self.send(get_request(target))

    def post(self, target: bytes, body: bytes) -> asyncio.Future[Answer]:
        return self.send(post_request(target, body))

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a whole request; the answer's status and body come with the future."""
        if self._transport is None or self._transport.is_closing():
            raise BenchError("the server closed the connection")
        self._answer = self._loop.create_future()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        end = self._buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        try:
            status = int(self._buffer[9:12])
            length = 0 if status == NO_CONTENT else _content_length(self._buffer[:end])
        except (ValueError, BenchError) as error:
            self._fail(error)
            return
        if len(self._buffer) < end + length:
            return
        body = self._buffer[end : end + length]
        self._buffer = b""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((status, body))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BenchError(f"an answer that is no HTTP/1.1 of ours: {error}"))
        self.close()


def _content_length(head: bytes) -> int:
    lowered = head.lower()
    start = lowered.find(b"content-length:")
    if start < 0:
        raise BenchError("it has no Content-Length")
    return int(lowered[start + 15 :].split(b"\r\n", 1)[0])
