"""Several servers on one database, in this process, that know each other; and ways for one of them to misbehave."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import httpx
from ports import free_udp_port
from server_settings import changed, settings_with

from queen_bench.server import QUEEN
from queenmq.cluster.affinity import Route
from queenmq.cluster.membership import Address
from queenmq.http.peer_messages import FORWARDED
from queenmq.httpserver.messages import Request, Response
from queenmq.server import Server

SECRET = bytes(range(32))
MEET_S = 15.0

Handler = Callable[[Request], Awaitable[Response]]


class Member:
    """One server of a cluster, and a client of it."""

    def __init__(self, name: str, server: Server, http: httpx.AsyncClient) -> None:
        self.name = name
        self.server = server
        self.http = http
        self.passed_on = 0  # requests that it got from others
        self._handler = server.front.handler
        server.front.handler = self._handle
        self.misbehave: Callable[[Handler, Request], Awaitable[Response]] | None = None

    async def _handle(self, request: Request) -> Response:
        if request.path == FORWARDED or request.forwarded:
            self.passed_on += 1
            if self.misbehave is not None:
                return await self.misbehave(self._handler, request)
        return await self._handler(request)

    @property
    def coordinator(self) -> Any:
        return self.server.node.coordinator

    def send_consumers(self, key: object, member: Member) -> None:
        """Have this server route the consumers of a key to another one."""
        load = self.coordinator.tracker.of(member.name)
        route = self.coordinator.consumers._routes[key] = Route(load, self.server.node.now)
        route.gather_at = float("inf")

    def circuit(self, member: Member) -> str:
        return self.coordinator.tracker.of(member.name).breaker.state(self.server.node.now).value

    async def push(self, queue: str, *items: dict[str, Any]) -> httpx.Response:
        body = {"items": [{"queue": queue} | item for item in items]}
        return await self.http.post("/api/v1/push", json=body)

    async def pop(self, queue: str, **params: Any) -> httpx.Response:
        return await self.http.get(f"/api/v1/pop/queue/{quote(queue, safe='')}", params=params)

    def reach(self, member: Member, address: Address) -> None:
        """Have this server pass requests on to another one by a detour."""
        direct = self.coordinator.http_address
        self.coordinator.http_address = lambda server: address if server == member.name else direct(server)

    def give_up_after(self, seconds: float) -> None:
        """How long this server waits from now on for the answer to a request that it has passed on."""
        self.server._forwarder._timeout_s = seconds

    def end_wait(self, member: Member) -> None:
        """Have the circuit of a peer try it again now, not when its wait is over."""
        self.coordinator.tracker.of(member.name).breaker._open_until = 0.0

    def refuse(self, *others: Member) -> None:
        """Take no connections any more, and end those of the others."""
        self.server.front._server.close()
        for other in others:
            other.server._forwarder._pools[self.name].close()


@asynccontextmanager
async def cluster(
    database_url: str, names: str = "abc", *, gathers: bool = False, **groups: Any
) -> AsyncIterator[list[Member]]:
    """Servers that have met. Each of the names is one letter. Unless it `gathers`, consumers are served where they ask
    until they are sent elsewhere."""
    ports = [free_udp_port() for _ in names]
    usual = settings_with(
        cluster={"secret": SECRET, "heartbeat_ms": 100, "dead_threshold_ms": 5000},
        database={"pool_size": 5},
        # They share one process, so that what each measures says nothing: consumers stay where they are unless sent.
        coordinator={"enabled": True, "forward_threshold": 1.0},
    )
    chosen = changed(usual, **groups)
    async with AsyncExitStack() as stack:
        if not gathers:
            stack.enter_context(patch("queenmq.cluster.affinity.rank", lambda *_: b""))
        members = []
        for name, port in zip(names, ports, strict=True):
            peers = tuple(("127.0.0.1", other) for other in ports if other != port)
            own = changed(chosen, cluster={"server_id": name, "udp_port": port, "peers": peers})
            server = Server(own, database_url)
            await server.start()
            stack.push_async_callback(server.stop)
            host, http_port = server.address
            client = httpx.AsyncClient(base_url=f"http://{host}:{http_port}", timeout=60)
            members.append(Member(name, server, await stack.enter_async_context(client)))
        await until(lambda: all(_knows(member, len(names)) for member in members))
        yield members


@asynccontextmanager
async def processes(database_url: str, names: str = "abc", **variables: str) -> AsyncIterator[list[str]]:
    """The same as processes of their own; the URLs of the servers."""
    ports = [free_udp_port() for _ in names]
    async with AsyncExitStack() as stack:
        urls = []
        for name, port in zip(names, ports, strict=True):
            given = {
                "DATABASE_URL": database_url,
                "QUEEN_SERVER_ID": name,
                "QUEEN_UDP_PORT": str(port),
                "QUEEN_UDP_PEERS": ",".join(f"127.0.0.1:{other}" for other in ports if other != port),
                "QUEEN_SYNC_SECRET": SECRET.hex(),
                "QUEEN_COORDINATOR_ENABLED": "true",
                "DB_POOL_SIZE": "8",
            }
            urls.append(await stack.enter_async_context(_process(given | variables)))
        async with httpx.AsyncClient() as http:
            for url in urls:
                async with asyncio.timeout(MEET_S):
                    while len((await http.get(f"{url}/api/v1/cluster/balance")).json()["servers"]) < len(names):
                        await asyncio.sleep(0.05)
        yield urls


@asynccontextmanager
async def _process(variables: dict[str, str]) -> AsyncIterator[str]:
    command = (sys.executable, "-c", QUEEN, "serve", "--port", "0", "--log-level", "warning")
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=os.environ | variables)
    try:
        async for line in process.stdout:
            if b" listens on " in line:
                yield line.decode().split()[-1]
                break
    finally:
        process.terminate()
        await process.communicate()


def _knows(member: Member, count: int) -> bool:
    tracker, now = member.coordinator.tracker, member.server.node.now
    return sum(load.reported and tracker.usable(load, now) for load in tracker) == count


async def until(condition: Callable[[], bool], within_s: float = MEET_S) -> None:
    """What is waited for has no signal of its own."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


