"""Outsiders between servers that forward requests: nobody is believed who has not got the secret, and nobody is told
anything, wherever it stands."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import asyncpg
import jwt

from integration.cluster import SECRET, Member, cluster, until
from queenmq.cluster.keys import Key, KeyRing
from queenmq.cluster.membership import Address
from queenmq.cluster.peer_session import Ends, greet
from queenmq.http.peer_messages import RequestHead, written_greeting, written_request

JWT_SECRET = "a secret of more than thirty-two bytes"
PAYLOAD = "the-payload-of-a-push"
_SWALLOWED = b'[{"index":0,"transactionId":"t","status":"queued","messageId":"00000000-0000-7000-8000-000000000000"}]'

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[Address]:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with closing(writer), suppress(asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)

    tasks: set[asyncio.Task[Any]] = set()
    server = await asyncio.start_server(served, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield host, port
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


class Outsider:
    """Somebody at the address of a server, who passes everything on to where the server is, and keeps a copy."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self.asked: list[bytes] = []  # by connection
        self.answered: list[bytes] = []
        self.change: Callable[[bytes], bytes] = lambda answer: answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        number = len(self.asked)
        self.asked.append(b"")
        self.answered.append(b"")

        async def back() -> None:
            first = True
            while data := await far_reader.read(65536):
                self.answered[number] += data
                writer.write(data if first else self.change(data))
                first = False
            writer.close()

        task = asyncio.create_task(back())
        try:
            with closing(far_writer):
                while data := await reader.read(65536):
                    self.asked[number] += data
                    far_writer.write(data)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def authorized(*members: Member) -> str:
    token = jwt.encode({"sub": "alice", "role": "admin", "exp": time.time() + 600}, JWT_SECRET)
    for member in members:
        member.http.headers["Authorization"] = f"Bearer {token}"
    return token


AUTH = {"enabled": True, "secret": JWT_SECRET}


async def consumers_at(one: Member, *others: Member) -> None:
    """The others believe that consumers of q wait at this server."""
    for other in others:
        stamp = (2**62, 1)
        other.server.node.state.presence.registered(one.name, stamp, ["q"], other.server.node.now)
        other.coordinator.producer_route = lambda *_, other=other, **__: other.coordinator.tracker.of(one.name)


async def push(member: Member, number: int) -> tuple[int, str | None]:
    """Status, and who served it."""
    answer = await member.push("q", {"payload": f"{PAYLOAD}-{number}"})
    return answer.status_code, answer.headers.get("x-served-by")


async def stored(sql: asyncpg.Connection) -> list[str]:
    return sorted(
        row[0] for row in await sql.fetch("SELECT convert_from(payload, 'UTF8')::jsonb #>> '{}' FROM queen.messages")
    )


def expected(count: int) -> list[str]:
    return sorted(f"{PAYLOAD}-{number}" for number in range(count))


async def test_whoever_has_the_address_of_a_server_cannot_answer_for_it_and_learns_nothing(
    database_url: str, sql: asyncpg.Connection
) -> None:
    """It takes pushes with a 201, under the right name, with whatever it was sent as proof."""
    seen = bytearray()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            seen.extend(head)
            length = re.search(rb"(?i)content-length: (\d+)", head)
            seen.extend(await reader.readexactly(int(length[1]) if length else 0))
            lines = [b"HTTP/1.1 201 Created", b"Content-Type: application/json", b"X-Served-By: b"]
            lines += re.findall(rb"(?m)^(X-Queen-[^\r]*)\r$", head)
            writer.write(b"\r\n".join([*lines, b"Content-Length: %d" % len(_SWALLOWED), b"", _SWALLOWED]))

    async with cluster(database_url, "ab", auth=AUTH) as (a, b), listening(swallow) as address:
        token = authorized(a, b)
        await consumers_at(b, a)
        a.reach(b, address)
        for number in range(60):
            assert await push(a, number) == (201, "a")
        assert await stored(sql) == expected(60)
        assert a.coordinator.failed_attempts["refused"] >= 3
        assert seen, "somebody was at the address"
        for secret in (token, PAYLOAD, "push"):
            assert secret.encode() not in seen


