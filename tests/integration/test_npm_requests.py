"""The requests of `queen-mq` for Node, as its public source makes them, and what it looks for in the answers.

The package itself is not run: docs/design/left-out.md says why. What it shares with the client for Python is tested
with that one (tests/acceptance); here is what it sends in its own way.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from queenmq.server import Server

Json = dict[str, Any]

DEFAULTS: Json = {
    "leaseTime": 300,
    "retryLimit": 3,
    "priority": 0,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "maxSize": 0,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "encryptionEnabled": False,
}
HOUR = {"ttlSeconds": 3600}


class Node:
    """Sends what that client sends: each request says that it has JSON, also one without a body."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def ask(self, method: str, path: str, body: Json | None = None, **params: object) -> Any:
        content = None if body is None else json.dumps(body)
        answer = await self._http.request(method, path, content=content, params=dict(params))
        if answer.status_code == 204:
            return None
        assert answer.is_success, answer.text
        # Without these two it takes an answer for none at all.
        assert "application/json" in answer.headers["content-type"]
        assert answer.headers.get("content-length") != "0"
        return answer.json()

    async def refused(self, method: str, path: str, body: Json) -> tuple[int, str]:
        """The status, and the `error` that becomes the message of what is thrown."""
        answer = await self._http.request(method, path, content=json.dumps(body))
        assert 400 <= answer.status_code < 500, "what is not 4xx is repeated"
        return answer.status_code, answer.json()["error"]

    async def create(self, queue: str, **options: object) -> Json:
        body = {"queue": queue, "namespace": None, "task": None, "options": DEFAULTS | options}
        answer: Json = await self.ask("POST", "/api/v1/configure", body)
        assert not answer.get("error")
        return answer

    async def push(self, queue: str, *values: object, partition: str = "Default") -> list[Json]:
        items = [
            {"queue": queue, "partition": partition, "payload": value, "transactionId": str(uuid.uuid4())}
            for value in values
        ]
        results: list[Json] = await self.ask("POST", "/api/v1/push", {"items": items})
        assert [result["status"] for result in results] == ["queued"] * len(values)
        return results

    async def pop(self, queue: str, **params: object) -> list[Json]:
        asked = {"wait": "false", "timeout": 30000} | params
        answer = await self.ask("GET", f"/api/v1/pop/queue/{queue}", **asked)
        return [] if answer is None else answer["messages"]

    async def ack(self, *messages: Json, status: str = "completed", group: str | None = None) -> list[Json]:
        """It counts the results, and takes each that has an `error` for refused."""
        acks = [
            {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
            | {"status": status, "error": None}
            for message in messages
        ]
        if len(acks) == 1:
            results = await self.ask("POST", "/api/v1/ack", {**acks[0], "consumerGroup": group})
        else:
            body = {"acknowledgments": acks, "consumerGroup": group}
            results = await self.ask("POST", "/api/v1/ack/batch", body)
        assert len(results) == len(acks)
        return list(results)


@pytest.fixture
async def node(server: Server) -> AsyncIterator[Node]:
    host, port = server.address
    headers = {"content-type": "application/json", "accept": "*/*", "accept-language": "*", "sec-fetch-mode": "cors"}
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30, headers=headers) as http:
        yield Node(http)


def values(messages: list[Json]) -> list[Any]:
    return [message["data"] for message in messages]


async def test_push_pop_and_ack(node: Node) -> None:
    assert await node.pop("q", batch=1) == []
    await node.create("q")
    await node.push("q", {"n": 1}, None, [2])
    [first] = await node.pop("q", batch=1)
    # Not one of these may be missing: it refuses to acknowledge without them.
    assert all(first[name] for name in ("transactionId", "partitionId", "leaseId"))
    [told] = await node.ack(first)
    assert (told["success"], told.get("error")) == (True, None)
    [late] = await node.ack(first)
    assert (late["success"], late["error"]) == (False, "Invalid or expired lease")
    # From 1.2 of its protocol on it leaves the size to the broker.
    rest = await node.pop("q", autopilot="true")
    assert values(rest) == [None, [2]]
    assert [told["success"] for told in await node.ack(*rest)] == [True, True]


