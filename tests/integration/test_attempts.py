"""Attempts that failed, and who the consumers were: what is remembered, what is shown of it, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import asyncpg
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from integration.queen import Json, Queen, expire_leases
from queenmq.broker.activity import MOST_READERS_OF_GROUP
from queenmq.core.consumer import Consumer, consumer_of
from queenmq.ids import lease_for
from queenmq.server import Server
from queenmq.storage.statements import statement, versioned

WORKER = {"X-Queen-Consumer": urlencode({"name": "billing", "host": "web-3", "process": "4242"})}
SHOWN = {"name": "billing", "host": "web-3", "process": "4242", "subject": None}


async def pop(http: httpx.AsyncClient, batch: int = 1, **headers: str) -> list[Json]:
    answer = await http.get(
        "/api/v1/pop/queue/q", params={"consumerGroup": "g", "batch": batch}, headers=headers or WORKER
    )
    assert answer.status_code in (200, 204), answer.text
    return list(answer.json()["messages"]) if answer.status_code == 200 else []


async def attempts(http: httpx.AsyncClient, message: Json) -> list[Json]:
    answer = await http.get(f"/api/v1/messages/{message['partitionId']}/{message['transactionId']}")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["attempts"])


async def place(http: httpx.AsyncClient) -> Json:
    answer = await http.get("/api/v1/explain/q", params={"consumerGroup": "g", "partition": "Default"})
    [found] = answer.json()["partitions"]
    return dict(found)


async def consumers(http: httpx.AsyncClient, **params: Any) -> list[Json]:
    answer = await http.get("/api/v1/queues/q/consumers", params=params)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["consumers"])


def known(consumer: Json | None) -> Json | None:
    return None if consumer is None else {name: consumer[name] for name in SHOWN}


async def test_a_failure_is_remembered_with_its_error_and_consumer(http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.push("q", "a", "b")
    [message] = await pop(http)
    await queen.ack(message, "failed", error="the card was declined")
    [one] = await attempts(http, message)
    assert (one["outcome"], one["error"], one["consumerGroup"]) == ("failed", "the card was declined", "g")
    assert known(one["consumer"]) == SHOWN
    assert one["consumer"]["address"] == "127.0.0.1"
    assert one["leasedAt"] <= one["endedAt"]
    shown = await place(http)
    assert shown["lastAttempt"] == one
    [head] = (await http.get("/api/v1/resources/queues/q/partitions")).json()["partitions"]
    assert head["groups"][0]["lastAttempt"] == one


async def test_what_succeeds_writes_nothing(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("q", "a", "b", "c")
    await queen.ack_batch(await pop(http, 2))
    [last] = await pop(http)
    await queen.ack(last, "retry")  # without an error: it was merely not begun
    assert await sql.fetchval("SELECT count(*) FROM queen.attempts") == 0


async def test_a_lease_that_ends_without_a_word_is_an_attempt_of_the_message_at_which_it_was(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
) -> None:
    await queen.push("q", "a", "b", "c")
    first, second, _ = await pop(http, 3)
    await queen.ack(first)
    await expire_leases(sql)
    assert (await pop(http, **{"X-Queen-Consumer": "name=other"}))[0]["transactionId"] == "b"
    [one] = await attempts(http, second)
    assert (one["outcome"], one["error"], known(one["consumer"])) == ("expired", None, SHOWN)
    assert await attempts(http, first) == []
    assert known((await place(http))["heldBy"]) == SHOWN | {"name": "other", "host": None, "process": None}


async def test_an_expired_lease_is_noted_once(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("q", "a")
    [message] = await pop(http)
    await expire_leases(sql)
    await queen.configure("q", windowBuffer=3600)  # the pops that find it deliver nothing
    for _ in range(3):
        await sql.execute("UPDATE queen.partition_consumers SET ready_at = now(), generation = generation + 1")
        assert await pop(http) == []
    assert len(await attempts(http, message)) == 1


async def test_the_last_ten_are_kept(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("q", retryLimit=100, retryDelay=0)
    await queen.push("q", "a")
    for number in range(13):
        [message] = await pop(http)
        await queen.ack(message, "failed", error=f"error {number}")
    assert [one["error"] for one in await attempts(http, message)] == [f"error {n}" for n in range(12, 2, -1)]


async def test_each_group_has_its_own(http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.push("q", "a")
    for group in ("g", "h"):
        [message] = await queen.pop("q", consumerGroup=group)
        await queen.ack(message, "failed", error=f"for {group}")
    assert sorted(one["error"] for one in await attempts(http, message)) == ["for g", "for h"]
    assert (await place(http))["lastAttempt"]["error"] == "for g"


@pytest.mark.parametrize("how", ["finish", "exception", "transaction", "sql", "dlq"])
async def test_every_way_of_saying_it(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection, how: str) -> None:
    await queen.push("q", "a", "b")
    message, other = await pop(http, 2)
    key = {"transactionId": "a", "partitionId": message["partitionId"]}
    match how:
        case "finish":
            await queen.finish(message["leaseId"], status="failed", error="no")
        case "exception":
            await queen.finish(message["leaseId"], **{"except": [key | {"status": "failed", "error": "no"}]})
        case "transaction":
            ack = {"type": "ack", "status": "failed", "error": "no", "consumerGroup": "g"} | key
            await queen.transact(ack, leases=[message["leaseId"]])
        case "sql":
            await sql.execute(
                "SELECT queen.finish($1, $2, 'failed', 'no')", UUID(message["leaseId"]), UUID(message["id"])
            )
        case "dlq":
            await queen.ack(message, "dlq", error="no")
    [one] = await attempts(http, message)
    assert (one["outcome"], one["error"], known(one["consumer"])) == ("dlq" if how == "dlq" else "failed", "no", SHOWN)
    assert len(await attempts(http, other)) == (how == "finish")


async def test_an_ack_without_effect_is_no_attempt(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
) -> None:
    await queen.push("q", "a", "b")
    [message] = await pop(http)
    await expire_leases(sql)
    assert not (await queen.ack(message, "failed", error="too late"))["success"]
    await queen.ack((await pop(http))[0])
    await queen.ack(message, "failed", error="finished", leaseId=None)
    assert [one["outcome"] for one in await attempts(http, message)] == ["expired"]


async def test_they_go_with_their_message(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("q", retryDelay=0)
    left = "SELECT count(*) FROM queen.attempts"
    for end in ("message", "clear", "queue"):
        await queen.push("q", "a", "b")
        messages = await pop(http, 2)
        await queen.ack_batch(messages, "failed", error="no")
        assert await sql.fetchval(left) == 2
        if end == "message":
            key = f"{messages[0]['partitionId']}/a"
            assert (await http.delete(f"/api/v1/messages/{key}")).status_code == 200
            assert await sql.fetchval(left) == 1
            await http.delete("/api/v1/queues/q/clear")
        elif end == "clear":
            await http.delete("/api/v1/queues/q/clear")
        else:
            await http.delete("/api/v1/resources/queues/q")
        assert await sql.fetchval(left) == 0


async def test_who_reads(http: httpx.AsyncClient, queen: Queen, server: Server, sql: asyncpg.Connection) -> None:
    await queen.push("q", "a")
    [message] = await pop(http)
    await http.get("/api/v1/pop/queue/q", params={"consumerGroup": "h"})
    first, second = await consumers(http)
    assert (first["consumerGroup"], known(first), first["leases"], first["partitions"]) == ("g", SHOWN, 1, ["Default"])
    assert first["oldestLeaseAt"] is not None
    nobody = SHOWN | {"name": None, "host": None, "process": None}
    assert (known(second), second["address"], second["leases"]) == (nobody, "127.0.0.1", 1)
    await queen.ack(message)
    assert [one["leases"] for one in await consumers(http, consumerGroup="g")] == [0]
    await sql.execute("UPDATE queen.consumers SET seen_at = now() - interval '3 minutes'")
    assert await consumers(http) == []
    assert len(await consumers(http, withinSeconds=600)) == 2
    await sql.execute("UPDATE queen.consumers SET seen_at = now() - interval '30 days' WHERE consumer_group = 'h'")
    await server.database.fetch(statement("forget_consumers"), 7, 1000, 100, 100)
    assert await sql.fetchval("SELECT array_agg(consumer_group) FROM queen.consumers") == ["g"]
    assert (await http.get("/api/v1/queues/none/consumers")).status_code == 404


async def test_a_consumer_of_several_servers_is_shown_once(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in ("a", "b", "c"):
        await queen.push("q", partition, partition=partition)
    silent = {"X-Queen-Consumer": ""}
    for key in (b"of one server", b"of another"):
        monkeypatch.setattr("queenmq.core.consumer._KEY", key)
        async with httpx.AsyncClient(base_url=http.base_url) as connection:
            await pop(connection)
            await pop(connection, **silent)
    named, nameless = sorted(await consumers(http), key=lambda one: one["name"] is None)
    assert await sql.fetchval("SELECT count(*) FROM queen.consumers") == 4
    assert known(named) == SHOWN
    assert (named["leases"], nameless["leases"]) == (2, 1)
    assert len(await consumers(http, limit=1)) == 1
    await sql.execute(
        "UPDATE queen.consumers SET subject = 'somebody else' "
        "WHERE tag = (SELECT min(tag) FROM queen.consumers WHERE name IS NOT NULL)"
    )
    assert sorted(str(one["subject"]) for one in await consumers(http) if one["name"]) == ["None", "somebody else"]


def test_nobody_can_compute_the_tag_of_somebody_else() -> None:
    """Else 2^32 hashes would find a name with which one's failures are shown as those of another subject."""
    program = "from queenmq.core.consumer import consumer_of; print(consumer_of(b'name=a', None, 'alice').tag)"
    tags = {subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout for _ in range(2)}
    assert len(tags) == 2


