"""Connections to another server: kept, bounded, and given up in a way that loses no answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from queenmq.clock import SYSTEM
from queenmq.cluster.keys import Key, KeyRing
from queenmq.cluster.peer_session import Ends, Session, answer
from queenmq.http.peer_connection import MAX_GREETING_BYTES, Late, PeerAnswer, PeerFailure, PeerUnproven
from queenmq.http.peer_messages import SEALED, RequestHead, read_request_head, sealed_answer
from queenmq.http.peer_pool import PeerPool, PoolExhausted, Times
from queenmq.httpserver.messages import Response, head_of

RING = KeyRing(Key(b"s" * 32))
ENDS = Ends(b"a", b"b")
HEAD = RequestHead("GET", b"/api/v1/pop/queue/q", "origin", [(b"authorization", b"Bearer secret")])
BODY = b'{"a": 1}'
SOON = 5.0


class Talk:
    """The far end of a connection, which has answered the greeting."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: Session) -> None:
        self.reader, self.writer, self._session = reader, writer, session

    async def read(self) -> bytes:
        """The body of the next request, opened; empty at the end."""
        head = await _head(self.reader)
        if not head:
            return b""
        opened = read_request_head(self._session, {SEALED: _value(head, b"X-Queen-Sealed")})
        assert opened == HEAD
        body = self._session.open(await self.reader.readexactly(int(_value(head, b"Content-Length"))))
        assert body is not None
        return body

    def answer(self, body: bytes = b"hello") -> bytes:
        response = Response(200, body=body, headers=((b"X-Extra", b"1"),))
        sealed = sealed_answer(self._session, response)
        return head_of(sealed, True) + sealed.body


Behaviour = Callable[[Talk], Awaitable[None]]


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


def _value(head: bytes, name: bytes) -> bytes:
    found = re.search(rb"(?m)^" + name + rb": (\S+)\r$", head)
    assert found is not None
    return found[1]


async def greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Session | None:
    """Answer the greeting."""
    head = await _head(reader)
    if not head:
        return None
    given = answer(RING, Ends(_value(head, b"X-Forwarded-By"), b"b"), _value(head, b"X-Queen-Greeting"))
    assert given is not None
    said, session = given
    writer.write(b"HTTP/1.1 200 OK\r\nX-Queen-Greeting: %b\r\nContent-Length: 0\r\n\r\n" % said)
    return session


@asynccontextmanager
async def peer(behave: Behaviour, max_connections: int = 10) -> AsyncIterator[PeerPool]:
    """A pool of connections to a peer that behaves like this on each."""
    tasks = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        try:
            session = await greeted(reader, writer)
            if session is not None:
                await behave(Talk(reader, writer, session))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()[:2]
    pool = PeerPool(address, RING, ENDS, max_connections=max_connections, times=Times(SOON, SOON))
    try:
        yield pool
    finally:
        pool.close()
        server.close()
        await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)


async def answer_all(talk: Talk) -> None:
    while await talk.read():
        talk.writer.write(talk.answer())


async def say_nothing(talk: Talk) -> None:
    while await talk.reader.read(1000):
        pass


async def ask(pool: PeerPool, seconds: float = SOON, late: Late | None = None) -> PeerAnswer:
    return await pool.exchange(HEAD, BODY, deadline(seconds), late)


def deadline(seconds: float = SOON) -> float:
    return SYSTEM.monotonic() + seconds


async def test_connections_are_used_again() -> None:
    async with peer(answer_all) as pool:
        for _ in range(5):
            given = await ask(pool)
            assert given == PeerAnswer(200, True, b"application/json", {b"x-extra": b"1"}, b"hello")
        assert len(pool) == 1
        await asyncio.gather(*(ask(pool) for _ in range(4)))
        assert len(pool) == 4


