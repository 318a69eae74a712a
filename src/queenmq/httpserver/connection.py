"""The state of one HTTP connection, how it is written to, and how it ends.

`protocol` builds on it: what happens with what comes in.

Decisions:

* A refused client may still be sending. Closing then would reset the connection and destroy the answer, so
  the sending side is shut and input is thrown away until the client closes, up to a limit.
* A streamed answer has no length and is the last one of its connection. Nothing is asked of its source while the
  client does not read; one that does not read at all is cut off after `Limits.stall_s`, as with any answer.
* A request that becomes a WebSocket stays the running request until the session ends, so that everything that ends a
  long poll (a lost connection, the end of the server) ends it, too.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import msgspec

from queenmq.errors import HttpError
from queenmq.httpserver.messages import Header, Request, Response, StreamedResponse, head_of
from queenmq.httpserver.reader import RequestReader
from queenmq.httpserver.refusals import error_response
from queenmq.httpserver.websocket import FAILED, GOING_AWAY, UpgradedResponse, WebSocket, upgrade_head

if TYPE_CHECKING:
    from queenmq.httpserver.front import HttpFront

JOIN_BYTES = 64 * 1024

_REQUEST_BYTES = 512  # that one takes beside its text
_log = logging.getLogger(__name__)


class Connection(asyncio.Protocol, ABC):
    __slots__ = (
        "_active",
        "_admission",
        "_ahead",
        "_began",
        "_deaf",
        "_drained",
        "_due",
        "_ending",
        "_eof",
        "_failure",
        "_fresh",
        "_front",
        "_gone",
        "_keeps",
        "_last",
        "_loop",
        "_mark",
        "_out",
        "_queue",
        "_reader",
        "_reading",
        "_reserved",
        "_since",
        "_socket",
        "_task",
        "_transport",
        "_unparsed",
        "_wire",
        "_writable",
        "_write_paused",
    )

    def __init__(self, front: HttpFront, loop: asyncio.AbstractEventLoop) -> None:
        self._front = front
        self._loop = loop
        self._transport: asyncio.Transport
        self._wire: asyncio.Transport  # the same, or what is below TLS
        self._queue: list[Request] = []  # read, but not begun
        self._reader = RequestReader(front.limits, self._queue)
        self._unparsed: memoryview | None = None
        self._ahead = 0  # bytes received while the queue was not empty
        self._keeps = False  # some of what has come, not begun: the front counts it
        self._active: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._out = bytearray()  # answers that go out together
        self._write_paused = False
        self._writable: asyncio.Future[None] | None = None  # streams and sessions wait for it
        self._socket: WebSocket | None = None

        # A body that is more than a small one.
        self._admission: asyncio.Task[None] | None = None
        self._reserved = 0  # room in the budget, from before it is read until its request is answered
        self._began = 0.0

        # For the sweep: since when the connection is in its state, and how far it had come.
        self._since = front.now
        self._mark = 0
        self._reading = False
        self._fresh = True  # no request has come yet

        # How it ends.
        self._due = False  # there is something to settle when the queue is empty
        self._failure: HttpError | None = None  # the answer after the last one of the queue
        self._eof = False
        self._last = False  # the next answer is the last one
        self._deaf = False  # input is thrown away
        self._drained = 0
        self._ending = False  # closing or lingering
        self._gone = False  # nobody is there to answer

    # What the front calls.

    def runs_over(self, wire: asyncio.Transport) -> None:
        """Before the connection is made: what its transport writes to."""
        self._wire = wire

    def interrupt(self) -> None:
        """Cancel the running request; it is answered with Interrupted."""
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        self._transport.abort()

    def give_up(self) -> None:
        """The client does not read what it is sent."""
        if self._socket is not None:
            self._socket.is_silent = True
        self._transport.abort()

    @property
    def spare_rank(self) -> int | None:
        """How soon it may be closed when room is needed: 0 is first; None is never."""
        if (
            self._active is not None
            or self._queue
            or self._admission is not None
            or self._reserved
            or self._ending
            or self._write_paused
            or self._reader.is_proven
        ):
            return None
        if self._reader.partial:
            return 1
        if self._has_unsent:
            return 3
        return 0 if self._fresh else 2

    @property
    def _has_unsent(self) -> bool:
        """Whether part of an answer is still here."""
        return bool(self._transport.get_write_buffer_size() or self._wire.get_write_buffer_size())

    @property
    def is_busy(self) -> bool:
        """Whether a request runs on it for a client that reads, or one that was admitted waits for room."""
        return (self._active is not None and not self._write_paused) or self._admission is not None

    def _count_kept(self) -> None:
        """Of what has come: what has not arrived whole, what waits to be parsed, and what waits for its turn."""
        if self._gone or self._reader.is_proven:
            return
        waiting = self._ahead + len(self._queue) * _REQUEST_BYTES
        size = self._reader.kept_bytes + waiting + (0 if self._unparsed is None else len(self._unparsed))
        self._keeps = size > 0
        self._front.incoming.keeps(self, size)

    def make_room(self) -> None:
        """Close now: there are too many connections, and nothing runs on this one."""
        if self._fresh or not (self._transport.can_write_eof() or self._has_unsent):
            self._transport.abort()  # at once, also with TLS, whose end would be waited for
        else:
            self._close()

    def retire(self) -> None:
        """Close as soon as the request that is running or arriving has been answered."""
        if self._active is None and not self._queue and not self._reader.partial:
            self._close()
        else:
            self._last = True
            if self._socket is not None:
                self._socket.retired.set()

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
            elif self._socket is not None:
                self._socket.expire(now)
        elif self._admission is not None:
            pass  # it has a time of its own
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
            self.give_up()

    @abstractmethod
    def _expire_read(self, now: float) -> None:
        """Apply the timeouts of a request that is arriving."""

    # Writing.

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
                await self.writable()
        except asyncio.CancelledError:
            if self._gone or self._eof:
                self._close()
                raise
        except Exception:
            _log.exception("%s %s failed while its answer was under way", request.method, request.path)
        finally:
            source.close()
        if not self._gone:
            self._end(request)

    async def _upgrade(self, request: Request, response: UpgradedResponse) -> None:
        """The connection is a WebSocket until the session or the client ends it."""
        request.hold()
        self._last = self._deaf = True  # deaf to HTTP
        socket = self._socket = WebSocket(self, self._transport, self._front.now)
        if self._front.stopping.is_set():
            socket.retired.set()
        self._front.requests_total += 1
        self._send(upgrade_head(response))
        self._flush()
        try:
            await response.session(socket)
        except asyncio.CancelledError:
            if self._gone or self._eof:
                self._close()
                raise
            socket.close(GOING_AWAY, "the server stops")
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            socket.close(FAILED, "internal error")
        finally:
            self._socket = None
        if not self._gone:
            self._transport.resume_reading()
            self._end(request)

    @property
    def is_gone(self) -> bool:
        return self._gone

    @property
    def write_paused(self) -> bool:
        return self._write_paused

    def write(self, data: bytes) -> None:
        """Of a WebSocket."""
        if not self._gone:
            self._front.bytes_out += len(data)
            self._transport.write(data)

    async def writable(self) -> None:
        """Wait until the client has read most of what it was sent. Several may wait."""
        while self._write_paused:
            if self._writable is None or self._writable.done():
                self._writable = self._loop.create_future()
            await asyncio.shield(self._writable)

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

    # The end.

    def _refuse(self, error: HttpError) -> None:
        self._front.refusals_total += 1
        response = error_response(error)
        if self._front.origins is not None and self._reader.arriving is not None:
            response = with_headers(response, *self._front.origins.headers(self._reader.arriving))
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
        # TLS cannot close one side alone: there the client closes, because the answer says so, or is waited for.
        if self._transport.can_write_eof():
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
        if self._admission is not None:
            self._admission.cancel()
            self._admission = None


def with_headers(response: Response, *headers: Header) -> Response:
    """The same answer with further headers; another object, because answers may be shared."""
    return msgspec.structs.replace(response, headers=(*response.headers, *headers)) if headers else response
