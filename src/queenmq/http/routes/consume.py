"""GET /api/v1/consume/queue/{queue}: a consumer connection, on which batches come and acknowledgements go

It is a WebSocket whose messages are JSON. docs/consumer-connection.md has the protocol, `InFlight` has the credit and
the leases. Every message of the client, and every second, the token is checked as for a request of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from queenmq.access.permissions import Verb
from queenmq.broker.finish import Finished
from queenmq.broker.in_flight import InFlight
from queenmq.broker.pop import Claim, Delivered
from queenmq.clock import SYSTEM
from queenmq.core.names import QUEUE_MODE
from queenmq.errors import (
    Forbidden,
    HttpError,
    InvalidRequest,
    NotFound,
    Overloaded,
    QueenError,
    RequestError,
    Unauthenticated,
    UnavailableError,
)
from queenmq.http.decoding import decode, query_flag, query_integer, query_name
from queenmq.http.openapi import INTEGER, LABEL, Parameter, documented
from queenmq.http.requests import ConsumerFrame, FinishedLease, RenewedLease
from queenmq.http.roles import Role
from queenmq.http.route import Context, Need, Route
from queenmq.http.routes.leases import read_finish, shown_finish, shown_renewal
from queenmq.http.routes.pop import POP_MANY, encoded, read_pop
from queenmq.http.routes.push import check_count
from queenmq.http.schemas import Error, RenewResult, ServerFrame
from queenmq.http.scopes import require_permission
from queenmq.http.shares import polling, take_about_queue, take_request
from queenmq.http.trail import Trail
from queenmq.httpserver.messages import Request, Response
from queenmq.httpserver.websocket import (
    GOING_AWAY,
    INVALID,
    REFUSED,
    TRY_LATER,
    SocketClosed,
    WebSocket,
    accept,
)
from queenmq.ids import is_uuid

_CHECK_S: Final = 1.0
_JOIN_BYTES: Final = 256 * 1024
_IN_A_TURN: Final = 100
PARAMETERS = (
    *(one for one in POP_MANY if one.name not in ("wait", "timeout", "autoAck", "autopilot")),
    Parameter("partition", LABEL, "Only this partition."),
    Parameter("inFlight", INTEGER, "Most batches in flight; cut to what the server allows.", 1),
)
_decoder = msgspec.json.Decoder(ConsumerFrame)
_encode = msgspec.json.Encoder().encode
_NOTHING: Final = b"{}"


@documented({101: None, 404: Error, 426: Error}, query=PARAMETERS)
async def consume(request: Request, context: Context) -> Response:
    """Open a consumer connection, which is a WebSocket: batches are delivered as they become readable."""
    query, settings = request.query, context.settings.consumers
    if not settings.max_connections:
        raise NotFound("consumer connections are switched off on this server: use long polls")
    if query_flag(query, "autoAck"):
        raise InvalidRequest("a consumer connection has no autoAck: its messages are under leases", "autoAck")
    claim, _ = read_pop(request, context.settings, request.params[0], query_name(query, "partition"))
    most = min(max(query_integer(query, "inFlight", 1), 1), settings.max_in_flight)
    response = accept(request, lambda socket: _Session(request, context, claim, most, socket).run())
    if len(context.broker.consumers) >= settings.max_connections:
        raise Overloaded("too many consumer connections are open: connection refused for now (ECONNREFUSED)")
    return response


class _Session:
    def __init__(self, request: Request, context: Context, claim: Claim, most: int, socket: WebSocket) -> None:
        self._request = request
        self._context = context
        self._socket = socket
        self._frame = ServerFrame()  # the next one
        self._delivered_bytes = 0
        self._is_due = False
        settings = context.settings.consumers
        socket.ping_s = settings.ping_s
        self._in_flight = InFlight(
            context.broker,
            claim,
            self._deliver,
            self._room,
            self._has_room,
            most=most,
            most_bytes=settings.max_in_flight_bytes,
            clock=SYSTEM,
        )

    async def run(self) -> None:
        """Serve the connection until one side ends it."""
        consumers, in_flight, socket = self._context.broker.consumers, self._in_flight, self._socket
        parts: list[Coroutine[Any, Any, None]] = [self._read(), in_flight.claim(), self._watch(), self._retire()]
        gives_back = True
        tasks = [asyncio.create_task(part) for part in parts]
        consumers.add(in_flight)
        try:
            with polling(self._request, self._context, self._request.params[0]):
                await _until_one_fails(tasks)
        except SocketClosed as end:
            # Said by the client, or by us because the server stops; then its client still has what it holds.
            gives_back = end.code != GOING_AWAY or not socket.retired.is_set()
            socket.close(end.code, end.reason)
        except HttpError as error:
            socket.close(_close_code(error), error.message)
        except asyncio.CancelledError:
            # A client that is silent may be at work still: its leases expire, and count as attempts.
            gives_back = not socket.is_silent and (socket.is_lost or not socket.retired.is_set())
            raise
        finally:
            consumers.discard(in_flight)
            for task in tasks:
                if not task.cancel() and not task.cancelled():
                    task.exception()  # of several that fail at once, the first is what the client gets
            in_flight.close(gives_back=gives_back)

    async def _read(self) -> None:
        """What the client sends. It is not read while the client does not read, or asks for more than it may."""
        while True:
            text = await self._socket.receive()
            await self._socket.room()
            await self._check_token()
            frame = decode(text.encode(), _decoder)
            check_count(len(frame.finish), self._context.settings, "finish")
            check_count(len(frame.renew), self._context.settings, "renew")
            if frame.stop:
                self._in_flight.drain()
            if frame.batch or frame.partitions:
                self._in_flight.resize(frame.batch, frame.partitions, self._context.settings.limits.max_items)
            for index, finish in enumerate(frame.finish):
                if index % _IN_A_TURN == _IN_A_TURN - 1:
                    await asyncio.sleep(0)  # others have their turn
                await self._take_request()
                self._finish(finish, f"finish[{index}].")
            for renewed in frame.renew:
                await self._take_request()
                await self._renew(renewed)

    async def _take_request(self) -> None:
        queue = self._request.params[0]
        await _when_allowed(lambda: take_request(self._request, self._context))
        await _when_allowed(lambda: take_about_queue(queue, self._context))

    def _finish(self, body: FinishedLease, field: str) -> None:
        def done(finished: Finished) -> None:
            self._frame.finished.append(shown_finish(body.lease_id, body, finished))
            self._flush_soon()

        self._in_flight.finish(read_finish(body.lease_id, body, self._context.settings, field), done)

    async def _renew(self, body: RenewedLease) -> None:
        expiry = None
        try:
            if is_uuid(body.lease_id):
                expiry = await self._in_flight.renew(body.lease_id.lower(), body.seconds)
            result = msgspec.convert(shown_renewal(body.lease_id, expiry), RenewResult, from_attributes=True)
        except QueenError as error:
            result = RenewResult(
                lease_id=body.lease_id, success=False, renewed=False, error=str(error), code=error.code
            )
        self._frame.renewed.append(result)
        self._flush_soon()

    # What the client is sent: all that is there in one turn of the event loop is one message.

    def _deliver(self, delivered: Delivered) -> int:
        batch = encoded(delivered)
        self._frame.delivered.append(cast(Any, Raw(batch)))
        self._delivered_bytes += len(batch)
        if self._delivered_bytes > _JOIN_BYTES:
            self._flush()
        else:
            self._flush_soon()
        return len(batch)

    def _flush_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        said = _encode(self._frame)
        if said != _NOTHING:
            self._socket.send(said.decode())
            self._frame = ServerFrame()
            self._delivered_bytes = 0

    async def _room(self) -> None:
        answers = self._context.memory.answers
        if answers.too_many:
            await answers.room()
        await self._socket.room()

    def _has_room(self) -> bool:
        return self._socket.has_room and not self._context.memory.answers.too_many

    # The token, and the end of the server.

    async def _watch(self) -> None:
        while self._context.authenticator.enabled:
            await SYSTEM.sleep(_CHECK_S)
            await self._check_token()

    async def _check_token(self) -> None:
        """Raises Unauthenticated or Forbidden as soon as the token does not allow the connection any more."""
        request, context = self._request, self._context
        route: Route = request.admitted  # type: ignore[assignment]
        if not context.authenticator.enabled:
            return
        try:
            if SYSTEM.wall() >= request.valid_until:
                raise Unauthenticated("Token expired")
            caller = await context.authenticator.authenticate(
                request.path, request.headers.get(b"authorization"), route.role
            )
            if caller.permissions is not None or caller.limits is not None:
                request.caller = caller
            if caller.permissions is not None:
                await require_permission(caller.permissions, request, route, context)
        except UnavailableError:
            return  # it was valid, and will be checked again
        except (Unauthenticated, Forbidden) as error:
            Trail(context.audit).refused(request, route, error, request.caller)
            raise

    async def _retire(self) -> None:
        """When the server stops: deliver nothing more, let the client finish what it has, and close."""
        await self._socket.retired.wait()
        self._in_flight.drain()
        self._frame.stopping = True
        self._flush()
        await self._in_flight.drained()
        self._flush()
        raise SocketClosed(GOING_AWAY, "the server stops")


async def _when_allowed(take: Callable[[], None]) -> None:
    while True:
        try:
            take()
            return
        except Overloaded as error:
            await SYSTEM.sleep(error.retry_after_s)


async def _until_one_fails(tasks: Sequence[asyncio.Task[None]]) -> None:
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


def _close_code(error: HttpError) -> int:
    match error:
        case Unauthenticated() | Forbidden():
            return REFUSED
        case RequestError():
            return INVALID
        case _:
            return TRY_LATER


async def _scope(request: Request, _: Context) -> Sequence[Need]:
    """The queue in the path, as the group in the query, for what a pop and what an ack does."""
    group = request.query.get("consumerGroup") or QUEUE_MODE
    return Need(Verb.POP, request.params[0], group), Need(Verb.ACK, request.params[0], group)


PATH: Final = "/api/v1/consume/queue/{queue}"

ROUTES = (Route("GET", PATH, consume, Role.READ_WRITE, scope=_scope),)
