"""The coordinator with real servers: where requests are served, and what happens when the chosen server misbehaves."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Never
from urllib.parse import urlsplit

import asyncpg
import httpx
import jwt
import pytest
from server_settings import changed, settings_with

from integration.cluster import (
    MEET_S,
    SECRET,
    Member,
    answer_500,
    cluster,
    hang,
    parked,
    processes,
    slow_way,
    until,
    work_and_answer_500,
    work_and_break,
    work_late,
)
from integration.proxy import relayed
from queen_bench.audit import Audit
from queen_bench.connection import Connection
from queenmq.access.permissions import Permissions
from queenmq.cluster.imbalance import BALANCED_BELOW
from queenmq.cluster.node import Siblings
from queenmq.core.message import Message
from queenmq.errors import DatabaseUnavailable, Overloaded, StartupError, WouldJournal
from queenmq.http.forwarder import Forwarder
from queenmq.http.peer_connection import PeerAnswer
from queenmq.http.plans import LEASE, give_back, lease_header
from queenmq.http.route import Context, Route
from queenmq.http.scopes import require_permission
from queenmq.httpserver.messages import Request
from queenmq.ids import uuid7_text
from queenmq.server import Server
from queenmq.storage.failures import AnswerLost

TIMEOUT_MS = 800
RETRY_MS = 700
PATIENCE_S = 60  # for what must not wait for something that never comes
QUICK = {"coordinator": {"timeout_ms": TIMEOUT_MS, "circuit_retry_ms": RETRY_MS}}
# However slow the machine is, a peer that works is not given up, and one that has failed is not tried again by itself.
PATIENT = {"coordinator": {"timeout_ms": 60_000, "circuit_retry_ms": 600_000}}
SILENT_S = 0.8  # after which a test gives up a peer that does not answer
LONG = os.environ.get("QUEEN_LONG") == "1"
Json = dict[str, Any]
JWT_SECRET = "a secret of more than thirty-two bytes"


class Watcher:
    """A consumer at a server that audits what it gets: payloads "lane:sequence"."""

    def __init__(self, member: Member, queue: str) -> None:
        self.audit = Audit()
        self._member = member
        self._queue = queue

    async def consume(self) -> None:
        while True:
            asked_at = time.monotonic()
            answer = await self._member.pop(self._queue, wait=True, timeout=5000, consumerGroup="watch", batch=100)
            if answer.status_code == 200:
                self.audit.groups[""].received(
                    [m["data"] for m in answer.json()["messages"]], asked_at, time.monotonic()
                )
                acks = [_ack(message) for message in answer.json()["messages"]]
                body = {"consumerGroup": "watch", "acknowledgments": acks}
                results = (await self._member.http.post("/api/v1/ack/batch", json=body)).json()
                assert all(result["success"] for result in results)


@asynccontextmanager
async def watched(member: Member, queue: str, *others: Member) -> AsyncIterator[Audit]:
    """Consumers of the queue wait at `member`, and the others know it. At the end everything has arrived once."""
    watcher = Watcher(member, queue)
    task = asyncio.create_task(watcher.consume())
    try:
        await parked(member, queue)
        for other in others:
            await until(lambda other=other: other.coordinator.producer_route(queue, other.server.node.now) is not None)
        yield watcher.audit
        await until(lambda: watcher.audit.pending == 0)
        assert watcher.audit.finish() == []
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _ack(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}


async def pushed(member: Member, queue: str, audit: Audit, *, named: bool = False) -> httpx.Response:
    """Push the next message; with or without a transaction id of its own."""
    text = f"0:{audit.send(0, 1)}"
    answer = await member.push(queue, {"payload": text} | ({"transactionId": f"t{text}"} if named else {}))
    assert answer.status_code == 201
    [result] = answer.json()
    assert result["status"] == "queued"
    return answer


def fate(answer: httpx.Response) -> tuple[str | None, str | None, str | None]:
    """Who served it, who passed it on, and whether that went wrong."""
    return tuple(answer.headers.get(name) for name in ("x-served-by", "x-forwarded-by", "x-fallback"))


# Where requests are served


async def test_a_push_lands_where_its_consumers_wait_and_wakes_them_there(database_url: str) -> None:
    async with cluster(database_url) as (a, b, c), watched(b, "q", a, c) as audit:
        outbox = a.server.node.state.outbox
        told = outbox.targeted + outbox.broadcast
        for number in range(5):
            assert fate(await pushed(a, "q", audit, named=bool(number % 2))) == ("b", "a", None)
        assert fate(await pushed(b, "q", audit)) == ("b", None, None)
        assert fate(await pushed(c, "q", audit)) == ("b", "c", None)
        await until(lambda: audit.pending == 0)
        assert outbox.targeted + outbox.broadcast == told


async def test_a_push_without_consumers_or_over_several_queues_is_served_where_it_came(database_url: str) -> None:
    async with cluster(database_url, "ab") as (a, b), watched(b, "q", a) as audit:
        assert fate(await a.push("other", {})) == ("a", None, None)
        items = [{"payload": f"0:{audit.send(0, 1)}"}, {"queue": "other"}]
        assert fate(await a.push("q", *items)) == ("a", None, None)
        assert fate(await a.http.post("/api/v1/push", content=b"nonsense")) == (None, None, None)
        assert b.passed_on == 0


async def test_a_pop_goes_to_the_server_of_its_key(database_url: str) -> None:
    async with cluster(database_url, "ab") as (a, b):
        for key, path in (
            (("q", "g"), "/api/v1/pop/queue/q?consumerGroup=g"),
            (("q", "p", "g"), "/api/v1/pop/queue/q/partition/p?consumerGroup=g"),
            ((None, "n", "t", "g"), "/api/v1/pop?namespace=n&task=t&consumerGroup=g"),
        ):
            assert fate(await a.http.get(path)) == ("a", None, None)
            a.send_consumers(key, b)
            assert fate(await a.http.get(path)) == ("b", "a", None)
            assert fate(await a.http.get(path + "&autoAck=true")) == ("a", None, None)
            refused = await a.http.get(path + "&batch=nonsense")
            assert (refused.status_code, refused.json()["field"]) == (400, "batch")


async def test_messages_pass_through_as_they_are(database_url: str) -> None:
    async with cluster(database_url, "ab") as (a, b), watched(b, "q", a) as audit:
        text = f"0:{audit.send(0, 1)}"
        answer = await a.http.post(
            "/api/v1/push", content=b'{"items":[{"queue":"q","payload": "' + text.encode() + b'" ,"x":{"queue":"z"}}]}'
        )
        assert fate(answer) == ("b", "a", None)
        direct = await b.pop("q", consumerGroup="g")
        a.send_consumers(("q", "h"), b)
        passed = await a.pop("q", consumerGroup="h")
        assert fate(passed) == ("b", "a", None)
        strip = re.compile(rb'"leaseId":"[^"]*"|"consumerGroup":"."')
        assert strip.sub(b"", direct.content) == strip.sub(b"", passed.content)
        assert passed.headers["content-type"] == direct.headers["content-type"]
        assert "access-control-allow-origin" not in passed.headers


async def test_acks_and_transactions_go_to_consumers_only_if_they_name_the_queue(database_url: str) -> None:
    async with cluster(database_url, "ab") as (a, b), watched(b, "q", a) as audit:
        await pushed(a, "q", audit)
        [message] = (await a.pop("q", consumerGroup="g")).json()["messages"]
        ack = {"transactionId": message["transactionId"], "partitionId": message["partitionId"], "consumerGroup": "g"}
        fenced = ack | {"leaseId": message["leaseId"]}
        for body, served in (
            (fenced, ("a", None, None)),
            (ack, ("a", None, None)),
            (fenced | {"queue": "q"}, ("a", None, None)),
            (ack | {"queue": "q", "status": "failed"}, ("a", None, None)),
            (ack | {"queue": "q"}, ("b", "a", None)),
        ):
            assert fate(await a.http.post("/api/v1/ack", json=body)) == served
        batch = {"consumerGroup": "g", "acknowledgments": [ack]}
        assert fate(await a.http.post("/api/v1/ack/batch", json=batch)) == ("a", None, None)
        assert fate(await a.http.post("/api/v1/ack/batch", json=batch | {"queue": "q"})) == ("b", "a", None)
        only_ack = {"operations": [{"type": "ack"} | ack]}
        assert fate(await a.http.post("/api/v1/transaction", json=only_ack)) == ("a", None, None)
        item = {"queue": "q", "payload": f"0:{audit.send(0, 1)}"}
        both = {"operations": [{"type": "ack"} | ack, {"type": "push", "items": [item]}]}
        answer = await a.http.post("/api/v1/transaction", json=both)
        assert (fate(answer), answer.json()["success"]) == (("b", "a", None), True)


# Servers that misbehave


@pytest.mark.parametrize("kind", ["hangs", "refuses", "is late", "breaks", "fails", "fails after it worked"])
async def test_every_push_is_stored_once_whatever_the_peer_does(database_url: str, kind: str) -> None:
    async with cluster(database_url, "ab", **PATIENT) as (a, b), watched(b, "q", a) as audit:
        late = asyncio.Event()
        assert fate(await pushed(a, "q", audit)) == ("b", "a", None)
        if kind in ("hangs", "is late"):
            a.give_up_after(SILENT_S)
        if kind == "refuses":
            b.refuse(a)
        else:
            b.misbehave = {
                "hangs": hang,
                "is late": work_late(SILENT_S + 0.1, late),
                "breaks": work_and_break(b),
                "fails": answer_500,
                "fails after it worked": work_and_answer_500,
            }[kind]
        fates = []
        for number in range(5):
            async with asyncio.timeout(PATIENCE_S):
                fates.append(fate(await pushed(a, "q", audit, named=bool(number % 2))))
        assert fates == [("a", None, "true")] * 3 + [("a", None, None)] * 2
        assert a.circuit(b) == "open"
        if kind == "refuses":
            return
        if kind == "is late":
            await late.wait()
        b.misbehave = None
        a.give_up_after(PATIENCE_S)
        a.end_wait(b)
        assert a.circuit(b) == "half_open"
        assert fate(await pushed(a, "q", audit)) == ("b", "a", None)
        assert a.circuit(b) == "closed"


@pytest.mark.parametrize(
    "kind", ["breaks", "fails after it worked", "refuses", "has no database", "stored it and lost the answer"]
)
async def test_what_the_peer_may_have_stored_is_not_called_refused(
    database_url: str, sql: asyncpg.Connection, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeating it here fails, and only what the peer cannot have done is answered as if nothing had been kept."""

    async def overloaded(*_: object) -> Never:
        raise Overloaded("too much waits here", 1)

    async def no_database(*_: object) -> Never:
        raise DatabaseUnavailable

    async with cluster(database_url, "ab", **PATIENT) as (a, b), watched(b, "q", a) as audit:
        await pushed(a, "q", audit)
        monkeypatch.setattr(a.server.broker, "push", overloaded)
        worked = kind not in ("refuses", "has no database")
        if kind == "refuses":
            b.refuse(a)
        elif kind == "has no database":
            monkeypatch.setattr(b.server.broker, "push_unless_journalled", no_database)
        elif kind == "stored it and lost the answer":
            store = b.server.broker._pusher.lane.submit

            async def lossy(*arguments: Any) -> Never:
                await store(*arguments)
                raise AnswerLost

            monkeypatch.setattr(b.server.broker._pusher.lane, "submit", lossy)
        else:
            b.misbehave = {"breaks": work_and_break(b), "fails after it worked": work_and_answer_500}[kind]
        answer = await a.push("q", {"payload": f"0:{audit.send(0, 1)}" if worked else "nobody gets it"})
        stored = await sql.fetchval("SELECT count(*) FROM queen.messages")
    expected = (2, 503, "outcome_unknown") if worked else (1, 429, "overloaded")
    assert (stored, answer.status_code, answer.json()["code"]) == expected


