"""What needs a person: each kind of trouble is named with its cause, and gone when it is mended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from integration.queen import Json, Queen, age_messages
from queenmq.reports import troubles
from queenmq.reports.horizon import Holder, statement
from queenmq.reports.status import FrequentError

WHO = {"X-Queen-Consumer": "name=ledger&host=till-4&process=77"}


async def found(http: httpx.AsyncClient) -> list[Json]:
    assert (await http.post("/api/v1/stats/refresh")).status_code == 200
    answer = await http.get("/api/v1/troubles")
    assert answer.status_code == 200, answer.text
    listed: list[Json] = answer.json()["troubles"]
    return listed


async def only(http: httpx.AsyncClient, kind: str) -> Json:
    [one] = await found(http)
    assert one["kind"] == kind, one
    return one


async def pop(
    http: httpx.AsyncClient, queue: str, group: str, partition: str | None = None, **params: Any
) -> list[Json]:
    path = f"/api/v1/pop/queue/{queue}" + (f"/partition/{partition}" if partition else "")
    answer = await http.get(path, params={"consumerGroup": group, **params}, headers=WHO)
    messages: list[Json] = answer.json()["messages"] if answer.content else []
    return messages


async def test_nothing_is_wrong(http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.push("q", 1, 2)
    await pop(http, "q", "g")
    assert await found(http) == []


async def test_a_dead_consumer_is_named(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("q", leaseTime=3600)
    await queen.push("q", 1, 2, partition="p")
    [held, _] = await pop(http, "q", "g", batch=2)
    await age_messages(sql, "q", 900)
    told = await only(http, "behind")
    assert (told["queue"], told["partition"], told["consumerGroup"]) == ("q", "p", "g")
    assert told["sentence"].startswith("Group g is 15 min behind in q / p. A lease on 2 messages has been held for ")
    assert told["sentence"].endswith(" s by ledger on till-4, process 77.")
    assert "release the lease" in told["advice"]
    await http.post(f"/api/v1/lease/{held['leaseId']}/finish", json={"status": "retry"})
    assert "It reads, but not as fast" in (await only(http, "behind"))["sentence"]


async def test_a_group_that_nobody_reads(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    for partition in ("a", "b"):
        await queen.push("q", 1, partition=partition)
        await queen.ack((await pop(http, "q", "g", partition))[0])
        await queen.push("q", 2, partition=partition)
    await age_messages(sql, "q", 7300)
    assert "and 1 other partition. It reads" in (await only(http, "behind"))["sentence"]
    await sql.execute("UPDATE queen.consumers SET seen_at = now() - interval '20 minutes'")
    assert "It reads" in (await only(http, "behind"))["sentence"], "something was finished just now"
    await sql.execute("UPDATE queen.partition_consumers SET last_consumed_at = now() - interval '30 minutes'")
    told = await only(http, "behind")
    assert told["sentence"].startswith("Group g is 2 h behind in q / ")
    assert told["sentence"].endswith("Nobody reads: its last consumer was ledger on till-4, process 77, 20 min ago.")
    await sql.execute("DELETE FROM queen.consumers")
    assert "Nobody reads: its last message was finished 30 min ago." in (await only(http, "behind"))["sentence"]
    await sql.execute("UPDATE queen.partition_consumers SET last_consumed_at = NULL")
    assert "Nobody reads, and it has finished no message yet." in (await only(http, "behind"))["sentence"]
    for message in await pop(http, "q", "g", partitions=2, batch=2):
        await queen.ack(message)
    assert await found(http) == []


async def test_a_poison_message_is_said_once(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("q", retryLimit=5, retryDelay=3_600_000)
    for partition in ("a", "b"):
        await queen.push("q", 1, partition=partition)
    [message] = await pop(http, "q", "g")
    await queen.ack(message, "failed", error="the bank says no")
    await age_messages(sql, "q", 900)
    told, other = await found(http)
    assert (told["kind"], told["partition"]) == ("failing", message["partition"])
    assert told["sentence"] == (
        "1 partition of q has a failing head: group g, up to 1 attempt. The last error: the bank says no"
    )
    assert (other["kind"], other["partition"]) == ("behind", {"a": "b", "b": "a"}[message["partition"]])
    [message] = await pop(http, "q", "g")
    await queen.ack(message, "failed")
    told = await only(http, "failing")
    assert told["sentence"].startswith("2 partitions of q have a failing head")
    assert told["partition"] is None


async def test_a_pause_is_said_once(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("q", 1)
    await queen.ack((await pop(http, "q", "g"))[0])
    await queen.push("q", 2)
    await age_messages(sql, "q", 900)
    await http.post("/api/v1/pause", json={"queue": "q", "consumerGroup": "g", "reason": "repairs"})
    told = await only(http, "paused")
    assert (told["queue"], told["consumerGroup"]) == ("q", "g")
    assert "q: Group 'g' is paused in this queue by " in told["sentence"]
    assert told["sentence"].endswith(": repairs")
    await http.post("/api/v1/resume", json={"queue": "q", "consumerGroup": "g"})
    await only(http, "behind")


async def test_a_full_queue_names_its_slowest_group(http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.configure("q", maxSize=2)
    await queen.push("q", 1, 2)
    assert "No group reads it." in (await only(http, "full"))["sentence"]
    for group in ("quick", "slow"):
        messages = await pop(http, "q", group, batch=2)
        if group == "quick":
            for one in messages:
                await queen.ack(one)
    told = await only(http, "full")
    assert told["sentence"] == (
        "Queue q is full: 2 of 2 messages (maxSize). Pushes are refused. Its slowest group is slow, with 2 unread."
    )
    await queen.configure("q", maxSize=3)
    assert await found(http) == []


async def test_a_window_that_does_not_close(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("q", windowBuffer=60)
    await pop(http, "q", "g")
    await queen.push("q", 1, partition="p")
    await age_messages(sql, "q", 1000)
    await queen.push("q", 2, partition="p")
    assert await pop(http, "q", "g") == []
    told = await only(http, "gathering")
    assert (told["queue"], told["partition"], told["consumerGroup"]) == ("q", "p", "g")
    assert told["sentence"] == (
        "The window of q / p has been open for 16 min: pushes come more often than every 60 s (windowBuffer), so group "
        "g gets none of 2 messages."
    )
    await queen.configure("q", windowBuffer=0)
    assert [one["kind"] for one in await found(http)] == ["behind"]
    assert len(await pop(http, "q", "g", batch=2)) == 2


async def test_a_token_that_was_in_use_and_expired(http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    for name in ("till", "forgotten"):
        answer = await http.post("/api/v1/tokens", json={"name": name, "role": "read-write", "expiresInSeconds": 60})
        assert answer.status_code == 201
    past = "created_at = now() - interval '1 day', expires_at = now() - interval '1 hour'"
    await sql.execute(f"UPDATE queen.tokens SET {past}, last_used_at = now() - interval '90 minutes'")
    await sql.execute("UPDATE queen.tokens SET last_used_at = now() - interval '9 hours' WHERE name = 'forgotten'")
    told = await only(http, "token_expired")
    assert told["sentence"].startswith("The token till was in use and expired 60 min ago: ")
    await http.post("/api/v1/tokens", json={"name": "till", "role": "read-write"})
    assert await found(http) == []


async def test_dead_letters_of_today_by_cause(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("q", retryLimit=0)
    for number, error in enumerate(("timeout after 3 s", "timeout after 30 s", "550 unknown")):
        await queen.push("q", 1, partition=f"p{number}")
        [message] = await pop(http, "q", "g")
        await queen.ack(message, "failed", error=error)
    most, other = await found(http)
    assert (most["kind"], other["kind"]) == ("dead_letters", "dead_letters")
    assert most["sentence"].startswith("2 dead letters of one cause, the last ")
    assert most["sentence"].endswith(": timeout after 30 s")
    listed = (await http.get("/api/v1/dlq", params={"fingerprint": most["fingerprint"]})).json()
    assert listed["total"] == 2
    await sql.execute("UPDATE queen.dead_letter_queue SET failed_at = failed_at - interval '2 days'")
    assert await found(http) == []


async def test_no_more_than_ten_of_a_kind(http: httpx.AsyncClient, queen: Queen) -> None:
    for number in range(12):
        await queen.configure(f"q{number}", maxSize=1)
        await queen.push(f"q{number}", 1)
    assert [one["kind"] for one in await found(http)] == ["full"] * 10


def test_who_holds_the_horizon_comes_with_a_statement() -> None:
    def held(kind: Any, seconds: float = 301.0, **more: Any) -> Holder:
        parts = {"name": None, "pid": None, "username": "ann", "application": "psql", "state": "idle", "xid": "7"}
        return Holder(kind=kind, seconds=seconds, transactions=9, **(parts | more))

    told = troubles._held(held("session", pid=42))
    assert told.sentence.startswith("For 5 min, the session 42 of ann (psql, idle) has kept dead rows")
    assert told.statement == "SELECT pg_terminate_backend(42)"
    told = troubles._held(held("session", pid=42, has_finished=True))
    assert "(psql, idle), which has finished messages (queen.finish) and so keeps all pops on old" in told.sentence
    assert statement(held("slot", name="o'old")) == "SELECT pg_drop_replication_slot('o''old')"
    assert statement(held("prepared", name="tx")) == "ROLLBACK PREPARED 'tx'"
    assert statement(held("standby", pid=1)) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(59.4, "59 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (9e5, "10 days")],
)
def test_spans_of_time_in_words(seconds: float, words: str) -> None:
    assert troubles._span(seconds) == words


def test_old_dead_letters_are_no_news() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    errors = [FrequentError("e", str(age), 1, now - timedelta(hours=age)) for age in (0, 1, 23, 25, 2, 3, 4, 5)]
    told = [one.fingerprint for one in troubles._letters(errors, now)]
    assert told == ["0", "1", "23", "2", "3"]
