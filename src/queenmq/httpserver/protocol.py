"""One HTTP/1.1 connection: requests to the handler one after the other, answers out in order.

Owns keep-alive, pipelining and flow control. Its state, and the way it ends, is `connection`; parsing is `reader`; what
the connections share (limits, clock, counters, the stop) is `front`; what a request means is the handler's.

Decisions:

* A client that closes only its sending side may still read. What it has asked for is finished and answered,
  unless the running handler has called `Request.hold`: a long poll is cancelled at once, because nearly
  always the client is gone altogether. A request that neither ends nor holds is cancelled after
  `Limits.half_closed_s`. A lost connection cancels in any case, at once; TLS has no sending side that could be closed
  alone.
* Reading goes on while a request runs, else a lost connection would not be noticed. It pauses when
  READ_AHEAD_BYTES have come behind a request that waits for its turn.
* A body that is more than a small one is not read before its request is admitted by its head (route, token) and there
  is room for it in the budget of all bodies. Nothing is read meanwhile, so its sender waits. Room is held until the
  request is answered, and lost by a client that sends too slowly.
* Input is parsed in slices, so that one read cannot make more than a slice's worth of objects. Of the requests that
  have come together, a few are served before other connections have their turn.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine
from typing import Any, cast

from queenmq.errors import HttpError, InternalError, Interrupted, Overloaded, TooLarge
from queenmq.httpserver.connection import JOIN_BYTES, Connection, with_headers
from queenmq.httpserver.messages import BODILESS, Request, Response, StreamedResponse, head_of
from queenmq.httpserver.refusals import RequestTimeout, TooManyConnections, error_response
from queenmq.httpserver.websocket import UpgradedResponse
from queenmq.request_id import RequestId, current, given_id

SLICE_BYTES = 32 * 1024
READ_AHEAD_BYTES = 64 * 1024
MIN_PROGRESS_BYTES = 1024
MOST_IN_A_TURN = 8  # requests of one connection, before others have their turn

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NO_CONTENT = Response(204)
_BRINGS_MUCH = "/api/"  # health checks and metrics do not wait for slow readers
_BODILESS_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_log = logging.getLogger(__name__)

if sys.version_info >= (3, 12):

    def _spawn(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        # Saves a turn of the loop, and every turn when the handler does not wait.
        return asyncio.Task(work, loop=loop, name="http-request", eager_start=True)

else:

    def _spawn(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        return asyncio.Task(work, loop=loop, name="http-request")


class HttpProtocol(Connection):
    __slots__ = ()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._front.tls is None:
            self.runs_over(self._transport)
        self._reader.comes_from(transport)
        peer = transport.get_extra_info("peername")
        if not self._front.connected(self, str(peer[0]) if peer else ""):
            self._refuse(TooManyConnections())
        elif self._front.stopping.is_set():
            self._close()
        elif self._front.tls is not None and transport.get_extra_info("peercert"):
            self._reader.certified()

    def data_received(self, data: bytes) -> None:
        size = len(data)
        self._front.bytes_in += size
        if self._deaf:
            if self._socket is not None:
                self._socket.feed(data, self._front.now)
            else:
                self._drain(size)
            return
        if size <= SLICE_BYTES and self._unparsed is None and not self._reader.unadmitted:
            self._parse(data)
        else:
            self._parse_slices(data)
            size = 0
        if self._queue:
            self._dispatch(size)

    def eof_received(self) -> bool:
        """Whether the connection stays open for writing; see the module's docstring."""
        if self._ending or (self._active is None and not self._queue) or not self._transport.can_write_eof():
            return False
        if self._active is not None and self._active.held:
            self._abandon()
            return False
        self._eof = self._deaf = self._due = True
        self._since = self._front.now
        for request in (self._active, *self._queue):
            if request is not None:
                request.half_closed = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        served = self._task is not None
        self._abandon()
        if not served:
            self._release()
        self._front.answers.reads_again(self)
        self._front.incoming.keeps(self, 0)
        self._unparsed = None
        self._reader.close()
        self._front.disconnected(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._front.answers.waits_for(self, self._transport.get_write_buffer_size(), self._front.now)
        self._since = self._front.now
        self._mark = 0

    def resume_writing(self) -> None:
        self._write_paused = False
        self._front.answers.reads_again(self)
        self._since = self._front.now
        self._mark = 0
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if self._queue and self._active is None:
            self._dispatch(0)

    def _expire_read(self, now: float) -> None:
        size = self._reader.body_bytes
        if self._reserved and self._is_too_slow(size, now - self._began):
            self._front.bodies.timeouts += 1
            self._fail(RequestTimeout())
        elif size - self._mark >= MIN_PROGRESS_BYTES:
            self._mark = size
            self._since = now
        elif now - self._since > self._front.limits.stall_s:
            self._fail(RequestTimeout())

    def _is_too_slow(self, size: int, took_s: float) -> bool:
        """A client that holds room in the budget must use it, above all while others wait for room."""
        limits = self._front.limits
        pressed = self._front.bodies.waiting and took_s > limits.pressed_s
        return took_s > limits.body_s or bool(pressed and size < took_s * limits.pressed_bytes_a_s)

    # Reading.

    def _parse(self, data: bytes | memoryview) -> None:
        reader = self._reader
        try:
            reader.feed(data)
        except HttpError as error:
            self._fail(error)
        else:
            if reader.partial:
                self._note_part()
            elif reader.ended:
                self._deaf = True

    def _parse_slices(self, data: bytes | memoryview) -> None:
        rest = memoryview(data if self._unparsed is None else bytes(self._unparsed) + data)
        self._unparsed = None
        while rest and not self._deaf:
            if self._ahead > READ_AHEAD_BYTES or self._reader.unadmitted:
                self._unparsed = rest
                self._count_kept()
                return
            self._parse(rest[:SLICE_BYTES])
            rest = rest[SLICE_BYTES:]
            if self._queue:
                self._fall_behind(SLICE_BYTES)

    def _fall_behind(self, size: int) -> None:
        """Take note of input that has to wait for its turn; stop reading when it is too much."""
        self._ahead += size
        self._due = True
        self._count_kept()
        if self._ahead > READ_AHEAD_BYTES:
            self._transport.pause_reading()

    def _note_part(self) -> None:
        if not self._reading:
            self._reading = True
            self._since = self._front.now
            self._mark = 0
        self._count_kept()
        if self._reader.unadmitted:
            self._transport.pause_reading()
        if self._reader.unadmitted or self._reader.expects_continue:
            self._due = True
            if self._active is None and not self._queue:
                self._settle()

    # A body that is more than a small one: first its sender, then room for it, then the body.

    def _admit(self) -> None:
        request = self._reader.arriving
        if self._admission is None and request is not None:
            admission = _spawn(self._make_room(request), self._loop)
            if not admission.done():
                self._admission = admission

    async def _make_room(self, request: Request) -> None:
        size = self._reader.expected_bytes
        try:
            if request.method in _BODILESS_METHODS:
                raise TooLarge(
                    f"a {request.method} request has no body of {self._front.limits.unchecked_body_bytes} bytes"
                )
            if self._front.admit is not None:
                await self._front.admit(request)
            async with asyncio.timeout(self._front.limits.body_wait_s):
                await self._front.bodies.reserve(size)
        except TimeoutError:
            self._refuse_body(Overloaded("other request bodies use up the memory for them, connection closed"))
        except HttpError as error:
            self._refuse_body(error)
        except Exception:
            _log.exception("%s %s failed before its body was read", request.method, request.path)
            self._refuse_body(InternalError())
        else:
            self._admission = None
            self._reserved = size
            self._began = self._since = self._front.now
            self._mark = self._reader.body_bytes
            self._reader.admit()
            self._read_on()
            if self._queue:
                self._dispatch(0)

    def _refuse_body(self, error: HttpError) -> None:
        self._admission = None
        self._unparsed = None
        self._fail(error)

    def _release(self) -> None:
        size, self._reserved = self._reserved, 0
        if size:
            self._front.bodies.release(size)

    def _drain(self, size: int) -> None:
        self._drained += size
        if self._drained > self._front.limits.max_drain_bytes:
            self._transport.abort()

    # Requests, one after the other.

    def _dispatch(self, size: int) -> None:
        if self._active is None and not self._write_paused:
            self._begin(self._queue.pop(0))
        if self._queue:
            self._fall_behind(size)

    def _begin(self, request: Request) -> None:
        self._active = request
        self._fresh = False
        if self._keeps:
            self._count_kept()
        task = _spawn(self._serve(request), self._loop)
        if not task.done():
            self._task = task

    async def _serve(self, first: Request) -> None:
        """Answer a request, and those that have come in behind it meanwhile."""
        try:
            await self._serve_all(first)
        finally:
            self._release()

    async def _serve_all(self, first: Request) -> None:
        front = self._front
        request: Request | None = first
        served = 0
        while request is not None:
            given = request.headers.get(b"x-request-id")
            identity = RequestId() if given is None else given_id(given)
            current.set(identity)
            try:
                if served >= MOST_IN_A_TURN:
                    served = 0
                    await asyncio.sleep(0)
                if front.answers.too_many and request.path.startswith(_BRINGS_MUCH) and request.method == "GET":
                    await front.answers.room()
                response = _NO_CONTENT if request.method == "OPTIONS" else await front.handler(request)
                response.encode()
            except HttpError as error:
                response = error_response(error)
            except asyncio.CancelledError:
                if self._gone or self._eof:
                    self._close()
                    raise
                response = self._cancelled(request)
            except Exception:
                _log.exception("%s %s failed", request.method, request.path)
                response = error_response(InternalError())
            if identity.known is not None:
                response = with_headers(response, (b"X-Request-Id", identity.known))
            if front.origins is not None:
                response = with_headers(response, *front.origins.headers(request))
            if isinstance(response, StreamedResponse):
                await self._stream(request, response)
            elif isinstance(response, UpgradedResponse):
                await self._upgrade(request, response)
            else:
                self._answer(request, response)
            self._release()
            request = self._next()
            served += 1

    def _cancelled(self, request: Request) -> Response:
        if self._front.stopping.is_set():
            return error_response(Interrupted())
        _log.error("%s %s was cancelled although its client is still connected", request.method, request.path)
        return error_response(InternalError())

    def _answer(self, request: Request, response: Response) -> None:
        if self._gone:
            return
        keep_alive = request.keep_alive and not self._last
        front = self._front
        front.requests_total += 1
        data = head_of(response, keep_alive)
        if request.method != "HEAD" and response.status not in BODILESS:
            if len(response.body) <= JOIN_BYTES:
                data += response.body
            else:
                self._send(data)
                data = response.body
        if self._queue or self._out:
            self._send(data)
        else:
            front.bytes_out += len(data)
            self._transport.write(data)
        if not keep_alive:
            self._end(request)

    def _next(self) -> Request | None:
        """Make the next request the active one, if it may begin now."""
        while self._due and not self._queue:
            self._settle()
        if self._queue and not self._write_paused:
            self._active = request = self._queue.pop(0)
            return request
        self._active = self._task = None
        self._reading = False
        self._since = self._front.now
        return None

    def _settle(self) -> None:
        """Everything that was read has been answered: do what had to wait for that."""
        self._due = False
        self._ahead = 0
        if self._keeps:
            self._count_kept()
        if self._ending or self._gone:
            return
        if self._failure is not None:
            self._refuse(self._failure)
        elif self._eof:
            self._close()
        else:
            self._read_on()

    def _read_on(self) -> None:
        if self._reader.unadmitted:
            self._admit()
            return
        self._transport.resume_reading()
        if self._unparsed is not None:
            unparsed, self._unparsed = self._unparsed, None
            self._parse_slices(unparsed)
        elif self._reader.expects_continue:
            self._reader.expects_continue = False
            self._flush()
            self._transport.write(_CONTINUE)

    # The end.

    def _fail(self, error: HttpError) -> None:
        """Read nothing more, and refuse the connection with `error` once the queue has been answered."""
        if self._deaf:
            return
        self._deaf = self._due = True
        self._failure = error
        if self._active is None and not self._queue:
            self._reader.discard()
            self._release()
        if self._active is None and not self._queue:
            self._settle()