async def test_a_peer_that_fails_again_is_left_alone_for_longer(database_url: str) -> None:
    async with cluster(database_url, "ab", **QUICK) as (a, b), watched(b, "q", a) as audit:
        b.misbehave = answer_500
        for _ in range(3):
            await pushed(a, "q", audit)
        opened = time.monotonic()
        await until(lambda: a.circuit(b) == "half_open")
        assert time.monotonic() - opened >= RETRY_MS / 1000 - 0.1
        assert fate(await pushed(a, "q", audit)) == ("a", None, "true")
        assert a.circuit(b) == "open"
        again = time.monotonic()
        await until(lambda: a.circuit(b) == "half_open")
        assert time.monotonic() - again >= 2 * RETRY_MS / 1000 - 0.1


async def test_the_next_best_is_tried_before_this_server(database_url: str) -> None:
    async with cluster(database_url, **PATIENT) as (a, b, c), watched(b, "q", a) as audit:
        a.server.node.state.presence.registered("c", (2**62, 1), ["q"], a.server.node.now)
        b.misbehave = answer_500
        a.coordinator.tracker.of("c").moved = 0.5
        assert fate(await pushed(a, "q", audit)) == ("c", "a", "true")
        c.misbehave = answer_500
        assert fate(await pushed(a, "q", audit)) == ("a", None, "true")