async def test_a_queue_that_somebody_holds_is_explained_all_the_same(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
) -> None:
    await queen.push("q", "a")
    await pop(http)
    async with sql.transaction():
        await sql.fetch("SELECT 1 FROM queen.queues FOR UPDATE")
        shown = await place(http)
    assert (shown["state"], shown["heldBy"]) == ("Leased", None)
    assert known((await place(http))["heldBy"]) == SHOWN


async def test_consumers_of_a_group_are_bounded(
    queen: Queen, server: Server, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has a new name for each pop takes no other group's places, and the table is as small as before."""
    await queen.push("q", "a")
    await queen.push("r", "a")
    activity, statistics = server.broker.activity, server.broker.statistics
    monkeypatch.setattr(statistics, "_at_once", 300)
    for turn in range(3):
        for number in range(12_000):
            activity.read_by("q", "g", consumer_of(b"name=%d-%d" % (turn, number), None, None))
        activity.read_by("r", "g", consumer_of(b"name=other-%d" % turn, None, None))
        assert len(activity.readers) == MOST_READERS_OF_GROUP + 1
        await statistics.store_readers()
    monkeypatch.setattr(statistics, "_forget_consumers_at", 0.0)
    await statistics.store_readers()
    left = await sql.fetch(
        "SELECT q.name, count(*) FROM queen.consumers c JOIN queen.queues q ON q.id = c.queue_id GROUP BY q.name"
    )
    assert dict(left) == {"q": 1000, "r": 3}


async def test_many_strangers_are_forgotten_at_once(
    queen: Queen, server: Server, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queenmq.broker.statistics._MOST_STRANGERS", 3000)
    await queen.push("q", "a")
    most = 0
    for turn in range(8):
        for number in range(MOST_READERS_OF_GROUP):
            server.broker.activity.read_by("q", "g", consumer_of(b"name=%d-%d" % (turn, number), None, None))
        await server.broker.statistics.store_readers()
        most = max(most, await sql.fetchval("SELECT count(*) FROM queen.consumers"))
    assert 1000 <= most <= 4000


async def test_consumers_of_all_groups_are_bounded(
    queen: Queen, server: Server, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has a new group for each pop."""
    monkeypatch.setattr("queenmq.broker.statistics._MOST_CONSUMERS", 50)
    await queen.push("q", "a")
    for number in range(120):
        server.broker.activity.read_by("q", f"g{number}", consumer_of(b"name=a", None, None))
    monkeypatch.setattr(server.broker.statistics, "_forget_consumers_at", 0.0)
    await server.broker.statistics.store_readers()
    assert await sql.fetchval("SELECT count(*) FROM queen.consumers") == 50


async def test_who_could_not_be_noted_is_noted_later(queen: Queen, server: Server, sql: asyncpg.Connection) -> None:
    """A queue that somebody holds keeps those of others from nothing."""
    for queue in ("held", "free"):
        await queen.push(queue, "a")
        server.broker.activity.read_by(queue, "g", consumer_of(b"name=once", None, None))
    noted = "SELECT array_agg(q.name ORDER BY q.name) FROM queen.consumers c JOIN queen.queues q ON q.id = c.queue_id"
    async with sql.transaction():
        await sql.fetch("SELECT 1 FROM queen.queues WHERE name = 'held' FOR UPDATE")
        await server.broker.statistics.store_readers()
        assert await sql.fetchval(noted) == ["free"]
    await server.broker.statistics.store_readers()
    assert await sql.fetchval(noted) == ["free", "held"]


async def test_a_lease_without_a_name_is_nobodys(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
) -> None:
    """As the version before makes them."""
    await queen.push("q", "a")
    [message] = await pop(http)
    await sql.execute("UPDATE queen.partition_consumers SET lease_id = $1", UUID(lease_for("")))
    assert (await place(http))["heldBy"] is None
    await queen.ack(message, "failed", error="no", leaseId=None)
    [one] = await attempts(http, message)
    assert one["consumer"] is None


@given(st.binary(max_size=1100), st.text(max_size=200))
def test_a_header_never_harms(said: bytes, subject: str) -> None:
    found = consumer_of(said, "127.0.0.1", subject)
    for text in (found.name, found.host, found.process):
        assert text is None or (0 < len(text) <= 100 and text.isprintable())
    assert consumer_of(said, "127.0.0.1", subject) == found
    assert len(found.tag) == 8
    int(found.tag, 16)


def test_who_says_its_name_is_the_same_from_every_address() -> None:
    one, other = (consumer_of(b"name=a&host=b", address, None) for address in ("10.0.0.1", "10.0.0.2"))
    assert one.tag == other.tag
    silent = {consumer_of(b"", address, subject).tag for address in ("10.0.0.1", "10.0.0.2") for subject in ("a", "b")}
    assert len(silent) == 4
    assert isinstance(one, Consumer)


async def test_the_database_reads_what_an_id_of_a_lease_says(sql: asyncpg.Connection) -> None:
    lease = UUID(lease_for("89abcdef"))
    assert lease.version == 8
    asked = versioned("SELECT queen.consumer_of($1), abs(extract(epoch FROM now() - queen.leased_since($1))) < 60")
    assert tuple(await sql.fetchrow(asked, lease)) == (0x89ABCDEF, True)
    assert len({lease_for("89abcdef") for _ in range(1000)}) == 1000


@pytest.mark.parametrize("metadata", ["true", "false"])
async def test_attempts_of_a_deleted_group_go_with_it(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection, metadata: str
) -> None:
    await queen.push("q", "a")
    for group in ("g", "other"):
        [message] = await queen.pop("q", consumerGroup=group)
        await queen.ack(message, "failed", error="no")
    gone = await http.delete("/api/v1/consumer-groups/g/queues/q", params={"deleteMetadata": metadata})
    assert gone.status_code == 200, gone.text
    assert [one["consumerGroup"] for one in await attempts(http, message)] == ["other"]
    assert await sql.fetchval("SELECT count(*) FROM queen.attempts") == 1
