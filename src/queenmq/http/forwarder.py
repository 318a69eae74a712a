"""Forwards requests to other servers, and serves them here when that fails.

Owns the attempts, their headers and their common time. Where a request should go is said by the `Plan`; what an
attempt must not do twice is guarded by the origin, the id that all attempts of a request share.
"""

from __future__ import annotations

import logging
from urllib.parse import quote

import msgspec

from queenmq.clock import SYSTEM, Clock
from queenmq.cluster.coordinator import Coordinator
from queenmq.cluster.load_tracker import ServerLoad
from queenmq.cluster.node import Node
from queenmq.cluster.peer_session import Ends
from queenmq.config import CoordinatorSettings
from queenmq.errors import HttpError, InternalError, UnavailableError
from queenmq.http.peer_connection import PeerAnswer, PeerFailure, PeerSilent, PeerUnproven
from queenmq.http.peer_messages import CALLER, GREETING, SEALED, RequestHead, target_of
from queenmq.http.peer_pool import PeerPool, PoolExhausted, Times
from queenmq.http.peer_requests import PERHAPS_STORED, WOULD_JOURNAL
from queenmq.http.plans import LEASE, Plan
from queenmq.http.route import Context, Handler
from queenmq.httpserver.messages import JSON, Header, Request, Response
from queenmq.ids import uuid7_text
from queenmq.tls import Tls

log = logging.getLogger(__name__)

SERVED_BY = b"x-served-by"
MOST_PEERS = 2

_FELL_BACK = (b"X-Fallback", b"true")
_NOT_PASSED_ON = frozenset(
    {
        b"host",
        b"connection",
        b"keep-alive",
        b"content-length",
        b"transfer-encoding",
        b"te",
        b"trailer",
        b"upgrade",
        b"expect",
        CALLER,
        GREETING,
        SEALED,
    }
)
_NOT_PASSED_BACK = frozenset({b"x-request-id", SERVED_BY, CALLER, LEASE})
_CORS = b"access-control-"
_OVERLOADED = 429
_NO_PEER = frozenset({403, 404})  # it does not know us, or does not coordinate
_REFUSAL = 400
_SERVER_ERROR = 500
_UNKNOWN = frozenset({"outcome_unknown", InternalError.code})


class _ServeHere(Exception):
    """The peer is well and says that this server must serve the request, which it may have served all the same."""

    def __init__(self, *, perhaps_served: bool) -> None:
        super().__init__()
        self.perhaps_served = perhaps_served


class _PerhapsServed(Exception):
    """The peer may have served the request, and has not said so."""


class _Refusal(msgspec.Struct):
    code: str


class ForwardLost(UnavailableError):
    """A peer may have done what this server refused to do then."""

    code = "outcome_unknown"
    is_unknown = True