async def test_a_client_cannot_close_the_way_for_others(database_url: str) -> None:
    """Its requests fit here, but not with what is added on the way."""
    async with cluster(database_url, "ab") as (a, b), watched(b, "q", a) as audit:
        for _ in range(5):
            answer = await a.http.post(
                "/api/v1/push",
                json={"items": [{"queue": "q", "payload": f"0:{audit.send(0, 1)}"}]},
                headers={"X-Large": "x" * 50_000},
            )
            assert (answer.status_code, fate(answer)) == (201, ("a", None, "true"))
        assert fate(await pushed(a, "q", audit)) == ("b", "a", None)


@pytest.mark.parametrize("kind", ["hangs", "refuses", "breaks", "fails"])
async def test_every_pop_is_served_whatever_the_peer_does(database_url: str, kind: str) -> None:
    async with cluster(database_url, "ab", **PATIENT) as (a, b):
        for number in range(5):
            await b.push("q", {"payload": f"0:{number + 1}", "partition": f"p{number}"})
        audit = Audit()
        audit.send(0, 5)
        a.send_consumers(("other", "g"), b)
        assert fate(await a.pop("other", consumerGroup="g")) == ("b", "a", None)
        if kind == "hangs":
            a.give_up_after(SILENT_S)
        if kind == "refuses":
            b.refuse(a)
        else:
            b.misbehave = {"hangs": hang, "breaks": work_and_break(b), "fails": answer_500}[kind]
        got = []
        while len(got) < 5:
            a.send_consumers(("q", "g"), b)
            async with asyncio.timeout(PATIENCE_S):
                answer = await a.pop("q", consumerGroup="g", wait=True, timeout=300)
            assert answer.status_code == 200, "a lease was left behind"
            got += [message["data"] for message in answer.json()["messages"]]
        audit.groups[""].received(sorted(got), 0, 1)
        assert audit.finish() == []


