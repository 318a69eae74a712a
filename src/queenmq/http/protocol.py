"""One HTTP/1.1 connection: requests to the handler one after the other, answers out in order.

Owns keep-alive, pipelining, flow control and the way a connection ends. Parsing is `reader`; what the
connections share (limits, clock, counters, the stop) is `front`; what a request means is the handler's.

Decisions:

* A client that closes only its sending side may still read. What it has asked for is finished and answered,
  unless the running handler has called `Request.hold`: a long poll is cancelled at once, because nearly
  always the client is gone altogether. A request that neither ends nor holds is cancelled after
  `Limits.half_closed_s`. A lost connection cancels in any case, at once.
* Reading goes on while a request runs, else a lost connection would not be noticed. It pauses when
  READ_AHEAD_BYTES have come behind a request that waits for its turn.
* Input is parsed in slices, so that one read cannot make more than a slice's worth of objects.
* A refused client may still be sending. Closing then would reset the connection and destroy the answer, so
  the sending side is shut and input is thrown away until the client closes, up to a limit.
* A streamed answer has no length and is the last one of its connection. Nothing is asked of its source while the
  client does not read; one that does not read at all is cut off after `Limits.stall_s`, as with any answer.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

import msgspec

from queenmq.errors import HttpError, InternalError, ServerStopping
from queenmq.http.messages import BODILESS, Request, Response, StreamedResponse, head_of
from queenmq.http.reader import RequestReader
from queenmq.http.refusals import RequestTimeout, TooManyConnections, error_response
from queenmq.request_id import RequestId, current, given_id

if TYPE_CHECKING:
    from queenmq.http.front import HttpFront

SLICE_BYTES = 32 * 1024
READ_AHEAD_BYTES = 64 * 1024
JOIN_BYTES = 64 * 1024
MIN_PROGRESS_BYTES = 1024

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NO_CONTENT = Response(204)

_log = logging.getLogger(__name__)

if sys.version_info >= (3, 12):

    def _spawn(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        # Saves a turn of the loop, and every turn when the handler does not wait.
        return asyncio.Task(work, loop=loop, name="http-request", eager_start=True)

else:

    def _spawn(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        return asyncio.Task(work, loop=loop, name="http-request")


class HttpProtocol(asyncio.Protocol):
    __slots__ = (
        "_active",
        "_ahead",
        "_deaf",
        "_drained",
        "_due",
        "_ending",
        "_eof",
        "_failure",
        "_front",
        "_gone",
        "_last",
        "_loop",
        "_mark",
        "_out",
        "_queue",
        "_reader",
        "_reading",
        "_since",
        "_task",
        "_transport",
        "_unparsed",
        "_writable",
        "_write_paused",
    )

    def __init__(self, front: HttpFront, loop: asyncio.AbstractEventLoop) -> None:
        self._front = front
        self._loop = loop
        self._transport: asyncio.Transport
        self._queue: list[Request] = []  # read, but not begun
        self._reader = RequestReader(front.limits, self._queue)
        self._unparsed: memoryview | None = None
        self._ahead = 0  # bytes received while the queue was not empty
        self._active: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._out = bytearray()  # answers that go out together
        self._write_paused = False
        self._writable: asyncio.Future[None] | None = None  # a stream waits for it

        # For the sweep: since when the connection is in its state, and how far it had come.
        self._since = front.now
        self._mark = 0
        self._reading = False

        # How it ends.
        self._due = False  # there is something to settle when the queue is empty
        self._failure: HttpError | None = None  # the answer after the last one of the queue
        self._eof = False
        self._last = False  # the next answer is the last one
        self._deaf = False  # input is thrown away
        self._drained = 0
        self._ending = False  # closing or lingering
        self._gone = False  # nobody is there to answer

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._front.connected(self):
            self._refuse(TooManyConnections())
        elif self._front.stopping.is_set():
            self._close()

    def data_received(self, data: bytes) -> None:
        size = len(data)
        self._front.bytes_in += size
        if self._deaf:
            self._drain(size)
            return
        if size <= SLICE_BYTES and self._unparsed is None:
            self._parse(data)
        else:
            self._parse_slices(data)
            size = 0
        if self._queue:
            self._dispatch(size)

    def eof_received(self) -> bool:
        """Whether the connection stays open for writing; see the module's docstring."""
        if self._ending or (self._active is None and not self._queue):
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
        self._abandon()
        self._unparsed = None
        self._reader.close()
        self._front.disconnected(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._since = self._front.now
        self._mark = 0

    def resume_writing(self) -> None:
        self._write_paused = False
        self._since = self._front.now
        self._mark = 0
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if self._queue and self._active is None:
            self._dispatch(0)

    # What the front calls.

    def retire(self) -> None:
        """Close as soon as the request that is running or arriving has been answered."""
        if self._active is None and not self._queue and not self._reader.partial:
            self._close()
        else:
            self._last = True

    def interrupt(self) -> None:
        """Cancel the running request; it is answered with ServerStopping."""
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        self._transport.abort()

    def expire(self, now: float) -> None:
        """Apply the timeout of the state that the connection is in."""
        limits = self._front.limits
        waited_s = now - self._since
        if self._write_paused or (self._ending and self._transport.get_write_buffer_size()):
            self._expire_write(now)
        elif self._ending:
            if waited_s > limits.linger_s:
                self._transport.abort()
        elif self._active is not None:
            if self._eof and waited_s > limits.half_closed_s:
                self._transport.abort()
        elif self._reader.partial:
            self._expire_read(now)
        elif waited_s > limits.keep_alive_s:
            self._close()

    def _expire_write(self, now: float) -> None:
        size = self._transport.get_write_buffer_size()
        if size != self._mark:
            self._mark = size
            self._since = now
        elif now - self._since > self._front.limits.stall_s:
            self._transport.abort()

    def _expire_read(self, now: float) -> None:
        size = self._reader.body_bytes
        if size - self._mark >= MIN_PROGRESS_BYTES:
            self._mark = size
            self._since = now
        elif now - self._since > self._front.limits.stall_s:
            self._fail(RequestTimeout())

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
            if self._ahead > READ_AHEAD_BYTES:
                self._unparsed = rest
                return
            self._parse(rest[:SLICE_BYTES])
            rest = rest[SLICE_BYTES:]
            if self._queue:
                self._fall_behind(SLICE_BYTES)

    def _fall_behind(self, size: int) -> None:
        """Take note of input that has to wait for its turn; stop reading when it is too much."""
        self._ahead += size
        self._due = True
        if self._ahead > READ_AHEAD_BYTES:
            self._transport.pause_reading()

    def _note_part(self) -> None:
        if not self._reading:
            self._reading = True
            self._since = self._front.now
            self._mark = 0
        if self._reader.expects_continue:
            self._due = True
            if self._active is None and not self._queue:
                self._settle()

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
        task = _spawn(self._serve(request), self._loop)
        if not task.done():
            self._task = task

    async def _serve(self, first: Request) -> None:
        """Answer a request, and those that have come in behind it meanwhile."""
        handler = self._front.handler
        request: Request | None = first
        while request is not None:
            given = request.headers.get(b"x-request-id")
            identity = RequestId() if given is None else given_id(given)
            current.set(identity)
            try:
                response = _NO_CONTENT if request.method == "OPTIONS" else await handler(request)
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
                response = _named(response, identity.known)
            if isinstance(response, StreamedResponse):
                await self._stream(request, response)
            else:
                self._answer(request, response)
            request = self._next()

    async def _stream(self, request: Request, response: StreamedResponse) -> None:
        """Answer part by part until the source or the client ends, and close."""
        source = response.source
        try:
            request.hold()
            self._last = True
            self._front.requests_total += 1
            self._send(head_of(response, False))
            self._flush()
            while request.method != "HEAD" and (part := await source.read()) is not None:
                self._front.bytes_out += len(part)
                self._transport.write(part)
                if self._write_paused:
                    self._writable = self._loop.create_future()
                    await self._writable
        except asyncio.CancelledError:
            if self._gone or self._eof:
                self._close()
                raise
        except Exception:
            _log.exception("%s %s failed while its answer was under way", request.method, request.path)
        finally:
            self._writable = None
            source.close()
        if not self._gone:
            self._end(request)

    def _cancelled(self, request: Request) -> Response:
        if self._front.stopping.is_set():
            return error_response(ServerStopping())
        _log.error("%s %s was cancelled although its client is there", request.method, request.path)
        return error_response(InternalError())

    def _answer(self, request: Request, response: Response) -> None:
        if self._gone:
            return
        keep_alive = request.keep_alive and not self._last
        head = head_of(response, keep_alive)
        self._front.requests_total += 1
        if request.method == "HEAD" or response.status in BODILESS:
            self._send(head)
        elif len(response.body) <= JOIN_BYTES:
            self._send(head + response.body)
        else:
            self._send(head)
            self._send(response.body)
        if not keep_alive:
            self._end(request)

    def _send(self, data: bytes) -> None:
        """Write, but keep answers back for a moment while more of them are due on this connection."""
        self._front.bytes_out += len(data)
        if not self._queue and not self._out:
            self._transport.write(data)
        elif len(data) > JOIN_BYTES:
            self._flush()
            self._transport.write(data)
        else:
            if not self._out:
                self._loop.call_soon(self._flush)
            self._out += data
            if not self._queue or len(self._out) > JOIN_BYTES:
                self._flush()

    def _flush(self) -> None:
        if self._out and not self._gone:
            data = bytes(self._out)
            self._out.clear()
            self._transport.write(data)

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
        if self._ending or self._gone:
            return
        if self._failure is not None:
            self._refuse(self._failure)
        elif self._eof:
            self._close()
        else:
            self._read_on()

    def _read_on(self) -> None:
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
            self._settle()

    def _refuse(self, error: HttpError) -> None:
        self._front.refusals_total += 1
        response = error_response(error)
        self._send(head_of(response, False) + response.body)
        self._linger()

    def _end(self, request: Request) -> None:
        """The last answer is written. If the client did not ask for it, its next request may be on the way."""
        self._queue.clear()
        self._flush()
        if request.keep_alive:
            self._linger()
        else:
            self._close()

    def _linger(self) -> None:
        if self._eof:
            self._close()
            return
        self._ending = self._deaf = True
        self._since = self._front.now
        self._transport.write_eof()
        self._transport.resume_reading()
        self._front.lingers(self)

    def _close(self) -> None:
        self._ending = self._deaf = True
        self._since = self._front.now
        self._queue.clear()
        self._flush()
        self._transport.close()

    def _abandon(self) -> None:
        """Nobody is there any more: stop working for them."""
        self._gone = True
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None


def _named(response: Response, request_id: bytes) -> Response:
    """The same answer with the id of its request; another object, because answers may be shared."""
    return msgspec.structs.replace(response, headers=(*response.headers, (b"X-Request-Id", request_id)))