class Forwarder:
    def __init__(
        self, settings: CoordinatorSettings, node: Node, clock: Clock = SYSTEM, tls: Tls | None = None
    ) -> None:
        self._node = node
        self._tls = tls
        self._clock = clock
        self._pools: dict[str, PeerPool] = {}
        self._stopping = False
        self._timeout_s = settings.timeout_ms / 1000
        self._times = Times(settings.connect_timeout_ms / 1000, self._timeout_s)
        self._max_connections = settings.max_connections
        self.name = header_name(node.server_id)
        self.served_here = ((b"X-Served-By", self.name),)

    @property
    def _coordinator(self) -> Coordinator:
        return self._node.coordinator

    async def serve(self, request: Request, handler: Handler, context: Context, plan: Plan) -> Response:
        """Have the request served as planned; raises what the handler raises when it comes to that."""
        target = None if self._stopping else plan.first()
        if target is None:
            return await self._serve_here(request, handler, context, plan, ())
        now = self._clock.monotonic
        began = now()
        deadline = began + self._timeout_s + plan.wait_s
        if plan.late is not None:
            # From here on a client that closes its side counts as gone, so that no lease is taken for it.
            request.hold()
        origin = uuid7_text()
        tried: tuple[str, ...] = ()
        perhaps_served = False
        while target is not None and len(tried) < MOST_PEERS and now() < deadline:
            self._shorten(request, plan, now() - began if tried else 0.0)
            answer = None
            try:
                answer = await self._try(request, plan, target, origin, deadline)
            except _ServeHere as refusal:
                perhaps_served |= refusal.perhaps_served
                break
            except _PerhapsServed:
                perhaps_served = True
            if answer is not None:
                self._coordinator.forwarded += 1
                return self._passed_back(answer, target, fell_back=bool(tried))
            tried = (*tried, target.id)
            target = None if self._stopping else plan.next(self._node.now, tried)
        self._coordinator.fallbacks += 1
        self._shorten(request, plan, now() - began)
        request.origin = origin
        try:
            return await self._serve_here(request, handler, context, plan, (_FELL_BACK,))
        except HttpError as error:
            is_denial = isinstance(error, UnavailableError | InternalError)
            if perhaps_served and is_denial and plan.late is None:
                raise ForwardLost(
                    "the server to which this was forwarded gave no answer, so it may have been done; "
                    f"repeating it here failed: {error.message}"
                ) from error
            raise

    async def _serve_here(
        self, request: Request, handler: Handler, context: Context, plan: Plan, headers: tuple[Header, ...]
    ) -> Response:
        local = self._coordinator.local
        plan.began(local)
        try:
            response = await handler(request, context)
        finally:
            plan.ended(local)
        response.headers = (*response.headers, *self.served_here, *headers)
        return response

    def _shorten(self, request: Request, plan: Plan, spent_s: float) -> None:
        """What a long poll has waited already, it need not wait again."""
        if plan.wait_s and spent_s > 0:
            left_ms = max(0, round((plan.wait_s - spent_s) * 1000))
            request.query["timeout"] = str(left_ms)
            # Of a repeated parameter the last one counts.
            request.query_string = b"%b&timeout=%d" % (request.query_string, left_ms)

    async def _try(
        self, request: Request, plan: Plan, target: ServerLoad, origin: str, deadline: float
    ) -> PeerAnswer | None:
        """One attempt; None if the peer has not served the request. Raises _ServeHere or _PerhapsServed."""
        pool = self._pool(target.id)
        breaker = target.breaker
        if pool is None or not breaker.enter(self._node.now):
            return None
        plan.began(target)
        try:
            answer = await pool.exchange(_head(request, origin), request.body, deadline, plan.late)
        except PeerFailure as failure:
            if self._stopping:
                breaker.abandoned()
                if isinstance(failure, PeerSilent):
                    raise _PerhapsServed from failure
                return None
            log.warning("server %s failed a forwarded request: %s", target.id, failure)
            reason = "refused" if isinstance(failure, PeerUnproven) else "unreachable"
            self._coordinator.failed_attempts[reason] += 1
            breaker.failed(self._node.now)
            if isinstance(failure, PeerSilent):
                raise _PerhapsServed from failure
            return None
        except PoolExhausted:
            self._coordinator.failed_attempts["no_connection_left"] += 1
            breaker.abandoned()
            return None
        except BaseException:
            breaker.abandoned()
            raise
        finally:
            plan.ended(target)
        return self._judged(answer, plan, target)

    def _judged(self, answer: PeerAnswer, plan: Plan, target: ServerLoad) -> PeerAnswer | None:
        """The answer, if the peer has served the request."""
        served = answer.is_proven
        would_journal = answer.headers.get(WOULD_JOURNAL.lower()) if served else None
        if would_journal is not None:
            target.breaker.succeeded()
            self._coordinator.failed_attempts["would_journal"] += 1
            raise _ServeHere(perhaps_served=would_journal == PERHAPS_STORED)
        if served and answer.status < _SERVER_ERROR:
            target.breaker.succeeded()
            if answer.status != _OVERLOADED:
                return answer
            self._coordinator.failed_attempts["overloaded"] += 1
            return None
        log.warning("server %s answered a forwarded request with %d", target.id, answer.status)
        self._coordinator.failed_attempts["refused"] += 1
        if served or answer.status < _REFUSAL or answer.status in _NO_PEER or answer.status >= _SERVER_ERROR:
            target.breaker.failed(self._node.now)
        else:
            # The request itself is too much for it, with what was added to its headers. Nobody shall close the way
            # for others by that.
            target.breaker.abandoned()
        if served and plan.late is not None:
            plan.late(answer.headers)
        if _may_have_served(answer):
            raise _PerhapsServed
        return None

    def _pool(self, server: str) -> PeerPool | None:
        address = self._coordinator.http_address(server)
        if address is None:
            return None
        pool = self._pools.get(server)
        if pool is None or pool.address != address:
            if pool is None:
                self._node.death_of(server).add_done_callback(lambda _: self._peer_died(server))
            else:
                pool.fail("the server has moved")
            pool = self._pools[server] = PeerPool(
                address,
                self._node.ring,
                Ends(self.name, header_name(server)),
                self._clock,
                max_connections=self._max_connections,
                times=self._times,
                tls=self._tls,
            )
        return pool

    def _passed_back(self, answer: PeerAnswer, target: ServerLoad, *, fell_back: bool) -> Response:
        headers = [
            (name, value)
            for name, value in answer.headers.items()
            if name not in _NOT_PASSED_BACK and not name.startswith(_CORS)
        ]
        headers += [(b"X-Served-By", header_name(target.id)), (b"X-Forwarded-By", self.name)]
        if fell_back:
            headers.append(_FELL_BACK)
        return Response(
            answer.status,
            body=answer.body,
            content_type=answer.content_type or JSON,
            headers=tuple(headers),
        )

    def _peer_died(self, server: str) -> None:
        """What was forwarded to a dead server is served elsewhere at once."""
        pool = self._pools.pop(server, None)
        if pool is not None:
            pool.fail("the server counts as dead")

    def end_long_polls(self) -> None:
        """This server stops: what it has forwarded ends here, where long polls are answered at once."""
        self._stopping = True
        for pool in self._pools.values():
            pool.fail("this server is stopping")

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()


def _head(request: Request, origin: str) -> RequestHead:
    headers = [item for item in request.headers.items() if item[0] not in _NOT_PASSED_ON]
    return RequestHead(request.method, target_of(request), origin, headers)


def _may_have_served(answer: PeerAnswer) -> bool:
    """Of an answer that is hearsay or an error: whether it leaves open that the peer has done what it was asked for."""
    if not answer.is_proven:
        return True
    try:
        return msgspec.json.decode(answer.body, type=_Refusal).code in _UNKNOWN
    except msgspec.MsgspecError:
        return True


def header_name(server_id: str) -> bytes:
    """A server's id as a header can carry it."""
    return quote(server_id, safe=":#@!$&'()*+,;=[]/").encode()
