"""Tokens and roles, through the whole server: who may call what, and whose messages they are."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import OKPAlgorithm
from server_settings import settings_with

from integration.queen import Queen, push_op, stored
from integration.wire import connect
from queenmq.config import Settings
from queenmq.http.app import ROUTES
from queenmq.server import Server

SECRET = "a secret of more than thirty-two bytes"
ID = "00000000-0000-4000-8000-000000000000"
ROLES = ("read-only", "read-write", "admin")
RSA_KEY = generate_private_key(public_exponent=65537, key_size=2048)
ED_KEY = Ed25519PrivateKey.generate()

# The Auth column of the contract.
NEEDED_ROLE = {
    ("POST", "/api/v1/configure"): "read-write",
    ("POST", "/api/v1/push"): "read-write",
    ("GET", "/api/v1/pop/queue/{queue}"): "read-write",
    ("GET", "/api/v1/pop/queue/{queue}/partition/{partition}"): "read-write",
    ("GET", "/api/v1/pop"): "read-write",
    ("GET", "/api/v1/consume/queue/{queue}"): "read-write",
    ("POST", "/api/v1/ack"): "read-write",
    ("POST", "/api/v1/ack/batch"): "read-write",
    ("POST", "/api/v1/transaction"): "read-write",
    ("POST", "/api/v1/lease/{leaseId}/extend"): "read-write",
    ("POST", "/api/v1/lease/{leaseId}/finish"): "read-write",
    ("DELETE", "/api/v1/resources/queues/{queue}"): "admin",
    ("GET", "/api/v1/dlq"): "read-only",
    ("DELETE", "/api/v1/dlq"): "admin",
    ("POST", "/api/v1/dlq/redrive"): "read-write",
    ("POST", "/api/v1/traces"): "read-write",
    ("DELETE", "/api/v1/consumer-groups/{group}"): "admin",
    ("DELETE", "/api/v1/consumer-groups/{group}/queues/{queue}"): "admin",
    ("POST", "/api/v1/consumer-groups/{group}/subscription"): "read-write",
    ("POST", "/api/v1/consumer-groups/{group}/queues/{queue}/seek"): "read-write",
    ("GET", "/api/v1/consumer-groups/{group}/queues/{queue}/seek"): "read-only",
    ("GET", "/api/v1/cluster/balance"): "read-only",
    ("GET", "/api/v1/system/shared-state"): "admin",
    ("GET", "/internal/api/shared-state/stats"): "admin",
    ("GET", "/internal/api/inter-instance/stats"): "admin",
    ("POST", "/internal/api/notify"): "read-write",
    ("GET", "/api/v1/system/maintenance"): "read-only",
    ("POST", "/api/v1/system/maintenance"): "admin",
    ("GET", "/api/v1/system/maintenance/pop"): "read-only",
    ("POST", "/api/v1/system/maintenance/pop"): "admin",
    ("GET", "/api/v1/resources/queues"): "read-only",
    ("GET", "/api/v1/resources/queues/{queue}"): "read-only",
    ("GET", "/api/v1/resources/partitions"): "read-only",
    ("GET", "/api/v1/resources/namespaces"): "read-only",
    ("GET", "/api/v1/resources/tasks"): "read-only",
    ("GET", "/api/v1/resources/overview"): "read-only",
    ("DELETE", "/api/v1/queues/{queue}/clear"): "admin",
    ("POST", "/api/v1/stats/refresh"): "admin",
    ("GET", "/api/v1/status"): "read-only",
    ("GET", "/api/v1/status/queues"): "read-only",
    ("GET", "/api/v1/status/queues/{queue}"): "read-only",
    ("GET", "/api/v1/status/analytics"): "read-only",
    ("GET", "/api/v1/status/buffers"): "read-only",
    ("GET", "/api/v1/consumer-groups"): "read-only",
    ("GET", "/api/v1/consumer-groups/lagging"): "read-only",
    ("GET", "/api/v1/consumer-groups/{group}"): "read-only",
    ("GET", "/api/v1/messages"): "read-only",
    ("GET", "/api/v1/status/queues/{queue}/messages"): "read-only",
    ("GET", "/api/v1/messages/{partitionId}/{transactionId}"): "read-only",
    ("DELETE", "/api/v1/messages/{partitionId}/{transactionId}"): "admin",
    ("POST", "/api/v1/messages/{partitionId}/{transactionId}/retry"): "read-write",
    ("POST", "/api/v1/messages/{partitionId}/{transactionId}/dlq"): "read-write",
    ("GET", "/api/v1/traces/names"): "read-only",
    ("GET", "/api/v1/traces/by-name/{name}"): "read-only",
    ("GET", "/api/v1/traces/{partitionId}/{transactionId}"): "read-only",
    ("POST", "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek"): "read-write",
    ("GET", "/api/v1/explain/{queue}"): "read-only",
    ("GET", "/api/v1/analytics/system-metrics"): "read-only",
    ("GET", "/api/v1/analytics/worker-metrics"): "read-only",
    ("GET", "/api/v1/analytics/queue-lag"): "read-only",
    ("GET", "/api/v1/analytics/queue-ops"): "read-only",
    ("GET", "/api/v1/analytics/queue-parked-replicas"): "read-only",
    ("GET", "/api/v1/analytics/retention"): "read-only",
    ("GET", "/api/v1/analytics/postgres-stats"): "read-only",
    ("GET", "/api/v1/analytics/horizon"): "read-only",
    ("POST", "/streams/v1/queries"): "read-write",
    ("POST", "/streams/v1/state/get"): "read-only",
    ("POST", "/streams/v1/cycle"): "read-write",
    ("GET", "/api/v1/operations/stats"): "read-only",
    ("GET", "/api/v1/operations"): "read-only",
    ("GET", "/api/v1/operations/{operationId}"): "read-only",
    ("POST", "/api/v1/operations/{operationId}/retry"): "admin",
    ("POST", "/api/v1/operations/{operationId}/cancel"): "admin",
    ("GET", "/api/v1/resources/queues/{queue}/partitions"): "read-only",
    ("GET", "/api/v1/pipeline/runs"): "read-only",
    ("GET", "/api/v1/pipelines"): "read-only",
    ("GET", "/api/v1/pipelines/{name}"): "read-only",
    ("GET", "/api/v1/live"): "read-only",
    ("GET", "/api/v1/session"): "read-only",
    ("POST", "/api/v1/fetch"): "read-only",
    ("POST", "/api/v1/consumer-groups/{group}/queues/{queue}/filter"): "read-write",
    ("GET", "/api/v1/consumer-groups/{group}/queues/{queue}/filter"): "read-only",
    ("POST", "/api/v1/consumer-groups/{group}/queues/{queue}/conflation"): "read-write",
    ("GET", "/api/v1/consumer-groups/{group}/queues/{queue}/conflation"): "read-only",
    ("GET", "/api/v1/resources/queues/{queue}/depth"): "read-only",
    ("GET", "/api/v1/troubles"): "read-only",
    ("GET", "/api/v1/kv"): "read-only",
    ("GET", "/api/v1/locks"): "read-only",
    ("POST", "/api/v1/kv"): "read-write",
    ("POST", "/api/v1/locks"): "read-write",
    ("POST", "/api/v1/pause"): "read-write",
    ("POST", "/api/v1/resume"): "read-write",
    ("GET", "/api/v1/pauses"): "read-only",
    ("POST", "/api/v1/policies"): "read-write",
    ("GET", "/api/v1/policies"): "read-only",
    ("GET", "/api/v1/queues/{queue}/skipped"): "read-only",
    ("GET", "/api/v1/queues/{queue}/consumers"): "read-only",
    ("GET", "/api/v1/find"): "read-only",
    ("POST", "/api/v1/timers"): "read-write",
    ("GET", "/api/v1/timers/{queue}"): "read-only",
    ("GET", "/api/v1/timers/{queue}/{timerKey...}"): "read-only",
    ("DELETE", "/api/v1/timers/{queue}/{timerKey...}"): "read-write",
    ("GET", "/api/v1/tokens"): "admin",
    ("POST", "/api/v1/tokens"): "admin",
    ("DELETE", "/api/v1/tokens/{tokenId}"): "admin",
    ("GET", "/api/v1/quotas"): "read-only",
    ("POST", "/api/v1/quotas"): "admin",
    ("DELETE", "/api/v1/quotas/{namespace}"): "admin",
    ("GET", "/api/v1/schemas"): "read-only",
    ("GET", "/api/v1/schemas/{queue}"): "read-only",
    ("POST", "/api/v1/schemas/{queue}"): "admin",
    ("POST", "/api/v1/schemas/{queue}/check"): "read-only",
    ("DELETE", "/api/v1/schemas/{queue}"): "admin",
    ("GET", "/api/v1/audit"): "admin",
    ("GET", "/"): None,
    ("GET", "/assets/{file}"): None,
    ("GET", "/asyncapi.json"): None,
    ("GET", "/docs"): None,
    ("GET", "/favicon.ico"): None,
    ("GET", "/api/v1/login"): None,
    ("GET", "/health"): None,
    ("GET", "/metrics"): None,
    ("GET", "/metrics/prometheus"): None,
    ("GET", "/openapi.json"): None,
}
PROTECTED = {route: role for route, role in NEEDED_ROLE.items() if role is not None}
PUBLIC = [route for route, role in NEEDED_ROLE.items() if role is None]

Json = dict[str, Any]


def bearer(claims: Json | None = None, key: Any = SECRET, algorithm: str = "HS256", **header: Any) -> dict[str, str]:
    """The header of a caller who may do everything, unless `claims` say otherwise."""
    all_claims = {"sub": "alice", "role": "admin", "exp": time.time() + 86_400} | (claims or {})
    given = {name: value for name, value in all_claims.items() if value is not None}
    return {"Authorization": "Bearer " + jwt.encode(given, key, algorithm, headers=header)}


def as_user(http: httpx.AsyncClient, **claims: Any) -> Queen:
    http.headers.update(bearer(claims))
    return Queen(http)


def call(http: httpx.AsyncClient, route: tuple[str, str], headers: dict[str, str] | None = None) -> Any:
    """A request for the route that is refused for nothing but its token. Its body may well be incomplete."""
    method, pattern = route
    names = {
        "queue": "q",
        "partition": "p",
        "group": "g",
        "leaseId": ID,
        "partitionId": ID,
        "transactionId": "t",
        "name": "n",
        "operationId": ID,
        "tokenId": ID,
        "namespace": "n",
        "timerKey": "k",
        "file": "index.html",
    }
    path = pattern.replace("...", "").format(**names)
    return http.request(method, path, headers=headers, **({"json": {}} if method == "POST" else {}))


async def refusal(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error", "code"}
    assert body["code"] == {401: "unauthenticated", 403: "forbidden"}[status]
    assert (answer.headers.get("www-authenticate") == "Bearer") is (status == 401)
    return body["error"]


@pytest.fixture
def settings() -> Settings:
    return settings_with(auth={"enabled": True, "secret": SECRET})


# Roles


def test_the_table_has_every_route() -> None:
    assert {(route.method, route.path) for route in ROUTES} == NEEDED_ROLE.keys()


async def test_every_route_needs_its_role(http: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    for route, needed in PROTECTED.items():
        for role in ROLES:
            with subtests.test(f"{route} as {role}"):
                answer = await call(http, route, bearer({"role": role}))
                if ROLES.index(role) < ROLES.index(needed):
                    assert await refusal(answer, 403) == "Insufficient permissions"
                else:
                    assert answer.status_code not in (401, 403)
                    assert answer.status_code < 500


async def test_every_route_needs_a_token(http: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    for route in PROTECTED:
        with subtests.test(str(route)):
            assert await refusal(await call(http, route), 401) == "Authentication required"


@pytest.mark.parametrize("route", PUBLIC)
async def test_public_routes_need_none(http: httpx.AsyncClient, route: tuple[str, str]) -> None:
    assert (await call(http, route)).status_code == 200
    assert (await call(http, route, {"Authorization": "Bearer nonsense"})).status_code == 200


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"role": None, "roles": ["read-only", "admin"]}, 200),
        ({"role": "read-only", "roles": ["admin"]}, 200),
        ({"role": "ADMIN"}, 403),
        ({"role": "owner"}, 403),
        ({"role": None}, 403),
        ({"role": ["admin"]}, 403),
        ({"role": None, "roles": "admin"}, 403),
    ],
)
async def test_the_highest_role_counts(http: httpx.AsyncClient, claims: Json, status: int) -> None:
    answer = await http.delete("/api/v1/resources/queues/q", headers=bearer(claims))
    assert answer.status_code == status


async def test_a_session_says_what_its_token_may_do(http: httpx.AsyncClient) -> None:
    for role in ROLES:
        answer = await http.get("/api/v1/session", headers=bearer({"role": role}))
        assert answer.json() == {"tokens": True, "subject": "alice", "role": role}


async def test_a_refused_request_does_nothing(http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    push = {"items": [{"queue": "q"}]}
    for headers in ({}, bearer({"role": "read-only"}), bearer(key="x" * 40)):
        assert (await http.post("/api/v1/push", json=push, headers=headers)).status_code in (401, 403)
    assert await sql.fetchval("SELECT count(*) FROM queen.queues") == 0
    assert (await http.post("/api/v1/push", json=push, headers=bearer())).status_code == 201
    assert (await http.delete("/api/v1/resources/queues/q", headers=bearer({"role": "read-write"}))).status_code == 403
    assert await stored(sql, "q") == 1


PROTECTED_OPTIONS = {
    "retentionEnabled": True,
    "retentionSeconds": 600,
    "completedRetentionSeconds": 300,
    "ttl": 900,
    "maxWaitTimeSeconds": 800,
    "deadLetterQueue": True,
    "archiveBeforeDelete": True,
}


async def configured(http: httpx.AsyncClient, role: str, options: Json | None, queue: str = "q") -> httpx.Response:
    body = {"queue": queue, "options": options, "mode": "replace"}
    return await http.post("/api/v1/configure", json=body, headers=bearer({"role": role}))


@pytest.mark.parametrize(
    ("before", "change", "named"),
    [
        (PROTECTED_OPTIONS, {"retentionSeconds": 599}, "retentionSeconds"),
        (PROTECTED_OPTIONS, {"completedRetentionSeconds": 299}, "completedRetentionSeconds"),
        (PROTECTED_OPTIONS, {"ttl": 899}, "ttl"),
        (PROTECTED_OPTIONS, {"maxWaitTimeSeconds": 1}, "maxWaitTimeSeconds"),
        (PROTECTED_OPTIONS, {"deadLetterQueue": False}, "deadLetterQueue"),
        (PROTECTED_OPTIONS, {"archiveBeforeDelete": False}, "archiveBeforeDelete"),
        ({}, {"retentionEnabled": True, "retentionSeconds": 1}, "retentionSeconds"),
        ({"retentionSeconds": 1}, {"retentionEnabled": True, "retentionSeconds": 1}, "retentionSeconds"),
        ({}, {"retentionEnabled": True, "completedRetentionSeconds": 86_400}, "completedRetentionSeconds"),
        ({}, {"ttl": 86_400}, "ttl"),
        ({}, {"ttl": 60, "maxWaitTimeSeconds": 60}, "ttl, maxWaitTimeSeconds"),
    ],
)
async def test_only_an_admin_may_change_a_queue_so_that_messages_are_lost(
    http: httpx.AsyncClient, before: Json, change: Json, named: str
) -> None:
    assert (await configured(http, "read-write", before)).status_code == 200, "a queue that is new"
    shown = (await http.get("/api/v1/status/queues/q", headers=bearer())).json()["queue"]["options"]
    said = await refusal(await configured(http, "read-write", before | change), 403)
    assert said == (
        f"changing {named} of queue 'q' would delete messages earlier, protect them less or move it: "
        "this needs the role admin"
    )
    assert (await http.get("/api/v1/status/queues/q", headers=bearer())).json()["queue"]["options"] == shown
    assert (await configured(http, "admin", before | change)).status_code == 200


async def test_only_an_admin_may_move_a_queue(http: httpx.AsyncClient) -> None:
    async def moved(role: str, **where: str) -> httpx.Response:
        body = {"queue": "shop.orders", "mode": "replace", **where}
        return await http.post("/api/v1/configure", json=body, headers=bearer({"role": role}))

    async def place() -> tuple[str, str]:
        shown = (await http.get("/api/v1/status/queues/shop.orders", headers=bearer())).json()["queue"]
        return shown["namespace"], shown["task"]

    await http.post("/api/v1/push", json={"items": [{"queue": "shop.orders"}]}, headers=bearer({"role": "read-write"}))
    assert await place() == ("shop", "orders"), "nobody has chosen that"
    assert (await moved("read-write", namespace="sales", task="mail")).status_code == 200
    for where in ({"namespace": "attic"}, {"namespace": "sales", "task": "attic"}):
        assert "or move it: this needs the role admin" in await refusal(await moved("read-write", **where), 403)
    assert (await moved("read-write")).status_code == 200
    assert await place() == ("sales", "mail"), "who gives none does not move it"
    assert (await moved("admin", namespace="attic")).status_code == 200
    assert await place() == ("attic", "")


async def test_options_that_destroy_nothing_need_no_admin(http: httpx.AsyncClient) -> None:
    harmless = {"leaseTime": 5, "retryLimit": 9, "priority": 3, "maxSize": 10, "delayedProcessing": 1}
    longer = {"retentionSeconds": 601, "ttl": 0, "maxWaitTimeSeconds": 0, "completedRetentionSeconds": 0}
    off = {"deadLetterQueue": True, "archiveBeforeDelete": True}
    for options in ({}, PROTECTED_OPTIONS, PROTECTED_OPTIONS | harmless, PROTECTED_OPTIONS | longer, off):
        role = "admin" if options == PROTECTED_OPTIONS else "read-write"
        assert (await configured(http, role, options)).status_code == 200, options


@pytest.mark.parametrize("way", ["option", "policy"])
async def test_a_smaller_retry_limit_destroys_nothing(http: httpx.AsyncClient, way: str) -> None:
    """So the role read-write may set it: what is given up becomes a dead letter, whatever deadLetterQueue is."""
    headers = bearer({"role": "read-write"})
    assert (await configured(http, "read-write", {"deadLetterQueue": False})).status_code == 200
    await http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": "kept"}]}, headers=headers)
    if way == "option":
        assert (await configured(http, "read-write", {"deadLetterQueue": False, "retryLimit": 0})).status_code == 200
    else:
        body = {"queue": "q", "retry": {"limit": 0}}
        assert (await http.post("/api/v1/policies", json=body, headers=headers)).status_code == 200
    [message] = (await http.get("/api/v1/pop/queue/q", headers=headers)).json()["messages"]
    ack = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")} | {"status": "failed"}
    [failed] = (await http.post("/api/v1/ack", json=ack, headers=headers)).json()
    assert failed["dlq"] is True
    [letter] = (await http.get("/api/v1/dlq?queue=q", headers=headers)).json()["messages"]
    assert letter["data"] == "kept"


class TestEncryption:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(auth={"enabled": True, "secret": SECRET}, server={"encryption_key": bytes(range(32))})

    async def test_only_an_admin_may_switch_it_off(self, http: httpx.AsyncClient) -> None:
        assert (await configured(http, "read-write", {"encryptionEnabled": True})).status_code == 200
        for options in ({"encryptionEnabled": False}, None):
            assert "encryptionEnabled" in await refusal(await configured(http, "read-write", options), 403)
        assert (await configured(http, "read-write", {"encryptionEnabled": True, "leaseTime": 9})).status_code == 200
        assert (await configured(http, "admin", None)).status_code == 200


async def test_the_token_is_checked_before_the_body(http: httpx.AsyncClient) -> None:
    assert await refusal(await http.post("/api/v1/push", content=b"{"), 401) == "Authentication required"


async def test_cors_requests_need_no_token(http: httpx.AsyncClient) -> None:
    assert (await http.options("/api/v1/push")).status_code == 204


async def test_an_unknown_route_is_not_found_with_and_without_token(http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/v1/nowhere")).status_code == 404
    assert (await http.get("/api/v1/nowhere", headers=bearer())).status_code == 404


# Tokens


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"Authorization": ""}, "Authentication required"),
        ({"Authorization": "Bearer"}, "Authentication required"),
        ({"Authorization": "Basic YTpi"}, "Authentication required"),
        ({"Authorization": "Bearer nonsense"}, "Malformed token"),
        ({"Authorization": "Bearer a.b.c"}, "Malformed token"),
        ({"Authorization": "Bearer " + "x" * 17_000}, "Token too long"),
        (bearer({"exp": time.time() - 600}), "Token expired"),
        (bearer({"nbf": time.time() + 6000}), "Token not yet valid"),
        (bearer(key="another secret of more than thirty-two bytes"), "Invalid token signature"),
        (bearer(key=RSA_KEY, algorithm="RS256"), "Token algorithm not allowed"),
        (bearer(key=None, algorithm="none"), "Token algorithm not allowed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_token_that_does_not_verify(http: httpx.AsyncClient, headers: dict[str, str], error: str) -> None:
    assert await refusal(await http.get("/api/v1/dlq", headers=headers), 401) == error


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER  ", ""])
async def test_the_scheme_is_read_in_any_case_and_may_be_missing(http: httpx.AsyncClient, scheme: str) -> None:
    token = bearer()["Authorization"].removeprefix("Bearer ")
    assert (await http.get("/api/v1/dlq", headers={"Authorization": scheme + token})).status_code == 200


async def test_a_refused_token_leaves_the_connection_usable(server: Server) -> None:
    host, port = server.address
    one = httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", limits=one) as http:
        for _ in range(3):
            assert (await http.get("/api/v1/dlq")).status_code == 401
            assert (await http.get("/api/v1/dlq", headers=bearer())).status_code == 200
    assert server.front.connections_total == 1


class TestIssuerAndAudience:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(auth={"enabled": True, "secret": SECRET, "issuer": "us", "audience": "queen"})

    @pytest.mark.parametrize(
        ("claims", "status"),
        [
            ({"iss": "us", "aud": "queen"}, 200),
            ({"iss": "us", "aud": ["other", "queen"]}, 200),
            ({"iss": "them", "aud": "queen"}, 401),
            ({"iss": "us", "aud": "other"}, 401),
            ({"iss": "us"}, 401),
            ({"aud": "queen"}, 401),
        ],
    )
    async def test_both_are_demanded(self, http: httpx.AsyncClient, claims: Json, status: int) -> None:
        assert (await http.get("/api/v1/dlq", headers=bearer(claims))).status_code == status


class TestSkippedPaths:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(auth={"enabled": True, "secret": SECRET, "skip_paths": ("/api/v1/dlq", "/api/v1/pop/")})

    async def test_they_need_no_token(self, http: httpx.AsyncClient) -> None:
        assert (await http.get("/api/v1/dlq?queue=q")).status_code == 200
        assert (await http.get("/api/v1/pop/queue/q")).status_code == 204
        assert (await http.get("/api/v1/pop?namespace=n")).status_code == 401
        assert (await http.post("/api/v1/push", json={"items": []})).status_code == 401

    async def test_metrics_that_are_not_among_them_need_one(self, http: httpx.AsyncClient) -> None:
        for path in ("/metrics", "/metrics/prometheus"):
            assert (await http.get(path)).status_code == 401
            assert (await http.get(path, headers=bearer({"role": "read-only"}))).status_code == 200
        assert (await http.get("/health")).status_code == 200


# Whose messages they are


async def producers(queen: Queen) -> list[str | None]:
    return [message["producerSub"] for message in await queen.drain("q", partitions=10)]


async def test_a_message_carries_the_subject_of_its_pusher(http: httpx.AsyncClient) -> None:
    for subject in ("alice", "böb \U0001f40c", "x" * 2000, ""):
        await as_user(http, sub=subject).push("q", 1)
    assert await producers(as_user(http, sub="reader")) == ["alice", "böb \U0001f40c", "x" * 2000, ""]


async def test_a_value_in_the_body_is_ignored(http: httpx.AsyncClient) -> None:
    queen = as_user(http, sub="alice")
    forged = {"queue": "q", "producerSub": "mallory", "producer_sub": "mallory", "payload": {"producerSub": "mallory"}}
    await queen.push_items(forged)
    await queen.transact({"type": "push", "items": [forged], "producerSub": "mallory"})
    assert await producers(queen) == ["alice", "alice"]


async def test_a_transaction_stamps_its_pushes_too(http: httpx.AsyncClient) -> None:
    await as_user(http, sub="alice").transact(push_op("q", 1), push_op("q", 2))
    await as_user(http, sub="bob").transact(push_op("q", 3))
    assert await producers(as_user(http)) == ["alice", "alice", "bob"]


async def test_merged_pushes_keep_their_own_subjects(http: httpx.AsyncClient) -> None:
    async def push(number: int) -> None:
        items = {"items": [{"queue": "q", "transactionId": f"of user {number}"}]}
        answer = await http.post("/api/v1/push", json=items, headers=bearer({"sub": f"user {number}"}))
        assert answer.status_code == 201

    await asyncio.gather(*map(push, range(50)))
    messages = await as_user(http).drain("q")
    assert len(messages) == 50
    assert all(message["transactionId"] == f"of {message['producerSub']}" for message in messages)


async def test_a_dead_letter_keeps_its_producer(http: httpx.AsyncClient) -> None:
    await as_user(http, sub="alice").push("q", 1)
    queen = as_user(http, sub="bob")
    await queen.ack((await queen.pop("q"))[0], "dlq")
    assert [letter["producerSub"] for letter in await queen.dead_letters("q")] == ["alice"]


async def test_a_token_without_a_subject_stamps_nothing(http: httpx.AsyncClient) -> None:
    queen = as_user(http, sub=None)
    await queen.push_items({"queue": "q", "producerSub": "mallory"})
    assert await producers(queen) == [None]


async def test_a_subject_that_cannot_be_stored_is_refused(http: httpx.AsyncClient) -> None:
    for subject in ("a\0b", 7, ["alice"]):
        answer = await http.post("/api/v1/push", json={"items": [{"queue": "q"}]}, headers=bearer_of({"sub": subject}))
        assert await refusal(answer, 401) == "Invalid token subject"


def bearer_of(claims: Json) -> dict[str, str]:
    """What `jwt.encode` refuses to make: a token whose subject is no string."""
    payload = json.dumps({"role": "admin"} | claims).encode()
    return {"Authorization": "Bearer " + jwt.PyJWS().encode(payload, SECRET, "HS256")}


class TestWithoutTokens:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with()

    async def test_there_is_no_producer_and_no_role(self, http: httpx.AsyncClient, queen: Queen) -> None:
        http.headers.update(bearer({"role": "read-only"}))
        await queen.push_items({"queue": "q", "producerSub": "mallory"})
        await queen.transact(push_op("q", 2))
        assert await producers(queen) == [None, None]
        assert (await queen.delete_queue("q"))["deleted"] is True


# Keys


class TestPublicKey:
    @pytest.fixture
    def settings(self) -> Settings:
        pem = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        return settings_with(auth={"enabled": True, "algorithm": "RS256", "public_key": pem, "secret": SECRET})

    async def test_rs256(self, http: httpx.AsyncClient, queen: Queen) -> None:
        http.headers.update(bearer({"sub": "carol"}, RSA_KEY, "RS256"))
        await queen.push("q", 1)
        assert await producers(queen) == ["carol"]

    async def test_other_keys_and_algorithms_do_not_verify(self, http: httpx.AsyncClient) -> None:
        other = generate_private_key(public_exponent=65537, key_size=2048)
        for headers in (bearer(key=other, algorithm="RS256"), bearer(), bearer(key=ED_KEY, algorithm="EdDSA")):
            await refusal(await http.get("/api/v1/dlq", headers=headers), 401)


class TestPublishedKeys:
    @pytest.fixture
    async def published(self) -> AsyncIterator[tuple[str, list[Json], list[bytes]]]:
        """A key set on loopback: its address, its keys, and the requests it has got."""
        keys = [json.loads(OKPAlgorithm.to_jwk(ED_KEY.public_key())) | {"kid": "one"}]
        requests: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            body = json.dumps({"keys": keys}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            yield f"http://{host}:{port}/keys", keys, requests

    @pytest.fixture
    def settings(self, published: tuple[str, list[Json], list[bytes]]) -> Settings:
        return settings_with(auth={"enabled": True, "algorithm": "EdDSA", "jwks_url": published[0]})

    async def test_eddsa(self, http: httpx.AsyncClient, queen: Queen, published: tuple[str, Any, list[bytes]]) -> None:
        http.headers.update(bearer({"sub": "dave"}, ED_KEY, "EdDSA", kid="one"))
        await queen.push("q", 1)
        await queen.transact(push_op("q", 2))
        assert await producers(queen) == ["dave", "dave"]
        [request] = published[2]
        assert request.startswith(b"GET /keys ")

    async def test_roles_count_here_too(self, http: httpx.AsyncClient) -> None:
        headers = bearer({"role": "read-only"}, ED_KEY, "EdDSA", kid="one")
        assert (await http.get("/api/v1/dlq", headers=headers)).status_code == 200
        answer = await http.post("/api/v1/push", json={"items": []}, headers=headers)
        assert await refusal(answer, 403) == "Insufficient permissions"

    async def test_a_key_that_is_not_published_does_not_verify(self, http: httpx.AsyncClient) -> None:
        other = Ed25519PrivateKey.generate()
        for kid, error in {"one": "Invalid token signature", "two": "Unknown token key"}.items():
            answer = await http.get("/api/v1/dlq", headers=bearer(None, other, "EdDSA", kid=kid))
            assert await refusal(answer, 401) == error

    async def test_many_first_requests_share_one_fetch(
        self, http: httpx.AsyncClient, published: tuple[str, Any, list[bytes]]
    ) -> None:
        headers = [bearer({"sub": f"user {n}"}, ED_KEY, "EdDSA", kid="one") for n in range(20)]
        answers = await asyncio.gather(*(http.get("/api/v1/dlq", headers=header) for header in headers))
        assert {answer.status_code for answer in answers} == {200}
        assert len(published[2]) == 1


class TestUnreachableKeys:
    @pytest.fixture
    def settings(self, unused_address: str) -> Settings:
        return settings_with(auth={"enabled": True, "algorithm": "EdDSA", "jwks_url": f"http://{unused_address}/"})

    @pytest.fixture
    async def unused_address(self) -> str:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def test_nobody_is_let_in_and_consumers_come_back(self, http: httpx.AsyncClient) -> None:
        answer = await http.get("/api/v1/pop/queue/q", headers=bearer(None, ED_KEY, "EdDSA", kid="one"))
        assert answer.status_code == 503
        assert {"connection", "(ECONNREFUSED)"} <= set(answer.json()["error"].split())
        assert (await http.get("/health")).status_code == 200


# Before a large body is read


@pytest.mark.parametrize(
    ("method", "path", "claims", "status"),
    [
        ("POST", "/api/v1/push", None, 401),
        ("POST", "/api/v1/push", {"role": "read-only"}, 403),
        ("POST", "/api/v1/push", {"exp": 1}, 401),
        ("POST", "/api/v1/nowhere", {}, 404),
        ("PUT", "/api/v1/push", {}, 405),
        ("GET", "/api/v1/resources/queues", {}, 413),
    ],
)
async def test_whoever_may_not_send_a_large_body_is_told_before_it_is_read(
    server: Server, method: str, path: str, claims: Json | None, status: int
) -> None:
    async with connect(server.address) as wire:
        token = [] if claims is None else [f"Authorization: {bearer(claims)['Authorization']}".encode()]
        await wire.send(method, path, *token, b"Content-Length: %d" % (15 * 1024 * 1024))
        wire.write(b"x" * 40_000)
        assert (await wire.answer()).status == status
        assert server.front.bodies.reserved == 0


async def test_a_large_push_of_a_friend(server: Server) -> None:
    body = json.dumps({"items": [{"queue": "q", "payload": "x" * 1_000_000}]}).encode()
    async with connect(server.address) as wire:
        for _ in range(2):
            token = f"Authorization: {bearer()['Authorization']}".encode()
            assert (await wire.ask("POST", "/api/v1/push", body, token)).status == 201
    assert server.front.bodies.reserved == 0