async def test_a_pop_that_is_answered_slowly_is_waited_for(database_url: str) -> None:
    async with cluster(database_url, "ab") as (a, b), slow_way(b.server.address) as way:
        a.reach(b, way.address)
        a.send_consumers(("q", "g"), b)
        poll = asyncio.create_task(a.pop("q", consumerGroup="g", wait=True, timeout=20_000))
        await parked(b, "q")
        await b.push("q", {"payload": 1})
        await way.held.wait()
        way.free.set()
        answer = await poll
        assert (answer.status_code, fate(answer)) == (200, ("b", "a", None))
        assert (await a.pop("q", consumerGroup="g")).status_code == 204, "it is leased"


@pytest.mark.parametrize("gives_up", ["the server", "the client"])
async def test_a_pop_whose_answer_comes_too_late_gives_its_lease_back(
    database_url: str, sql: asyncpg.Connection, gives_up: str
) -> None:
    patience = {} if gives_up == "the client" else QUICK
    async with cluster(database_url, "ab", **patience) as (a, b), slow_way(b.server.address) as way:
        await b.push("q", {"payload": 1})
        a.reach(b, way.address)
        a.send_consumers(("q", "g"), b)
        poll = asyncio.create_task(a.pop("q", consumerGroup="g", wait=True, timeout=300))
        await way.held.wait()
        if gives_up == "the client":
            poll.cancel()
            await asyncio.wait([poll])
            await until(lambda: a.server.front.connections_open == 0)
        else:
            answer = await poll
            assert (answer.status_code, fate(answer)) == (204, ("a", None, "true"))
        taken = "SELECT count(*) FROM queen.partition_consumers WHERE lease_id IS NOT NULL"
        assert await sql.fetchval(taken) == 1
        way.free.set()
        again = await b.pop("q", consumerGroup="g", wait=True, timeout=20_000)
        assert (again.status_code, again.json()["messages"][0]["retryCount"]) == (200, 0)


async def test_every_ack_is_applied_once_and_answered_truly(database_url: str, sql: asyncpg.Connection) -> None:
    async with cluster(database_url, "ab", **PATIENT) as (a, b), watched(b, "q", a) as audit:
        for _ in range(3):
            await pushed(a, "q", audit)
        b.misbehave = work_and_break(b)
        [first, second, _] = (await a.pop("q", consumerGroup="g", batch=3)).json()["messages"]
        acks = [{name: message[name] for name in ("transactionId", "partitionId")} for message in (first, second)]
        for path, body in (
            ("/api/v1/ack", acks[0] | {"queue": "q", "consumerGroup": "g"}),
            ("/api/v1/ack/batch", {"acknowledgments": acks, "queue": "q", "consumerGroup": "g"}),
        ):
            answer = await a.http.post(path, json=body)
            assert fate(answer) == ("a", None, "true")
            assert all(result["success"] for result in answer.json()), answer.json()
        assert b.passed_on == 5
        position = "SELECT position FROM queen.partition_consumers WHERE consumer_group = 'g'"
        assert await sql.fetchval(position) == 2


async def test_a_dead_peer_does_not_keep_long_polls_for_long(database_url: str) -> None:
    async with cluster(database_url, "ab", cluster={"heartbeat_ms": 100, "dead_threshold_ms": 400}) as (a, b):
        a.send_consumers(("q", "g"), b)
        b.misbehave = hang
        poll = asyncio.create_task(a.pop("q", consumerGroup="g", wait=True, timeout=20_000))
        await until(lambda: b.passed_on == 1)
        b.server.node._ticker.cancel()
        b.server.node._transport.close()  # it would answer greetings
        await parked(a, "q")  # long before the poll ends
        await a.push("q", {"payload": 1})
        assert fate(await poll) == ("a", None, "true")


