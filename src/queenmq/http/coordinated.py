"""The application of a server that coordinates: pops, pushes, acks and transactions may be served by another server.

Which requests may be forwarded, and what of them says where to, is in the tables of `routes`. A request that another
server has forwarded (`peer_requests`) is always served here: so there is one hop at most.

What is done twice must be the same as done once, because an attempt whose answer is lost is repeated elsewhere:

* a push and a transaction make the same ids on every server, those of the request's origin;
* an ack is forwarded only if it has no lease and only completes: of any other a repetition would be answered with
  "expired lease" although the first attempt had done it;
* a pop with autoAck is never forwarded: its messages would be lost with its answer.

A journal keeps the order of the pushes that arrive at its server. So a push that the other server would journal is
refused there and journalled here, and nothing is forwarded past what is journalled here.
"""

from __future__ import annotations

from queenmq.errors import Forbidden
from queenmq.http.app import App
from queenmq.http.forwarder import Forwarder
from queenmq.http.peer_messages import CALLER
from queenmq.http.route import Context, Route
from queenmq.httpserver.messages import Request, Response
from queenmq.httpserver.origins import Origins


class CoordinatedApp(App):
    def __init__(self, context: Context, origins: Origins, forwarder: Forwarder) -> None:
        super().__init__(context, origins)
        self._node = context.broker.node
        self._forwarder = forwarder

    async def handle(self, request: Request) -> Response:
        if request.forwarded:
            admitted = request.admitted
            route = admitted if isinstance(admitted, Route) else await self.admit(request)
            return await self._handle_forwarded(request, route)
        return await super().handle(request)

    async def _serve(self, request: Request, route: Route) -> Response:
        if route.forwarding is None or request.forwarded:
            return await super()._serve(request, route)
        # Before the first contact with the database there are no others to forward anything to.
        plan = route.forwarding(request, self._context) if self._node.is_open else None
        if plan is not None:
            return await self._forwarder.serve(request, route.handler, self._context, plan)
        response = await route.handler(request, self._context)
        response.headers += self._forwarder.served_here
        return response

    async def admit(self, request: Request) -> Route:
        if request.forwarded:
            return self._admit_forwarded(request)
        if CALLER in request.headers:
            raise Forbidden("only servers of this cluster may send X-Forwarded-By")
        return await super().admit(request)

    def _admit_forwarded(self, request: Request) -> Route:
        """Raises Forbidden if it is no request that servers forward."""
        route = self.router.resolve(request)
        if route.forwarding is None:
            raise Forbidden("this request must not be forwarded")
        request.admitted = route
        return route

    async def _handle_forwarded(self, request: Request, route: Route) -> Response:
        """Serve here what another server has forwarded. The origin of the page was checked where the request
        arrived."""
        await self._identify(request, route)
        if request.caller is not None:
            await self._permit(request, route)
        return await route.handler(request, self._context)
