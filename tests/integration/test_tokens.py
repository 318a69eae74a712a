"""Tokens that Queen makes: shown once, stored as digests, accepted until they expire or are revoked."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest
from server_settings import changed, settings_with

from integration.queen import Queen, parked, until
from queenmq.access.permissions import Grant
from queenmq.access.tokens import NewToken, Token, Tokens, digest_of
from queenmq.clock import ManualClock
from queenmq.config import AuthSettings, Settings
from queenmq.errors import DatabaseUnavailable, Unauthenticated
from queenmq.http.auth import REMEMBER_OWN_S, Authenticator
from queenmq.http.roles import Role
from queenmq.server import Server

Json = dict[str, Any]


@pytest.fixture
def settings() -> Settings:
    return settings_with(auth={"tokens_enabled": True})


@pytest.fixture
async def admin(server: Server, http: httpx.AsyncClient) -> httpx.AsyncClient:
    """A client with the first token, which is made in the database."""
    _, text = await Tokens(server.database).create(NewToken(name="root", role="admin"), None)
    http.headers["Authorization"] = f"Bearer {text}"
    return http


async def made(admin: httpx.AsyncClient, name: str = "shop", role: str = "read-write", **wanted: Any) -> Json:
    answer = await admin.post("/api/v1/tokens", json={"name": name, "role": role, **wanted})
    assert answer.status_code == 201, answer.text
    return answer.json()


def bearer(token: Json) -> dict[str, str]:
    return {"Authorization": f"Bearer {token['token']}"}


async def test_without_one_nobody_gets_in(http: httpx.AsyncClient) -> None:
    for headers in ({}, {"Authorization": "Bearer queen_" + "x" * 43}, {"Authorization": "Bearer a.b.c"}):
        answer = await http.get("/api/v1/resources/queues", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


async def test_a_token_is_shown_once_and_stored_as_a_digest(admin: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    answer = await admin.post("/api/v1/tokens", json={"name": "shop", "role": "read-write"})
    token = answer.json()
    text = token["token"]
    assert answer.headers["cache-control"] == "no-store"
    assert text.startswith("queen_")
    assert len(text) == len("queen_") + 43, "256 bits"
    stored = await sql.fetchrow("SELECT * FROM queen.tokens WHERE name = 'shop'")
    assert stored is not None
    assert stored["digest"] == hashlib.sha256(text.encode()).digest()
    assert not any(text in str(value) for value in stored.values())
    listed = (await admin.get("/api/v1/tokens")).json()["tokens"]
    assert [one["name"] for one in listed] == ["shop", "root"]
    assert listed[0] == {key: value for key, value in token.items() if key != "token"}
    assert (listed[0]["createdBy"], listed[0]["valid"], listed[0]["expiresAt"]) == ("root", True, None)


async def test_a_message_has_the_name_of_the_token_as_its_producer(admin: httpx.AsyncClient) -> None:
    token = await made(admin)
    await admin.post("/api/v1/push", json={"items": [{"queue": "q"}]}, headers=bearer(token))
    [message] = await Queen(admin).pop("q")
    assert message["producerSub"] == "shop"


async def test_a_role_is_kept(admin: httpx.AsyncClient) -> None:
    token = await made(admin, role="read-only")
    assert (await admin.get("/api/v1/resources/queues", headers=bearer(token))).status_code == 200
    push = await admin.post("/api/v1/push", json={"items": []}, headers=bearer(token))
    assert (push.status_code, push.json()["error"]) == (403, "Insufficient permissions")
    assert (await admin.post("/api/v1/tokens", json={}, headers=bearer(token))).status_code == 403


async def test_a_token_expires(admin: httpx.AsyncClient, sql: asyncpg.Connection, server: Server) -> None:
    token = await made(admin, expiresInSeconds=600)
    assert (await admin.get("/api/v1/session", headers=bearer(token))).json()["subject"] == "shop"
    await sql.execute("UPDATE queen.tokens SET expires_at = clock_timestamp() WHERE name = 'shop'")
    server._app._authenticator.revoked("")  # as if it had been remembered long enough
    answer = await admin.get("/api/v1/session", headers=bearer(token))
    assert (answer.status_code, answer.json()["error"]) == (401, "Token expired")


def forgotten(server: Server, token: Json) -> bool:
    digest = digest_of(token["token"].encode())
    return digest not in server._app._authenticator._remembered


async def test_a_revoked_token_is_refused_at_once_on_every_server(
    admin: httpx.AsyncClient, server: Server, database_url: str, settings: Settings
) -> None:
    token = await made(admin)
    other = Server(changed(settings, server={"worker_id": "other"}), database_url)
    await other.start()
    try:
        await until(lambda: other.database.is_listening and server.database.is_listening)
        host, port = other.address
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", headers=bearer(token)) as there:
            assert (await there.get("/api/v1/session")).status_code == 200
            assert (await admin.get("/api/v1/session", headers=bearer(token))).status_code == 200
            revoked = await admin.delete(f"/api/v1/tokens/{token['id']}")
            assert revoked.json()["valid"] is False
            # The clock of neither server moves by as much as tokens are remembered.
            await until(lambda: forgotten(other, token) and forgotten(server, token), REMEMBER_OWN_S / 2)
            for answer in (
                await there.get("/api/v1/session"),
                await admin.get("/api/v1/session", headers=bearer(token)),
            ):
                assert (answer.status_code, answer.json()["error"]) == (401, "Token revoked")
    finally:
        await other.stop()
    again = await admin.delete(f"/api/v1/tokens/{token['id']}")
    assert again.json()["revokedAt"] == revoked.json()["revokedAt"]


async def test_a_live_stream_ends_with_its_token(admin: httpx.AsyncClient, server: Server) -> None:
    token = await made(admin, role="read-only")
    await until(lambda: server.database.is_listening)
    headers = bearer(token) | {"Accept": "text/event-stream"}
    async with asyncio.timeout(30), admin.stream("GET", "/api/v1/live", headers=headers) as stream:
        lines = stream.aiter_lines()
        assert (await anext(lines)).startswith("id: ")
        await admin.delete(f"/api/v1/tokens/{token['id']}")
        async for _ in lines:
            pass  # until it ends; by itself it would go on for ten minutes


async def test_a_long_poll_ends_with_its_token(admin: httpx.AsyncClient, server: Server) -> None:
    token, other = await made(admin), await made(admin, "other")
    await until(lambda: server.database.is_listening)

    async def wait(who: Json, **more: str) -> httpx.Response:
        params = {"wait": "true", "timeout": "60000"} | more
        return await admin.get("/api/v1/pop/queue/q", params=params, headers=bearer(who))

    polls = [asyncio.create_task(wait(token)) for _ in range(3)]
    staying = asyncio.create_task(wait(other))
    await until(lambda: server.broker.long_polls.registry.total == 4)
    await admin.delete(f"/api/v1/tokens/{token['id']}")
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*polls)
    assert [(answer.status_code, answer.json()["error"]) for answer in answers] == [(401, "Token revoked")] * 3
    await until(lambda: server.broker.long_polls.registry.total == 1)
    await Queen(admin).push("q", 1)
    async with asyncio.timeout(30):
        answer = await staying
    assert [message["data"] for message in answer.json()["messages"]] == [1], "others wait on and get everything"
    assert len(server._app._polls) == 0


async def test_a_long_poll_ends_when_its_token_expires(admin: httpx.AsyncClient, server: Server) -> None:
    token = await made(admin, expiresInSeconds=2)
    params = {"wait": "true", "timeout": "60000"}
    lease = {"take": {"queue": "q", "wait": True, "timeout": 60000}}
    async with asyncio.timeout(30):
        polled, taken = await asyncio.gather(
            admin.get("/api/v1/pop/queue/q", params=params, headers=bearer(token)),
            admin.post("/api/v1/lease/00000000-0000-4000-8000-000000000000/finish", json=lease, headers=bearer(token)),
        )
    assert (polled.status_code, taken.json()["taken"]) == (204, None)
    await Queen(admin).push("q", 1)
    assert (await admin.get("/api/v1/pop/queue/q", headers=bearer(token))).status_code == 401


async def test_a_finish_that_waits_for_the_next_messages_ends_with_its_token(
    admin: httpx.AsyncClient, server: Server
) -> None:
    token = await made(admin)
    await until(lambda: server.database.is_listening)
    await Queen(admin).push("q", 1)
    for if_finished in (False, True):
        if if_finished:
            token = await made(admin, "another")
            await Queen(admin).push("q", 2)
        [popped] = await Queen(admin).pop("q")
        take = {"queue": "q", "wait": True, "timeout": 60_000, "ifFinished": if_finished}
        finish = admin.post(f"/api/v1/lease/{popped['leaseId']}/finish", json={"take": take}, headers=bearer(token))
        waiting = asyncio.create_task(finish)
        await until(lambda: server.broker.long_polls.registry.total == 1)
        await admin.delete(f"/api/v1/tokens/{token['id']}")
        async with asyncio.timeout(30):
            answer = await waiting
        assert (answer.status_code, answer.json()["error"]) == (401, "Token revoked")
        assert await Queen(admin).pop("q") == [], "what was finished stays finished"
    assert len(server._app._polls) == 0


async def test_a_large_body_does_not_outlive_its_token(admin: httpx.AsyncClient, server: Server) -> None:
    token = await made(admin)
    await until(lambda: server.database.is_listening)
    begun = asyncio.Event()
    go_on = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"items":[{"queue":"late","payload":"' + b"x" * 100_000
        begun.set()
        await go_on.wait()
        yield b'"}]}'

    pushing = asyncio.create_task(admin.post("/api/v1/push", content=body(), headers=bearer(token)))
    await begun.wait()
    await until(lambda: server.front.bodies.reserved > 0)
    await admin.delete(f"/api/v1/tokens/{token['id']}")
    await until(lambda: forgotten(server, token))
    go_on.set()
    answer = await pushing
    assert (answer.status_code, answer.json()["error"]) == (401, "Token revoked")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"role": "admin"}, "name is required"),
        ({"name": "", "role": "admin"}, "name must not be empty"),
        ({"name": "x"}, "role must be read-only, read-write or admin"),
        ({"name": "x", "role": "root"}, "role must be read-only, read-write or admin"),
        ({"name": "x", "role": "admin", "expiresInSeconds": 0}, "expiresInSeconds"),
        ({"name": "x", "role": "admin", "queues": ["a"]}, "queues"),
        ({"name": "x", "role": "admin", "grants": [{"queue": "a"}]}, "grants"),
        ({"name": "x", "role": "admin", "grants": [{"queues": [""]}]}, "grants[0].queues[0] must not be empty"),
        ({"name": "x", "role": "admin", "grants": [{"allow": ["everything"]}]}, "grants"),
        ({"name": "x", "role": "admin", "grants": []}, "grants"),
        ({"name": "x", "role": "admin", "grants": [{"queues": []}]}, "grants"),
        ({"name": "x", "role": "admin", "grants": [{"queues": ["q"], "groups": []}]}, "grants"),
        ({"name": "x", "role": "admin", "grants": [{"allow": []}]}, "grants"),
    ],
)
async def test_bad_input(admin: httpx.AsyncClient, body: Json, error: str) -> None:
    answer = await admin.post("/api/v1/tokens", json=body)
    assert answer.status_code == 400
    assert error in answer.json()["error"] + str(answer.json().get("field"))


async def test_tokens_that_are_not_there(admin: httpx.AsyncClient) -> None:
    assert (await admin.delete("/api/v1/tokens/nonsense")).status_code == 400
    assert (await admin.delete("/api/v1/tokens/00000000-0000-4000-8000-000000000000")).status_code == 404


# Who may make them


@pytest.mark.parametrize(
    "restricted",
    [
        {"grants": [{"allow": ["administer"]}]},
        {"grants": [{"groups": ["g"]}]},
        {"grants": [{}]},
        {"limits": {"requestsPerSecond": 1000}},
    ],
)
async def test_no_token_makes_itself_a_stronger_one(admin: httpx.AsyncClient, restricted: Json) -> None:
    weak = await made(admin, "weak", "admin", **restricted)
    wanted = {"name": "strong", "role": "admin"}
    for answer in (
        await admin.post("/api/v1/tokens", json=wanted, headers=bearer(weak)),
        await admin.delete(f"/api/v1/tokens/{weak['id']}", headers=bearer(weak)),
        await admin.get("/api/v1/audit", headers=bearer(weak)),
    ):
        assert answer.status_code == 403, answer.text
    assert [one["name"] for one in (await admin.get("/api/v1/tokens")).json()["tokens"]] == ["weak", "root"]


async def test_no_token_outlives_the_one_that_made_it(admin: httpx.AsyncClient) -> None:
    short = await made(admin, "short", "admin", expiresInSeconds=600)

    async def make(**wanted: int) -> httpx.Response:
        body = {"name": "next", "role": "admin", **wanted}
        return await admin.post("/api/v1/tokens", json=body, headers=bearer(short))

    for answer in (await make(), await make(expiresInSeconds=700)):
        assert answer.status_code == 403
        assert "expiresInSeconds must be at most" in answer.json()["error"]
    assert (await make(expiresInSeconds=500)).status_code == 201


# How long they are remembered


class Table:
    """Tokens that can be changed behind the back of an authenticator."""

    def __init__(self) -> None:
        self.tokens: dict[bytes, Token] = {}
        self.lookups = 0
        self.away = False
        self.slow = False
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()

    @property
    def is_away(self) -> bool:
        return self.away

    async def find(self, digest: bytes) -> Token | None:
        self.lookups += 1
        if self.away or self.slow:
            raise DatabaseUnavailable
        found = self.tokens.get(digest)
        self.asked.set()
        await self.answers.wait()
        return found

    def put(self, text: bytes, *, is_valid: bool = True, **changes: Any) -> None:
        self.tokens[digest_of(text)] = Token(
            **{
                "id": "00000000-0000-4000-8000-000000000000",
                "name": "shop",
                "role": Role.READ_WRITE,
                "grants": (Grant(queues=("q",)),),
                "created_at": None,
                "created_by": None,
                "expires_at": None,
                "revoked_at": None,
                "last_used_at": None,
            }
            | changes,
            is_valid=is_valid,
        )


@pytest.fixture
async def table() -> AsyncIterator[Table]:
    yield Table()


def guard(table: Table, clock: ManualClock) -> Authenticator:
    return Authenticator.from_settings(AuthSettings(tokens_enabled=True), clock, table)


async def enters(authenticator: Authenticator, text: bytes = b"queen_one") -> bool:
    try:
        await authenticator.authenticate("/api/v1/push", b"Bearer " + text, Role.READ_WRITE)
    except Unauthenticated:
        return False
    return True


async def test_a_token_is_looked_up_once_in_a_while(table: Table) -> None:
    clock = ManualClock()
    authenticator = guard(table, clock)
    table.put(b"queen_one")
    for _ in range(3):
        assert await enters(authenticator)
    assert table.lookups == 1
    table.put(b"queen_one", is_valid=False)
    assert await enters(authenticator), "not known yet"
    clock.advance(REMEMBER_OWN_S)
    assert not await enters(authenticator)
    assert table.lookups == 2


async def test_while_the_database_is_away_known_tokens_go_on(table: Table) -> None:
    clock = ManualClock()
    authenticator = guard(table, clock)
    table.put(b"queen_one")
    assert await enters(authenticator)
    table.away = True
    for _ in range(5):
        clock.advance(REMEMBER_OWN_S)
        assert await enters(authenticator)
    with pytest.raises(DatabaseUnavailable):
        await enters(authenticator, b"queen_two")
    table.away = False
    table.put(b"queen_one", is_valid=False)
    clock.advance(REMEMBER_OWN_S)
    assert not await enters(authenticator)


async def test_while_the_database_is_slow_no_token_gets_older_than_promised(table: Table) -> None:
    clock = ManualClock()
    authenticator = guard(table, clock)
    table.put(b"queen_one")
    assert await enters(authenticator)
    table.slow = True
    assert await enters(authenticator), "not yet"
    clock.advance(REMEMBER_OWN_S)
    for _ in range(3):
        with pytest.raises(DatabaseUnavailable):
            await enters(authenticator)
    table.slow = False
    assert await enters(authenticator)


@pytest.mark.parametrize("known", [False, True])
async def test_a_revocation_during_a_lookup_is_not_forgotten(table: Table, known: bool) -> None:
    clock = ManualClock()
    authenticator = guard(table, clock)
    table.put(b"queen_one")
    if known:
        assert await enters(authenticator)
        clock.advance(REMEMBER_OWN_S)
    table.asked.clear()
    table.answers.clear()
    entering = asyncio.create_task(enters(authenticator))
    await table.asked.wait()
    table.put(b"queen_one", is_valid=False)
    authenticator.revoked("")
    table.answers.set()
    await entering
    assert not await enters(authenticator)


async def test_tokens_that_somebody_makes_up_are_looked_up_once(table: Table) -> None:
    clock = ManualClock()
    authenticator = guard(table, clock)
    for _ in range(10):
        assert not await enters(authenticator, b"queen_made_up")
    assert table.lookups == 1
    for _ in range(10):
        assert not await enters(authenticator, b"made.up.jwt")
    assert table.lookups == 1


async def test_a_token_is_remembered_once_however_it_is_written(table: Table) -> None:
    authenticator = guard(table, ManualClock())
    table.put(b"queen_one")
    for spelling in (b"Bearer queen_one", b"bearer  queen_one", b"BEARER    queen_one ", b"queen_one"):
        caller = await authenticator.authenticate("/api/v1/push", spelling, Role.READ_WRITE)
        assert authenticator.remembered(spelling) == caller
    assert (authenticator.remembered_tokens, table.lookups) == (1, 1)
    assert authenticator.remembered(b"Basic a b") is None


async def test_too_many_items_are_not_asked_about_one_by_one(admin: httpx.AsyncClient, settings: Settings) -> None:
    token = await made(admin, grants=[{"queues": ["mine"]}])
    many = range(settings.limits.max_items + 1)
    for path, body in (
        ("push", {"items": [{"queue": f"q{number}"} for number in many]}),
        ("timers", {"operations": [{"op": "cancel", "queue": f"q{n}", "timerKey": "k"} for n in many]}),
    ):
        answer = await admin.post(f"/api/v1/{path}", json=body, headers=bearer(token))
        assert "at most" in answer.json()["error"], answer.text


async def test_a_lease_is_finished_and_the_next_taken_only_where_both_are_allowed(admin: httpx.AsyncClient) -> None:
    queen = Queen(admin)
    for queue in ("mine", "theirs"):
        await queen.push(queue, 1, 2)
    token = await made(admin, grants=[{"queues": ["mine"], "allow": ["pop", "ack"]}])
    mine, theirs = await queen.pop_answer("mine"), await queen.pop_answer("theirs")

    async def finish(lease: Json, queue: str) -> int:
        path = f"/api/v1/lease/{lease['leaseId']}/finish"
        return (await admin.post(path, json={"take": {"queue": queue}}, headers=bearer(token))).status_code

    assert [await finish(mine, "theirs"), await finish(theirs, "mine"), await finish(mine, "mine")] == [403, 403, 200]
    assert (await queen.finish(theirs["leaseId"]))["success"], "what is forbidden changes nothing"


# How much may be asked for with them


async def test_a_token_has_its_share_of_messages_and_requests(admin: httpx.AsyncClient) -> None:
    token = await made(admin, limits={"messagesPerSecond": 5, "requestsPerSecond": 1000})
    assert token["limits"] == {"messagesPerSecond": 5, "requestsPerSecond": 1000}
    push = {"items": [{"queue": "q"}] * 5000}
    assert (await admin.post("/api/v1/push", json=push, headers=bearer(token))).status_code == 201
    refused = await admin.post("/api/v1/push", json={"items": [{"queue": "q"}]}, headers=bearer(token))
    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    assert int(refused.headers["retry-after"]) > 900
    both = {"operations": [{"type": "push", "items": [{"queue": "q"}]}]}
    assert (await admin.post("/api/v1/transaction", json=both, headers=bearer(token))).status_code == 429
    assert (await admin.get("/api/v1/resources/queues", headers=bearer(token))).status_code == 200
    assert (await admin.post("/api/v1/push", json={"items": [{"queue": "q"}]})).status_code == 201, "others go on"
    metrics = (await admin.get("/metrics/prometheus")).text
    assert 'queen_rate_limited_requests_total{limit="messages"} 2' in metrics


async def test_a_token_has_its_share_of_long_polls(admin: httpx.AsyncClient, server: Server) -> None:
    token = await made(admin, limits={"longPolls": 1})
    path = "/api/v1/pop/queue/q?wait=true&timeout=30000"
    poll = asyncio.create_task(admin.get(path, headers=bearer(token)))
    await parked(server)
    refused = await admin.get(path, headers=bearer(token))
    assert refused.status_code == 429
    assert {"connection", "(ECONNREFUSED)"} <= set(refused.json()["error"].replace(",", "").split())
    assert (await admin.get("/api/v1/pop/queue/q", headers=bearer(token))).status_code == 204
    await Queen(admin).push("q", 1)
    assert (await poll).status_code == 200
    await Queen(admin).push("q", 2)
    assert (await admin.get(path.replace("30000", "1"), headers=bearer(token))).status_code == 204, (
        "its share is free again"
    )


async def test_a_long_poll_that_finishes_a_lease_counts(admin: httpx.AsyncClient, server: Server) -> None:
    token = await made(admin, limits={"longPolls": 1})
    queen = Queen(admin)
    await queen.push("q", 1)
    lease = await queen.pop_answer("q")
    path = "/api/v1/pop/queue/empty?wait=true&timeout=30000"
    poll = asyncio.create_task(admin.get(path, headers=bearer(token)))
    await parked(server)

    body = {"take": {"queue": "q", "timeout": 30_000, "wait": True}}
    answer = await admin.post(f"/api/v1/lease/{lease['leaseId']}/finish", json=body, headers=bearer(token))
    assert (answer.status_code, answer.json()["success"]) == (200, True), "to finish needs no long poll"
    assert "long polls" in answer.json()["takeError"]
    await queen.push("empty", 1)
    assert (await poll).status_code == 200


async def test_what_is_forbidden_takes_of_the_requests_but_not_of_the_messages(admin: httpx.AsyncClient) -> None:
    limits = {"requestsPerSecond": 2, "messagesPerSecond": 1}
    token = await made(admin, grants=[{"queues": ["mine"]}], limits=limits)

    async def push(queue: str, headers: dict[str, str]) -> int:
        items = [{"queue": queue}] * 100
        return (await admin.post("/api/v1/push", json={"items": items}, headers=headers)).status_code

    assert await push("theirs", bearer(token)) == 403
    assert await push("mine", bearer(token)) == 201
    busy = await made(admin, grants=[{"queues": ["mine"]}], limits={"requestsPerSecond": 1})
    answers = [await push("theirs", bearer(busy)) for _ in range(5)]
    assert (answers[0], 429 in answers) == (403, True)


class TestNamespaces:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(limits={"namespace_messages_per_second": 5})

    async def test_each_has_its_share(self, http: httpx.AsyncClient) -> None:
        many = {"items": [{"queue": "a.x"}, {"queue": "a.y"}] * 1000}
        assert (await http.post("/api/v1/push", json=many)).status_code == 201
        for items, status in (
            ([{"queue": "a.z"}], 429),
            ([{"queue": "b"}, {"queue": "a"}], 429),
            ([{"queue": "b"}], 201),
        ):
            answer = await http.post("/api/v1/push", json={"items": items})
            assert answer.status_code == status, answer.text
        assert (await http.get("/api/v1/pop/queue/a.x")).status_code == 200