@pytest.mark.parametrize("kind", ["breaks", "is late", "fails after it worked"])
async def test_every_transaction_is_applied_once_and_answered_truly(
    database_url: str, sql: asyncpg.Connection, kind: str
) -> None:
    async with cluster(database_url, "ab", **PATIENT) as (a, b), watched(b, "q", a) as audit:
        late = asyncio.Event()
        b.misbehave = {
            "breaks": work_and_break(b),
            "is late": work_late(SILENT_S + 0.1, late),
            "fails after it worked": work_and_answer_500,
        }[kind]
        await a.push("source", {"payload": 1})
        [message] = (await a.pop("source", consumerGroup="g")).json()["messages"]
        operations = [
            {"type": "ack", "consumerGroup": "g"} | _ack(message),
            {"type": "push", "items": [{"queue": "q", "payload": f"0:{audit.send(0, 1)}"}]},
        ]
        body = {"operations": operations, "requiredLeases": [message["leaseId"]]}
        if kind == "is late":
            a.give_up_after(SILENT_S)
        answer = await a.http.post("/api/v1/transaction", json=body)
        assert fate(answer) == ("a", None, "true")
        done = answer.json()
        assert done["success"], done
        stored = await sql.fetchrow("SELECT id::text, transaction_id FROM queen.messages WHERE payload LIKE '\"0:%'")
        assert done["results"][1]["messageId"] == stored["id"] == stored["transaction_id"]
        if kind == "is late":
            await late.wait()
        again = (await a.http.post("/api/v1/transaction", json=body)).json()
        assert not again["success"]


# Clients that go away


async def test_a_client_that_goes_away_leaves_neither_a_poll_nor_a_lease(database_url: str) -> None:
    async with cluster(database_url, "ab") as (a, b):
        a.send_consumers(("q", "g"), b)
        host, port = a.server.address
        for _ in range(3):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /api/v1/pop/queue/q?consumerGroup=g&wait=true&timeout=20000 HTTP/1.1\r\nHost: x\r\n\r\n")
            await parked(b, "q")
            writer.close()
            await until(lambda: b.server.broker.long_polls.registry.total == 0)
        await a.push("q", {"payload": 1})
        answer = await a.pop("q", consumerGroup="g")
        assert (answer.status_code, fate(answer)) == (200, ("b", "a", None))


