"""What it costs to decide that a request is served where it arrived.

The same requests go through the application with and without a coordinator, in this process and without network or
database: routes do no more than to read what they would read anyway. What is left between the two is the decision,
the books that it keeps, and the header of the answer. CPU time, alternating in rounds; the median of the rounds counts.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

import msgspec

from queen_bench.errors import BenchError
from queenmq.broker.broker import Broker
from queenmq.clock import SYSTEM, SystemClock
from queenmq.cluster.load_tracker import Sample
from queenmq.cluster.node import Node
from queenmq.config import ClusterSettings, CoordinatorSettings, HttpSettings, Settings
from queenmq.http.app import ROUTES, App, Router, make_context
from queenmq.http.coordinated import CoordinatedApp
from queenmq.http.forwarder import Forwarder
from queenmq.http.route import Context, Route
from queenmq.http.routes.ack import read_single
from queenmq.http.routes.push import read_push
from queenmq.http.routes.transaction import read_transaction
from queenmq.httpserver.limits import Limits
from queenmq.httpserver.memory import HttpMemory
from queenmq.httpserver.messages import Request, Response, head_of
from queenmq.httpserver.origins import Origins
from queenmq.ids import uuid7_text
from queenmq.reports.reading import Reports
from queenmq.storage.database import Database

ROUNDS: Final = 15
REQUESTS: Final = 1000
KEYS: Final = 50
QUEUE: Final = "orders"
SERVER: Final = "server-0"
OTHERS: Final = ("server-1", "server-2")

_READ: Final[dict[str, Callable[[Request], object]]] = {
    "/api/v1/push": read_push,
    "/api/v1/ack": read_single,
    "/api/v1/transaction": read_transaction,
}


async def decision_costs(rounds: int = ROUNDS, requests: int = REQUESTS) -> dict[str, float]:
    """Microseconds of CPU for each kind of request."""
    async with _applications() as (plain, coordinated):
        costs = {}
        for kind, make in KINDS.items():
            served_by = (b"X-Served-By", SERVER.encode())
            if served_by not in (await coordinated.handle(make(0))).headers:
                raise BenchError(f"the server did not decide to serve a {kind} itself")
            differences = []
            for _ in range(rounds):
                without, having = [await _cpu_s(app, make, requests) for app in (plain, coordinated)]
                differences.append(having - without)
            costs[kind] = median(differences) / requests * 1e6
        return costs


async def _cpu_s(app: App, make: Callable[[int], Request], count: int) -> float:
    requests = [make(number) for number in range(count)]
    began = time.process_time()
    for request in requests:
        head_of(await app.handle(request), True)
    return time.process_time() - began


@asynccontextmanager
async def _applications() -> AsyncIterator[tuple[App, App]]:
    """Without and with coordinator. The other servers are known and no better, and consumers wait here."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        settings = Settings(
            http=HttpSettings(port=0),
            cluster=ClusterSettings(
                server_id=SERVER, udp_port=0, peers=(other.getsockname(),), secret=secrets.token_bytes(32)
            ),
            coordinator=CoordinatorSettings(enabled=True),
        )
        clock = SystemClock()
        node = Node(settings, clock)
        database = Database(settings.database, "postgresql://")
        broker = Broker(settings, database, node, clock)
        limits = Limits.of(settings.http, settings.server.workers)
        context = make_context(broker, Reports(database), HttpMemory.within(limits), SYSTEM)
        await node.open(1, broker)
        try:
            tracker = node.coordinator.tracker
            tracker.see(OTHERS)
            for server in (SERVER, *OTHERS):
                tracker.report(server, Sample(10, 1, 0.1))
            node.consumer_came(QUEUE)
            origins = Origins.from_settings(settings)
            apps = (
                App(context, origins),
                CoordinatedApp(context, origins, Forwarder(settings.coordinator, node)),
            )
            for app in apps:
                app.router = Router([idle(route) for route in ROUTES])
            yield apps
        finally:
            await node.close()


def idle(route: Route) -> Route:
    """The same route, but it only reads the request."""
    read = _READ.get(route.path, _read_query)

    async def answer(request: Request, _: Context) -> Response:
        read(request)
        return Response(204)

    return route._replace(handler=answer)


def _read_query(request: Request) -> object:
    return request.query


def _get(target: str) -> Request:
    path, _, query = target.partition("?")
    return Request("GET", path, query.encode())


def _post(path: str, body: object) -> Request:
    return Request("POST", path, body=msgspec.json.encode(body))


def _item(number: int) -> dict[str, object]:
    return {"queue": QUEUE, "partition": f"p{number % KEYS}", "payload": {"number": number}}


def _ack(number: int, **more: object) -> dict[str, object]:
    return {"transactionId": f"t{number}", "partitionId": PARTITION, "consumerGroup": "g", **more}


PARTITION: Final = uuid7_text()
KINDS: Final[dict[str, Callable[[int], Request]]] = {
    "pop": lambda n: _get(f"/api/v1/pop/queue/{QUEUE}{n % KEYS}?consumerGroup=g"),
    "long_poll": lambda n: _get(f"/api/v1/pop/queue/{QUEUE}{n % KEYS}?consumerGroup=g&wait=true&timeout=30000"),
    "pop_partition": lambda n: _get(f"/api/v1/pop/queue/{QUEUE}/partition/p{n % KEYS}?consumerGroup=g"),
    "push": lambda n: _post("/api/v1/push", {"items": [_item(n)]}),
    "push_unread": lambda n: _post("/api/v1/push", {"items": [_item(n) | {"queue": "unread"}]}),
    "push_100": lambda n: _post("/api/v1/push", {"items": [_item(n)] * 100}),
    "ack": lambda n: _post("/api/v1/ack", _ack(n, leaseId=PARTITION)),
    "ack_of_queue": lambda n: _post("/api/v1/ack", _ack(n, queue=QUEUE)),
    "transaction": lambda n: _post(
        "/api/v1/transaction", {"operations": [{"type": "ack"} | _ack(n), {"type": "push", "items": [_item(n)]}]}
    ),
}
