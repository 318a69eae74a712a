"""The audit log: who did what, when, from where, and with which outcome."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import asyncpg
import httpx
import jwt
import pytest
from server_settings import changed, settings_with

from integration.queen import Queen
from queenmq.access.audit import MOST_CHANGES_OF_ONE, MOST_WAITING, AuditLog
from queenmq.access.counted import MOST_KINDS, MOST_KINDS_OF_ONE, OTHERS
from queenmq.access.entry import entry
from queenmq.config import Settings
from queenmq.errors import DatabaseUnavailable
from queenmq.http.app import ROUTES
from queenmq.http.roles import Role
from queenmq.server import Server

SECRET = "a secret of more than thirty-two bytes"
# What changes nothing, or is the daily work of producers and consumers.
NOT_AUDITED = {
    "/api/v1/kv",
    "/api/v1/locks",
    "/api/v1/push",
    "/api/v1/ack",
    "/api/v1/ack/batch",
    "/api/v1/transaction",
    "/api/v1/lease/{leaseId}/extend",
    "/api/v1/lease/{leaseId}/finish",
    "/api/v1/traces",
    "/api/v1/schemas/{queue}/check",
    "/api/v1/stats/refresh",
    "/api/v1/fetch",
    "/api/v1/timers",
    "/api/v1/timers/{queue}/{timerKey...}",
    "/internal/api/notify",
    "/streams/v1/state/get",
    "/streams/v1/cycle",
}

Json = dict[str, Any]


@pytest.fixture
def settings() -> Settings:
    return settings_with(
        auth={"enabled": True, "secret": SECRET}, operations={"interval_ms": 3_600_000, "step": 2, "wait_ms": 1}
    )


def bearer(subject: str = "alice", role: str = "admin", **claims: Any) -> dict[str, str]:
    signed = jwt.encode({"sub": subject, "role": role, "exp": time.time() + 600} | claims, SECRET, "HS256")
    return {"Authorization": f"Bearer {signed}"}


@pytest.fixture
def admin(http: httpx.AsyncClient) -> httpx.AsyncClient:
    http.headers.update(bearer())
    return http


async def entries(admin: httpx.AsyncClient, **params: Any) -> list[Json]:
    answer = await admin.get("/api/v1/audit", params=params, headers=bearer())
    assert answer.status_code == 200, answer.text
    return answer.json()["entries"]


def test_everything_that_changes_something_is_audited() -> None:
    quiet = {route.path for route in ROUTES if not route.audited and route.method != "GET"}
    assert quiet == NOT_AUDITED
    assert not [route for route in ROUTES if route.audited and (route.method == "GET" or route.forwarding)]


async def test_an_entry_says_who_what_when_from_where_and_the_outcome(admin: httpx.AsyncClient) -> None:
    body = {"queue": "orders", "options": {"leaseTime": 9}}
    await admin.post("/api/v1/configure", json=body, headers={"X-Forwarded-For": "192.0.2.7"})
    await Queen(admin).push("orders", 1)
    await admin.delete("/api/v1/resources/queues/orders?x=1", headers=bearer("bob"))
    deleted, configured = await entries(admin)
    assert (configured["subject"], configured["role"], configured["status"]) == ("alice", "admin", 200)
    assert configured["action"] == "POST /api/v1/configure"
    assert json.loads(configured["detail"]) == body
    assert (configured["address"], configured["forwardedFor"]) == ("127.0.0.1", "192.0.2.7")
    assert configured["at"] == configured["until"]
    assert (deleted["subject"], deleted["action"]) == ("bob", "DELETE /api/v1/resources/queues/{queue}")
    assert deleted["target"] == "/api/v1/resources/queues/orders?x=1"
    assert [one["subject"] for one in await entries(admin, action="delete")] == ["bob"]
    assert await entries(admin, subject="nobody") == []
    assert await entries(admin, to="2020-01-01T00:00:00Z") == []


async def test_pushes_pops_and_acks_leave_nothing(admin: httpx.AsyncClient) -> None:
    queen = Queen(admin)
    await queen.push("q", 1)
    [message] = await queen.pop("q")
    await queen.ack(message)
    assert await entries(admin) == []


async def test_a_refused_change_is_in_it_with_its_reason(admin: httpx.AsyncClient) -> None:
    await Queen(admin).configure("q", ttl=60)
    body = {"queue": "q", "options": {"ttl": 1}}
    await admin.post("/api/v1/configure", json=body, headers=bearer("mallory", "read-write"))
    await admin.post("/api/v1/configure", content=b"{", headers=bearer("mallory", "read-write"))
    malformed, refused, _ = await entries(admin)
    assert (refused["subject"], refused["status"], refused["role"]) == ("mallory", 403, "read-write")
    assert "needs the role admin" in refused["error"]
    assert malformed["status"] == 400


async def test_refusals_are_counted_and_written_together(admin: httpx.AsyncClient, server: Server) -> None:
    for _ in range(50):
        assert (await admin.post("/api/v1/push", headers={"Authorization": "Bearer x"})).status_code == 401
    for _ in range(3):
        answer = await admin.delete("/api/v1/resources/queues/q", headers=bearer("mallory", "read-write"))
        assert answer.status_code == 403
    restricted = bearer("carol", "read-write", queen={"queues": ["a"]})
    assert (await admin.post("/api/v1/push", json={"items": [{"queue": "b"}]}, headers=restricted)).status_code == 403
    assert await entries(admin) == []
    await server._audit.flush()
    found = {(one["status"], one["subject"]): one for one in await entries(admin)}
    assert {key: one["count"] for key, one in found.items()} == {
        (401, None): 50,
        (403, "mallory"): 3,
        (403, "carol"): 1,
    }
    assert found[401, None]["error"] == "Malformed token"
    assert found[401, None]["at"] < found[401, None]["until"]
    assert found[403, "carol"]["error"] == "the token may not push to queue 'b'"


async def test_nobody_can_fill_it_with_refusals(admin: httpx.AsyncClient, server: Server) -> None:
    for number in range(MOST_KINDS + 30):
        headers = bearer(f"mallory {number}", "read-only")
        assert (await admin.delete("/api/v1/resources/queues/q", headers=headers)).status_code == 403
    await server._audit.flush()
    found = await entries(admin, limit=1000)
    assert len(found) == MOST_KINDS + 1
    [rest] = [one for one in found if one["action"] == OTHERS]
    assert (rest["count"], rest["subject"], rest["address"]) == (30, None, OTHERS)


async def test_nobody_hides_behind_many_refusals(admin: httpx.AsyncClient, server: Server) -> None:
    guarded = [one for one in ROUTES if one.method == "GET" and one.role is not Role.PUBLIC and "{" not in one.path]
    paths = [one.path for one in guarded if one.path.startswith("/api/")]
    assert len(paths) > MOST_KINDS_OF_ONE
    for path in paths:
        await admin.get(path, headers={"Authorization": "Bearer x"})
    for number in range(MOST_KINDS + 1):  # as if from as many addresses
        server._audit.refused(entry(f"GET /{number}", 401, address=f"192.0.2.{number}"))
    restricted = bearer("carol", "read-write", queen={"queues": ["a"]})
    assert (await admin.post("/api/v1/push", json={"items": [{"queue": "b"}]}, headers=restricted)).status_code == 403
    await server._audit.flush()
    found = await entries(admin, limit=1000)
    assert [one["subject"] for one in found if one["status"] == 403] == ["carol"]
    own = [one for one in found if one["address"] == "127.0.0.1" and one["status"] == 401]
    assert len(own) == MOST_KINDS_OF_ONE + 1
    assert sum(one["count"] for one in own) == len(paths), own


async def test_nobody_can_fill_it_with_changes(
    admin: httpx.AsyncClient, server: Server, sql: asyncpg.Connection
) -> None:
    for number in range(MOST_CHANGES_OF_ONE + 40):
        body = {"queue": "q", "options": {"leaseTime": 10 + number}}
        answer = await admin.post("/api/v1/configure", json=body, headers=bearer("mallory", "read-write"))
        assert answer.status_code == 200
    await admin.post("/api/v1/configure", json={"queue": "q"}, headers=bearer("carol", "read-write"))
    await Queen(admin).configure("q")
    assert len(await entries(admin, limit=1000)) == MOST_CHANGES_OF_ONE + 2, "others have their own"
    await server._audit.flush()
    found = await entries(admin, limit=1000, subject="mallory")
    assert (len(found), found[0]["count"]) == (MOST_CHANGES_OF_ONE + 1, 40)


async def test_an_operation_has_its_subject_also_without_a_row(
    admin: httpx.AsyncClient, server: Server, sql: asyncpg.Connection
) -> None:
    insert = (
        "INSERT INTO queen.operation_queue (id, kind, queue_name) VALUES (gen_random_uuid(), 'seek', 'q') RETURNING id"
    )
    for _ in range(MOST_CHANGES_OF_ONE + 2):
        number = str(await sql.fetchval(insert))
        await server._audit.write(entry("POST", 202, subject="mallory", role="read-write", operation_id=number))
    await server._audit.flush()
    assert (
        await sql.fetchval("SELECT count(*) FROM queen.operation_queue WHERE subject IS DISTINCT FROM 'mallory'") == 0
    )


async def test_what_administrators_did_is_not_displaced(
    admin: httpx.AsyncClient, server: Server, sql: asyncpg.Connection
) -> None:
    few = changed(server._settings, audit={"max_rows": 5})
    audit = AuditLog(server.database, few.audit, "test")
    for number in range(7):
        await audit.write(entry(f"admin {number}", 200, subject="alice", role="admin"))
    for number in range(30):
        await audit.write(entry(f"other {number}", 200, subject=f"mallory {number}", role="read-write"))
    await audit.forget()
    actions = [one["action"] for one in await entries(admin)]
    assert actions == [f"other {n}" for n in (29, 28, 27, 26, 25)] + [f"admin {n}" for n in (6, 5, 4, 3, 2)]


async def test_what_waits_for_the_database_keeps_what_administrators_did(server: Server) -> None:
    audit = AuditLog(server.database, server._settings.audit, "test")
    audit._keep([entry("important", 200, role="admin")])
    audit._keep([entry("noise", 401) for _ in range(MOST_WAITING + 5)])
    assert len(audit._waiting) == MOST_WAITING
    assert audit.lost == 6
    assert [one.action for one in audit._waiting if one.is_administrative] == ["important"]


async def test_old_entries_and_too_many_are_deleted(
    admin: httpx.AsyncClient, server: Server, sql: asyncpg.Connection
) -> None:
    for number in range(3):
        await Queen(admin).configure(f"q{number}")
    await sql.execute("UPDATE queen.audit_log SET at = at - interval '91 days' WHERE detail LIKE '%q0%'")
    await server._audit.forget()
    assert len(await entries(admin)) == 2


async def test_what_cannot_be_written_now_is_written_later(
    admin: httpx.AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise DatabaseUnavailable

    with monkeypatch.context() as patched:
        patched.setattr(server._audit, "_insert", away)
        await Queen(admin).configure("q")
    assert await entries(admin) == []
    await server._audit.flush()
    assert [one["action"] for one in await entries(admin)] == ["POST /api/v1/configure"]


async def test_tokens_are_named_by_their_ids_and_their_making_is_in_it(admin: httpx.AsyncClient) -> None:
    made = (await admin.post("/api/v1/tokens", json={"name": "shop", "role": "admin", "expiresInSeconds": 60})).json()
    await admin.post("/api/v1/configure", json={"queue": "q"}, headers={"Authorization": f"Bearer {made['token']}"})
    await admin.delete(f"/api/v1/tokens/{made['id']}")
    revoked, configured, created = await entries(admin)
    assert (created["action"], created["subject"]) == ("POST /api/v1/tokens", "alice")
    assert (configured["subject"], configured["tokenId"]) == ("shop", made["id"])
    assert revoked["target"] == f"/api/v1/tokens/{made['id']}"
    assert made["token"] not in str([revoked, configured, created])


async def test_an_operation_says_who_has_begun_it(
    admin: httpx.AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.broker.operation_runner, "_has_room", lambda: False)
    for number in range(10):
        await Queen(admin).push("q", number, partition=f"p{number}")
    answer = await admin.post("/api/v1/consumer-groups/g/queues/q/seek", json={"toEnd": True}, headers=bearer("dave"))
    assert answer.status_code == 202
    operation = (await admin.get(f"/api/v1/operations/{answer.json()['operationId']}")).json()
    assert operation["subject"] == "dave"
    assert (await entries(admin, action="seek"))[0]["operationId"] == answer.json()["operationId"]


class TestLog:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(audit={"log": True})

    async def test_entries_are_lines_of_json(self, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "queenmq.audit"):
            await Queen(http).configure("q")
        [line] = [json.loads(record.getMessage()) for record in caplog.records if record.name == "queenmq.audit"]
        assert (line["action"], line["status"], line["role"]) == ("POST /api/v1/configure", 200, "admin")


class TestSwitchedOff:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(audit={"enabled": False})

    async def test_nothing_is_recorded(self, http: httpx.AsyncClient) -> None:
        await Queen(http).configure("q")
        assert await entries(http) == []