async def test_whoever_passes_everything_on_learns_nothing_either(database_url: str, sql: asyncpg.Connection) -> None:
    async with cluster(database_url, "ab", auth=AUTH) as (a, b):
        token = authorized(a, b)
        await consumers_at(b, a)
        outsider = Outsider(b.server.address)
        async with listening(outsider.serve) as address:
            a.reach(b, address)
            for number in range(5):
                assert await push(a, number) == (201, "b")
            a.send_consumers(("q", "g"), b)
            popped = await a.pop("q", consumerGroup="g")
            assert popped.headers["x-served-by"] == "b"
            assert popped.json()["messages"][0]["data"].startswith(PAYLOAD)
            heard = b"".join([*outsider.asked, *outsider.answered])
        assert await stored(sql) == expected(5)
        assert b"/internal/forward" in heard
        for secret in (token, PAYLOAD, "alice", "/api/v1", popped.json()["leaseId"]):
            assert secret.encode() not in heard


async def test_an_answer_that_was_changed_on_its_way_is_no_answer(database_url: str, sql: asyncpg.Connection) -> None:
    """The push was stored there, and is repeated here; it is stored once."""
    async with cluster(database_url, "ab", coordinator={"circuit_failures": 10}) as (a, b):
        await consumers_at(b, a)
        outsider = Outsider(b.server.address)
        async with listening(outsider.serve) as address:
            a.reach(b, address)
            outsider.change = lambda answer: answer[:-1] + bytes([answer[-1] ^ 1])
            assert await push(a, 0) == (201, "a")
            outsider.change = lambda answer: answer.replace(b"X-Queen-Sealed", b"X-Queen-Other")
            assert await push(a, 1) == (201, "a")
            outsider.change = lambda answer: answer
            assert await push(a, 2) == (201, "b")
        assert b.passed_on > 3, "it was tried more than once"
        assert await stored(sql) == expected(3)


async def test_a_recorded_connection_is_worth_nothing(database_url: str, sql: asyncpg.Connection) -> None:
    """Played to the server that it was with, to another one, and as answers to the one that has opened it."""
    async with cluster(database_url) as (a, b, c):
        await consumers_at(b, a)
        outsider = Outsider(b.server.address)
        async with listening(outsider.serve) as address:
            a.reach(b, address)
            assert await push(a, 0) == (201, "b")
            assert [one.spare_rank for one in b.server.front.connections] == [None], "that of a server is kept"
        [asked], [answered] = outsider.asked, outsider.answered
        greeting, end, request = asked.partition(b"\r\n\r\n")
        assert await said_to(b, greeting + end, request) == [200, 403]
        assert await said_to(b, greeting + end, request, request) == [200, 403, 403]
        assert await said_to(b, request) == [403]
        assert await said_to(c, greeting + end, request) == [403, 403]
        assert await said_to(a, greeting + end, request) == [403, 403], "sent back to its sender"
        assert (b.passed_on, await stored(sql)) == (5, expected(1))
        reader, writer = await asyncio.open_connection(*b.server.address)
        with closing(writer):
            writer.write(greeting + end)
            assert b" 200 " in await reader.readline()
            [played] = [one for one in b.server.front.connections if one.spare_rank is not None]
            assert played.spare_rank == 2, "it makes room like that of any stranger"

        async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first, end, rest = answered.partition(b"\r\n\r\n")
            for part in (first + end, rest):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(part)
            await reader.read()

        async with listening(play) as address:
            a.reach(b, address)
            assert await push(a, 1) == (201, "a")
        assert await stored(sql) == expected(2)


