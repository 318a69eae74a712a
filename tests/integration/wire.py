"""HTTP by hand: what no client library would send, on a connection that is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection. Targets and bodies go out byte for byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, method: str, target: str | bytes, body: bytes = b"", *headers: bytes) -> Answer:
        await self.send(method, target, *headers, b"Content-Length: %d" % len(body))
        self._writer.write(body)
        return await self.answer(method)

    async def send(self, method: str, target: str | bytes, *headers: bytes) -> None:
        """The head of a request only."""
        raw = target if isinstance(target, bytes) else target.encode()
        lines = [b"%b %b HTTP/1.1" % (method.encode(), raw), b"Host: queen", *headers]
        self.write(b"\r\n".join([*lines, b"", b""]))
        await self._writer.drain()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self, method: str = "GET") -> Answer:
        head = await self._reader.readuntil(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        pairs = (line.split(b": ", 1) for line in lines if line)
        headers = {name.lower(): value for name, value in pairs}
        length = 0 if method == "HEAD" else int(headers.get(b"content-length", b"0"))
        return Answer(int(status.split()[1]), headers, await self._reader.readexactly(length))

    async def read(self, most: int) -> bytes:
        """What comes next, as it is."""
        return await self._reader.read(most)

    async def closed(self) -> bool:
        """Wait until the server closes its side."""
        return await self._reader.read() == b""

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@asynccontextmanager
async def connect(address: tuple[str, int]) -> AsyncIterator[Wire]:
    wire = Wire(*await asyncio.open_connection(*address))
    try:
        yield wire
    finally:
        await wire.close()
