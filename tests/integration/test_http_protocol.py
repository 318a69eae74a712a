"""The HTTP front over real sockets, on the event loop of the product and on the one of the standard library."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queenmq.clock import SYSTEM, Clock, ManualClock
from queenmq.config import HttpSettings
from queenmq.errors import Conflict, Overloaded, StartupError, Unauthenticated
from queenmq.httpserver.front import HttpFront
from queenmq.httpserver.limits import Limits
from queenmq.httpserver.messages import Request, Response

Handler = Callable[[Request], Awaitable[Response]]
Admit = Callable[[Request], Awaitable[object]]
AsyncTest = Callable[..., Coroutine[Any, Any, None]]
NewLoop = Callable[[], asyncio.AbstractEventLoop]
LOOPS: dict[str, NewLoop] = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
PATIENCE_S = 30
MB = 1024 * 1024


def on_loops(*names: str) -> Callable[[AsyncTest], Callable[..., None]]:
    """Make a plain test of an asynchronous one, once for each of these event loops."""

    def make(test: AsyncTest) -> Callable[..., None]:
        @functools.wraps(test)
        def run(new_loop: NewLoop, **fixtures: Any) -> None:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(asyncio.wait_for(test(**fixtures), PATIENCE_S))

        signature = inspect.signature(test)
        new_loop = inspect.Parameter("new_loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[new_loop, *signature.parameters.values()]
        )
        test_on: Callable[..., None] = pytest.mark.parametrize("new_loop", [LOOPS[n] for n in names], ids=names)(run)
        return test_on

    return make


on_both_loops = on_loops("uvloop", "asyncio")


@pytest.fixture(autouse=True)
def complaints(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Whatever is logged as a warning or worse, by us or by the event loop, must have been expected."""
    expected: list[str] = []
    yield expected
    records = [record for phase in ("setup", "call") for record in caplog.get_records(phase)]
    messages = [record.getMessage() for record in records if record.levelno >= logging.WARNING]
    # A loop in debug mode also complains about slow callbacks.
    assert [message for message in messages if not message.startswith("Executing ")] == expected


@asynccontextmanager
async def serving(
    handler: Handler, clock: Clock = SYSTEM, *, admit: Admit | None = None, **limits: Any
) -> AsyncIterator[HttpFront]:
    front = HttpFront(handler, Limits(**limits), clock, admit=admit)
    await front.start("127.0.0.1", 0)
    try:
        yield front
    finally:
        await front.stop(0)


