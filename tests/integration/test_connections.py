"""Too many connections: who makes room for whom, and a real server under a low limit of open files."""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from cluster.processes import QUEEN, ServeProcess, environment

from integration.test_http_protocol import (
    LARGE,
    Client,
    Gate,
    connected,
    echo,
    large,
    on_both_loops,
    progress,
    serving,
    until,
)
from queenmq.descriptors import raise_limit
from queenmq.httpserver.crowd import Crowd, place_of
from queenmq.httpserver.limits import Limits

FILES = 256
HALF_OPEN = 400


@on_both_loops
async def test_connections_that_have_sent_nothing_make_room_first() -> None:
    async with serving(echo, max_connections=4, max_per_address=4) as front, AsyncExitStack() as stack:
        idle = await stack.enter_async_context(connected(front))
        idle.get("/")
        assert (await idle.answer()).status_code == 200
        partial = await stack.enter_async_context(connected(front))
        partial.send(b"GET / HT")
        await until(lambda: any(c._reader.partial for c in front.connections))
        silent = [await stack.enter_async_context(connected(front)) for _ in range(2)]
        await until(lambda: len(front.connections) == 4)
        for gone in (*silent, partial):
            client = await stack.enter_async_context(connected(front))
            client.get("/")
            assert (await client.answer()).status_code == 200
            assert await gone.rest() == b""
        # Only idle ones are left: the oldest goes.
        last = await stack.enter_async_context(connected(front))
        last.get("/")
        assert (await last.answer()).status_code == 200
        assert await idle.rest() == b""
        assert (front.crowd.closed_for_room, front.crowd.refused, len(front.crowd)) == (4, 0, 4)


@on_both_loops
async def test_running_requests_never_make_room() -> None:
    gate = Gate(hold=True)
    async with serving(gate, max_connections=2, max_per_address=2) as front, AsyncExitStack() as stack:
        waiting = [await stack.enter_async_context(connected(front)) for _ in range(2)]
        for client in waiting:
            client.get("/")
        await until(lambda: sum(c._active is not None for c in front.connections) == 2)
        for _ in range(3):
            refused = await stack.enter_async_context(connected(front))
            assert (await refused.answer()).json()["code"] == "too_many_connections"
        gate.open.set()
        assert [(await client.answer()).status_code for client in waiting] == [200, 200]
        assert (front.crowd.closed_for_room, front.crowd.refused) == (0, 3)


@on_both_loops
async def test_requests_that_do_not_arrive_share_a_budget() -> None:
    head = b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000
    async with serving(echo, input_bytes=200_000) as front, AsyncExitStack() as stack:
        incoming = front.incoming
        first, *others = [await stack.enter_async_context(connected(front)) for _ in range(30)]
        for client in (first, *others):
            received = front.bytes_in
            client.send(head)
            await progress(front, received + len(head))
            assert incoming.size <= 200_000
        assert await first.rest() == b"", "the oldest goes first"
        assert incoming.closed >= 20
        received = front.bytes_in
        others[-1].send(b"\r\n\r\n")
        assert (await others[-1].answer()).status_code == 200
        await until(lambda: len(front.connections) == 30 - incoming.closed)
        for client in others:
            client.writer.transport.abort()
        await until(lambda: not front.connections)
        assert incoming.size == 0


@on_both_loops
async def test_small_bodies_and_many_headers_count() -> None:
    parts = (
        b"POST / HTTP/1.1\r\nContent-Length: 30000\r\n\r\n" + b"x" * 20_000,
        b"GET / HTTP/1.1\r\n" + b"".join(b"a%d:\r\n" % number for number in range(200)),
    )
    for part in parts:
        async with serving(echo, input_bytes=1000_000) as front, connected(front) as client:
            client.send(part)
            await progress(front, len(part))
            assert front.incoming.size >= 20_000


