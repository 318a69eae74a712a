"""Connections to another server: kept, bounded, and given up in a way that loses no answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from queenmq.http.peer_connection import PeerFailure
from queenmq.http.peer_pool import PeerPool, PoolExhausted

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nX-Served-By: b\r\nContent-Length: 5\r\n\r\nhello"
SOON = 5.0

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def peer(behave: Behaviour, max_connections: int = 10) -> AsyncIterator[PeerPool]:
    """A pool of connections to a peer that behaves like this on each."""
    tasks = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        try:
            await behave(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = PeerPool(server.sockets[0].getsockname()[:2], max_connections=max_connections, connect_s=1.0)
    try:
        yield pool
    finally:
        pool.close()
        server.close()
        await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await read(reader):
        writer.write(ANSWER)


async def read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        pass


def deadline(seconds: float = SOON) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_connections_are_used_again() -> None:
    async with peer(answer_all) as pool:
        for _ in range(5):
            answer = await pool.exchange(REQUEST, deadline(), None)
            assert (answer.status, answer.headers[b"x-served-by"], answer.body) == (200, b"b", b"hello")
        assert len(pool) == 1
        await asyncio.gather(*(pool.exchange(REQUEST, deadline(), None) for _ in range(4)))
        assert len(pool) == 4


async def test_there_are_no_more_than_allowed() -> None:
    async with peer(say_nothing, max_connections=2) as pool:
        busy = [asyncio.create_task(pool.exchange(REQUEST, deadline(), None)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(PoolExhausted):
            await pool.exchange(REQUEST, deadline(), None)
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


async def test_nobody_listens() -> None:
    async with peer(answer_all) as pool:
        pass
    with pytest.raises(PeerFailure):
        await pool.exchange(REQUEST, deadline(), None)


async def test_no_answer_in_time() -> None:
    async with peer(say_nothing) as pool:
        with pytest.raises(PeerFailure, match="in time"):
            await pool.exchange(REQUEST, deadline(0.05), None)


@pytest.mark.parametrize("sent", [b"", ANSWER[:20], ANSWER[:-1], b"nonsense\r\n\r\n"])
async def test_the_connection_ends_before_the_answer_does(sent: bytes) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.write(sent)

    late: list[Mapping[bytes, bytes]] = []
    async with peer(break_off) as pool:
        with pytest.raises(PeerFailure):
            await pool.exchange(REQUEST, deadline(), late.append)
        await until_empty(pool)
        assert [headers[b"x-served-by"] for headers in late] == ([b"b"] if sent == ANSWER[:-1] else [])


async def until_empty(pool: PeerPool) -> None:
    async with asyncio.timeout(SOON):
        while len(pool):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("end", ["cancelled", "too late", "failed"])
async def test_an_answer_that_is_on_its_way_when_the_request_is_given_up_is_not_lost(end: str) -> None:
    asked = asyncio.Event()

    async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        asked.set()
        assert await reader.read() == b"", "the peer learns that nobody waits"
        writer.write(ANSWER)

    late: list[Mapping[bytes, bytes]] = []
    async with peer(answer_at_the_end) as pool:
        task = asyncio.create_task(pool.exchange(REQUEST, deadline(0.05 if end == "too late" else SOON), late.append))
        await asked.wait()
        if end == "cancelled":
            task.cancel()
        elif end == "failed":
            pool.fail("dead")
        with pytest.raises(asyncio.CancelledError if end == "cancelled" else PeerFailure):
            await task
        await until_empty(pool)
    assert [headers[b"x-served-by"] for headers in late] == [b"b"]


async def test_an_answer_that_comes_in_the_moment_of_the_cancellation_is_not_lost() -> None:
    """The client has gone, but the task that waits for the answer has not run since."""
    asked = asyncio.Event()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        asked.set()
        await read(reader)

    late: list[Mapping[bytes, bytes]] = []
    async with peer(note) as pool:
        task = asyncio.create_task(pool.exchange(REQUEST, deadline(), late.append))
        await asked.wait()
        [connection] = pool._open
        task.cancel()
        connection.data_received(ANSWER)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [headers[b"x-served-by"] for headers in late] == [b"b"]
        await until_empty(pool)


async def test_a_request_without_interest_in_a_late_answer_ends_with_its_connection() -> None:
    ended = asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        await read(reader)
        ended.set()

    async with peer(never_answer) as pool:
        with pytest.raises(PeerFailure, match="in time"):
            await pool.exchange(REQUEST, deadline(0.05), None)
        async with asyncio.timeout(SOON):
            await ended.wait()
        await until_empty(pool)


async def test_a_connection_that_closes_while_it_is_idle_is_not_used_again() -> None:
    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.write(ANSWER)

    async with peer(answer_once) as pool:
        for _ in range(3):
            await pool.exchange(REQUEST, deadline(), None)
            await until_empty(pool)


async def test_what_nobody_has_asked_for_ends_the_connection() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.write(ANSWER + ANSWER)
        await read(reader)

    async with peer(talk) as pool:
        assert (await pool.exchange(REQUEST, deadline(), None)).body == b"hello"
        await until_empty(pool)


async def test_connections_that_were_idle_for_long_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenmq.http.peer_pool.IDLE_S", 0.0)
    connections = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answer_all(reader, writer)

    async with peer(count) as pool:
        for _ in range(3):
            await pool.exchange(REQUEST, deadline(), None)
    assert connections == 3
