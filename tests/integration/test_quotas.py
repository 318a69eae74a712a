"""Quotas: how much the queues of a namespace may store."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import asyncpg
import httpx
import pytest
from server_settings import settings_with

from integration.queen import Queen, decide_pushes, until
from integration.test_tokens import bearer, made
from queenmq.access.quotas import Quota, Quotas
from queenmq.access.tokens import NewToken, Tokens
from queenmq.broker import pop
from queenmq.broker.load_manager import Choice
from queenmq.clock import ManualClock
from queenmq.errors import Overloaded
from queenmq.http.shares import _by_namespace, take_about_queue
from queenmq.server import Server

Json = dict[str, Any]


async def set_quota(http: httpx.AsyncClient, namespace: str, **most: int) -> Json:
    answer = await http.post("/api/v1/quotas", json={"namespace": namespace, **most})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def pushed(http: httpx.AsyncClient, queue: str, messages: int = 1, payload: str = "x") -> httpx.Response:
    items = [{"queue": queue, "payload": payload} for _ in range(messages)]
    return await http.post("/api/v1/push", json={"items": items})


async def measure(http: httpx.AsyncClient, server: Server) -> dict[str, Json]:
    """The quotas by namespace, after everything was measured again."""
    await server.broker.statistics.refresh(everything=True)
    await server._quotas.refresh()
    return {quota["namespace"]: quota for quota in (await http.get("/api/v1/quotas")).json()["quotas"]}


async def test_a_push_over_the_quota_is_refused(queen: Queen, http: httpx.AsyncClient, server: Server) -> None:
    await set_quota(http, "tenant", maxMessages=10)
    assert (await pushed(http, "tenant.a", 6)).status_code == 201
    refused = await pushed(http, "tenant.b", 5)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
    assert refused.json()["code"] == "quota_exceeded"
    assert "the namespace 'tenant' stores 6 messages and may store 10, so 5 more do not fit" in refused.text
    assert (await pushed(http, "tenant.b", 4)).status_code == 201
    assert (await pushed(http, "tenant", 1)).status_code == 429
    assert (await pushed(http, "tenants.a", 20)).status_code == 201, "another namespace"
    mixed = {"items": [{"queue": "tenants.a", "payload": 1}, {"queue": "tenant.a", "payload": 1}]}
    assert (await http.post("/api/v1/push", json=mixed)).status_code == 429, "all or nothing"
    assert (await measure(http, server))["tenant"]["messages"] == 10
    assert (await pushed(http, "tenant.a")).status_code == 429, "also by what was measured"


async def test_there_is_room_again_when_messages_are_gone(
    queen: Queen, http: httpx.AsyncClient, server: Server
) -> None:
    await set_quota(http, "tenant", maxMessages=5)
    await pushed(http, "tenant.a", 5)
    assert (await pushed(http, "tenant.a")).status_code == 429
    assert (await http.delete("/api/v1/resources/queues/tenant.a")).status_code == 200
    await measure(http, server)
    assert (await pushed(http, "tenant.a", 5)).status_code == 201


async def test_bytes_are_estimated_from_a_sample(queen: Queen, http: httpx.AsyncClient, server: Server) -> None:
    await set_quota(http, "tenant", maxBytes=10_000_000)
    noise = "".join(chr(33 + (i * i * 7919 + i * 31) % 90) for i in range(1000))  # not worth compressing
    for partition in range(3):
        items = [{"queue": "tenant.a", "partition": str(partition), "payload": noise} for _ in range(40)]
        assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201
    stored = (await measure(http, server))["tenant"]
    assert stored["messages"] == 120
    assert 110_000 < stored["bytes"] < 130_000
    await set_quota(http, "tenant", maxBytes=stored["bytes"] + 500)
    assert (await pushed(http, "tenant.a", 1, noise)).status_code == 429


async def test_timers_and_dead_letters_take_room(
    queen: Queen, http: httpx.AsyncClient, server: Server, sql: asyncpg.Connection
) -> None:
    await set_quota(http, "tenant", maxMessages=4, maxBytes=1_000_000)
    timer = {"op": "schedule", "queue": "tenant.a", "data": 1, "delayMs": 3_600_000}
    operations = [{**timer, "timerKey": str(key)} for key in range(4)]
    assert (await http.post("/api/v1/timers", json={"operations": operations})).status_code == 200
    assert (await measure(http, server))["tenant"]["messages"] == 4
    assert (await pushed(http, "tenant.a")).status_code == 429
    cancel = [{"op": "cancel", "queue": "tenant.a", "timerKey": str(key)} for key in range(4)]
    assert (await http.post("/api/v1/timers", json={"operations": cancel})).status_code == 200
    assert (await measure(http, server))["tenant"]["messages"] == 0


async def test_a_timer_that_repeats_waits_for_room(
    queen: Queen, http: httpx.AsyncClient, server: Server, sql: asyncpg.Connection
) -> None:
    await set_quota(http, "tenant", maxMessages=2)
    timers = [
        {"op": "schedule", "queue": queue, "timerKey": "k", "data": 1, "schedule": "@every 1h"}
        for queue in ("tenant.a", "other")
    ]
    assert (await http.post("/api/v1/timers", json={"operations": timers})).status_code == 200
    assert (await pushed(http, "tenant.a")).status_code == 201
    await measure(http, server)

    async def stored() -> dict[str, int]:
        """After both were due."""
        await sql.execute("UPDATE queen.timers SET deliver_at = now(), next_attempt_at = now()")
        while await server.broker.timers.push_due():
            pass
        rows = await sql.fetch(
            "SELECT q.name, sum(l.last_offset) AS stored FROM queen.partition_lookup l "
            "JOIN queen.partitions p ON p.id = l.partition_id JOIN queen.queues q ON q.id = p.queue_id GROUP BY 1"
        )
        return {row["name"]: int(row["stored"]) for row in rows}

    assert await stored() == {"tenant.a": 1, "other": 1}
    timer = (await http.get("/api/v1/timers/tenant.a/k")).json()
    assert (timer["attempts"], "quota_exceeded" in timer["lastError"]) == (1, True)
    await set_quota(http, "tenant", maxMessages=3)
    assert await stored() == {"tenant.a": 2, "other": 2}
    assert await stored() == {"tenant.a": 2, "other": 3}, "counted at once"
    assert (await http.get("/api/v1/timers/tenant.a/k")).json()["attempts"] == 1


async def test_a_queue_has_the_quotas_of_all_its_namespaces(queen: Queen, http: httpx.AsyncClient) -> None:
    await set_quota(http, "a", maxMessages=10)
    await set_quota(http, "a.b.c", maxMessages=2)
    assert (await pushed(http, "a.b.c", 3)).status_code == 429, "a queue can have its own"
    assert (await pushed(http, "a.b.c", 2)).status_code == 201
    assert (await pushed(http, "a.b.d", 8)).status_code == 201
    assert (await pushed(http, "a.b.d", 1)).status_code == 429


async def test_other_servers_learn_of_it(
    queen: Queen, http: httpx.AsyncClient, server: Server, sql: asyncpg.Connection
) -> None:
    await sql.execute("INSERT INTO queen.quotas VALUES ('tenant', 1, NULL)")
    await until(lambda: server._quotas.any)
    assert (await pushed(http, "tenant.a", 2)).status_code == 429


async def test_it_is_removed(queen: Queen, http: httpx.AsyncClient) -> None:
    await set_quota(http, "tenant", maxMessages=1)
    assert (await http.delete("/api/v1/quotas/tenant")).json() == {"removed": True, "namespace": "tenant"}
    assert (await http.delete("/api/v1/quotas/tenant")).status_code == 404
    assert (await pushed(http, "tenant.a", 2)).status_code == 201


@pytest.mark.parametrize("body", [{}, {"namespace": "", "maxBytes": 1}, {"namespace": "a", "maxMessages": 0}])
async def test_bad_input(queen: Queen, http: httpx.AsyncClient, body: Json) -> None:
    assert (await http.post("/api/v1/quotas", json=body)).status_code == 400


async def test_what_comes_while_the_figures_are_read_is_not_forgotten(server: Server, sql: asyncpg.Connection) -> None:
    quotas = Quotas(server.database, ManualClock(), most_queues=10)
    await quotas.set(Quota(namespace="tenant", max_messages=10, max_bytes=None))

    class Slow:
        async def fetch(self, *arguments: object, **options: object) -> object:
            rows = await server.database.fetch(*arguments, **options)  # type: ignore[arg-type]
            quotas.take({"tenant.a": 7}, 100)
            return rows

        async def fetchval(self, *arguments: object, **options: object) -> object:
            return await server.database.fetchval(*arguments, **options)  # type: ignore[arg-type]

    quotas._database = Slow()  # type: ignore[assignment]
    await quotas.refresh()
    [known] = quotas.known()
    assert known.messages == 7


async def test_a_namespace_has_its_share_of_requests_and_messages(
    queen: Queen, http: httpx.AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server._app._context.rates, "_clock", ManualClock())
    await queen.push("tenant.a", "first")
    [popped] = await queen.pop("tenant.a")
    shown = await set_quota(http, "tenant", requestsPerSecond=4)
    assert (shown["requestsPerSecond"], shown["maxMessages"]) == (4, None)
    asked = [await http.get("/api/v1/status/queues/tenant.a/messages") for _ in range(3)]
    ack = {"transactionId": "first", "partitionId": popped["partitionId"], "leaseId": popped["leaseId"]}
    asked.append(await http.post("/api/v1/ack", json=ack | {"status": "completed"}))
    assert {answer.status_code for answer in asked} == {200}
    for refused in (await pushed(http, "tenant.b"), await http.get("/api/v1/pop/queue/tenant.a")):
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert "too many requests about the namespace 'tenant'" in refused.text
    assert (await pushed(http, "tenants")).status_code == 201, "another namespace"
    assert (await http.get("/api/v1/resources/queues")).status_code == 200, "about no queue"

    await set_quota(http, "tenant", messagesPerSecond=5)
    assert (await pushed(http, "tenant.b", 20)).status_code == 201
    refused = await pushed(http, "tenant.c")
    assert (refused.status_code, int(refused.headers["Retry-After"])) == (429, 3)
    assert (await http.get("/api/v1/pop/queue/tenant.a")).status_code == 204, "no push"


async def test_a_namespace_has_its_share_of_long_polls(queen: Queen, http: httpx.AsyncClient, server: Server) -> None:
    await queen.push("tenant.a", "first")
    [popped] = await queen.pop("tenant.a")
    await set_quota(http, "tenant", longPolls=1)
    wait = {"wait": "true", "timeout": "60000"}
    parked = asyncio.create_task(http.get("/api/v1/pop/queue/tenant.b", params=wait))
    await until(lambda: server._app._context.rates.polls_of("tenant") == 1)
    [quota] = (await http.get("/api/v1/quotas")).json()["quotas"]
    assert (quota["longPolls"], quota["longPollsWaiting"]) == (1, 1)
    finish = {"take": {"queue": "tenant.c", "wait": True, "timeout": 60_000}}
    refused = await http.get("/api/v1/pop/queue/tenant.a/partition/p", params=wait)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    assert "the namespace 'tenant' has 1 long polls waiting" in refused.text
    finished = (await http.post(f"/api/v1/lease/{popped['leaseId']}/finish", json=finish)).json()
    assert (finished["success"], finished["messages"], finished["taken"]) == (True, 1, None), "needs no long poll"
    assert "the namespace 'tenant' has 1 long polls waiting" in finished["takeError"]
    assert (await http.get("/api/v1/pop/queue/tenant.a")).status_code == 204, "does not wait"
    await pushed(http, "tenant.b")
    assert (await parked).status_code == 200
    assert server._app._context.rates.polls_of("tenant") == 0
    metrics = (await http.get("/metrics/prometheus")).text
    assert 'queen_rate_limited_requests_total{limit="namespace_long_polls"} 2' in metrics


async def test_who_names_no_queue_takes_of_the_share_of_its_namespaces(
    queen: Queen, http: httpx.AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = server._app._context.rates
    monkeypatch.setattr(rates, "_clock", ManualClock())
    await queen.push("tenant.a", "first")
    asked = {"namespace": "tenant", "consumerGroup": "g", "subscriptionMode": "all"}
    await set_quota(http, "tenant", requestsPerSecond=2, longPolls=1)
    assert [(await http.get("/api/v1/pop", params=asked)).status_code for _ in range(3)] == [200, 204, 429]
    await set_quota(http, "tenant", longPolls=1)
    wait = asked | {"wait": "true", "timeout": "60000"}
    parked = asyncio.create_task(http.get("/api/v1/pop", params=wait))
    await until(lambda: rates.polls_of("tenant") == 1)
    refused = await http.get("/api/v1/pop", params=wait)
    assert (refused.status_code, "long polls waiting" in refused.text) == (429, True)
    await pushed(http, "tenant.b")
    assert (await parked).status_code == 200


async def test_a_consumer_connection_takes_of_the_share_of_its_namespace(
    http: httpx.AsyncClient, server: Server
) -> None:
    await set_quota(http, "tenant", requestsPerSecond=1)
    context = server._app._context
    context.rates._clock = ManualClock()
    take_about_queue("tenant.a", context)
    with pytest.raises(Overloaded, match="requests about the namespace 'tenant'"):
        take_about_queue("tenant.b", context)
    take_about_queue("another", context)


async def test_queues_are_bounded_in_all(queen: Queen, http: httpx.AsyncClient, server: Server) -> None:
    await queen.push("first", 1)
    quotas = server._quotas
    quotas._most_queues = 1
    await quotas.refresh()
    configure = {"queue": "second", "options": {}}
    transaction = {"operations": [{"type": "push", "items": [{"queue": "second", "payload": 1}]}]}
    for refused in (
        await pushed(http, "second"),
        await http.post("/api/v1/configure", json=configure),
        await http.post("/api/v1/transaction", json=transaction),
    ):
        assert (refused.status_code, refused.json()["code"], refused.headers["Retry-After"]) == (
            *(429, "quota_exceeded"),
            "60",
        )
    assert "raise QUEEN_MAX_QUEUES" in refused.text
    assert (await pushed(http, "first")).status_code == 201
    assert (await http.post("/api/v1/configure", json=configure | {"queue": "first"})).status_code == 200
    assert (await pushed(http, "se\0cond")).status_code == 400
    quotas._most_queues = 2
    await quotas.refresh()
    assert (await pushed(http, "second")).status_code == 201


async def test_a_pop_over_very_many_queues_subscribes_to_some_of_them_at_a_time(
    queen: Queen, http: httpx.AsyncClient, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop, "_MOST_SUBSCRIBED", 2)
    await queen.push_items(*({"queue": f"n.{number}", "payload": number} for number in range(5)))
    seen = []
    params = {"namespace": "n", "consumerGroup": "g", "subscriptionMode": "all"}
    for known in (2, 4, 5):
        seen += await queen.pop_matching(**params)
        found = await sql.fetchval("SELECT count(*) FROM queen.consumer_groups WHERE name = 'g'")
        assert found == known
    while more := await queen.pop_matching(**params):
        seen += more
    assert sorted(message["data"] for message in seen) == [0, 1, 2, 3, 4]


async def test_its_own_limit_comes_before_that_of_all_namespaces(server: Server, http: httpx.AsyncClient) -> None:
    await set_quota(http, "a", messagesPerSecond=100)
    limits = replace(server.broker.settings.limits, namespace_messages_per_second=1)
    context = replace(server._app._context, settings=replace(server.broker.settings, limits=limits))
    assert _by_namespace(context, Counter({"a.b": 3, "a": 1, "c.d": 2})) == {"a": (4, 100), "c": (2, 1)}


class TestDeferredPushes:
    @pytest.fixture
    def settings(self) -> object:
        return settings_with(operations={"interval_ms": 3_600_000}, overload={"queue_depth": 50})

    async def test_they_take_room(
        self, queen: Queen, http: httpx.AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await set_quota(http, "tenant", maxMessages=10, maxBytes=1_000_000)
        decide_pushes(server, monkeypatch, Choice.QUEUE)
        assert (await pushed(http, "tenant.a", 8)).status_code == 202
        assert (await measure(http, server))["tenant"]["messages"] == 8
        assert (await pushed(http, "tenant.a", 8)).status_code == 429, "also when the figures were read again"


class TestWithTokens:
    @pytest.fixture
    def settings(self) -> object:
        return settings_with(auth={"tokens_enabled": True})

    async def test_a_tenant_sees_its_own_and_sets_none(self, server: Server, http: httpx.AsyncClient) -> None:
        _, root = await Tokens(server.database).create(NewToken(name="root", role="admin"), None)
        http.headers["Authorization"] = f"Bearer {root}"
        await set_quota(http, "tenant", maxMessages=10)
        await set_quota(http, "other", maxMessages=10)
        tenant = await made(http, "tenant", "admin", grants=[{"namespaces": ["tenant"]}])
        seen = await http.get("/api/v1/quotas", headers=bearer(tenant))
        assert [quota["namespace"] for quota in seen.json()["quotas"]] == ["tenant"]
        for refused in (
            await http.post("/api/v1/quotas", json={"namespace": "tenant", "maxBytes": 9}, headers=bearer(tenant)),
            await http.delete("/api/v1/quotas/tenant", headers=bearer(tenant)),
        ):
            assert refused.status_code == 403