def url_of(front: HttpFront) -> str:
    host, port = front.address
    return f"http://{host}:{port}/"


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something has happened that nobody announces."""
    while not condition():
        await asyncio.sleep(0)


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    def get(self, path: str, *headers: bytes) -> None:
        self.send(b"\r\n".join([b"GET %b HTTP/1.1" % path.encode(), b"Host: h", *headers, b"", b""]))

    async def answer(self, *, bodiless: bool = False) -> httpx.Response:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = httpx.Headers([(name, value) for name, _, value in (line.partition(": ") for line in lines)])
        length = 0 if bodiless else int(headers.get("content-length", "0"))
        body = await self.reader.readexactly(length)
        return httpx.Response(int(status.split()[1]), headers=headers, content=body)

    async def rest(self) -> bytes:
        """What still comes until the server closes; a reset ends it as well."""
        data = b""
        try:
            while chunk := await self.reader.read(MB):
                data += chunk
        except ConnectionError:
            pass
        return data


@asynccontextmanager
async def connected(front: HttpFront) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(*front.address)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def echo(request: Request) -> Response:
    body = {"method": request.method, "path": request.path, "query": request.query, "body": request.body.decode()}
    return Response(200, body)


class Gate:
    """A handler that says when it has begun and how it ended, and waits to be let through."""

    def __init__(self, *, hold: bool = False) -> None:
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.hold = hold

    async def __call__(self, request: Request) -> Response:
        if self.hold:
            request.hold()
        self.begun.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Response(200, request.path)


# Ordinary requests


@on_both_loops
async def test_httpx_gets_and_posts() -> None:
    async with serving(echo) as front, httpx.AsyncClient(base_url=url_of(front)) as client:
        answer = await client.get("/a/b", params={"x": "é ü", "y": "1"})
        assert answer.json() == {"method": "GET", "path": "/a/b", "query": {"x": "é ü", "y": "1"}, "body": ""}
        assert answer.headers["content-type"] == "application/json"
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        for size in (0, 1, 40_000, 3 * MB):
            answer = await client.post("/", content="x" * size)
            assert len(answer.json()["body"]) == size
        assert front.connections_total == 1
        assert front.requests_total == 5
        assert front.bytes_in > 3 * MB < front.bytes_out


@on_both_loops
async def test_httpx_sends_chunks() -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"0123456789" * 100

    async with serving(echo) as front, httpx.AsyncClient() as client:
        answer = await client.post(url_of(front), content=body())
        assert answer.json()["body"] == "0123456789" * 10_000


@on_both_loops
async def test_head_is_get_without_the_body() -> None:
    async with serving(echo) as front, connected(front) as client:
        client.send(b"HEAD /x HTTP/1.1\r\n\r\n")
        answer = await client.answer(bodiless=True)
        assert int(answer.headers["content-length"]) == len(b'{"method":"HEAD","path":"/x","query":{},"body":""}')
        client.get("/y")
        assert (await client.answer()).json()["path"] == "/y"


@on_both_loops
async def test_options_never_reaches_the_handler() -> None:
    async def unwanted(request: Request) -> Response:
        raise AssertionError

    async with serving(unwanted) as front, connected(front) as client:
        for target in (b"/any/path", b"*"):
            client.send(b"OPTIONS ", target, b" HTTP/1.1\r\n\r\n")
            answer = await client.answer()
            assert answer.status_code == 204
            assert "access-control-allow-origin" not in answer.headers
            assert "content-length" not in answer.headers


@on_both_loops
async def test_no_content_sends_no_body_even_if_there_is_one() -> None:
    async def empty(request: Request) -> Response:
        return Response(204, body=b"must not be sent")

    async with serving(empty) as front, connected(front) as client:
        for _ in range(2):
            client.get("/")
            assert (await client.answer()).status_code == 204


@on_both_loops
async def test_errors_become_answers(complaints: list[str]) -> None:
    async def failing(request: Request) -> Response:
        if request.path == "/conflict":
            raise Conflict("no")
        if request.path == "/overloaded":
            raise Overloaded("busy", retry_after_s=3)
        raise ValueError("a secret")

    async with serving(failing) as front, connected(front) as client:
        client.get("/conflict")
        answer = await client.answer()
        assert (answer.status_code, answer.json()) == (409, {"error": "no", "code": "conflict"})
        client.get("/overloaded")
        answer = await client.answer()
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
        client.get("/defect")
        answer = await client.answer()
        assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
        assert b"secret" not in answer.content
    complaints.append("GET /defect failed")


@on_both_loops
async def test_a_handler_that_is_cancelled_by_mistake_still_answers(complaints: list[str]) -> None:
    async def broken(request: Request) -> Response:
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    async with serving(broken) as front, connected(front) as client:
        client.get("/x")
        assert (await client.answer()).status_code == 500
    complaints.append("GET /x was cancelled although its client is still connected")


@on_both_loops
async def test_ten_thousand_requests_on_one_connection() -> None:
    async with serving(echo) as front, connected(front) as client:
        for number in range(10_000):
            client.get(f"/{number}")
            answer = await client.reader.readuntil(b"}")
            assert b'"/%d"' % number in answer
            await client.reader.readexactly(len(b',"body":""}') if not answer.endswith(b'""}') else 0)
        assert (front.connections_total, front.requests_total) == (1, 10_000)


# Keep-alive


@pytest.mark.parametrize(
    ("request_head", "keeps"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
@on_both_loops
async def test_connection_header(request_head: bytes, keeps: bool) -> None:
    async with serving(echo) as front, connected(front) as client:
        client.send(request_head)
        answer = await client.answer()
        assert answer.headers["connection"] == ("keep-alive" if keeps else "close")
        if keeps:
            client.send(request_head)
            await client.answer()
        else:
            assert await client.rest() == b""


@on_both_loops
async def test_what_follows_connection_close_is_not_answered() -> None:
    async with serving(echo) as front, connected(front) as client:
        client.get("/1", b"Connection: close")
        client.get("/2")
        assert (await client.answer()).json()["path"] == "/1"
        assert await client.rest() == b""


# Pipelining and flow control


@on_both_loops
async def test_pipelined_answers_come_in_order() -> None:
    async def uneven(request: Request) -> Response:
        if int(request.path[1:]) % 3 == 0:
            await asyncio.sleep(0)
        return Response(200, request.path)

    async with serving(uneven) as front, connected(front) as client:
        for number in range(5_000):
            client.get(f"/{number}")
        for number in range(5_000):
            assert (await client.answer()).json() == f"/{number}"


@on_both_loops
async def test_requests_of_one_connection_never_overlap() -> None:
    running: list[str] = []

    async def lonely(request: Request) -> Response:
        running.append(request.path)
        await asyncio.sleep(0)
        assert running == [request.path]
        running.clear()
        return Response(200)

    async with serving(lonely) as front, connected(front) as client:
        for number in range(100):
            client.get(f"/{number}")
        for _ in range(100):
            assert (await client.answer()).status_code == 200


@on_both_loops
async def test_many_pipelined_requests_let_others_have_their_turn() -> None:
    served: list[str] = []

    async def handler(request: Request) -> Response:
        served.append(request.path)
        return Response(200, request.path)

    async with serving(handler) as front, connected(front) as many, connected(front) as one:
        await until(lambda: len(front.connections) == 2)
        many.send(b"GET /many HTTP/1.1\r\n\r\n" * 1000)
        one.get("/one")
        assert (await one.answer()).status_code == 200
        assert len(served) < 200
        for _ in range(1000):
            assert (await many.answer()).json() == "/many"


@on_both_loops
async def test_a_backlog_stops_the_reading() -> None:
    gate = Gate()
    async with serving(gate) as front, connected(front) as client, connected(front) as other:
        client.get("/first")
        await gate.begun.wait()
        flood = b"POST /flood HTTP/1.1\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000
        client.send(flood * 8000)
        while not any(not c._transport.is_reading() for c in front.connections):
            other.send(b"OPTIONS * HTTP/1.1\r\n\r\n")
            await other.answer()
        before = front.bytes_in
        for _ in range(10):
            other.send(b"OPTIONS * HTTP/1.1\r\n\r\n")
            await other.answer()
        assert front.bytes_in - before < 1000
        assert before < MB
        gate.open.set()
        for number in range(8001):
            assert (await client.answer()).json() == ("/flood" if number else "/first")


@on_both_loops
async def test_a_client_that_does_not_read_stops_its_own_requests() -> None:
    begun = 0

    async def large(request: Request) -> Response:
        nonlocal begun
        begun += 1
        return Response(200, body=request.path[1:].encode() * 4 * MB)

    async with serving(large) as front, connected(front) as client, connected(front) as other:
        client.reader._limit = 1024  # type: ignore[attr-defined]
        for number in range(8):
            client.get(f"/{number}")
        other.send(b"OPTIONS * HTTP/1.1\r\n\r\n")
        await other.answer()
        assert begun < 8
        for number in range(8):
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert b"Content-Length: %d\r\n" % (4 * MB) in head
            assert set(await client.reader.readexactly(4 * MB)) == {ord(str(number))}
        assert begun == 8


@on_both_loops
async def test_a_request_that_comes_while_the_answer_before_it_is_not_read_has_to_wait() -> None:
    begun: list[str] = []

    async def large(request: Request) -> Response:
        begun.append(request.path)
        return Response(200, body=b"x" * (32 * MB))

    async with serving(large) as front, connected(front) as client, connected(front) as other:
        client.get("/1")
        await until(lambda: any(c._write_paused for c in front.connections))
        received = front.bytes_in
        client.get("/2")
        await progress(front, received + 1)
        other.send(b"OPTIONS * HTTP/1.1\r\n\r\n")
        await other.answer()
        assert begun == ["/1"]
        for _ in range(2):
            assert len((await client.answer()).content) == 32 * MB
        assert begun == ["/1", "/2"]


# Bodies: Expect, limits, refusals


@on_both_loops
async def test_expect_continue() -> None:
    async with serving(echo) as front, connected(front) as client:
        for _ in range(2):
            client.send(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(b"12345")
            assert (await client.answer()).json()["body"] == "12345"


@on_both_loops
async def test_expect_continue_waits_for_the_answers_before_it() -> None:
    gate = Gate()
    async with serving(gate) as front, connected(front) as client:
        client.get("/first")
        client.send(b"POST /second HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        await gate.begun.wait()
        gate.open.set()
        assert (await client.answer()).json() == "/first"
        assert (await client.answer()).status_code == 100
        client.send(b"12345")
        assert (await client.answer()).json() == "/second"


@on_both_loops
async def test_a_body_that_is_too_large_is_refused_before_it_is_sent() -> None:
    async with serving(echo, max_body_bytes=1000) as front, connected(front) as client:
        client.send(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
        answer = await client.answer()
        assert (answer.status_code, answer.headers["connection"]) == (413, "close")
        assert answer.json() == {"error": "the request body is over 1000 bytes", "code": "too_large"}
        assert await client.rest() == b""


@pytest.mark.parametrize("chunked", [False, True])
@on_both_loops
async def test_a_client_that_is_still_sending_can_read_the_refusal(chunked: bool) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(320):
            yield b"x" * 100_000

    headers = {} if chunked else {"Content-Length": str(320 * 100_000)}
    async with serving(echo, max_body_bytes=MB) as front, httpx.AsyncClient() as client:
        for _ in range(3):
            answer = await client.post(url_of(front), content=body(), headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@on_both_loops
async def test_a_blocking_client_that_sends_everything_first_can_read_the_refusal() -> None:
    def send_then_read(address: tuple[str, int]) -> bytes:
        with socket.create_connection(address) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (16 * MB))
            connection.sendall(b"x" * (16 * MB))
            received = b""
            while chunk := connection.recv(65536):
                received += chunk
            return received

    async with serving(echo, max_body_bytes=MB) as front:
        received = await asyncio.to_thread(send_then_read, front.address)
        assert received.startswith(b"HTTP/1.1 413 ")
        assert received.endswith(b'"code":"too_large"}')


@on_both_loops
async def test_a_refused_client_that_never_stops_sending_is_cut_off() -> None:
    limits = {"max_body_bytes": MB, "max_drain_bytes": 2 * MB}
    async with serving(echo, ManualClock(), **limits) as front, connected(front) as client:
        client.send(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (100 * MB))
        with pytest.raises(ConnectionError):
            while True:
                client.send(b"x" * MB)
                await client.writer.drain()


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "bad_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_http"),
        (b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * 5_000_000, 431, "headers_too_large"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 414, "target_too_long"),
        (b"CONNECT host:1 HTTP/1.1\r\n\r\n", 405, "method_not_allowed"),
    ],
    ids=["nonsense", "tls", "headers", "endless-headers", "target", "connect"],
)
@on_both_loops
async def test_refusals_of_the_front(data: bytes, status: int, code: str) -> None:
    async with serving(echo) as front, connected(front) as client:
        client.send(data)
        answer = await client.answer()
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer.headers["connection"] == "close"
        assert await client.rest() == b""


@on_both_loops
async def test_a_refusal_comes_after_the_answers_before_it() -> None:
    gate = Gate()
    async with serving(gate) as front, connected(front) as client:
        client.get("/1")
        client.get("/2")
        client.send(b"nonsense\r\n\r\n")
        await gate.begun.wait()
        gate.open.set()
        assert (await client.answer()).json() == "/1"
        assert (await client.answer()).json() == "/2"
        assert (await client.answer()).status_code == 400
        assert await client.rest() == b""


# Clients that go away


@pytest.mark.parametrize("hold", [False, True])
@on_both_loops
async def test_a_lost_connection_cancels_the_handler(hold: bool) -> None:
    gate = Gate(hold=hold)
    async with serving(gate) as front, connected(front) as client:
        client.get("/")
        await gate.begun.wait()
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.writer.transport.abort()
        await gate.cancelled.wait()
        assert front.connections_open == 0


@on_both_loops
async def test_a_closed_connection_cancels_a_long_poll_even_with_requests_behind_it() -> None:
    gate = Gate(hold=True)
    async with serving(gate) as front, connected(front) as client:
        client.get("/poll")
        for _ in range(10):
            client.get("/behind")
        await gate.begun.wait()
        client.writer.close()
        await gate.cancelled.wait()


@on_both_loops
async def test_a_half_closed_long_poll_is_cancelled_and_closed() -> None:
    gate = Gate(hold=True)
    async with serving(gate) as front, connected(front) as client:
        client.get("/poll")
        await gate.begun.wait()
        client.writer.write_eof()
        await gate.cancelled.wait()
        assert await client.rest() == b""


@on_both_loops
async def test_a_half_closed_client_gets_its_answers() -> None:
    gate = Gate()
    async with serving(gate) as front, connected(front) as client:
        client.get("/1")
        client.get("/2")
        await gate.begun.wait()
        client.writer.write_eof()
        await until(lambda: any(c._eof for c in front.connections))
        gate.open.set()
        assert (await client.answer()).json() == "/1"
        assert (await client.answer()).json() == "/2"
        assert await client.rest() == b""


@on_both_loops
async def test_a_long_poll_that_begins_after_the_half_close_is_not_waited_for() -> None:
    let_go = asyncio.Event()

    async def poll(request: Request) -> Response:
        await let_go.wait()
        request.hold()
        raise AssertionError("held")

    async with serving(poll) as front, connected(front) as client:
        client.get("/")
        client.writer.write_eof()
        await until(lambda: any(c._eof for c in front.connections))
        let_go.set()
        assert await client.rest() == b""


@on_both_loops
async def test_a_half_closed_request_that_does_not_end_is_cancelled_in_time() -> None:
    gate, clock = Gate(), ManualClock()
    async with serving(gate, clock, half_closed_s=5) as front, connected(front) as client:
        client.get("/")
        await gate.begun.wait()
        client.writer.write_eof()
        await until(lambda: any(c._eof for c in front.connections))
        clock.advance(4)
        front.sweep()
        assert front.connections_open == 1
        clock.advance(2)
        front.sweep()
        await gate.cancelled.wait()


# Large bodies: who sends them is known, and there is room for them, before they are read


LARGE = 200_000


def large(path: bytes = b"/", *headers: bytes, size: int = LARGE) -> bytes:
    return b"\r\n".join([b"POST %b HTTP/1.1" % path, *headers, b"Content-Length: %d" % size, b"", b""])


async def nobody(request: Request) -> None:
    raise Unauthenticated("Authentication required")


async def measure(request: Request) -> Response:
    return Response(200, len(request.body))


@on_both_loops
async def test_a_stranger_is_refused_before_the_body_is_read() -> None:
    async with serving(echo, admit=nobody) as front, connected(front) as client:
        client.send(large(), b"x" * 40_000)
        answer = await client.answer()
        assert (answer.status_code, answer.headers["connection"]) == (401, "close")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert front.bodies.reserved == 0
        # It may go on sending for a while and still reads why; nothing of it is kept.
        client.send(b"x" * 160_000)
        assert await client.rest() == b""


@pytest.mark.parametrize("chunked", [False, True])
@on_both_loops
async def test_a_refused_sender_of_a_large_body_reads_why(chunked: bool) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 100_000

    headers = {} if chunked else {"Content-Length": str(100 * 100_000)}
    async with serving(echo, admit=nobody) as front, httpx.AsyncClient() as client:
        for _ in range(3):
            answer = await client.post(url_of(front), content=body(), headers=headers)
            assert answer.status_code == 401


@on_both_loops
async def test_a_stranger_who_asks_is_not_told_to_continue() -> None:
    async with serving(echo, admit=nobody) as front, connected(front) as client:
        client.send(large(b"/", b"Expect: 100-continue"))
        assert (await client.answer()).status_code == 401


@on_both_loops
async def test_large_bodies_of_friends() -> None:
    seen = []

    async def friend(request: Request) -> None:
        seen.append((request.path, len(request.body)))
        await asyncio.sleep(0)

    async with serving(measure, admit=friend) as front, connected(front) as client:
        for number in range(3):
            client.send(large(b"/%d" % number), b"x" * LARGE)
        client.send(large(b"/3", b"Expect: 100-continue"))
        for _ in range(3):
            assert (await client.answer()).json() == LARGE
        assert (await client.answer()).status_code == 100
        client.send(b"x" * LARGE)
        client.get("/behind")
        assert (await client.answer()).json() == LARGE
        assert (await client.answer()).json() == 0
        assert (seen, front.bodies.reserved) == ([(f"/{number}", 0) for number in range(4)], 0)


@on_both_loops
async def test_small_bodies_need_no_room_and_are_not_asked_for_twice() -> None:
    async with serving(measure, admit=nobody, body_budget_bytes=1) as front, connected(front) as client:
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 30000\r\n\r\n", b"x" * 10)
        await until(lambda: any(c._reader.partial for c in front.connections))
        client.send(b"x" * 29_990)
        assert (await client.answer()).json() == 30_000


@on_both_loops
async def test_a_request_without_a_body_cannot_have_a_large_one() -> None:
    async with serving(echo) as front, connected(front) as client:
        client.send(large().replace(b"POST", b"GET"), b"x" * 40_000)
        assert (await client.answer()).status_code == 413


@on_both_loops
async def test_bodies_wait_for_room_in_the_order_in_which_they_came() -> None:
    """Two fit at a time. The third is not read before the first is answered."""
    gate = Gate()
    async with serving(gate, max_body_bytes=LARGE, body_budget_bytes=2 * LARGE) as front, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(front)) for _ in range(4)]
        for number, client in enumerate(clients):
            client.send(large(b"/%d" % number), b"x" * LARGE)
            await until(lambda: front.bodies.reserved // LARGE + front.bodies.waiting == number + 1)  # noqa: B023
        await until(lambda: front.bodies.reserved == 2 * LARGE)
        assert (front.bodies.waiting, front.bodies.waited_total) == (2, 2)
        assert sum(c._reader.body_bytes for c in front.connections) <= 2 * 64 * 1024
        gate.open.set()
        for number, client in enumerate(clients):
            assert (await client.answer()).json() == f"/{number}"
        assert (front.bodies.reserved, front.bodies.waiting) == (0, 0)


@on_both_loops
async def test_whoever_goes_away_gives_the_room_back() -> None:
    gate = Gate()
    async with serving(gate, max_body_bytes=LARGE, body_budget_bytes=LARGE) as front, connected(front) as last:
        async with connected(front) as served:
            served.send(large(), b"x" * LARGE)
            await gate.begun.wait()
            async with connected(front) as waiting:
                waiting.send(large(), b"x" * 100)
                await until(lambda: front.bodies.waiting == 1)
            last.send(large(), b"x" * 100)
            await until(lambda: front.bodies.waiting == 2)
        # Nothing is read from the one that has gone while it waits, so that it is noticed when its turn comes.
        await until(lambda: front.bodies.waiting == 0 and len(front.connections) == 1)
        assert front.bodies.reserved == LARGE  # of the last one, which is being read
        gate.open.set()
        last.send(b"x" * (LARGE - 100))
        assert (await last.answer()).status_code == 200
        assert front.bodies.reserved == 0


@on_both_loops
async def test_whoever_waits_too_long_for_room_is_refused() -> None:
    gate = Gate()
    limits = {"max_body_bytes": LARGE, "body_budget_bytes": LARGE, "body_wait_s": 0.05}
    async with serving(gate, **limits) as front, connected(front) as first, connected(front) as second:
        first.send(large(), b"x" * LARGE)
        await gate.begun.wait()
        second.send(large(), b"x" * LARGE)
        answer = await second.answer()
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert (front.bodies.waiting, front.bodies.reserved) == (0, LARGE)


@on_both_loops
async def test_a_body_must_arrive_in_time_and_faster_while_others_wait() -> None:
    clock = ManualClock()
    limits = {"max_body_bytes": LARGE, "body_budget_bytes": LARGE, "body_s": 60, "pressed_s": 5}
    async with serving(measure, clock, **limits) as front, connected(front) as slow, connected(front) as next_one:
        slow.send(large(), b"x" * 40_000)
        await until(lambda: front.bodies.reserved == LARGE)
        clock.advance(20)
        front.sweep()
        assert len(front.connections) == 2
        next_one.send(large(), b"x" * LARGE)
        await until(lambda: front.bodies.waiting == 1)
        front.sweep()
        assert (await slow.answer()).status_code == 408
        assert (await next_one.answer()).json() == LARGE
        assert (front.bodies.reserved, front.bodies.timeouts) == (0, 1)
        next_one.send(large(), b"x" * 40_000)
        await until(lambda: front.bodies.reserved == LARGE)
        for _ in range(3):
            next_one.send(b"x" * 2000)
            await asyncio.sleep(0)
            clock.advance(21)
            front.sweep()
        assert (await next_one.answer()).status_code == 408


# Answers that are not read


@on_both_loops
async def test_no_further_large_answer_while_too_many_are_not_read() -> None:
    clock = ManualClock()
    made = 0

    async def brings_much(request: Request) -> Response:
        nonlocal made
        made += 1
        return Response(200, body=b"x" * (32 * MB))

    async with serving(brings_much, clock, unsent_bytes=MB, unread_s=5) as front, connected(front) as slow:
        slow.get("/api/v1/pop")
        await until(lambda: front.answers.too_many)
        async with connected(front) as other:
            other.get("/api/v1/pop")
            assert await _health(front) == 200
            assert made == 2  # the health check is not held up
            front.sweep()
            await until(lambda: len(front.connections) == 2)  # the one of the health check is closed
            clock.advance(6)
            front.sweep()  # whoever does not read is given up, and the next one is served
            assert len(await other.reader.readexactly(20 * MB)) == 20 * MB
        assert (made, front.answers.given_up) == (3, 1)
        await until(lambda: not front.connections)
        assert front.answers.size == 0


async def _health(front: HttpFront) -> int:
    async with connected(front) as client:
        client.get("/health", b"Connection: close")
        return (await client.answer()).status_code


# Timeouts


@on_both_loops
async def test_slow_loris() -> None:
    async with serving(echo, stall_s=0.1) as front, connected(front) as client:
        client.send(b"GET / HTTP/1.1\r\nA: ")
        answer = await client.answer()
        assert (answer.status_code, answer.json()["code"]) == (408, "request_timeout")
        assert await client.rest() == b""


@on_both_loops
async def test_an_idle_connection_is_closed() -> None:
    async with serving(echo, keep_alive_s=0.1) as front, connected(front) as client:
        client.get("/")
        await client.answer()
        assert await client.rest() == b""


async def progress(front: HttpFront, total: int) -> None:
    """Wait until the server has received so many bytes."""
    await until(lambda: front.bytes_in >= total)


@on_both_loops
async def test_headers_must_be_complete_in_time_however_they_drip() -> None:
    clock = ManualClock()
    async with serving(echo, clock, stall_s=30) as front, connected(front) as client:
        sent = 0
        for data in (b"GET / HTTP/1.1\r\n", b"A: b\r\n", b"C: d\r\n"):
            client.send(data)
            sent += len(data)
            await progress(front, sent)
            clock.advance(11)
            front.sweep()
        assert (await client.answer()).status_code == 408


@on_both_loops
async def test_a_body_may_be_slow_but_not_standing() -> None:
    clock = ManualClock()
    async with serving(echo, clock, stall_s=30) as front, connected(front) as client:
        head = b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n"
        client.send(head)
        sent = len(head)
        for size in (2000, 2000, 2000, 2000, 100, 100):
            client.send(b"x" * size)
            sent += size
            await progress(front, sent)
            assert len(front.connections) == 1
            clock.advance(20)
            front.sweep()
        assert (await client.answer()).status_code == 408
        assert front.connections == set()


@on_both_loops
async def test_a_slow_body_behind_a_slow_answer_is_not_cut_off() -> None:
    clock = ManualClock()

    async def large(request: Request) -> Response:
        return Response(200, body=request.body or b"x" * (32 * MB))

    async with serving(large, clock, stall_s=30) as front, connected(front) as client:
        client.get("/")
        await until(lambda: any(c._write_paused for c in front.connections))
        head = b"POST / HTTP/1.1\r\nContent-Length: 10000\r\n\r\n"
        client.send(head)
        sent = front.bytes_in + len(head)
        await progress(front, sent)
        front.sweep()
        assert len((await client.answer()).content) == 32 * MB
        for _ in range(5):
            clock.advance(20)
            front.sweep()
            client.send(b"y" * 2000)
            sent += 2000
            await progress(front, sent)
        assert (await client.answer()).content == b"y" * 10000


@on_both_loops
async def test_a_running_request_has_no_timeout_here() -> None:
    gate, clock = Gate(hold=True), ManualClock()
    async with serving(gate, clock) as front, connected(front) as client:
        client.get("/poll")
        await gate.begun.wait()
        clock.advance(100_000)
        front.sweep()
        gate.open.set()
        assert (await client.answer()).status_code == 200


@on_both_loops
async def test_a_client_that_stops_reading_is_cut_off() -> None:
    clock = ManualClock()

    async def large(request: Request) -> Response:
        return Response(200, body=b"x" * (64 * MB))

    async with serving(large, clock, stall_s=30) as front, connected(front) as client:
        client.get("/", b"Connection: close")
        await client.reader.readuntil(b"\r\n\r\n")
        # The socket buffers go on filling for a moment; only a standing connection is cut off.
        for _ in range(50):
            clock.advance(31)
            front.sweep()
            await asyncio.sleep(0)
        assert len(await client.rest()) < 64 * MB
        assert front.connections_open == 0


@on_both_loops
async def test_a_client_that_reads_slowly_is_not_cut_off() -> None:
    clock = ManualClock()

    async def large(request: Request) -> Response:
        return Response(200, body=b"x" * (32 * MB))

    async with serving(large, clock, stall_s=30) as front, connected(front) as client:
        client.get("/", b"Connection: close")
        await client.reader.readuntil(b"\r\n\r\n")
        for _ in range(32):
            await client.reader.readexactly(MB)
            clock.advance(20)
            front.sweep()
        assert await client.rest() == b""


@on_both_loops
async def test_a_refused_client_that_never_closes_is_cut_off() -> None:
    clock = ManualClock()
    async with serving(echo, clock, linger_s=5) as front, connected(front) as client:
        client.send(b"nonsense\r\n\r\n")
        assert (await client.answer()).status_code == 400
        assert front.connections_open == 1
        clock.advance(6)
        front.sweep()
        assert await client.rest() == b""
        await until(lambda: front.connections_open == 0)


# Bounds and start


@on_both_loops
async def test_connections_are_bounded() -> None:
    gate = Gate(hold=True)
    async with serving(gate, max_connections=2) as front, connected(front) as first, connected(front) as second:
        for client in (first, second):
            client.get("/")
        await until(lambda: sum(c._active is not None for c in front.connections) == 2)
        async with connected(front) as third:
            third.get("/")
            answer = await third.answer()
            assert (answer.status_code, answer.json()["code"]) == (503, "too_many_connections")
            assert "connection" in answer.json()["error"]
            assert "ECONNREFUSED" in answer.json()["error"]
            assert await third.rest() == b""
        assert front.crowd.refused == 1
        gate.open.set()
        await first.answer()
        async with connected(front) as fourth:
            fourth.get("/")
            assert (await fourth.answer()).status_code == 200


@on_both_loops
async def test_small_packets_are_not_delayed() -> None:
    async with serving(echo) as front, connected(front) as client:
        client.get("/")
        await client.answer()
        (connection,) = front.connections
        server_side = connection._transport.get_extra_info("socket")
        assert server_side.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@on_loops("uvloop")
async def test_an_address_that_cannot_be_used() -> None:
    async with serving(echo) as front:
        host, port = front.address
        for bad_host, bad_port, reason in (
            (host, port, "the address is already in use"),
            ("192.0.2.1", 0, "this machine does not have that address"),
            ("no-such-host.invalid", 0, "the host name cannot be resolved"),
        ):
            other = HttpFront(echo, Limits())
            with pytest.raises(StartupError) as caught:
                await other.start(bad_host, bad_port)
            assert caught.value.message == f"cannot listen on {bad_host}:{bad_port}: {reason}"
            with pytest.raises(RuntimeError):
                _ = other.address


def test_limits_come_from_the_settings() -> None:
    limits = Limits.of(HttpSettings(max_body_bytes=1, max_connections=2, keep_alive_s=3), workers=1)
    assert (limits.max_body_bytes, limits.max_connections, limits.keep_alive_s) == (1, 2, 3)


# Stop


@on_both_loops
async def test_stop_lets_running_requests_finish() -> None:
    gate = Gate()
    async with serving(gate) as front, connected(front) as idle, connected(front) as busy:
        idle.send(b"OPTIONS * HTTP/1.1\r\n\r\n")
        await idle.answer()
        busy.get("/busy")
        busy.get("/behind")
        await gate.begun.wait()
        address = front.address
        stop = asyncio.create_task(front.stop(grace_s=20))
        assert await idle.rest() == b""
        with pytest.raises(ConnectionError):
            await asyncio.open_connection(*address)
        assert not gate.cancelled.is_set()
        gate.open.set()
        answer = await busy.answer()
        assert (answer.json(), answer.headers["connection"]) == ("/busy", "close")
        assert await busy.rest() == b""
        busy.writer.close()
        await stop
        assert front.connections_open == 0


@on_both_loops
async def test_stop_tells_the_long_polls() -> None:
    told = asyncio.Event()

    async def poll(request: Request) -> Response:
        request.hold()
        await told.wait()
        return Response(204)

    async with serving(poll) as front, connected(front) as client:
        front.on_stop.append(told.set)
        client.get("/")
        await progress(front, 10)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(front.stop(grace_s=20))
            assert (await client.answer()).status_code == 204
            assert front.stopping.is_set()
            client.writer.close()


@on_both_loops
async def test_stop_cancels_what_does_not_finish_in_time() -> None:
    gate = Gate()
    async with serving(gate) as front, connected(front) as client:
        client.get("/")
        await gate.begun.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(front.stop(grace_s=0))
            answer = await client.answer()
            client.writer.close()
        assert gate.cancelled.is_set()
        # What it has asked of the database goes on.
        assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
        assert answer.headers["connection"] == "close"


@on_both_loops
async def test_stop_waits_for_a_request_that_is_on_its_way() -> None:
    async with serving(echo) as front, connected(front) as client:
        client.send(b"POST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\n1")
        await progress(front, 40)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(front.stop(grace_s=20))
            await front.stopping.wait()
            client.send(b"23")
            answer = await client.answer()
            assert (answer.json()["body"], answer.headers["connection"]) == ("123", "close")
            client.writer.close()


@on_both_loops
async def test_stop_ends_even_if_nobody_closes() -> None:
    async def stubborn(request: Request) -> Response:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await front.stopping.wait()
        return Response(200)

    async with serving(stubborn) as front, connected(front) as client, connected(front) as partial:
        client.get("/")
        partial.send(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n1")
        await progress(front, 60)
        await front.stop(grace_s=0)
        assert front.connections_open == 0


# Garbage


VALID = (
    b"GET /a?b=c HTTP/1.1\r\nHost: h\r\n\r\n"
    b"POST /d HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc"
    b"PUT /e HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    b"2\r\nab\r\n0\r\nT: u\r\n\r\n"
    b"HEAD / HTTP/1.0\r\n\r\n"
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Valid requests with some places cut out, doubled or replaced."""
    data = VALID * draw(st.integers(1, 3))
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 20)))
        data = data[:start] + draw(st.sampled_from([b"", data[start:end] * 2, b"\r\n", b"\0", b"\xff"])) + data[end:]
    return data


async def exchange(front: HttpFront, slices: list[bytes]) -> bytes:
    async with connected(front) as client:
        for data in slices:
            client.send(data)
            await client.writer.drain()
        client.writer.write_eof()
        return await client.rest()


@pytest.mark.parametrize("new_loop", list(LOOPS.values()), ids=list(LOOPS))
def test_garbage_gets_an_answer_or_a_close(new_loop: NewLoop) -> None:
    async def ok(request: Request) -> Response:
        await asyncio.sleep(0)
        return Response(200)

    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.one_of(st.binary(max_size=300), damaged()), st.integers(1, 200))
    def check(data: bytes, step: int) -> None:
        slices = [data[start : start + step] for start in range(0, len(data), step)]
        received = runner.run(asyncio.wait_for(exchange(front, slices), PATIENCE_S))
        assert not received or received.startswith(b"HTTP/1.1 ")
        assert b" 500 " not in received

    with asyncio.Runner(loop_factory=new_loop) as runner:
        front = runner.run(start(ok))
        check()
        runner.run(front.stop(0))


async def start(handler: Handler) -> HttpFront:
    front = HttpFront(handler, Limits())
    await front.start("127.0.0.1", 0)
    return front
