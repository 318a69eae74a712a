"""HTTP servers on real sockets that do what a test tells them to do with each request: answer, cut, stall, lie.

`Scripted` answers by itself. `Proxy` stands before a real server, so that a request can be carried out although its
answer is lost.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any, Self
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Seen:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """An answer; `upto` cuts the connection after so many bytes of the body."""

    status: int
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    upto: int | None = None

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Cut:
    """Close the connection without an answer."""


@dataclass(frozen=True)
class Stall:
    """Never answer."""


@dataclass(frozen=True)
class Lose:
    """Hand the request on to the real server, then cut its answer in the middle."""

    after: int = 10


@dataclass(frozen=True)
class Die:
    """Hand the request on to the real server, then be gone like a killed one: no answer, and nobody listens."""


Action = Answer | Cut | Stall | Lose | Die

REFUSED = Answer(503, {"error": "database connection unavailable (ECONNREFUSED)", "code": "database_unavailable"})


class Faulty:
    """The base of both: reads requests, notes them, and does the next thing of the script."""

    def __init__(self) -> None:
        self.script: deque[Action | None] = deque()
        self.seen: list[Seen] = []
        self.connections = 0
        self.arrived = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0
        self.tls: SSLContext | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen; again on the same port after a stop."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, ssl=self.tls)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while (request := await _read(reader)) is not None:
                self.seen.append(request)
                self.arrived.set()
                if not await self._act(request, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _act(self, request: Seen, writer: asyncio.StreamWriter) -> bool:
        """Do the next thing; whether the connection stays open."""
        action = self.script.popleft() if self.script else None
        match action:
            case Cut():
                return False
            case Stall():
                await asyncio.Event().wait()
                return False
            case Answer():
                return await _send(writer, action)
            case Lose(after):
                real = await self._real(request)
                return await _send(writer, Answer(real.status, real.body, upto=after))
            case Die():
                assert self._server is not None
                await self._real(request)
                self._server.close()
                return False
            case None:
                return await _send(writer, await self._real(request))

    async def _real(self, request: Seen) -> Answer:
        raise NotImplementedError


class Scripted(Faulty):
    """When the script is at its end, the default is answered."""

    def __init__(self, *script: Action, default: Answer | None = None) -> None:
        super().__init__()
        self.script.extend(script)
        self._default = default or Answer(404, {"error": "Not found", "code": "not_found"})

    async def _real(self, request: Seen) -> Answer:
        return self._default


class Proxy(Faulty):
    """When the script is at its end, everything is handed on."""

    def __init__(self, url: str) -> None:
        super().__init__()
        parts = urlsplit(url)
        self._host, self._upstream = parts.hostname, parts.port

    async def _real(self, request: Seen) -> Answer:
        reader, writer = await asyncio.open_connection(self._host, self._upstream)
        try:
            head = [f"{request.method} {request.target} HTTP/1.1", "Host: queen", "Connection: close"]
            head += [f"{name}: {value}" for name, value in request.headers.items() if name == "authorization"]
            head += [f"Content-Length: {len(request.body)}", "", ""]
            writer.write("\r\n".join(head).encode() + request.body)
            status, headers = await _head(reader)
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            return Answer(int(status.split()[1]), body)
        finally:
            writer.close()
            await writer.wait_closed()


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    pairs = (line.split(":", 1) for line in lines if line)
    return first, {name.lower(): value.strip() for name, value in pairs}


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    try:
        first, headers = await _head(reader)
    except asyncio.IncompleteReadError:
        return None
    method, target, _ = first.split(" ")
    if headers.get("transfer-encoding") == "chunked":
        raise NotImplementedError
    return Seen(method, target, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> bool:
    content = b"" if answer.status == 204 else answer.content()
    head = [f"HTTP/1.1 {answer.status} X", "Content-Type: application/json"]
    head += [f"{name}: {value}" for name, value in answer.headers]
    if answer.status != 204:
        head.append(f"Content-Length: {len(content)}")
    sent = content if answer.upto is None else content[: answer.upto]
    writer.write("\r\n".join([*head, "", ""]).encode() + sent)
    await writer.drain()
    return answer.upto is None
