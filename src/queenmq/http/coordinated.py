"""The application of a server that coordinates: pops, pushes, acks and transactions may be served by another server.

Which requests may be forwarded, and what of them says where to, is in the tables of `routes`. A request that another
server has forwarded has a path of its own, with a proof, and is always served here: so there is one hop at most.

What is done twice must be the same as done once, because an attempt whose answer is lost is repeated elsewhere:

* a push and a transaction make the same ids on every server, those of the request's origin;
* an ack is forwarded only if it has no lease and only completes: of any other a repetition would be answered with
  "expired lease" although the first attempt had done it;
* a pop with autoAck is never forwarded: its messages would be lost with its answer.

A journal keeps the order of the pushes that arrive at its server. So a push that the other server would journal is
refused there and journalled here, and nothing is forwarded past what is journalled here.
"""

from __future__ import annotations

from typing import NamedTuple

from queenmq.cluster.peer_proof import Envelope, ProofChecker, Proven
from queenmq.errors import Forbidden, HttpError, WouldJournal
from queenmq.http.app import App
from queenmq.http.auth import Authenticator
from queenmq.http.forwarder import FORWARDED, FORWARDED_BY, PROOF, WOULD_JOURNAL, Forwarder
from queenmq.http.route import Context, Route
from queenmq.httpserver.messages import Request, Response
from queenmq.httpserver.origins import Origins
from queenmq.httpserver.refusals import error_response


class _Forwarded(NamedTuple):
    """A request that another server has forwarded: its route, and the proof of it."""

    route: Route
    proven: Proven


class CoordinatedApp(App):
    def __init__(self, context: Context, authenticator: Authenticator, origins: Origins, forwarder: Forwarder) -> None:
        super().__init__(context, authenticator, origins)
        self._node = context.broker.node
        self._forwarder = forwarder
        self._checker = ProofChecker(self._node.ring)

    async def handle(self, request: Request) -> Response:
        if request.admitted is None:
            await self.admit(request)
        admitted = request.admitted
        if isinstance(admitted, _Forwarded):
            return await self._handle_forwarded(request, admitted)
        if not isinstance(admitted, Route):
            raise AssertionError("a request without a route was admitted")
        route = admitted
        if route.forwarding is None:
            return await route.handler(request, self._context)
        # Before the first contact with the database there are no others to forward anything to.
        plan = route.forwarding(request, self._context) if self._node.is_open else None
        if plan is not None:
            return await self._forwarder.serve(request, route.handler, self._context, plan)
        response = await route.handler(request, self._context)
        response.headers += self._forwarder.served_here
        return response

    async def admit(self, request: Request) -> Route:
        if request.path.startswith(FORWARDED):
            return self._admit_forwarded(request)
        if FORWARDED_BY in request.headers:
            raise Forbidden("only servers of this cluster may send X-Forwarded-By")
        return await super().admit(request)

    def _admit_forwarded(self, request: Request) -> Route:
        """Raises Forbidden if no server of the cluster has forwarded it."""
        request.path = request.path.removeprefix(FORWARDED)
        proven = self._proven(request)
        request.forwarded = True
        request.origin = proven.origin
        route = self.router.resolve(request)
        if route.forwarding is None:
            raise Forbidden("this request must not be forwarded")
        request.admitted = _Forwarded(route, proven)
        return route

    async def _handle_forwarded(self, request: Request, admitted: _Forwarded) -> Response:
        """Serve here what another server has forwarded, and prove that this server did it. The origin of the page was
        checked where the request arrived."""
        route = admitted.route
        try:
            if not admitted.proven.covers(request.body):
                raise Forbidden("only servers of this cluster may forward requests")
            request.subject, request.role = await self._authenticator.authenticate(
                request.path, request.headers.get(b"authorization"), route.role
            )
            response = await route.handler(request, self._context)
        except HttpError as error:
            response = error_response(error)
            if isinstance(error, WouldJournal):
                response.headers += (WOULD_JOURNAL,)
        return self._forwarder.proved(response, request.headers.get(PROOF, b""))

    def _proven(self, request: Request) -> Proven:
        target = request.path.encode("latin-1")
        if request.query_string:
            target += b"?" + request.query_string
        envelope = Envelope(
            sender=request.headers.get(FORWARDED_BY, b""),
            receiver=self._forwarder.name,
            method=request.method.encode(),
            target=target,
            authorization=request.headers.get(b"authorization", b""),
        )
        proven = self._checker.check(request.headers.get(PROOF, b""), envelope, self._node.wall_ms)
        if proven is None:
            raise Forbidden("only servers of this cluster may forward requests")
        return proven