async def test_a_stopped_consumer_gives_back_what_it_has_not_begun(node: Node) -> None:
    await node.push("q", 1, 2, 3)
    messages = await node.pop("q", batch=10, consumerGroup="g")
    await node.ack(messages[0], group="g")
    assert all(told["success"] for told in await node.ack(*messages[1:], status="retry", group="g"))
    again = await node.pop("q", batch=10, consumerGroup="g")
    assert values(again) == [2, 3]
    extended = await node.ask("POST", f"/api/v1/lease/{again[0]['leaseId']}/extend", {})
    assert extended["newExpiresAt"] if extended.get("leaseId") else extended["lease_expires_at"]


async def test_its_defaults_leave_alone_what_they_do_not_name(node: Node) -> None:
    await node.create("q", retryLimit=7)
    await node.ask("POST", "/api/v1/configure", {"queue": "q", "options": {"deadLetterQueue": True}})
    configured = await node.create("q")
    assert (configured["options"]["retryLimit"], configured["options"]["deadLetterQueue"]) == (3, True)


async def test_conflation_is_said_in_every_answer(node: Node) -> None:
    path, asked = "/api/v1/pop/queue/q", {"batch": 1, "wait": "false", "consumerGroup": "g", "conflation": "true"}
    # An empty answer without it is taken for a broker that does not know it.
    assert (await node.ask("GET", path, **asked))["conflation"] is True
    await node.push("q", 1, 2)
    answer = await node.ask("GET", path, **asked)
    assert (answer["conflation"], values(answer["messages"])) == (True, [2])
    await node.pop("q", batch=1, consumerGroup="all")
    conflict = await node.ask("GET", path, **asked | {"consumerGroup": "all"})
    assert conflict["conflationConflict"] is True


async def test_timers(node: Node) -> None:
    payload = b64encode(json.dumps({"n": 1}).encode()).decode()
    operation = {
        "op": "schedule",
        "queue": "q",
        "timerKey": "a/b",
        "delayMs": 3_600_000,
        "txn": "t",
        "payload": payload,
    }
    body = {"operations": [operation]}
    assert (await node.ask("POST", "/api/v1/timers", body))["results"][0]["status"] == "scheduled"
    assert (await node.ask("POST", "/api/v1/timers", body))["results"][0]["status"] == "rescheduled"
    assert (await node.ask("GET", "/api/v1/timers/q/a%2Fb"))["found"] is True
    listed = await node.ask("GET", "/api/v1/timers/q", limit=10)
    assert ([row["timerKey"] for row in listed["rows"]], listed["truncated"]) == (["a/b"], False)
    cancelled = await node.ask("DELETE", "/api/v1/timers/q/a%2Fb", txn="t")
    assert (cancelled["status"], cancelled["txn"]) == ("cancelled", "t")
    absent = await node.ask("DELETE", "/api/v1/timers/q/a%2Fb", txn="t")
    assert (absent["ok"], absent["status"], absent["txn"]) == (False, "absent", "t")
    # In the past: at once.
    await node.ask("POST", "/api/v1/timers", {"operations": [operation | {"delayMs": -5}]})
    assert values(await node.pop("q", batch=1, wait="true")) == [{"n": 1}]


async def test_values_and_counters(node: Node) -> None:
    async def kv(**operation: object) -> Json:
        [result] = (await node.ask("POST", "/api/v1/kv", {"operations": [{"ns": "n"} | operation]}))["results"]
        return dict(result)

    assert (await kv(op="putIfAbsent", key="k", value=True, **HOUR))["applied"] is True
    lost = await kv(op="putIfAbsent", key="k", value=True, **HOUR)
    assert (lost["applied"], lost["reason"]) == (False, "exists")
    row = await kv(op="get", key="k")
    assert (row["found"], row["value"]) == (True, True)
    assert (await kv(op="put", key="k", value=None, forever=True, expect=row["version"]))["applied"] is True
    assert (await kv(op="put", key="k", value=1, forever=True, expect=row["version"]))["applied"] is False
    row = await kv(op="get", key="k")
    assert (row["found"], row["value"]) == (True, None)
    page = await kv(op="getPrefix", prefix="k", limit=10)
    assert ([one["key"] for one in page["rows"]], page["truncated"]) == (["k"], False)
    told = [await kv(op="incr", key="c", delta=1, max=2, **HOUR) for _ in range(3)]
    assert [one["applied"] for one in told] == [True, True, False]
    assert (told[-1]["reason"], told[-1]["value"]) == ("limit", 2)
    assert (await kv(op="delete", key="k"))["applied"] is True
    # What is required and not applied is an answer, not an error, and `applied` says it as well.
    assert (await kv(op="put", key="c", value=1, expect=0, required=True, **HOUR))["applied"] is False


