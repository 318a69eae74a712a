"""Answers that come part by part over real sockets: flow, end, clients that go away or do not read, and the stop."""

from __future__ import annotations

import asyncio

import pytest

from integration.test_http_protocol import MB, connected, on_both_loops, serving, until
from queenmq.clock import ManualClock
from queenmq.httpserver.messages import Request, Response, StreamedResponse

TEXT = b"text/plain"


class Parts:
    """A source that gives what it is fed."""

    def __init__(self, *parts: bytes) -> None:
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for part in parts:
            self.queue.put_nowait(part)
        self.reads = 0
        self.closed = asyncio.Event()

    async def read(self) -> bytes | None:
        self.reads += 1
        return await self.queue.get()

    def close(self) -> None:
        assert not self.closed.is_set()
        self.closed.set()

    async def __call__(self, request: Request) -> Response:
        return StreamedResponse(200, content_type=TEXT, headers=((b"X-One", b"1"),), source=self)


class Endless(Parts):
    async def read(self) -> bytes | None:
        self.reads += 1
        await asyncio.sleep(0)
        return b"x" * MB


@on_both_loops
async def test_parts_arrive_one_by_one_and_the_end_is_the_end_of_the_connection() -> None:
    parts = Parts(b"one")
    async with serving(parts) as front, connected(front) as client:
        client.get("/")
        answer = await client.answer(bodiless=True)
        assert answer.headers["content-type"] == "text/plain"
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-one"] == "1"
        assert "content-length" not in answer.headers
        assert await client.reader.readexactly(3) == b"one"
        parts.queue.put_nowait(b"two")
        assert await client.reader.readexactly(3) == b"two"
        parts.queue.put_nowait(None)
        assert await client.rest() == b""
        await parts.closed.wait()
        assert front.requests_total == 1


@on_both_loops
async def test_what_was_asked_behind_a_stream_is_not_answered() -> None:
    parts = Parts(b"one")
    async with serving(parts) as front, connected(front) as client:
        client.get("/")
        client.get("/behind")
        await client.answer(bodiless=True)
        parts.queue.put_nowait(None)
        assert await client.rest() == b"one"
        assert front.requests_total == 1


@on_both_loops
async def test_head_takes_nothing_from_the_source() -> None:
    parts = Parts(b"one")
    async with serving(parts) as front, connected(front) as client:
        client.send(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await client.answer(bodiless=True)).status_code == 200
        assert await client.rest() == b""
        assert parts.reads == 0
        assert parts.closed.is_set()


@pytest.mark.parametrize("politely", [False, True])
@on_both_loops
async def test_a_client_that_goes_away_ends_the_stream(politely: bool) -> None:
    parts = Parts(b"one")
    async with serving(parts) as front, connected(front) as client:
        client.get("/")
        await client.answer(bodiless=True)
        if politely:
            client.writer.write_eof()
        else:
            client.writer.transport.abort()
        await parts.closed.wait()
        await until(lambda: front.connections_open == 0)


@on_both_loops
async def test_nothing_is_asked_of_the_source_while_the_client_does_not_read() -> None:
    parts, clock = Endless(), ManualClock()
    async with serving(parts, clock, stall_s=30) as front, connected(front) as client:
        client.get("/")
        [connection] = await some_connection(front)
        await until(lambda: connection._writable is not None)  # type: ignore[attr-defined]
        await client.answer(bodiless=True)
        # The client's own buffers take a little more; then it stands, and the source with it.
        before = -1
        while before != parts.reads:
            before = parts.reads
            for _ in range(1000):
                await asyncio.sleep(0)
        for _ in range(3):
            clock.advance(31)
            front.sweep()
            await asyncio.sleep(0)
        await parts.closed.wait()
        assert front.bytes_out <= (parts.reads + 1) * MB
        await until(lambda: front.connections_open == 0)


@on_both_loops
async def test_a_slow_client_gets_everything_that_the_source_gave_it() -> None:
    parts = Parts(*[bytes([65 + n]) * MB for n in range(8)])
    parts.queue.put_nowait(None)
    async with serving(parts) as front, connected(front) as client:
        client.get("/")
        [connection] = await some_connection(front)
        await until(lambda: connection._writable is not None)  # type: ignore[attr-defined]
        await client.answer(bodiless=True)
        assert await client.rest() == b"".join(bytes([65 + n]) * MB for n in range(8))


@on_both_loops
async def test_the_stop_ends_a_stream_whose_source_ends() -> None:
    parts = Parts(b"one")
    async with serving(parts) as front, connected(front) as client:
        front.on_stop.append(lambda: parts.queue.put_nowait(None))
        client.get("/")
        await client.answer(bodiless=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(front.stop(grace_s=20))
            assert await client.rest() == b"one"
            client.writer.close()
        assert parts.closed.is_set()


@on_both_loops
async def test_the_stop_ends_a_stream_whose_source_does_not_end() -> None:
    parts = Parts(b"one")
    async with serving(parts) as front, connected(front) as client:
        client.get("/")
        await client.answer(bodiless=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(front.stop(grace_s=0))
            assert await client.rest() == b"one"
            client.writer.close()
        assert parts.closed.is_set()


async def some_connection(front: object) -> list[object]:
    await until(lambda: bool(front.connections))  # type: ignore[attr-defined]
    return list(front.connections)  # type: ignore[attr-defined]