async def test_there_are_no_more_than_allowed() -> None:
    async with peer(say_nothing, max_connections=2) as pool:
        busy = [asyncio.create_task(ask(pool)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(PoolExhausted):
            await ask(pool)
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


async def test_nobody_listens() -> None:
    async with peer(answer_all) as pool:
        pass
    with pytest.raises(PeerFailure):
        await ask(pool)


async def test_no_answer_in_time() -> None:
    async with peer(say_nothing) as pool:
        with pytest.raises(PeerFailure, match="in time"):
            await ask(pool, 0.05)


@pytest.mark.parametrize("kept", [0, 20, -1, None])
async def test_the_connection_ends_before_the_answer_does(kept: int | None) -> None:
    """If the head of the answer has come whole, it is handed over: it may name a lease."""

    async def break_off(talk: Talk) -> None:
        await talk.read()
        talk.writer.write(b"nonsense\r\n\r\n" if kept is None else talk.answer()[:kept])

    late: list[Mapping[bytes, bytes]] = []
    async with peer(break_off) as pool:
        with pytest.raises(PeerFailure):
            await ask(pool, late=late.append)
        await until_empty(pool)
        assert late == ([{b"x-extra": b"1"}] if kept == -1 else [])


async def until_empty(pool: PeerPool) -> None:
    async with asyncio.timeout(SOON):
        while len(pool):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("end", ["cancelled", "too late", "failed"])
async def test_an_answer_that_is_on_its_way_when_the_request_is_given_up_is_not_lost(end: str) -> None:
    asked = asyncio.Event()

    async def answer_at_the_end(talk: Talk) -> None:
        await talk.read()
        asked.set()
        assert await talk.reader.read() == b"", "the peer learns that nobody waits"
        talk.writer.write(talk.answer())

    late: list[Mapping[bytes, bytes]] = []
    async with peer(answer_at_the_end) as pool:
        task = asyncio.create_task(ask(pool, 0.2 if end == "too late" else SOON, late.append))
        await asked.wait()
        if end == "cancelled":
            task.cancel()
        elif end == "failed":
            pool.fail("dead")
        with pytest.raises(asyncio.CancelledError if end == "cancelled" else PeerFailure):
            await task
        await until_empty(pool)
    assert late == [{b"x-extra": b"1"}]


async def test_an_answer_that_comes_in_the_moment_of_the_cancellation_is_not_lost() -> None:
    """The client has gone, but the task that waits for the answer has not run since."""
    asked = asyncio.Event()

    talks: list[Talk] = []

    async def note(talk: Talk) -> None:
        await talk.read()
        talks.append(talk)
        asked.set()
        await talk.read()

    late: list[Mapping[bytes, bytes]] = []
    async with peer(note) as pool:
        task = asyncio.create_task(ask(pool, late=late.append))
        await asked.wait()
        [connection] = pool._open
        task.cancel()
        connection.data_received(talks[0].answer())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert late == [{b"x-extra": b"1"}]
        await until_empty(pool)


async def test_a_request_without_interest_in_a_late_answer_ends_with_its_connection() -> None:
    ended = asyncio.Event()

    async def never_answer(talk: Talk) -> None:
        await talk.read()
        await talk.read()
        ended.set()

    async with peer(never_answer) as pool:
        with pytest.raises(PeerFailure, match="in time"):
            await ask(pool, 0.05)
        async with asyncio.timeout(SOON):
            await ended.wait()
        await until_empty(pool)


async def test_a_connection_that_closes_while_it_is_idle_is_not_used_again() -> None:
    async def answer_once(talk: Talk) -> None:
        await talk.read()
        talk.writer.write(talk.answer())

    async with peer(answer_once) as pool:
        for _ in range(3):
            await ask(pool)
            await until_empty(pool)


async def test_what_nobody_has_asked_for_ends_the_connection() -> None:
    async def go_on(talk: Talk) -> None:
        await talk.read()
        talk.writer.write(talk.answer() + talk.answer())
        await talk.read()

    async with peer(go_on) as pool:
        assert (await ask(pool)).body == b"hello"
        await until_empty(pool)


async def test_connections_that_were_idle_for_long_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenmq.http.peer_pool.IDLE_S", 0.0)
    connections = 0

    async def count(talk: Talk) -> None:
        nonlocal connections
        connections += 1
        await answer_all(talk)

    async with peer(count) as pool:
        for _ in range(3):
            await ask(pool)
    assert connections == 3


# Whoever is at the address of the peer


@asynccontextmanager
async def impostor(
    behave: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[tuple[PeerPool, bytearray]]:
    """A pool of connections to somebody without the secret, and everything that it has read."""
    seen = bytearray()
    tasks = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        seen.extend(await _head(reader))
        try:
            await behave(reader, writer)
            while data := await reader.read(1000):
                seen.extend(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = PeerPool(server.sockets[0].getsockname()[:2], RING, ENDS, max_connections=10, times=Times(SOON, SOON))
    try:
        yield pool, seen
    finally:
        pool.close()
        server.close()
        await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Queen-Greeting: 00.00\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Queen-Greeting: %b.%b\r\nContent-Length: 0\r\n\r\n" % (b"ab" * 32, b"cd" * 32),
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_who_does_not_prove_to_be_the_peer_is_told_nothing(said: bytes) -> None:
    async def pretend(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)

    async with impostor(pretend) as (pool, seen):
        with pytest.raises(PeerUnproven, match="has not proved"):
            await ask(pool)
        await until_empty(pool)
    assert seen.count(b"HTTP/1.1") == 1, "nothing came after the greeting"
    assert b"secret" not in seen
    assert b"queue" not in seen


async def test_an_endless_answer_to_the_greeting() -> None:
    async def pour(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(MAX_GREETING_BYTES):
            writer.write(b"X-%d: %b\r\n" % (number, b"x" * 1000))
            await writer.drain()

    async with impostor(pour) as (pool, _):
        with pytest.raises(PeerFailure, match="too large"):
            await ask(pool)
        await until_empty(pool)


async def test_an_answer_that_the_peer_has_not_sealed_is_hearsay_and_the_last_of_its_connection() -> None:
    async def refuse(talk: Talk) -> None:
        await talk.read()
        talk.writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\nhello")
        assert await talk.read() == b""

    async with peer(refuse) as pool:
        assert await ask(pool) == PeerAnswer(201)
        await until_empty(pool)


async def test_a_former_answer_is_no_answer() -> None:
    async def repeat(talk: Talk) -> None:
        await talk.read()
        said = talk.answer()
        talk.writer.write(said)
        await talk.read()
        talk.writer.write(said)
        assert await talk.read() == b""

    async with peer(repeat) as pool:
        assert (await ask(pool)).is_proven
        assert await ask(pool) == PeerAnswer(200)
        await until_empty(pool)


async def test_who_does_not_answer_the_greeting_is_not_waited_for_as_long_as_for_a_long_poll() -> None:
    async def keep_silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with impostor(keep_silent) as (pool, _):
        pool._times = Times(SOON, 0.05)
        with pytest.raises(PeerFailure, match="greeting in time"):
            await ask(pool, 3600)
        await until_empty(pool)


async def test_a_server_that_dies_during_the_greeting_is_not_waited_for() -> None:
    asked = asyncio.Event()

    async def keep_silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()

    async with impostor(keep_silent) as (pool, _):
        task = asyncio.create_task(ask(pool, 3600))
        await asked.wait()
        pool.fail("the server counts as dead")
        with pytest.raises(PeerFailure, match="counts as dead"):
            await task
        await until_empty(pool)