async def test_locks_fence_transactions(node: Node) -> None:
    async def lock(**operation: object) -> Json:
        [result] = (await node.ask("POST", "/api/v1/locks", {"operations": [{"name": "l"} | operation]}))["results"]
        return dict(result)

    taken = await lock(op="acquire", ttlSeconds=30, owner="host:1:ab")
    assert (taken["acquired"], taken["slot"]) == (True, 0)
    held = await lock(op="acquire", ttlSeconds=30, owner="host:2:cd")
    assert (held["acquired"], held["reason"]) == (False, "held")
    renewed = await lock(op="renew", token=taken["token"], slot=0, ttlSeconds=30, owner="host:1:ab")
    assert renewed["renewed"] is True
    assert renewed["token"] > taken["token"]
    push = {"type": "push", "items": [{"queue": "q", "payload": 1, "transactionId": str(uuid.uuid4())}]}
    stale = {"operations": [push], "requiredLeases": [], "kv": [taken["guard"]]}
    verdict = await node.ask("POST", "/api/v1/transaction", stale)
    assert (verdict["success"], verdict["reason"]) == (False, "kv_precondition")
    assert (await node.ask("POST", "/api/v1/transaction", stale | {"kv": [renewed["guard"]]}))["success"] is True
    assert (await lock(op="release", token=renewed["token"], slot=0))["released"] is True
    assert (await lock(op="get"))["held"] is False


async def test_a_transaction_with_a_gate_and_a_timer_beside_its_operations(node: Node) -> None:
    await node.push("q", 1)
    [message] = await node.pop("q", batch=1, consumerGroup="g")
    ack = {"type": "ack", "status": "completed", "consumerGroup": "g"}
    ack |= {name: message[name] for name in ("transactionId", "partitionId")}
    gate = {"op": "putIfAbsent", "ns": "n", "key": "k", "value": True, "required": True} | HOUR
    payload = b64encode(b'{"n": 2}').decode()
    timer = {"op": "schedule", "queue": "q", "timerKey": "k", "delayMs": 3_600_000, "txn": "t", "payload": payload}
    push = {"type": "push", "items": [{"queue": "out", "payload": None, "transactionId": str(uuid.uuid4())}]}
    body = {"operations": [ack, push], "requiredLeases": [message["leaseId"]], "kv": [gate], "timers": [timer]}
    done, again = [await node.ask("POST", "/api/v1/transaction", body) for _ in range(2)]
    assert done["success"] is True
    assert again["success"] is False
    assert values(await node.pop("out", batch=9)) == [None]
    assert (await node.ask("GET", "/api/v1/timers/q/k"))["found"] is True


async def test_what_is_left_out_is_refused_once_and_aloud(node: Node) -> None:
    read = {"op": "get", "ns": "n", "key": "k"}
    body = {"operations": [], "requiredLeases": [], "kv": [read]}
    told = [
        await node.refused("POST", "/api/v1/transaction", body),
        await node.refused("POST", "/api/v1/ephemeral/push", {"queue": "q", "items": [{"payload": 1}]}),
        await node.refused("POST", "/api/v1/partitions/changed", {"queue": "q"}),
    ]
    assert [status for status, _ in told] == [400, 404, 404]
    assert all(len(error) > 20 for _, error in told)


async def test_a_poll_that_its_caller_gives_up_takes_nothing(node: Node) -> None:
    poll = asyncio.ensure_future(node.pop("q", batch=1, wait="true"))
    await node.push("other", 1)
    assert not poll.done()
    poll.cancel()
    await asyncio.wait([poll])
    await node.push("q", 1)
    assert values(await node.pop("q", batch=1, wait="true")) == [1]