async def test_the_answer_to_a_forwarded_pop_names_its_lease_to_the_server_and_not_to_the_client(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(database_url, "ab") as (a, b):
        a.send_consumers(("q", "g"), b)
        seen: list[PeerAnswer] = []
        judged = Forwarder._judged

        def note(self: Forwarder, answer: PeerAnswer, *rest: Any) -> PeerAnswer | None:
            seen.append(answer)
            return judged(self, answer, *rest)

        monkeypatch.setattr(Forwarder, "_judged", note)
        await a.push("q", {"payload": 1})
        answer = await a.pop("q", consumerGroup="g")
        assert (answer.status_code, fate(answer)) == (200, ("b", "a", None))
        given = [peer.headers for peer in seen if LEASE in peer.headers]
        assert given == [seen[-1].headers]
        assert "x-queen-lease" not in answer.headers
        give_back(a.server.broker, given[0])
        again = await a.pop("q", consumerGroup="g", wait=True, timeout=5000)
        assert again.json()["leaseId"] != answer.json()["leaseId"]
        direct = await b.pop("other", consumerGroup="g")
        assert "x-queen-lease" not in direct.headers


@pytest.mark.parametrize("queue", ["q", "sales/ü 1%"])
async def test_a_lease_whose_answer_comes_for_nobody_is_given_back(database_url: str, queue: str) -> None:
    async with cluster(database_url, "ab") as (a, b):
        await a.push(queue, {"payload": 1})
        answer = await b.pop(queue, consumerGroup="g")
        give_back(a.server.broker, dict([lease_header(answer.json()["leaseId"], queue)]))
        again = await a.pop(queue, consumerGroup="g", wait=True, timeout=5000)
        assert again.status_code == 200
        assert again.json()["leaseId"] != answer.json()["leaseId"]


async def test_a_server_that_stops_ends_what_it_has_passed_on(database_url: str) -> None:
    async with cluster(database_url, "ab") as (a, b):
        a.send_consumers(("q", "g"), b)
        poll = asyncio.create_task(a.pop("q", consumerGroup="g", wait=True, timeout=20_000))
        await parked(b, "q")
        async with asyncio.timeout(PATIENCE_S):
            await a.server.front.stop(5)
            assert (await poll).status_code == 204
        await until(lambda: b.server.broker.long_polls.registry.total == 0)


# Who may pass requests on


async def test_what_was_passed_on_is_never_passed_on_again(database_url: str) -> None:
    async with cluster(database_url) as (a, b, c):
        a.send_consumers(("q", "g"), b)
        b.send_consumers(("q", "g"), c)
        c.send_consumers(("q", "g"), a)
        for first, second in ((a, "b"), (b, "c"), (c, "a")):
            assert fate(await first.pop("q", consumerGroup="g")) == (second, first.name, None)
        assert [member.passed_on for member in (a, b, c)] == [1, 1, 1]


async def test_what_a_token_is_restricted_to_goes_along(database_url: str, sql: asyncpg.Connection) -> None:
    async with cluster(database_url, "ab", auth={"enabled": True, "secret": JWT_SECRET}) as (a, b):
        claims = {"sub": "alice", "role": "read-write", "exp": time.time() + 600, "queen": {"queues": ["q*"]}}
        for member in (a, b):
            member.http.headers["Authorization"] = f"Bearer {jwt.encode(claims, JWT_SECRET)}"
        async with watched(b, "q", a) as audit:
            assert fate(await pushed(a, "q", audit)) == ("b", "a", None)
        forwarded = b.passed_on
        assert forwarded > 0
        claims["queen"] = {"queues": ["other"]}
        a.http.headers["Authorization"] = f"Bearer {jwt.encode(claims, JWT_SECRET)}"
        assert (await a.push("q", {"payload": 1})).status_code == 403
        # The other server does not rely on it.
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("queenmq.http.app.require_permission", _only_forwarded)
            answer = await a.push("q", {"payload": 1})
        assert (answer.status_code, answer.json()["error"]) == (403, "the token may not push to queue 'q'")
        assert b.passed_on > forwarded
    assert await sql.fetchval("SELECT count(*) FROM queen.messages") == 1


async def _only_forwarded(permissions: Permissions, request: Request, route: Route, context: Context) -> None:
    """As if the server that gets a request from a client did not look."""
    if request.forwarded:
        await require_permission(permissions, request, route, context)


async def test_the_callers_token_goes_along(database_url: str, sql: asyncpg.Connection) -> None:
    async with cluster(database_url, "ab", auth={"enabled": True, "secret": JWT_SECRET}) as (a, b):
        for member in (a, b):
            token = jwt.encode({"sub": "alice", "role": "admin", "exp": time.time() + 600}, JWT_SECRET)
            member.http.headers["Authorization"] = f"Bearer {token}"
        async with watched(b, "q", a) as audit:
            assert fate(await pushed(a, "q", audit)) == ("b", "a", None)
            assert await sql.fetchval("SELECT producer_sub FROM queen.messages") == "alice"
            a.http.headers["Authorization"] = "Bearer nonsense"
            assert (await a.push("q", {})).status_code == 401
            assert b.passed_on == 1


async def test_a_server_that_does_not_coordinate_gets_nothing(database_url: str) -> None:
    async with cluster(database_url, "ab") as (a, b):
        tracker = a.coordinator.tracker
        settings = b.server.node._settings
        b.server.node._settings = changed(settings, coordinator={"enabled": False})
        b.server.node.announce(b.server.address)
        await until(lambda: not tracker.usable(tracker.of("b"), a.server.node.now))
        a.send_consumers(("q", "g"), b)
        assert fate(await a.pop("q", consumerGroup="g")) == ("a", None, None)


async def test_a_server_without_coordinator_knows_nothing_of_it(http: httpx.AsyncClient) -> None:
    answer = await http.get("/internal/forward/api/v1/pop/queue/q", headers={"X-Forwarded-By": "b"})
    assert answer.status_code == 404
    assert fate(await http.get("/api/v1/pop/queue/q", headers={"X-Forwarded-By": "b"})) == (None, None, None)


async def test_a_coordinator_without_a_cluster_does_not_start(database_url: str) -> None:
    with pytest.raises(StartupError, match="QUEEN_COORDINATOR_ENABLED needs other servers"):
        Server(settings_with(coordinator={"enabled": True}), database_url)


async def test_a_worker_whose_start_is_given_up_leaves_nothing_open(database_url: str) -> None:
    """Between the listening on the shared port and the one on the worker's own."""
    settings = settings_with(coordinator={"enabled": True}, cluster={"secret": SECRET}, database={"pool_size": 2})
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind(("127.0.0.1", 0))
    server = Server(settings, database_url, Siblings(0, own, ()))
    start = asyncio.create_task(server.start())
    async with asyncio.timeout(MEET_S):
        while not server.front.is_listening:
            assert not start.done()
            await asyncio.sleep(0)
    address = server.front.address
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not (server.front.is_listening or server.database.is_open)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)


# Balance


async def test_the_balance_of_a_server_alone(server: Server, http: httpx.AsyncClient) -> None:
    answer = (await http.get("/api/v1/cluster/balance")).json()
    assert (answer["balanced"], answer["imbalance_score"], answer["coordinator_enabled"]) == (True, 0, False)
    [only] = answer["servers"]
    host, port = server.address
    assert (only["url"], only["healthy"], only["local"]) == (f"http://{host}:{port}", True, True)


async def test_consumers_of_a_group_come_together_whichever_server_they_ask(database_url: str) -> None:
    """Each of twelve groups is polled through each of three servers; a queue with so many has one server for all."""
    async with cluster(database_url, gathers=True) as members:
        few = {f"g{number}": asyncio.gather(*(_poll(m, "few", f"g{number}") for m in members)) for number in range(6)}
        for group, polls in few.items():
            assert len(set(await polls)) == 1, group
        for member in members:
            for number in range(12):
                await member.pop("many", consumerGroup=f"g{number}")
        served = await asyncio.gather(*(_poll(m, "many", f"g{number}") for m in members for number in range(12)))
        assert len(set(served)) == 1