@on_both_loops
async def test_requests_behind_others_count_and_running_ones_are_kept() -> None:
    gate = Gate()
    behind = b"GET /behind HTTP/1.1\r\n\r\n" * 500
    async with serving(gate, input_bytes=1000_000) as front, AsyncExitStack() as stack:
        busy = await stack.enter_async_context(connected(front))
        busy.send(behind)
        await progress(front, len(behind))
        assert front.incoming.size > 200_000
        for _ in range(20):
            received = front.bytes_in
            client = await stack.enter_async_context(connected(front))
            client.send(b"GET / HTTP/1.1\r\nX: " + b"x" * 60_000)
            await progress(front, received + 60_000)
        assert front.incoming.closed
        gate.open.set()
        for number in range(500):
            assert (await busy.answer()).json() == "/behind", number
        assert front.incoming.size < 1000_000


@on_both_loops
async def test_bodies_that_wait_for_room_are_kept_before_strangers() -> None:
    gate = Gate()
    sizes = {"max_body_bytes": LARGE, "body_budget_bytes": LARGE, "input_bytes": 400_000}
    async with serving(gate, **sizes) as front, AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(connected(front)) for _ in range(2)]
        for client in (first, second):
            client.send(large(), b"x" * LARGE)
            await until(lambda: front.bodies.reserved == LARGE)
        await until(lambda: front.bodies.waiting == 1)
        for _ in range(20):
            received = front.bytes_in
            stranger = await stack.enter_async_context(connected(front))
            stranger.send(b"GET / HTTP/1.1\r\nX: " + b"x" * 60_000)
            await progress(front, received + 60_000)
        assert front.incoming.closed > 10
        gate.open.set()
        assert [(await client.answer()).status_code for client in (first, second)] == [200, 200]


class Place:
    """A connection in a crowd that counts how often it is examined."""

    examined = 0

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.closed = False

    @property
    def spare_rank(self) -> int | None:
        Place.examined += 1
        return self.rank

    def make_room(self) -> None:
        self.closed = True


def test_a_crowd_is_not_examined_for_every_newcomer() -> None:
    """One of many connections is idle at a time: before, each newcomer had all of them examined."""
    crowd = Crowd(Limits(max_connections=2000, max_per_address=2000))
    for number in range(2000):
        assert crowd.enter(Place(None), f"10.0.{number // 250}.{number % 250}", 1.0)
    Place.examined = 0
    for _ in range(700):
        refused, spare = Place(None), Place(2)
        crowd.enter(spare, "10.9.9.9", 1.0)
        crowd.enter(refused, "10.9.9.8", 1.0)
        crowd.leave(refused)
        crowd.leave(spare)
    assert Place.examined < 700 * 2001
    assert crowd.enter(Place(0), "10.9.9.9", 1.0) is False
    late = Place(0)
    assert not crowd.enter(late, "10.9.9.9", 1.0)
    assert crowd.enter(Place(None), "10.9.9.9", 2.0), "after the next sweep"
    assert late.closed


@on_both_loops
async def test_an_address_leaves_room_for_others() -> None:
    gate = Gate(hold=True)
    async with serving(gate, max_connections=4) as front, AsyncExitStack() as stack:
        waiting = [await stack.enter_async_context(connected(front)) for _ in range(3)]
        for client in waiting:
            client.get("/")
        await until(lambda: sum(c._active is not None for c in front.connections) == 3)
        same = await stack.enter_async_context(connected(front))
        assert (await same.answer()).json()["code"] == "too_many_connections"
        reader, writer = await asyncio.open_connection(*front.address, local_addr=("127.0.0.2", 0))
        other = Client(reader, writer)
        other.get("/")
        await until(lambda: sum(c._active is not None for c in front.connections) == 4)
        gate.open.set()
        assert (await other.answer()).status_code == 200
        writer.transport.abort()


