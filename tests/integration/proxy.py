"""A TCP relay in front of PostgreSQL that can be cut, closed, paused and made silent: an outage without touching the
database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pooler


class _Session:
    """One connection through the relay, and which of its directions let bytes through."""

    def __init__(self) -> None:
        self.asks = asyncio.Event()
        self.asks.set()
        self.answers = asyncio.Event()
        self.answers.set()
        self.listens = False


class Proxy:
    def __init__(self, url: str) -> None:
        parts = urlsplit(pooler.through(url))
        self._parts = parts
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sessions: set[_Session] = set()
        self._chunk, self._pause_s = 65536, 0.0

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

    def lead_to(self, url: str) -> None:
        """Take new connections to another PostgreSQL. Those that are there stay where they are."""
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)

    def pause(self) -> None:
        """Take connections and bytes, and let nothing through."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def silence(self, *, swallow_requests: bool = True) -> int:
        """Let nothing more through on the connections that are there, without a word, but for the one that listens.

        New ones work. With `swallow_requests` false, what is asked still arrives, and only the answers get lost.
        Returns on how many.
        """
        silenced = [session for session in self._sessions if not session.listens]
        for session in silenced:
            session.answers.clear()
            if swallow_requests:
                session.asks.clear()
        return len(silenced)

    def slow_down(self, *, bytes_a_chunk: int, pause_s: float) -> None:
        """Let everything through, at this speed."""
        self._chunk, self._pause_s = bytes_a_chunk, pause_s

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        session = _Session()
        self._sessions.add(session)
        try:
            await self._flowing.wait()
            there, back = await asyncio.open_connection(*self._target)
            self._writers.add(back)
            await asyncio.gather(
                self._pump(reader, back, session, session.asks),
                self._pump(there, writer, session, session.answers),
                return_exceptions=True,
            )
            self._writers.discard(back)
        except OSError:
            writer.transport.abort()
        finally:
            self._writers.discard(writer)
            self._sessions.discard(session)
            self._tasks.discard(task)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, session: _Session, open_: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(self._chunk):
                await asyncio.sleep(self._pause_s)
                session.listens |= b"LISTEN" in data
                await self._flowing.wait()
                await open_.wait()
                sink.write(data)
                await sink.drain()
        sink.close()

    async def end(self) -> None:
        self.resume()
        await self.close()
        for session in self._sessions:
            session.asks.set()
            session.answers.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
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
