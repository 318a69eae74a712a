"""The application of a server that coordinates: pops, pushes, acks and transactions may be served by another server.

Owns which requests may be passed on, and what of them says where to. A request that another server has passed on comes
under a path of its own, with a proof, and is served here whatever happens: so there is one hop at most.

What is done twice must be the same as done once, because an attempt whose answer is lost is repeated elsewhere:

* a push and a transaction make the same ids on every server, those of the request's origin;
* an ack is passed on only if it has no lease and only completes: of any other a repetition would be answered with
  "expired lease" although the first attempt had done it;
* a pop with autoAck is never passed on: what it takes would be gone if its answer were lost on the way.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from queenmq.cluster.peer_proof import Envelope, ProofChecker
from queenmq.config import Settings
from queenmq.core.acknowledgement import COMPLETED
from queenmq.core.names import QUEUE_MODE
from queenmq.engine.engine import Engine
from queenmq.errors import Forbidden, HttpError
from queenmq.http.app import App
from queenmq.http.auth import Authenticator
from queenmq.http.decoding import query_count, query_flag
from queenmq.http.forwarder import FORWARDED, FORWARDED_BY, PROOF, Forwarder
from queenmq.http.messages import Request, Response
from queenmq.http.plans import ConsumerPlan, Plan, ProducerPlan
from queenmq.http.refusals import error_response
from queenmq.http.routes.push import read_push
from queenmq.http.routes.transaction import read_transaction

Way = Callable[[Request], Plan | None]

_QUEUE = b'"queue"'
_LEASE = re.compile(rb'"leaseId":"([0-9a-f-]{36})"')
_OF_QUEUE = re.compile(rb'"queue":("(?:[^"\\]|\\.)*")')
_decode_text = msgspec.json.Decoder(str).decode


class _NamedAck(msgspec.Struct, rename="camel"):
    """What of an acknowledgement says whether it may be passed on."""

    queue: str | None = None
    lease_id: str | None = None
    status: str | None = None


class _NamedBatch(msgspec.Struct):
    acknowledgments: list[_NamedAck]
    queue: str | None = None


_decode_ack = msgspec.json.Decoder(_NamedAck).decode
_decode_batch = msgspec.json.Decoder(_NamedBatch).decode


class CoordinatedApp(App):
    def __init__(self, engine: Engine, authenticator: Authenticator, forwarder: Forwarder) -> None:
        super().__init__(engine, authenticator)
        self._engine = engine
        self._node = engine.node
        self._forwarder = forwarder
        self._checker = ProofChecker(engine.node.ring)
        self._ways: dict[str, Way] = {
            "/api/v1/pop/queue/{queue}": self._pop_queue,
            "/api/v1/pop/queue/{queue}/partition/{partition}": self._pop_partition,
            "/api/v1/pop": self._pop_matching,
            "/api/v1/push": self._push,
            "/api/v1/ack": self._ack,
            "/api/v1/ack/batch": self._ack_batch,
            "/api/v1/transaction": self._transaction,
        }

    async def handle(self, request: Request) -> Response:
        headers = request.headers
        if request.path.startswith(FORWARDED):
            return await self._handle_passed_on(request)
        if FORWARDED_BY in headers:
            raise Forbidden("X-Forwarded-By is for the servers of this cluster")
        route = self.router.resolve(request)
        request.subject, request.role = await self._authenticator.authenticate(
            request.path, headers.get(b"authorization"), route.role
        )
        way = self._ways.get(route.pattern)
        if way is None:
            return await route.handler(request)
        plan = way(request)
        if plan is not None:
            return await self._forwarder.serve(request, route.handler, plan)
        response = await route.handler(request)
        response.headers += self._forwarder.served_here
        return response

    async def _handle_passed_on(self, request: Request) -> Response:
        """Serve here what another server has passed on. Raises Forbidden if it was not one."""
        request.path = request.path.removeprefix(FORWARDED)
        request.origin = self._proven(request)
        route = self.router.resolve(request)
        if route.pattern not in self._ways:
            raise Forbidden("this is not to be passed on")
        try:
            request.subject, request.role = await self._authenticator.authenticate(
                request.path, request.headers.get(b"authorization"), route.role
            )
            response = await route.handler(request)
        except HttpError as error:
            response = error_response(error)
        response.headers += self._forwarder.served_here
        return response

    def _proven(self, request: Request) -> str:
        target = request.path.encode("latin-1")
        if request.query_string:
            target += b"?" + request.query_string
        envelope = Envelope(
            sender=request.headers.get(FORWARDED_BY, b""),
            receiver=self._forwarder.name,
            method=request.method.encode(),
            target=target,
            authorization=request.headers.get(b"authorization", b""),
            body=request.body,
        )
        origin = self._checker.check(request.headers.get(PROOF, b""), envelope, self._node.wall_ms)
        if origin is None:
            raise Forbidden("only servers of this cluster may pass requests on")
        return origin

    # Consumers

    def _pop_queue(self, request: Request) -> Plan | None:
        claim = _claim(request, self._engine.settings)
        if claim is None:
            return None
        now = self._node.now
        group, wait_s = claim
        coordinator = self._node.coordinator
        key = coordinator.consumers.queue_key(request.params[0], group, now)
        return ConsumerPlan(coordinator, key, now, wait_s, self._give_back)

    def _pop_partition(self, request: Request) -> Plan | None:
        claim = _claim(request, self._engine.settings)
        if claim is None:
            return None
        group, wait_s = claim
        key = (*request.params, group)
        return ConsumerPlan(self._node.coordinator, key, self._node.now, wait_s, self._give_back)

    def _pop_matching(self, request: Request) -> Plan | None:
        claim = _claim(request, self._engine.settings)
        if claim is None:
            return None
        group, wait_s = claim
        query = request.query
        key = (None, query.get("namespace"), query.get("task"), group)
        return ConsumerPlan(self._node.coordinator, key, self._node.now, wait_s, self._give_back)

    def _give_back(self, answer: bytes) -> None:
        """The answer of a pop, or a part of it, has come for nobody: end its lease."""
        lease, queue = _LEASE.search(answer), _OF_QUEUE.search(answer)
        if lease is not None and queue is not None:
            self._engine.leases.release_soon(lease[1].decode(), _decode_text(queue[1]))

    # Producers

    def _push(self, request: Request) -> Plan | None:
        try:
            items = read_push(request).items
        except HttpError:
            return None  # the handler says what is wrong with it
        return self._producer([item.queue for item in items])

    def _transaction(self, request: Request) -> Plan | None:
        try:
            operations = read_transaction(request).operations
        except HttpError:
            return None
        return self._producer([item.queue for operation in operations for item in operation.items or ()])

    def _ack(self, request: Request) -> Plan | None:
        if _QUEUE not in request.body:
            return None
        try:
            ack = _decode_ack(request.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return self._producer([ack.queue]) if _may_repeat(ack) else None

    def _ack_batch(self, request: Request) -> Plan | None:
        if _QUEUE not in request.body:
            return None
        try:
            batch = _decode_batch(request.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        acks = batch.acknowledgments
        return self._producer([ack.queue or batch.queue for ack in acks]) if all(map(_may_repeat, acks)) else None

    def _producer(self, queues: list[str | None]) -> Plan | None:
        """To the consumers of the queue, if it is one."""
        if not queues or not queues[0]:
            return None
        queue = queues[0]
        coordinator = self._node.coordinator
        target = coordinator.producer_route(queue, self._node.now)
        if target is None or queues.count(queue) < len(queues):
            return None
        return ProducerPlan(coordinator, queue, target)


def _claim(request: Request, settings: Settings) -> tuple[str, float] | None:
    """The group of a pop and how long it waits; None if it is served here."""
    try:
        query = request.query
        if request.method == "HEAD" or query_flag(request, "autoAck"):
            return None
        group = query.get("consumerGroup") or QUEUE_MODE
        if not query_flag(request, "wait"):
            return group, 0.0
        return group, query_count(request, "timeout", settings.default_timeout_ms, settings.max_wait_ms) / 1000
    except HttpError:
        return None  # the handler says what is wrong with it


def _may_repeat(ack: _NamedAck) -> bool:
    return not ack.lease_id and (not ack.status or ack.status in COMPLETED)