@on_both_loops
async def test_the_log_says_that_room_was_needed(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(echo, max_connections=1) as front, connected(front) as first:
        await until(lambda: len(front.connections) == 1)
        async with connected(front) as second:
            second.get("/")
            assert (await second.answer()).status_code == 200
            assert await first.rest() == b""
            front.sweep()
            front.sweep()
    assert [record.getMessage() for record in caplog.records if "HTTP connections" in record.getMessage()] == [
        "HTTP connections: 0 refused and 1 idle or incomplete ones closed to make room; 1 are open of at most 1, most "
        "of them (1 of at most 1) from 127.0.0.1; the limits are QUEEN_MAX_CONNECTIONS, "
        "QUEEN_MAX_CONNECTIONS_PER_ADDRESS and the number of open files (ulimit -n)"
    ]


def test_whose_connections_count_together() -> None:
    assert place_of("10.0.0.1") == "10.0.0.1"
    assert place_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert place_of("2001:db8::1") == place_of("2001:db8::ffff:2") == "2001:db8::/64"
    assert place_of("2001:db8:0:1::1") != place_of("2001:db8::1")
    assert place_of("fe80::1%eth0") == "fe80::/64"


@pytest.mark.parametrize("files", [1, 7, 100, 1000, 20_000, 10**6])
def test_connections_fit_into_the_files(files: int) -> None:
    limits = Limits().within(files)
    assert limits.max_connections >= 1
    assert limits.files <= max(files, 3)
    assert Limits().within(10**6) == Limits()


def test_the_limit_of_files_is_raised_as_far_as_it_may_be() -> None:
    code = "from queenmq.descriptors import raise_limit; print(raise_limit(300), raise_limit(500), raise_limit(200))"
    run = subprocess.run(
        ["bash", "-c", f'ulimit -Sn 128; ulimit -Hn 400; exec "{sys.executable}" -c "{code}"'],
        capture_output=True,
        check=True,
        text=True,
    )
    assert run.stdout.split() == ["300", "400", "200"]
    assert raise_limit(1) == 1
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1


@asynccontextmanager
async def under(files: int, folder: Path, url: str) -> AsyncIterator[ServeProcess]:
    """A server that may not open more files than this."""

    class Limited(ServeProcess):
        def launch(self) -> None:
            with self._out.open("ab") as out, self._err.open("ab") as err:
                self._process = subprocess.Popen(
                    ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash", sys.executable, "-c", QUEEN, "serve"],
                    stdout=out,
                    stderr=err,
                    env=environment(**self.variables),
                )

    server = Limited(folder, "limited", DATABASE_URL=url, FILE_BUFFER_DIR=str(folder / "journal"), DB_POOL_SIZE="10")
    try:
        await server.start()
        yield server
    finally:
        server.make_sure_it_is_gone()


async def test_half_open_connections_do_not_keep_clients_out(database_url: str, tmp_path: Path) -> None:
    async with (
        under(FILES, tmp_path, database_url) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as waiter,
        AsyncExitStack() as stack,
    ):
        assert "may open 256 files (ulimit -n), so it takes" in server.log
        poll = asyncio.create_task(
            waiter.get("/api/v1/pop/queue/crowd", params={"wait": "true", "timeout": 60_000, "autoAck": "true"})
        )
        host, port = server.url.removeprefix("http://").split(":")
        for number in range(HALF_OPEN):
            opened = stack.enter_context(await asyncio.to_thread(socket.create_connection, (host, int(port))))
            if number % 2:
                opened.send(b"POST /api/v1/push HTTP/1.1\r\nHost: h\r\n")
        async with httpx.AsyncClient(base_url=server.url, timeout=5) as client:
            for _ in range(20):
                async with httpx.AsyncClient(base_url=server.url, timeout=5) as newcomer:
                    assert (await newcomer.get("/health")).status_code == 200
            items = [{"queue": "crowd", "payload": {"n": 1}}]
            assert (await client.post("/api/v1/push", json={"items": items})).status_code == 201
            told = (await client.get("/metrics/prometheus")).text
        # The long poll was never closed.
        assert (await poll).json()["messages"][0]["data"] == {"n": 1}
        closed = re.search(r"^queen_http_connections_closed_for_room_total\S* (\d+)", told, re.MULTILINE)
        assert closed is not None
        assert int(closed[1]) > HALF_OPEN - FILES
        assert "Too many open files" not in server.log