async def said_to(member: Member, *parts: bytes) -> list[int]:
    """The statuses with which a server answers what is said to it on one connection."""
    reader, writer = await asyncio.open_connection(*member.server.address)
    statuses = []
    with closing(writer):
        for part in parts:
            writer.write(part)
            head = await reader.readuntil(b"\r\n\r\n")
            statuses.append(int(head.split()[1]))
            length = re.search(rb"(?i)content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
    return statuses


def as_server(name: str, to: str, key: bytes = SECRET) -> tuple[Any, bytes]:
    greeting = greet(KeyRing(Key(key)), Ends(name.encode(), to.encode()))
    return greeting, written_greeting(name.encode(), greeting.said)


async def test_only_who_has_the_secret_and_means_this_server_is_greeted(database_url: str) -> None:
    async with cluster(database_url, "ab") as (a, _):
        assert await said_to(a, as_server("b", "a")[1]) == [200]
        assert await said_to(a, as_server("b", "b")[1]) == [403]
        assert await said_to(a, as_server("b", "a", b"x" * 32)[1]) == [403]
        renamed = as_server("b", "a")[1].replace(b"X-Forwarded-By: b", b"X-Forwarded-By: c")
        assert await said_to(a, renamed) == [403]
        for headers in ({}, {"X-Forwarded-By": "b"}, {"X-Forwarded-By": "b", "X-Queen-Greeting": "00.00.00"}):
            assert (await a.http.get("/internal/greeting", headers=headers)).status_code == 403
            assert (await a.http.post("/internal/forward", headers=headers)).status_code == 403
        assert (await a.http.get("/api/v1/pop/queue/q", headers={"X-Forwarded-By": "b"})).status_code == 403
        for path in ("/internal/forward/api/v1/pop/queue/q", "/internal/forwards"):
            assert (await a.http.get(path)).status_code == 404


class Caller:
    """A server of the cluster that forwards what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.session: Any = None

    async def open(self, member: Member) -> None:
        greeting, written = as_server("b", member.name)
        answer = await self._said(written)
        found = re.search(rb"X-Queen-Greeting: (\S+)", answer)
        assert found is not None
        self.session = greeting.answered(found[1])
        assert self.session is not None

    async def forward(self, method: str, target: str, body: bytes = b"") -> int:
        head = RequestHead(method, target.encode(), "0199a1b0-0000-7000-8000-000000000000", [])
        return int((await self._said(written_request(self.session, head, body))).split()[1])

    async def _said(self, data: bytes) -> bytes:
        self._writer.write(data)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        await self._reader.readexactly(int(length[1]) if length else 0)
        return head


@asynccontextmanager
async def caller(member: Member) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection(*member.server.address)
    with closing(writer):
        opened = Caller(reader, writer)
        await opened.open(member)
        yield opened


async def test_a_server_may_forward_only_what_servers_forward(database_url: str) -> None:
    async with cluster(database_url, "ab") as (a, _), caller(a) as b:
        assert await b.forward("GET", "/api/v1/pop/queue/q") == 200
        for method, target in (("GET", "/health"), ("DELETE", "/api/v1/resources/queues/q"), ("GET", "/metrics")):
            assert await b.forward(method, target) == 403
        assert await b.forward("GET", "/api/v1/none") == 404
        assert await b.forward("GET", "/api/v1/pop/queue/q") == 200, "the connection is as good as before"


async def test_a_large_body_is_forwarded_and_refused_before_it_is_read_if_it_is_not(
    database_url: str, sql: asyncpg.Connection
) -> None:
    async with cluster(database_url, "ab") as (a, b):
        await consumers_at(b, a)
        answer = await a.push("q", {"payload": "x" * 300_000})
        assert (answer.status_code, answer.headers["x-served-by"]) == (201, "b")
        assert await sql.fetchval("SELECT length(payload) FROM queen.messages") == 300_002
        reader, writer = await asyncio.open_connection(*b.server.address)
        with closing(writer):
            head = b"POST /internal/forward HTTP/1.1\r\nHost: queen\r\nX-Queen-Sealed: AAAA\r\n"
            writer.write(head + b"Content-Length: 5000000\r\n\r\n" + b"x" * 40_000)
            assert (await reader.readuntil(b"\r\n\r\n")).split()[1] == b"403"
        async with caller(b) as other:
            assert await other.forward("POST", "/api/v1/push", b"x" * 100_000) == 400, "it is no push, but it was read"


async def test_connections_end_with_the_secret_that_they_began_with(database_url: str) -> None:
    """Both secrets of a rotation are good; the one that is gone is not."""
    async with cluster(database_url, "ab", cluster={"secret_previous": b"p" * 32}) as (a, _):
        assert await said_to(a, as_server("b", "a", b"p" * 32)[1]) == [200]
        assert await said_to(a, as_server("b", "a", b"o" * 32)[1]) == [403]


async def test_a_server_of_the_old_kind_is_left_alone(database_url: str, sql: asyncpg.Connection) -> None:
    """It knows nothing of greetings. Requests are served here, and the log says why."""

    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    async with cluster(database_url, "ab") as (a, b), listening(old) as address:
        await consumers_at(b, a)
        a.reach(b, address)
        for number in range(3):
            assert await push(a, number) == (201, "a")
        await until(lambda: a.circuit(b) == "open")
        assert await stored(sql) == expected(3)