async def _poll(member: Member, queue: str, group: str) -> str:
    """The server that answers a pop."""
    return (await member.pop(queue, consumerGroup=group)).headers["x-served-by"]


async def test_the_balance_of_a_cluster(database_url: str) -> None:
    async with cluster(database_url) as (a, b, c):
        answer = (await a.http.get("/api/v1/cluster/balance")).json()
        assert [server["server_id"] for server in answer["servers"]] == ["a", "b", "c"]
        assert [server["url"] for server in answer["servers"]] == [str(m.http.base_url) for m in (a, b, c)]
        assert all(server["healthy"] and server["circuit"] == "closed" for server in answer["servers"])
        assert answer["coordinator_enabled"]
        scraped = (await a.http.get("/metrics/prometheus")).text
    for change in answer["affinity"].keys() - {"routes"}:
        assert f'queen_affinity_changes_total{{change="{change}"}} ' in scraped


async def test_all_consumers_on_one_server(database_url: str) -> None:
    """The load spreads until it is even, and then nothing moves any more; everything arrives once."""
    keys, consumers = 60, 240
    poll_ms, heartbeat_ms = (3000, 1000) if LONG else (700, 250)
    audit = Audit()
    course = Course(least_s=60, even_s=20, most_s=60) if LONG else Course(least_s=8, even_s=4, most_s=90)
    async with processes(database_url, QUEEN_SYNC_HEARTBEAT_MS=str(heartbeat_ms)) as (a, *_):
        address = urlsplit(a)

        async def connect() -> Connection:
            return await Connection.open(address.hostname, address.port)

        async def consume(number: int, connection: Connection) -> None:
            while True:
                asked_at = time.monotonic()
                target = f"/api/v1/pop/queue/q{number % keys}?wait=true&timeout={poll_ms}&batch=10"
                status, answer = await connection.get(target)
                if status == 200:
                    messages = json.loads(answer)["messages"]
                    audit.groups[""].received([m["data"] for m in messages], asked_at, time.monotonic())
                    acks = {"acknowledgments": [_ack(message) for message in messages]}
                    assert (await connection.post(b"/api/v1/ack/batch", json.dumps(acks).encode()))[0] == 200
                else:
                    assert status == 204

        connections = [await connect() for _ in range(consumers)]
        tasks = [asyncio.create_task(consume(*pair)) for pair in enumerate(connections)]
        producer = await connect()
        try:
            while course.goes_on:
                lane = audit.sent % keys
                items = [{"queue": f"q{lane}", "payload": f"{lane}:{audit.send(lane, 1)}"}]
                assert (await producer.post(b"/api/v1/push", json.dumps({"items": items}).encode()))[0] == 201
                course.note(json.loads((await producer.get("/api/v1/cluster/balance"))[1]))
                await asyncio.sleep(0.02)
            await until(lambda: audit.pending == 0)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            for connection in (*connections, producer):
                connection.close()
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
    assert audit.finish() == []
    course.check()


class Course:
    """What the balance of a server was over time. It goes on for `least_s`, and until the last `even_s` were even, but
    not beyond `most_s`: how soon that is depends on the machine."""

    def __init__(self, *, least_s: float, even_s: float, most_s: float) -> None:
        self._began: float | None = None  # the first time that somebody asks: starting servers takes its time
        self._least_s, self._even_s, self._most_s = least_s, even_s, most_s
        self._seen: list[tuple[float, float, int]] = []
        self._last: Json = {}

    @property
    def _now_s(self) -> float:
        if self._began is None:
            self._began = time.monotonic()
        return time.monotonic() - self._began

    @property
    def goes_on(self) -> bool:
        return self._now_s < self._least_s or not (self._is_even() or self._now_s >= self._most_s)

    def note(self, balance: Json) -> None:
        moves = balance["affinity"]["migrated"] + balance["affinity"]["broken"]
        self._seen.append((self._now_s, balance["imbalance_score"], moves))
        self._last = balance

    def _is_even(self) -> bool:
        """At the end the servers are even, each has its part, and hardly anything moves."""
        late = [(score, moves) for at, score, moves in self._seen if at >= self._seen[-1][0] - self._even_s]
        return (
            max(score for score, _ in late) < BALANCED_BELOW
            and late[-1][1] - late[0][1] <= 6
            and all(server["parked_polls"] > 20 for server in self._last["servers"])
        )

    def check(self) -> None:
        if LONG:
            print(self._seen[::20], self._last)  # noqa: T201
        assert self._is_even(), (self._seen[::20], self._last)


# Outages