async def parked(member: Member, queue: str, count: int = 1) -> None:
    await until(lambda: member.server.broker.long_polls.registry.parked().get(queue, 0) >= count)


class SlowWay:
    """The way between two servers: greetings and requests pass, answers to requests are held until `free` is set."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.held = asyncio.Event()  # something has been
        self.address: Address = ("", 0)
        self._passing: set[asyncio.Task[None]] = set()

    async def pass_on(self, target: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*target)
        for task in (self._requests(reader, far_writer), self._answers(far_reader, writer)):
            self._passing.add(asyncio.create_task(task))

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while data := await reader.read(65536):
                writer.write(data)
            writer.write_eof()
            await self.free.wait()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            writer.write(await reader.readuntil(b"\r\n\r\n"))  # a greeting has no body
            while data := await reader.read(65536):
                self.held.set()
                await self.free.wait()
                writer.write(data)

    async def end(self) -> None:
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)


@asynccontextmanager
async def slow_way(target: Address) -> AsyncIterator[SlowWay]:
    way = SlowWay()
    listening = await asyncio.start_server(lambda *pair: way.pass_on(target, *pair), "127.0.0.1", 0)
    way.address = listening.sockets[0].getsockname()[:2]
    try:
        yield way
    finally:
        listening.close()
        await way.end()


# Ways to misbehave, of a server that others have passed a request on to


async def hang(_: Handler, __: Request) -> Response:
    await asyncio.Event().wait()
    raise AssertionError


async def answer_500(_: Handler, __: Request) -> Response:
    return Response(500, {"error": "internal error", "code": "internal_error"})


async def work_and_answer_500(handler: Handler, request: Request) -> Response:
    await handler(request)
    return Response(500, {"error": "internal error", "code": "internal_error"})


def work_and_break(member: Member) -> Callable[[Handler, Request], Awaitable[Response]]:
    """Do it, send half of the answer, and drop the connection."""

    async def misbehave(handler: Handler, request: Request) -> Response:
        response = await handler(request)
        [connection] = [each for each in member.server.front.connections if each._active is request]
        head = b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n" % (response.status, len(response.encode()) + 1)
        headers = b"".join(b"%b: %b\r\n" % header for header in response.headers)
        connection._transport.write(head + headers + b"\r\n" + response.body[:-5])
        connection._transport.close()
        await asyncio.Event().wait()
        raise AssertionError

    return misbehave


def work_late(delay_s: float, done: asyncio.Event) -> Callable[[Handler, Request], Awaitable[Response]]:
    """Do it when nobody waits any more, whatever happens to the connection."""

    async def work(handler: Handler, request: Request) -> Response:
        await asyncio.sleep(delay_s)
        try:
            return await handler(request)
        finally:
            done.set()

    async def misbehave(handler: Handler, request: Request) -> Response:
        return await asyncio.shield(asyncio.ensure_future(work(handler, request)))

    return misbehave
