"""A TCP relay in front of PostgreSQL that can be cut, closed and paused: an outage without touching the database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Proxy:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._parts = parts
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        user = self._parts.netloc.rpartition("@")[0]
        return self._parts._replace(netloc=f"{user}@127.0.0.1:{self._port}").geturl()

    async def open(self) -> None:
        """Take connections, on the same port as before."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuse connections, and cut those that are there."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        await asyncio.sleep(0)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def pause(self) -> None:
        """Take connections and bytes, and let nothing through."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._flowing.wait()
            there, back = await asyncio.open_connection(*self._target)
            self._writers.add(back)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer), return_exceptions=True)
            self._writers.discard(back)
        except OSError:
            writer.transport.abort()
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        sink.close()

    async def end(self) -> None:
        self.resume()
        await self.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def relayed(url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(url)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.end()
