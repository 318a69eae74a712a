"""Two tenants on one server: every route, asked by everybody for the things of one of them. The table of the answers is
left in build/access.md."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import jwt
import pytest
from server_settings import settings_with

from integration.queen import Queen, decide_pushes, stored
from queenmq.broker.load_manager import Choice
from queenmq.config import Settings
from queenmq.core.roles import Role
from queenmq.http.app import ROUTES
from queenmq.http.route import Route
from queenmq.reports import keys
from queenmq.server import Server
from queenmq.services.sampler import Sampler
from queenmq.storage import finding_indexes

SECRET = "a secret of more than thirty-two bytes"
TABLE = Path(__file__).parents[2] / "build" / "access.md"
NEVER_MS = 3_600_000
GONE = "00000000-0000-4000-8000-000000000000"
SKIPPED = {"/metrics", "/metrics/prometheus"}  # JWT_SKIP_PATHS

Json = dict[str, Any]


@pytest.fixture
def settings() -> Settings:
    return settings_with(
        auth={"enabled": True, "secret": SECRET}, operations={"interval_ms": NEVER_MS}, overload={"queue_depth": 50}
    )


def signed(role: str, **claims: Any) -> str:
    return jwt.encode({"sub": f"jwt {role}", "role": role, "exp": time.time() + 3600} | claims, SECRET, "HS256")


@dataclass(frozen=True)
class Things:
    """What a tenant has. A message is leased, one is a dead letter, and a push waits in the operation queue."""

    tenant: str
    leased: Json
    dead: Json
    operation_id: str
    query_id: str

    @property
    def queue(self) -> str:
        return f"{self.tenant}.in"

    @property
    def group(self) -> str:
        return f"{self.tenant}-workers"

    @property
    def marks(self) -> list[str]:
        """What nobody else may see."""
        return [self.queue, self.group, f"secret of {self.tenant}", self.leased["partitionId"]]


async def things_of(tenant: str, http: httpx.AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch) -> Things:
    queen, queue, group = Queen(http), f"{tenant}.in", f"{tenant}-workers"
    await queen.configure(queue, namespace="shared", task="work", retryLimit=0)
    await queen.push(queue, {"text": f"secret of {tenant}"}, partition="dead")
    [dead] = await queen.pop(queue, consumerGroup=group, subscriptionMode="all")
    assert (await queen.ack(dead, "failed"))["dlq"] is True
    await queen.push(queue, *[{"text": f"secret of {tenant}"}] * 3)
    [leased] = await queen.pop(queue, "Default", consumerGroup=group)
    await queen.trace(leased, {"text": f"secret of {tenant}"}, traceNames=[f"{tenant}-trace"])
    with monkeypatch.context() as patched:
        decide_pushes(server, patched, Choice.QUEUE)
        answer = await http.post("/api/v1/push", json={"items": [{"queue": queue, "partition": "later", "payload": 1}]})
    [result] = answer.json()
    assert answer.status_code == 202
    # It has the name that requests have for whatever has one.
    await server.database.fetch(
        "WITH p AS (INSERT INTO queen.pipelines "
        "(name, kind, version, declaration, reads, writes, state_number, wanted) "
        "VALUES ($1, 'copy', 1, '{}', $2, '{}', 1, 'running') "
        "RETURNING name), l AS (INSERT INTO queen.pipeline_leases "
        "(name) SELECT name FROM p) INSERT INTO queen.pipeline_states (name) SELECT name FROM p",
        f"{tenant}-trace",
        [queue],
    )
    query = {"name": f"{tenant}-query", "source_queue": queue, "config_hash": "1"}
    answer = await http.post("/streams/v1/queries", json=query)
    return Things(tenant, leased, dead, result["operationId"], answer.json()["query_id"])


def request_for(route: Route, owner: Things) -> tuple[str, str, Json]:
    """A request for the route that is about the things of a tenant, wherever a request can name any."""
    queue, group = owner.queue, owner.group
    message = {"transactionId": owner.leased["transactionId"], "partitionId": owner.leased["partitionId"]}
    ack = message | {"leaseId": owner.leased["leaseId"], "status": "completed"}
    query = {"query_id": owner.query_id, "partition_id": owner.leased["partitionId"]}
    bodies: dict[str, Json] = {
        "/api/v1/push": {"items": [{"queue": queue, "payload": "forged"}]},
        "/api/v1/ack": ack | {"consumerGroup": group},
        "/api/v1/ack/batch": {"acknowledgments": [ack], "consumerGroup": group},
        "/api/v1/transaction": {
            "operations": [
                {"type": "ack", "consumerGroup": group, **ack},
                {"type": "push", "items": [{"queue": queue}]},
            ]
        },
        "/api/v1/lease/{leaseId}/extend": {"seconds": 600},
        "/api/v1/configure": {"queue": queue, "namespace": "shared", "task": "work", "options": {"retryLimit": 0}},
        "/api/v1/dlq/redrive": {"queue": queue, "consumerGroup": group},
        "/api/v1/traces": message | {"data": 1},
        "/api/v1/consumer-groups/{group}/subscription": {"subscriptionTimestamp": "2020-01-01T00:00:00Z"},
        "/api/v1/consumer-groups/{group}/queues/{queue}/seek": {"toEnd": True},
        "/api/v1/consumer-groups/{group}/queues/{queue}/filter": {"filter": "headers.a = 'b'"},
        "/internal/api/notify": {"queue": queue},
        "/api/v1/system/maintenance": {"enabled": False},
        "/api/v1/system/maintenance/pop": {"enabled": False},
        "/streams/v1/queries": {
            "name": f"{owner.tenant}-query",
            "source_queue": queue,
            "config_hash": "1",
            "reset": False,
            "sink_queue": queue,
        },
        "/streams/v1/state/get": query,
        "/streams/v1/cycle": query
        | {
            "consumer_group": group,
            "ack": ack,
            "push_items": [{"queue": queue}],
            "state_ops": [{"type": "upsert", "key": "k", "value": 1}],
        },
        "/api/v1/fetch": {"entries": [{"queue": queue}]},
        "/api/v1/kv": {"operations": [{"op": "put", "ns": queue, "key": "k", "value": 1, "forever": True}]},
        "/api/v1/locks": {"operations": [{"op": "acquire", "name": queue, "owner": "o", "ttlSeconds": 60}]},
        "/api/v1/pause": {"queue": queue, "consumerGroup": group},
        "/api/v1/resume": {"queue": queue, "consumerGroup": group},
        "/api/v1/policies": {"queue": queue, "consumerGroup": group, "retry": {"poison": "skip"}},
        "/api/v1/timers": {
            "operations": [{"op": "schedule", "queue": queue, "timerKey": "k", "data": 1, "delayMs": 3_600_000}]
        },
        "/api/v1/schemas/{queue}": {"schema": {"type": "object"}},
        "/api/v1/schemas/{queue}/check": {"payloads": [1]},
        "/api/v1/quotas": {"namespace": owner.tenant, "maxMessages": 1_000_000},
        "/api/v1/tokens": {"name": "another", "role": "admin", "expiresInSeconds": 60},
    }
    params = {
        "/api/v1/pop": {"namespace": "shared", "consumerGroup": group, "batch": 1},
        "/api/v1/find": {"q": queue},
        "/api/v1/pop/queue/{queue}": {"consumerGroup": group},
        "/api/v1/consume/queue/{queue}": {"consumerGroup": group},
        "/api/v1/pop/queue/{queue}/partition/{partition}": {"consumerGroup": group},
    }.get(route.path, {"queue": queue})
    names = {
        "queue": queue,
        "partition": "Default",
        "group": group,
        "leaseId": owner.leased["leaseId"],
        "partitionId": owner.dead["partitionId"] if route.path.endswith("/retry") else owner.leased["partitionId"],
        "transactionId": owner.dead["transactionId"] if route.path.endswith("/retry") else message["transactionId"],
        "name": f"{owner.tenant}-trace",
        "operationId": owner.operation_id,
        "file": "index.html",
        "tokenId": GONE,
        "namespace": owner.tenant,
        "timerKey": "k",
    }
    content: Json = {"params": params}
    if route.method == "POST":
        content["json"] = bodies.get(route.path, {})
    return route.method, route.path.replace("...", "").format(**names), content


def is_about_all(route: Route) -> bool:
    return route.scope is not None and route.scope.__name__ == "all_queues"


def is_of_one(route: Route) -> bool:
    """Whether a request names whose things it is about."""
    assert route.scope is not None
    return route.scope.__name__ not in ("nothing", "listing", "all_queues")


def is_about_every_group(route: Route) -> bool:
    """Not for a token that is restricted to groups."""
    if route.path.startswith(("/api/v1/messages/", "/api/v1/operations/")):
        return route.method in ("POST", "DELETE")
    if route.path.startswith("/api/v1/schemas/"):
        return route.method in ("POST", "DELETE") and not route.path.endswith("/check")
    return route.method == "DELETE" and (route.path == "/api/v1/dlq" or "/queues/{queue}" in route.path[:35])


def test_every_route_declares_its_scope() -> None:
    assert [f"{route.method} {route.path}" for route in ROUTES if route.scope is None] == []


def test_only_routes_without_queues_are_open_to_everybody() -> None:
    free = {route.path for route in ROUTES if route.scope is not None and route.scope.__name__ == "nothing"}
    assert free == {
        "/",
        "/api/v1/login",
        "/api/v1/session",
        "/assets/{file}",
        "/asyncapi.json",
        "/docs",
        "/favicon.ico",
        "/health",
        "/openapi.json",
    }


@dataclass
class World:
    http: httpx.AsyncClient
    tokens: dict[str, str]
    a: Things
    b: Things

    async def ask(self, identity: str, route: Route, owner: Things) -> httpx.Response:
        method, path, content = request_for(route, owner)
        token = self.tokens[identity]
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return await self.http.request(method, path, headers=headers, **content)


@pytest.fixture
async def world(server: Server, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> World:
    http.headers["Authorization"] = f"Bearer {signed('admin')}"
    a = await things_of("a", http, server, monkeypatch)
    b = await things_of("b", http, server, monkeypatch)

    async def made(name: str, role: str, **grant: Any) -> Json:
        body = {"name": name, "role": role, "expiresInSeconds": 1800} | ({"grants": [grant]} if grant else {})
        answer = await http.post("/api/v1/tokens", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    revoked = await made("revoked", "admin")
    assert (await http.delete(f"/api/v1/tokens/{revoked['id']}")).status_code == 200
    only_a = {"queues": ["a.*"], "groups": ["a-*"]}
    tokens = {
        "none": "",
        "read-only": signed("read-only"),
        "read-write": signed("read-write"),
        "admin": signed("admin"),
        "own admin": (await made("own admin", "admin"))["token"],
        "tenant a": (await made("tenant a", "read-write", **only_a))["token"],
        "tenant a admin": (await made("tenant a admin", "admin", **only_a))["token"],
        "tenant a by claim": signed("admin", queen=only_a),
        "tenant b": (await made("tenant b", "read-write", namespaces=["b"]))["token"],
        "expired": signed("admin", exp=time.time() - 3600),
        "revoked": revoked["token"],
    }
    del http.headers["Authorization"]
    return World(http, tokens, a, b)


ROLE_OF = {
    "read-only": Role.READ_ONLY,
    "read-write": Role.READ_WRITE,
    "admin": Role.ADMIN,
    "own admin": Role.ADMIN,
    "tenant a": Role.READ_WRITE,
    "tenant a admin": Role.ADMIN,
    "tenant a by claim": Role.ADMIN,
    "tenant b": Role.READ_WRITE,
}
# What changes the things that others are asked about comes last, and the worst at the very end.
LAST = (
    "/finish",
    "/streams/v1/cycle",
    "/api/v1/ack",
    "/api/v1/transaction",
    "/seek",
    "/retry",
    "/dlq",
    "/cancel",
    "/redrive",
)


def order(route: Route) -> tuple[int, int]:
    return (
        2 if route.method == "DELETE" else 1 if any(route.path.endswith(end) for end in LAST) else 0,
        len(ROUTES) - ROUTES.index(route),
    )


async def test_every_route_for_everybody(world: World, sql: asyncpg.Connection, subtests: pytest.Subtests) -> None:
    table: dict[str, dict[str, int]] = {}
    strangers = [name for name in world.tokens if name.startswith("tenant a")]
    # First those who may not: what is b's must be as before.
    before = await picture(sql)
    for route, identity in itertools.product(sorted(ROUTES, key=order), ["none", "expired", "revoked", *strangers]):
        line = f"{route.method} {route.path}"
        answer = await world.ask(identity, route, world.b)
        table.setdefault(line, {})[identity + " → b"] = answer.status_code
        is_public = route.role is Role.PUBLIC or route.path in SKIPPED
        with subtests.test(f"{line} as {identity}"):
            if is_public:
                assert answer.status_code < 300
            elif identity not in strangers:
                assert answer.status_code == 401, answer.text
            elif is_of_one(route) or is_about_all(route) or ROLE_OF[identity] < route.role:
                assert answer.status_code == 403, answer.text
                # What it names itself, it may be told.
                asked = str(request_for(route, world.b))
                assert not [mark for mark in world.b.marks if mark in answer.text and mark not in asked]
            else:
                assert answer.status_code < 300, answer.text
                assert not [mark for mark in world.b.marks if mark in answer.text]
    assert await picture(sql) == before
    # Then those who may.
    for route, identity in itertools.product(
        sorted(ROUTES, key=order),
        ["read-only", "read-write", "tenant b", "tenant a", "tenant a admin", "admin", "own admin"],
    ):
        line = f"{route.method} {route.path}"
        owner = world.a if identity in ("tenant a", "tenant a admin") else world.b
        answer = await world.ask(identity, route, owner)
        table[line][f"{identity} → {owner.tenant}"] = answer.status_code
        is_public = route.role is Role.PUBLIC or route.path in SKIPPED
        is_restricted = identity.startswith("tenant")
        with subtests.test(f"{line} as {identity}"):
            is_closed = (is_restricted and is_about_all(route)) or (
                identity.startswith("tenant a") and is_about_every_group(route)
            )
            if not is_public and (ROLE_OF[identity] < route.role or is_closed):
                assert answer.status_code == 403, answer.text
            else:
                assert answer.status_code not in (401, 403), answer.text
                assert answer.status_code < 500, answer.text
            if is_restricted and not is_public:
                other = world.b if owner is world.a else world.a
                assert not [mark for mark in other.marks if mark in answer.text]
    write_table(table)


async def picture(sql: asyncpg.Connection) -> Json:
    """Everything of b that a stranger might change."""
    rows = {
        "queue": "SELECT * FROM queen.queues q WHERE name = 'b.in'",
        "messages": 'SELECT m.transaction_id, m.partition_id, m."offset" FROM queen.messages m JOIN queen.partitions p '
        "ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'b.in' ORDER BY 2, 3",
        "groups": "SELECT partition_id, consumer_group, position, lease_id, lease_expires_at "
        "FROM queen.partition_consumers c JOIN queen.queues q ON q.id = c.queue_id WHERE q.name = 'b.in' ORDER BY 1, 2",
        "dead": "SELECT message_id FROM queen.dead_letter_queue ORDER BY 1",
        "traces": "SELECT id FROM queen.message_traces ORDER BY 1",
        "queries": "SELECT name, source_queue, config_hash FROM queen.stream_queries ORDER BY 1",
        "state": "SELECT query_id, partition_id, key FROM queen.stream_state ORDER BY 1, 2, 3",
        "operations": "SELECT id, status FROM queen.operation_queue ORDER BY 1",
        "timers": "SELECT * FROM queen.timers ORDER BY 1",
        "pauses": "SELECT * FROM queen.pauses ORDER BY 1",
        "schemas": "SELECT * FROM queen.schemas ORDER BY 1, 2",
        "schema rules": "SELECT * FROM queen.schema_rules ORDER BY 1",
        "policies": "SELECT * FROM queen.policies ORDER BY 1",
        "filters": "SELECT * FROM queen.group_filters ORDER BY 1, 2",
        "keys": "SELECT * FROM queen.kv ORDER BY 1, 2",
        "tokens": "SELECT id, revoked_at FROM queen.tokens ORDER BY 1",
        "subscriptions": "SELECT name, since FROM queen.consumer_groups WHERE queue_name = 'b.in' ORDER BY 1",
    }
    return {name: [tuple(row) for row in await sql.fetch(query)] for name, query in rows.items()}


def write_table(table: dict[str, dict[str, int]]) -> None:
    identities = list(dict.fromkeys(name for answers in table.values() for name in answers))
    lines = [
        "| route | " + " | ".join(identities) + " |",
        "|---" * (len(identities) + 1) + "|",
        *(
            f"| `{line}` | " + " | ".join(str(answers[name]) for name in identities) + " |"
            for line, answers in table.items()
        ),
    ]
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("\n".join(lines) + "\n")


async def test_an_id_does_not_tell_the_name_of_its_queue(world: World) -> None:
    things = world.b
    message = {name: things.leased[name] for name in ("transactionId", "partitionId")}
    query = {"query_id": things.query_id, "partition_id": message["partitionId"]}
    for path, body in (
        ("/api/v1/ack", message | {"consumerGroup": "a-x"}),
        ("/api/v1/ack/batch", {"acknowledgments": [message], "consumerGroup": "a-x"}),
        ("/api/v1/transaction", {"operations": [{"type": "ack", "consumerGroup": "a-x", **message}]}),
        (f"/api/v1/lease/{things.leased['leaseId']}/extend", {}),
        (f"/api/v1/lease/{things.leased['leaseId']}/finish", {}),
        ("/api/v1/traces", message | {"data": 1, "consumerGroup": "a-x"}),
        ("/streams/v1/state/get", query),
        ("/streams/v1/cycle", query | {"consumer_group": "a-x"}),
        (f"/api/v1/operations/{things.operation_id}/retry", {}),
        (f"/api/v1/messages/{message['partitionId']}/{message['transactionId']}/retry", {}),
    ):
        headers = {"Authorization": f"Bearer {world.tokens['tenant a admin']}"}
        answer = await world.http.post(path, json=body, headers=headers)
        assert answer.status_code == 403, f"{path}: {answer.text}"
        assert [mark for mark in things.marks if mark in answer.text] == [], path


async def test_a_name_that_others_use_tells_nothing_of_them(world: World) -> None:
    headers = {"Authorization": f"Bearer {world.tokens['tenant a admin']}"}
    there, nowhere = [
        await world.http.get(f"/api/v1/pipelines/{name}", headers=headers) for name in ("b-trace", "nowhere")
    ]
    assert (there.status_code, nowhere.status_code) == (403, 403)
    assert there.json() == nowhere.json(), "also not whether there is one"
    assert [mark for mark in world.b.marks if mark in there.text] == []


# Where a token is restricted to groups and verbs


def caller(http: httpx.AsyncClient, role: str = "read-write", **grant: Any) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {signed(role, queen=grant or None)}"}
    return httpx.AsyncClient(base_url=http.base_url, headers=headers, timeout=30)


async def test_a_producer_pushes_and_nothing_else(http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    async with caller(http, queues=["orders.*"], allow=["push"]) as producer:
        assert (await producer.post("/api/v1/push", json={"items": [{"queue": "orders.eu"}]})).status_code == 201
        assert (await producer.get("/api/v1/pop/queue/orders.eu")).status_code == 403
        assert (await producer.get("/api/v1/resources/queues/orders.eu")).status_code == 403
        assert (await producer.get("/api/v1/resources/queues")).json() == {"queues": []}
        refused = await producer.post("/api/v1/push", json={"items": [{"queue": "orders.eu"}, {"queue": "other"}]})
        assert refused.status_code == 403
        assert refused.json() == {"error": "the token may not push to queue 'other'", "code": "forbidden"}
    assert await stored(sql, "orders.eu") == 1


async def test_a_consumer_pops_as_its_group_only(http: httpx.AsyncClient) -> None:
    async with caller(http, "admin") as everybody:
        await Queen(everybody).push("orders.eu", 1, 2)
    async with caller(http, queues=["orders.*"], groups=["mail"]) as consumer:
        queen = Queen(consumer)
        [message] = await queen.pop("orders.eu", consumerGroup="mail", subscriptionMode="all")
        assert (await queen.extend(message["leaseId"]))["renewed"] is True
        assert (await queen.ack(message))["success"] is True
        for path in ("/api/v1/pop/queue/orders.eu", "/api/v1/pop/queue/orders.eu?consumerGroup=other"):
            assert (await consumer.get(path)).status_code == 403
        assert (await consumer.get("/api/v1/pop?namespace=orders&consumerGroup=other")).status_code == 204
        names = {name: message[name] for name in ("transactionId", "partitionId")}
        assert (await consumer.post("/api/v1/ack", json=names)).status_code == 403
        answer = await consumer.post("/api/v1/transaction", json={"operations": [{"type": "ack", **names}]})
        assert answer.json()["error"] == (
            "the token is restricted to some groups, and this request names none: name consumerGroup"
        )
        place = f"/api/v1/messages/{message['partitionId']}/{message['transactionId']}"
        assert (await consumer.post(f"{place}/dlq")).status_code == 403, "it is about every group"
        assert (await consumer.post("/api/v1/dlq/redrive", json={"queue": "orders.eu"})).status_code == 403
        mine = {"queue": "orders.eu", "consumerGroup": "mail"}
        assert (await consumer.post("/api/v1/dlq/redrive", json=mine)).status_code == 200
        assert (await consumer.post("/api/v1/traces", json=names | {"data": 1})).status_code == 201


async def test_what_is_finished_at_delivery_needs_the_right_to_acknowledge(http: httpx.AsyncClient) -> None:
    async with caller(http, "admin") as everybody:
        await Queen(everybody).push("orders.eu", 1, 2, 3)
    places = ("/api/v1/pop/queue/orders.eu", "/api/v1/pop/queue/orders.eu/partition/Default")
    async with caller(http, queues=["orders.*"], allow=["pop"]) as reader:
        for place in places:
            refused = await reader.get(place, params={"autoAck": "true"})
            assert refused.status_code == 403
            assert refused.json()["error"].startswith("the token may not acknowledge in queue 'orders.eu'")
        assert (await reader.get("/api/v1/pop?namespace=orders&autoAck=true")).status_code == 204
        take = {"queue": "orders.eu", "autoAck": True}
        answer = await reader.post(f"/api/v1/lease/{GONE}/finish", json={"take": take})
        assert answer.status_code == 403
        [leased] = await Queen(reader).pop("orders.eu")
    async with caller(http, queues=["orders.*"], allow=["pop", "ack"]) as consumer:
        assert (await Queen(consumer).ack(leased))["success"] is True
        for place in places:
            assert (await consumer.get(place, params={"autoAck": "true", "batch": 1})).status_code == 200
        assert (await consumer.get("/api/v1/pop?namespace=orders&autoAck=true")).status_code == 204


async def test_an_administrator_of_groups_leaves_others_alone(http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    async with caller(http, "admin") as everybody:
        queen = Queen(everybody)
        await queen.configure("a.x", retryLimit=0)
        await queen.push("a.x", 1)
        for group in ("g1", "g2"):
            [message] = await queen.pop("a.x", consumerGroup=group, subscriptionMode="all")
            assert (await queen.ack(message, "failed"))["dlq"] is True
        answer = await everybody.post("/api/v1/consumer-groups/g2/queues/a.x/seek", json={"toEnd": True})
        assert answer.status_code == 200
    operation = await sql.fetchval(
        "INSERT INTO queen.operation_queue (id, kind, queue_name, parameters) "
        "VALUES (gen_random_uuid(), 'seek', 'a.x', jsonb_build_object('group', 'g2')) RETURNING id::text"
    )
    names = {name: message[name] for name in ("transactionId", "partitionId")}
    shorter = {"queue": "a.x", "options": {"retentionSeconds": 1, "retentionEnabled": True}}
    async with caller(http, "admin", groups=["g1"]) as one:
        for method, path, content in (
            ("DELETE", "/api/v1/consumer-groups/g2/queues/a.x", {}),
            ("DELETE", "/api/v1/consumer-groups/g2", {}),
            ("DELETE", "/api/v1/dlq?queue=a.x&consumerGroup=g2", {}),
            ("DELETE", "/api/v1/dlq?queue=a.x", {}),
            ("DELETE", "/api/v1/resources/queues/a.x", {}),
            ("DELETE", "/api/v1/queues/a.x/clear", {}),
            ("DELETE", f"/api/v1/messages/{names['partitionId']}/{names['transactionId']}", {}),
            ("POST", f"/api/v1/operations/{operation}/cancel", {}),
            (
                "POST",
                "/api/v1/configure",
                {"json": shorter},
            ),
            ("POST", "/api/v1/traces", {"json": names | {"data": 1, "consumerGroup": "g2"}}),
        ):
            answer = await one.request(method, path, **content)
            assert answer.status_code == 403, f"{method} {path}: {answer.text}"
        for method, path, content in (
            ("POST", "/api/v1/traces", {"json": names | {"data": 1, "consumerGroup": "g1"}}),
            ("DELETE", "/api/v1/dlq?queue=a.x&consumerGroup=g1", {}),
            ("DELETE", "/api/v1/consumer-groups/g1/queues/a.x", {}),
            ("DELETE", "/api/v1/consumer-groups/g1", {}),
        ):
            answer = await one.request(method, path, **content)
            assert answer.status_code in (200, 201), f"{method} {path}: {answer.text}"


async def test_a_token_that_may_only_push_creates_queues_and_changes_none(http: httpx.AsyncClient) -> None:
    async with caller(http, queues=["orders.*"], allow=["push"]) as producer:
        options = {"leaseTime": 17}
        for _ in range(2):
            answer = await producer.post("/api/v1/configure", json={"queue": "orders.new", "options": options})
            assert answer.status_code == 200, "also again, at its next start"
        for change in ({"delayedProcessing": 10**6}, {"leaseTime": 1}, {"retryLimit": 0, "leaseTime": 17}):
            refused = await producer.post("/api/v1/configure", json={"queue": "orders.new", "options": change})
            assert refused.status_code == 403
            assert "the token may create queues, and not change" in refused.json()["error"]
        moved = {"queue": "orders.new", "namespace": "billing", "options": options}
        assert (await producer.post("/api/v1/configure", json=moved)).status_code == 403
    async with caller(http, "admin", queues=["orders.*"]) as administrator:
        body = {"queue": "orders.new", "namespace": "billing", "options": {"delayedProcessing": 5}}
        assert (await administrator.post("/api/v1/configure", json=body)).status_code == 200


async def test_a_token_that_may_only_push_sees_no_values(http: httpx.AsyncClient) -> None:
    target, forever = {"ns": "orders.eu", "key": "k"}, {"forever": True}
    put, incr = {"op": "put", "value": 7} | target | forever, {"op": "incr"} | target | forever
    refused: list[Json] = [
        put | {"expect": 10**9},
        {"op": "putIfAbsent", "value": 1} | target | forever,
        {"op": "delete", "expect": 10**9} | target,
        incr | {"max": 1},
    ]
    operations: list[Json] = [put, *refused, incr | {"delta": 0}, incr, *(one | {"required": True} for one in refused)]

    async def answers(**grant: Any) -> list[Json]:
        """Of each operation, what /api/v1/kv and a transaction say of it."""
        said: list[Json] = []
        async with caller(http, queues=["orders.*"], **grant) as asking:
            for one in operations:
                alone = (await asking.post("/api/v1/kv", json={"operations": [one]})).json()
                said += alone["results"]
                body = (await asking.post("/api/v1/transaction", json={"operations": [], "kv": [one]})).json()
                said += body.get("kv", [body])
        return said

    written = await answers(allow=["push"])
    assert [one for one in written if "value" in one] == []
    assert all(one["version"] > 0 for one in written)
    assert all(one["value"] in (7, 8, 9) for one in await answers(allow=["push", "read"]))


async def test_what_is_for_every_group_of_a_queue_needs_the_right_to_administer(http: httpx.AsyncClient) -> None:
    async with caller(http, "admin") as everybody:
        await Queen(everybody).push("orders.eu", 1)
    whole = {"queue": "orders.eu", "retry": {"poison": "skip"}}
    changes = (("policies", whole), ("pause", {"queue": "orders.eu"}), ("resume", {"queue": "orders.eu"}))
    async with caller(http, queues=["orders.*"], allow=["pop", "ack"]) as consumer:
        for what, body in changes:
            refused = await consumer.post(f"/api/v1/{what}", json=body)
            assert (refused.status_code, refused.json()["error"]) == (
                403,
                "the token may not administer queue 'orders.eu'",
            )
            own = await consumer.post(f"/api/v1/{what}", json=body | {"consumerGroup": "mine"})
            assert own.status_code == 200, own.text
        for path in ("/api/v1/pop/queue/orders.eu", "/api/v1/pop?namespace=orders"):
            url = f"{path}{'&' if '?' in path else '?'}consumerGroup=mine&conflation=true"
            assert (await consumer.get(url)).status_code == 200
    async with caller(http, "admin", queues=["orders.*"]) as administrator:
        for what, body in changes:
            assert (await administrator.post(f"/api/v1/{what}", json=body)).status_code == 200
    async with caller(http, queues=["orders.*"], allow=["pop"]) as reader:
        refused = await reader.get("/api/v1/pop/queue/orders.eu?consumerGroup=other&conflation=true")
        assert refused.json()["error"] == "the token may not acknowledge in queue 'orders.eu' as group 'other'"


class TestMetricsThatNeedAToken:
    """They name the queues of all tenants, so they are for tokens that are restricted to none."""

    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(auth={"enabled": True, "secret": SECRET, "skip_paths": ("/health",)})

    @pytest.mark.parametrize("path", sorted(SKIPPED))
    async def test_no_tenant_gets_them(self, http: httpx.AsyncClient, path: str) -> None:
        async with caller(http, "admin") as everybody:
            await Queen(everybody).push("one.in", 1)
        refused = await http.get(path)
        assert (refused.status_code, "one.in" in refused.text) == (401, False)
        for role in ("read-only", "read-write", "admin"):
            async with caller(http, role, queues=["two.*"]) as tenant:
                refused = await tenant.get(path)
                assert (refused.status_code, "one.in" in refused.text) == (403, False), role
        async with caller(http, "read-only") as monitoring:
            assert (await monitoring.get(path)).status_code == 200
        assert (await http.get("/health")).status_code == 200


async def test_tenants_have_stream_queries_of_their_own(http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    async def registered(client: httpx.AsyncClient, source: str, config: str) -> Json:
        body = {"name": "totals", "source_queue": source, "config_hash": config}
        answer = await client.post("/streams/v1/queries", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async with caller(http, "admin") as everybody:
        old = await registered(everybody, "old.sales", "0")
    for names in (("a", "b"), ("eu.a", "eu.b")):
        async with caller(http, queues=[f"{names[0]}.*"]) as one, caller(http, queues=[f"{names[1]}.*"]) as other:
            ids = [
                (await registered(client, f"{name}.sales", "c"))["query_id"]
                for client, name in zip((one, other), names, strict=True)
            ]
            assert len({*ids, old["query_id"]}) == 3, "the name of another tenant is not in the way"
            again = await registered(one, f"{names[0]}.sales", "c")
            assert (again["query_id"], again["fresh"]) == (ids[0], False)
    async with caller(http, queues=["old.*"]) as owner:
        kept = await registered(owner, "old.sales", "0")
        assert (kept["query_id"], kept["fresh"]) == (old["query_id"], False), "one from before that it may use"


async def test_a_pop_by_namespace_gets_what_the_token_is_for(http: httpx.AsyncClient) -> None:
    async with caller(http, "admin") as everybody:
        for queue in ("work.a", "work.b"):
            await Queen(everybody).push(queue, queue)
    async with caller(http, queues=["work.b"]) as consumer:
        params = {"namespace": "work", "consumerGroup": "g", "subscriptionMode": "all", "batch": 10, "partitions": 10}
        assert [message["data"] for message in await Queen(consumer).pop_matching(**params)] == ["work.b"]
        assert await Queen(consumer).pop_matching(**params) == []


async def test_the_status_of_a_queue_has_no_figures_of_the_servers(
    http: httpx.AsyncClient, server: Server, settings: Settings
) -> None:
    sampler = Sampler(server.broker, settings.statistics, port=1, worker_id="one", slots=10)
    await sampler.work()
    await sampler.store()
    async with caller(http, "admin") as everybody, caller(http, "read-only", queues=["one"]) as reader:
        await Queen(everybody).push("one", 1)
        whole = (await everybody.get("/api/v1/status?queue=one")).json()
        part = (await reader.get("/api/v1/status?queue=one")).json()
    assert (len(whole["workers"]), part["workers"]) == (1, [])
    assert not any(point["queenRssMb"] for point in part["throughput"])


async def test_listings_have_only_what_may_be_read(http: httpx.AsyncClient, server: Server) -> None:
    async with caller(http, "admin") as everybody:
        for queue in ("one.a_b", "one.axb", "two"):
            item = {"queue": queue, "partition": "one", "payload": 1, "transactionId": "one"}
            await Queen(everybody).push_items(item | {"headers": {"secret": "one"}})
            await Queen(everybody).configure(queue, namespace=queue.partition(".")[0], task=queue)
            await Queen(everybody).pop(queue, consumerGroup="g")
        await everybody.post("/api/v1/stats/refresh")
    async with caller(http, "read-only", queues=["one.a_b"]) as reader:
        queues = (await reader.get("/api/v1/resources/queues")).json()["queues"]
        assert [queue["name"] for queue in queues] == ["one.a_b"], "an underscore is no wildcard"
        assert (await reader.get("/api/v1/resources/namespaces")).json()["namespaces"][0]["queues"] == 1
        tasks = (await reader.get("/api/v1/resources/tasks")).json()["tasks"]
        assert [task["task"] for task in tasks] == ["one.a_b"]
        assert [group["queueName"] for group in (await reader.get("/api/v1/consumer-groups")).json()] == ["one.a_b"]
        for text, index in (("", False), ("one", False), ("one", True)):
            if index:
                await finding_indexes.make(server.database, "transactions", print)
                await finding_indexes.make(server.database, "headers", print)
            found = (await reader.get("/api/v1/find", params={"q": text or "g"})).json()
            assert {one["queue"] for kind in ("groups", "partitions", "messages") for one in found[kind]} <= {"one.a_b"}
            assert {one["name"] for one in found["queues"]} <= {"one.a_b"}
            by_header = (await reader.get("/api/v1/find", params={"q": "secret:one"})).json()["messages"]
            assert {one["queue"] for one in by_header} == {"one.a_b"}
            assert bool(found["messages"]) == bool(text)
            assert (await reader.get("/api/v1/queues/two/consumers")).status_code == 403
        for kind in finding_indexes.INDEXES:
            await finding_indexes.drop(server.database, kind, print)
        refused = (await reader.get("/api/v1/dlq")).json()["error"]
        assert refused == "the token may not read all queues: name one that it is for"
        assert (await reader.get("/api/v1/dlq?queue=one.a_b")).status_code == 200
        assert (await reader.get("/api/v1/dlq?queue=two")).status_code == 403
        session = (await reader.get("/api/v1/session")).json()
        assert session["grants"] == [{"queues": ["one.a_b"]}]


async def test_who_is_for_one_group_resets_no_state_of_others(http: httpx.AsyncClient) -> None:
    http.headers["Authorization"] = f"Bearer {signed('admin')}"
    body = {"name": "sums", "source_queue": "a.in", "config_hash": "1"}
    assert (await http.post("/streams/v1/queries", json=body)).json()["fresh"] is True
    mail = {"Authorization": f"Bearer {signed('read-write', queen={'queues': ['a.*'], 'groups': ['mail']})}"}
    assert (await http.post("/streams/v1/queries", json=body, headers=mail)).status_code == 200
    again = body | {"config_hash": "2", "reset": True}
    refused = await http.post("/streams/v1/queries", json=again, headers=mail)
    assert refused.status_code == 403
    assert "restricted to some groups" in refused.json()["error"]
    audited = (await http.get("/api/v1/audit", params={"action": "/streams"})).json()["entries"]
    assert [one["status"] for one in audited] == [200, 200], audited


async def test_names_of_expired_tokens_are_for_who_may_list_them(
    http: httpx.AsyncClient, sql: asyncpg.Connection
) -> None:
    http.headers["Authorization"] = f"Bearer {signed('admin')}"
    made = await http.post("/api/v1/tokens", json={"name": "till", "role": "read-write", "expiresInSeconds": 60})
    assert made.status_code == 201
    past = "created_at = now() - interval '1 day', expires_at = now() - interval '1 hour'"
    await sql.execute(f"UPDATE queen.tokens SET {past}, last_used_at = now() - interval '90 minutes'")

    async def kinds(**claims: Any) -> list[str]:
        answer = await http.get("/api/v1/troubles", headers={"Authorization": f"Bearer {signed('admin', **claims)}"})
        return [one["kind"] for one in answer.json()["troubles"]]

    assert await kinds() == ["token_expired"]
    assert await kinds(queen={"allow": ["read"]}) == []
    assert await kinds(queen={"queues": ["*"], "groups": ["mail"]}) == []


async def test_names_of_others_do_not_end_a_list_of_keys(http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    http.headers["Authorization"] = f"Bearer {signed('admin')}"
    own = {"op": "put", "ns": "zebra", "key": "k", "value": 1, "forever": True}
    assert (await http.post("/api/v1/kv", json={"operations": [own]})).status_code == 200
    await sql.execute(
        "INSERT INTO queen.kv (namespace, key, value, version) "
        "SELECT 'other-' || n, 'k', '1', 1 FROM generate_series(1, 250) n"
    )
    zebra = {"Authorization": f"Bearer {signed('read-only', queen={'queues': ['zebra']})}"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "_LEAST_PAGE", 100)
        found = (await http.get("/api/v1/kv", params={"limit": 1}, headers=zebra)).json()
        assert [one["namespace"] for one in found["namespaces"]] == ["zebra"]
        patch.setattr(keys, "_MOST_PAGES", 2)
        refused = await http.get("/api/v1/kv", params={"limit": 1}, headers=zebra)
        assert refused.status_code == 400
        assert "ask with a prefix" in refused.json()["error"]
        found = (await http.get("/api/v1/kv", params={"limit": 1, "prefix": "z"}, headers=zebra)).json()
        assert [one["namespace"] for one in found["namespaces"]] == ["zebra"]
