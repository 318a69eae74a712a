"""Queen over consumer connections: a bare WebSocket client, as `connection` is a bare one for HTTP.

Several consumers share a connection, as the workers of one process do, each with a batch in hand and one fetched for
it. A mask of zeros is a mask, and costs nothing.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Final, cast
from urllib.parse import urlencode

import msgspec

from queen_bench.broker import Want
from queen_bench.errors import BenchError

SHARED_BY: Final = 16

_HEAD = (
    "GET {target} HTTP/1.1\r\nHost: queen\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10
_ZEROS = bytes(4)


class _Message(msgspec.Struct, gc=False):
    transactionId: str


class Batch(msgspec.Struct, gc=False):
    messages: list[_Message]
    leaseId: str


class _Finished(msgspec.Struct, gc=False):
    leaseId: str
    success: bool


class _Frame(msgspec.Struct, gc=False):
    delivered: list[Batch] = []
    finished: list[_Finished] = []


_decode = msgspec.json.Decoder(_Frame).decode


class Link(asyncio.Protocol):
    """One consumer connection. `text` is the payload of every message."""

    def __init__(self, text: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._text = text
        self._buffer = b""
        self._batches: deque[Batch] = deque()
        self._waiters: deque[asyncio.Future[Batch | None]] = deque()
        self._unanswered: set[str] = set()
        self._outgoing: list[str] = []
        self._settled = asyncio.Event()
        self._error: BenchError | None = None
        self._is_closing = False
        self.consumers = 0

    @classmethod
    async def open(cls, host: str, port: int, queue: str, want: Want, text: bytes) -> Link:
        query: dict[str, str | int] = {"batch": want.batch, "inFlight": SHARED_BY + want.prefetch}
        if want.group:
            query |= {"consumerGroup": want.group, "subscriptionMode": "all"}
        _, link = await asyncio.get_running_loop().create_connection(lambda: cls(text), host, port)
        target = f"/api/v1/consume/queue/{want.queue or queue}?{urlencode(query)}"
        link._write(_HEAD.format(target=target).encode())
        await link._opened
        return link

    async def next(self, wait_ms: int) -> Batch | None:
        if self._error is not None:
            raise self._error
        if self._batches:
            return self._batches.popleft()
        waiter: asyncio.Future[Batch | None] = self._loop.create_future()
        self._waiters.append(waiter)
        alarm = self._loop.call_later(wait_ms / 1000, _resolve, waiter, None)
        try:
            return await waiter
        finally:
            alarm.cancel()

    def finish(self, lease_id: str) -> None:
        """Together with what else is finished in this turn of the event loop."""
        self._unanswered.add(lease_id)
        if not self._outgoing:
            self._loop.call_soon(self._send)
        self._outgoing.append(lease_id)

    async def close(self) -> None:
        """When everything that was finished is answered."""
        while self._unanswered and self._error is None:
            self._settled.clear()
            await self._settled.wait()
        self._is_closing = True
        if self._transport is not None:
            self._transport.close()
        if self._error is not None:
            raise self._error

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own does not inherit from it

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_closing:
            self._fail(f"the server closed the connection ({error or 'end of file'})")

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if not self._opened.done():
            end = self._buffer.find(b"\r\n\r\n") + 4
            if end < 4:
                return
            if not self._buffer.startswith(b"HTTP/1.1 101 "):
                self._opened.set_exception(BenchError(f"no consumer connection: {self._buffer[:300]!r}"))
                return
            self._buffer = self._buffer[end:]
            self._opened.set_result(None)
        while (frame := self._frame()) is not None:
            opcode, payload = frame
            if opcode == _TEXT:
                self._receive(payload)
            elif opcode == _PING:
                self._write(_frame_of(_PONG, payload))
            elif opcode == _CLOSE:
                self._fail(f"the server closed the connection: {payload[:2].hex()} {payload[2:].decode()}")

    def _frame(self) -> tuple[int, bytes] | None:
        """The next whole frame; the server does not divide messages."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        start, length = 2, buffer[1]
        if length == 126:
            start, length = 4, int.from_bytes(buffer[2:4]) if len(buffer) >= 4 else 1 << 63
        elif length == 127:
            start, length = 10, int.from_bytes(buffer[2:10]) if len(buffer) >= 10 else 1 << 63
        if len(buffer) < start + length:
            return None
        self._buffer = buffer[start + length :]
        return buffer[0] & 0x0F, buffer[start : start + length]

    def _receive(self, payload: bytes) -> None:
        frame = _decode(payload)
        for result in frame.finished:
            self._unanswered.discard(result.leaseId)
            if not result.success:
                self._fail(f"a finish was answered {payload[:300]!r}")
        if not self._unanswered:
            self._settled.set()
        if payload.count(self._text) != sum(len(batch.messages) for batch in frame.delivered):
            self._fail(f"a payload did not arrive as it was pushed: {payload[:300]!r}")
        for batch in frame.delivered:
            while self._waiters and self._waiters[0].done():
                self._waiters.popleft()
            if self._waiters:
                self._waiters.popleft().set_result(batch)
            else:
                self._batches.append(batch)

    def _send(self) -> None:
        leases, self._outgoing = self._outgoing, []
        listed = '"},{"leaseId":"'.join(leases)
        self._write(_frame_of(_TEXT, f'{{"finish":[{{"leaseId":"{listed}"}}]}}'.encode()))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _fail(self, why: str) -> None:
        self._error = self._error or BenchError(why)
        self._settled.set()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(self._error)
        if not self._opened.done():
            self._opened.set_exception(self._error)


class ConnectedConsumer:
    def __init__(self, link: Link, want: Want) -> None:
        self._link = link
        self._wait_ms = want.wait_ms
        self._last: Batch | None = None
        link.consumers += 1

    async def pop(self) -> list[str]:
        self._last = await self._link.next(self._wait_ms)
        return [] if self._last is None else [message.transactionId for message in self._last.messages]

    async def ack(self) -> None:
        """Not waited for: the next batch comes when it is done, and `close` sees whether all were."""
        if self._last is not None:
            self._link.finish(self._last.leaseId)
            self._last = None

    async def close(self) -> None:
        self._link.consumers -= 1
        if not self._link.consumers:
            await self._link.close()


def _frame_of(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, 0x80 | size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
    return head + _ZEROS + payload


def _resolve(future: asyncio.Future[Batch | None], value: Batch | None) -> None:
    if not future.done():
        future.set_result(value)