async def test_pushes_are_journalled_where_they_arrive_and_never_passed_on_past_them(
    database_url: str, tmp_path: Path
) -> None:
    """One producer at one server, whose peer would have journalled some of its pushes: its order holds."""
    quick = {
        "database": {"ping_ms": 50, "connection_timeout_ms": 30_000},
        "journal": {"folder": tmp_path / "journal", "replay_interval_ms": 10, "wait_ms": 50},
    }
    async with relayed(database_url) as proxy, cluster(proxy.url, "ab", **quick) as (a, b):
        to_b = a.coordinator.tracker.of("b")
        a.coordinator.producer_route = lambda queue, now, tried=(): None if tried else to_b
        pushed = []

        async def push(*served: str | None) -> Json:
            answer = await a.push("q", {"partition": "p", "transactionId": str(len(pushed)), "payload": len(pushed)})
            assert answer.status_code in (201, 202), answer.text
            assert fate(answer) == served, (len(pushed), answer.text)
            pushed.append(len(pushed))
            return answer.json()[0]

        assert (await push("b", "a", None))["status"] == "queued"
        await proxy.close()
        await until(lambda: not (a.server.database.is_open or b.server.database.is_open))
        assert (await push("a", None, "true"))["reason"] == "database_unavailable"
        assert a.circuit(b) == "closed", "the other server is well"
        for _ in range(4):
            await push("a", None, None)
        assert [member.server.broker.journal.figures().operations for member in (a, b)] == [5, 0]
        oldest = a.server.broker.journal.oldest
        a.server.broker.journal.oldest = _nothing
        await proxy.open()
        await until(lambda: a.server.database.is_open and b.server.database.is_open)
        assert (await push("a", None, None))["reason"] == "maintaining_order"
        item = {"queue": "q", "partition": "p", "payload": 0}
        past = await a.http.post("/api/v1/transaction", json={"operations": [{"type": "push", "items": [item]}]})
        assert (past.status_code, fate(past)[0]) == (503, None)
        elsewhere = await a.push("q", {"partition": "another", "payload": 0})
        assert (elsewhere.status_code, fate(elsewhere)) == (201, ("b", "a", None))
        a.server.broker.journal.oldest = oldest
        await until(lambda: not a.server.broker.journal.pending)
        assert (await push("b", "a", None))["status"] == "queued"
        answer = await b.http.get("/api/v1/pop/queue/q/partition/p", params={"batch": 100, "autoAck": "true"})
        assert [message["data"] for message in answer.json()["messages"]] == pushed


async def _nothing(*_: object) -> list[object]:
    return []


async def test_a_push_of_a_partition_that_the_other_server_has_journalled_is_served_here(
    database_url: str, tmp_path: Path
) -> None:
    """The two have different producers: nobody promises an order between them, and nobody waits for the other."""
    journal = {"folder": tmp_path / "journal", "replay_interval_ms": 10}
    async with cluster(database_url, "ab", journal=journal) as (a, b):
        b.server.broker.journal.oldest = _nothing
        await b.server.broker.journal.put([Message("q", "p", b"1", uuid7_text(), "1")])
        to_b = a.coordinator.tracker.of("b")
        a.coordinator.producer_route = lambda queue, now, tried=(): None if tried else to_b
        answer = await a.push("q", {"partition": "p", "payload": 2})
        assert (answer.status_code, fate(answer)) == (201, ("a", None, "true"))


async def test_nothing_is_kept_of_a_push_that_the_other_server_would_refuse(
    database_url: str, sql: asyncpg.Connection
) -> None:
    """It has items for later, of which it would make timers before."""
    async with cluster(database_url, "ab", journal={"folder": None}) as (a, b):
        to_b = a.coordinator.tracker.of("b")
        a.coordinator.producer_route = lambda queue, now, tried=(): None if tried else to_b
        await b.http.post("/api/v1/system/maintenance", json={"enabled": True})
        await until(lambda: not a.server.broker.maintenance.switches.pushes_allowed)
        answer = await a.push("q", {"payload": "later", "delay": 3600}, {"payload": "now"})
        assert (answer.status_code, answer.json()["code"]) == (503, "maintenance")
        assert await sql.fetchval("SELECT count(*) FROM queen.timers") == 0


async def test_timers_that_the_other_server_has_made_are_not_called_refused(
    database_url: str, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database went away there before the rest was stored, and here nothing can be stored either."""

    async def would_journal(*_: object) -> Never:
        raise WouldJournal

    async def overloaded(*_: object) -> Never:
        raise Overloaded("too much waits here", 1)

    async with cluster(database_url, "ab", journal={"folder": None}) as (a, b):
        to_b = a.coordinator.tracker.of("b")
        a.coordinator.producer_route = lambda queue, now, tried=(): None if tried else to_b
        monkeypatch.setattr(b.server.broker, "push_unless_journalled", would_journal)
        monkeypatch.setattr(a.server.broker, "check_pushes", lambda: None)
        monkeypatch.setattr(a.server.broker.timers, "change", overloaded)
        answer = await a.push("q", {"payload": "later", "delay": 3600}, {"payload": "now"})
        assert await sql.fetchval("SELECT count(*) FROM queen.timers") == 1
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
