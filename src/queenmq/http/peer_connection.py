"""One connection to another server of the cluster: first a greeting, then one request at a time, and its answer.

Nothing is sent before the other end has proved that it is the server that is meant, and everything after that is
sealed.

Owns also the way a request ends early. The connection is closed, which tells the peer that the client is gone. If the
answer may hold a lease, only the sending side is closed, and the answer is read to its end: `late` gets its headers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from httptools import HttpParserError, HttpResponseParser

from queenmq.cluster.keys import KeyRing
from queenmq.cluster.peer_session import Ends, Session, greet
from queenmq.http.peer_messages import (
    GREETING,
    AnswerHead,
    RequestHead,
    read_answer_head,
    written_greeting,
    written_request,
)

MAX_ANSWER_BYTES = 128 * 1024 * 1024  # far above what a server of the cluster answers; another may be at its address
MAX_GREETING_BYTES = 64 * 1024
LATE_S = 60.0  # a peer that was stopped and goes on answers what it has read, and that may be a lease

Late = Callable[[Mapping[bytes, bytes]], None]


class PeerFailure(Exception):
    """The peer gave no answer."""


class PeerSilent(PeerFailure):
    """The request was sent: whether the peer has done what it was asked for is not known."""


class PeerUnproven(PeerFailure):
    """The process at the address has not proved that it is the server that is meant; nothing else was sent to it."""


class PeerAnswer(NamedTuple):
    """`is_proven`: the peer has given it. Of any other only the status is known, and that is hearsay."""

    status: int
    is_proven: bool = False
    content_type: bytes = b""
    headers: Mapping[bytes, bytes] = {}
    body: bytes = b""


class PeerConnection(asyncio.Protocol):
    """`released` is called when the connection may be used again, `closed` when it is gone."""

    def __init__(self, released: Callable[[PeerConnection], None], closed: Callable[[PeerConnection], None]) -> None:
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._released = released
        self._closed = closed
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[PeerAnswer] | None = None
        self._late: Late | None = None
        self._session: Session | None = None
        self._greeting_bytes = 0
        self._withdrawn = False
        self._begin()

    def _begin(self) -> None:
        self._parser = HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._size = 0

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def greet(self, ring: KeyRing, ends: Ends) -> None:
        """To be called first, and once. Raises PeerFailure."""
        greeting = greet(ring, ends)
        answer = await self._write(written_greeting(ends.caller, greeting.said))
        self._session = greeting.answered(answer.headers.get(GREETING, b""))
        if self._session is None:
            raise PeerUnproven(f"the process at its address has not proved to be that server (status {answer.status})")

    def send(self, head: RequestHead, body: bytes, late: Late | None = None) -> asyncio.Future[PeerAnswer]:
        """The answer; PeerFailure if the connection ends without one.

        `late` gets the headers of an answer that comes after the request was given up, also if the answer is cut off.
        """
        if self._session is None:
            raise AssertionError("nothing may be sent before the greeting")
        self._late = late
        return self._write(written_request(self._session, head, body))

    def _write(self, data: bytes) -> asyncio.Future[PeerAnswer]:
        if self._transport is None:
            raise PeerFailure("the connection is closed")
        self._answer = self._loop.create_future()
        self._transport.write(data)
        return self._answer

    def withdraw(self) -> None:
        """Give the running request up."""
        self._answer = None
        self._withdrawn = True
        if self._late is None:
            self.abort()
        elif self._transport is not None and not self._transport.can_write_eof():
            # TLS cannot close one side alone. An answer that is under way is lost, and its lease ends in its time.
            self.abort()
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()
            self._loop.call_later(LATE_S, self.abort)

    def fail(self, reason: str) -> None:
        """End the running request, if there is one, with PeerFailure, and the connection."""
        if self._answer is None:
            self.abort()
        else:
            self._end(reason)
            self.withdraw()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None and not self._withdrawn:
            self.abort()  # nothing was asked for
            return
        if self._session is None:
            self._greeting_bytes += len(data)
            if self._greeting_bytes > MAX_GREETING_BYTES:
                self._end("the answer to the greeting is too large")
                self.abort()
                return
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self._end("the answer is not HTTP")
            self.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end("the connection was lost before the answer was complete")
        late, self._late = self._late, None
        if late is not None:
            head = self._opened_head()
            if head is not None:
                late(dict(head.headers))
        self._closed(self)

    def _end(self, reason: str) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(PeerFailure(reason) if self._session is None else PeerSilent(reason))

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MAX_ANSWER_BYTES:
            self._end("the answer is too large")
            self.abort()
        else:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        answer = self._opened()
        # Who has not answered as the peer does is not asked again.
        again = self._parser.should_keep_alive() and answer.is_proven
        self._begin()
        future, self._answer = self._answer, None
        late, self._late = self._late, None
        if future is None or future.done():
            # It was given up, perhaps just now: the task that was cancelled may not have withdrawn it yet.
            if late is not None and answer.is_proven:
                late(answer.headers)
            self._close()
            return
        if again:
            self._released(self)
        elif self._session is not None:
            self._close()
        future.set_result(answer)

    def _opened(self) -> PeerAnswer:
        status = self._parser.get_status_code()
        if self._session is None:
            return PeerAnswer(status, headers=self._headers)
        head = self._opened_head()
        sealed = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        body = None if head is None else self._session.open(sealed)
        if head is None or body is None:
            return PeerAnswer(status)
        return PeerAnswer(head.status, True, head.content_type, dict(head.headers), body)

    def _opened_head(self) -> AnswerHead | None:
        return None if self._session is None else read_answer_head(self._session, self._headers)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
