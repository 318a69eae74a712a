"""The dead letters: what their listing shows and how it can be narrowed."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from integration.consuming import consuming
from integration.queen import Json, Message, Queen, ack_op, data
from integration.test_streams import register
from queenmq.core.acknowledgement import MAX_ERROR
from queenmq.server import Server


async def bury(queen: Queen, queue: str, *payloads: str, partition: str = "Default", group: str | None = None) -> None:
    """Push and dead-letter messages one after the other."""
    params = {"consumerGroup": group} if group else {}
    for payload in payloads:
        await queen.push(queue, payload, partition=partition)
        [message] = await queen.pop(queue, partition, **params)
        assert (await queen.ack(message, "dlq", error=f"{payload} is bad"))["dlq"]


async def test_the_whole_listing(queen: Queen) -> None:
    await queen.configure("orders", retryLimit=1, retryDelay=0)
    payload = {"n": [1, None, "x"]}
    item = {"queue": "orders", "partition": "eu", "payload": payload, "transactionId": "t"}
    [pushed] = await queen.push_items(item)
    for _ in range(2):
        [message] = await queen.pop("orders", consumerGroup="g")
        await queen.ack(message, "failed", error="it broke")
    page = await queen.dead_letter_page()
    [letter] = page.pop("messages")
    assert page == {"pagination": {"limit": 100, "offset": 0}, "total": 1}
    for name in ("createdAt", "failedAt"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", letter[name])
    assert letter.pop("createdAt") <= letter.pop("failedAt")
    assert letter == {
        "id": pushed["message_id"],
        "transactionId": "t",
        "partitionId": pushed["partition_id"],
        "queue": "orders",
        "partition": "eu",
        "consumerGroup": "g",
        "errorMessage": "it broke",
        "retryCount": 1,
        "data": payload,
        "producerSub": None,
        "undecryptable": False,
    }


async def test_an_unused_queue_has_none(queen: Queen) -> None:
    await bury(queen, "orders", "a")
    assert await queen.dead_letters("unused") == []


async def test_it_can_be_narrowed_by_queue_group_and_partition(queen: Queen) -> None:
    await bury(queen, "orders", "a", "b")
    await bury(queen, "orders", "c", partition="p")
    await bury(queen, "other", "d", group="g")
    assert sorted(data(await queen.dead_letters())) == ["a", "b", "c", "d"]
    assert sorted(data(await queen.dead_letters("orders"))) == ["a", "b", "c"]
    assert data(await queen.dead_letters("orders", partition="p")) == ["c"]
    assert data(await queen.dead_letters(consumerGroup="g")) == ["d"]
    assert await queen.dead_letters("orders", consumerGroup="g") == []
    assert len(await queen.dead_letters(consumerGroup="__QUEUE_MODE__")) == 3


async def test_the_newest_failure_comes_first_and_pages_follow_each_other(queen: Queen) -> None:
    await bury(queen, "orders", *"abcde")
    pages = [await queen.dead_letter_page(queue="orders", limit=2, offset=offset) for offset in (0, 2, 4, 6)]
    assert [data(page["messages"]) for page in pages] == [["e", "d"], ["c", "b"], ["a"], []]
    assert {page["total"] for page in pages} == {5}
    assert pages[1]["pagination"] == {"limit": 2, "offset": 2}


async def test_it_can_be_narrowed_by_the_time_of_the_failure(queen: Queen, sql: asyncpg.Connection) -> None:
    await bury(queen, "orders", *"abc")
    rows = await sql.fetch("SELECT failed_at FROM queen.dead_letter_queue ORDER BY failed_at")
    [first, second, third] = [row["failed_at"].isoformat() for row in rows]
    assert data(await queen.dead_letters("orders", **{"from": second})) == ["c", "b"]
    assert data(await queen.dead_letters("orders", to=second)) == ["b", "a"]
    assert data(await queen.dead_letters("orders", **{"from": first, "to": first})) == ["a"]
    later = datetime.fromisoformat(third) + timedelta(seconds=1)
    assert await queen.dead_letters("orders", **{"from": later.isoformat()}) == []


async def test_it_can_be_narrowed_by_a_part_of_the_error(queen: Queen) -> None:
    await bury(queen, "orders", "Timeout 1", "50 % off", "timeout 2")
    await bury(queen, "other", "timeout 3")
    for params, expected in (
        ({"error": "TIMEOUT"}, ["timeout 3", "timeout 2", "Timeout 1"]),
        ({"error": "timeout", "queue": "orders"}, ["timeout 2", "Timeout 1"]),
        ({"error": "% o"}, ["50 % off"]),
        ({"error": "_"}, []),
    ):
        page = await queen.dead_letter_page(**params)
        assert [letter["data"] for letter in page["messages"]] == expected
        assert page["total"] == len(expected)


async def test_each_group_has_its_own(queen: Queen) -> None:
    await queen.configure("orders", retryLimit=0)
    await queen.push("orders", "m")
    for group in ("a", "b"):
        [message] = await queen.pop("orders", consumerGroup=group)
        await queen.ack(message, "failed", error=f"bad for {group}")
    letters = await queen.dead_letters("orders")
    assert {letter["consumerGroup"]: letter["errorMessage"] for letter in letters} == {
        "a": "bad for a",
        "b": "bad for b",
    }


async def test_a_message_that_fails_again_after_a_replay_is_there_once(queen: Queen) -> None:
    await bury(queen, "orders", "m", group="g")
    await queen.seek("g", "orders", timestamp="1970-01-01T00:00:00Z")
    [message] = await queen.pop("orders", consumerGroup="g")
    assert (await queen.ack(message, "dlq", error="bad again"))["dlq"]
    assert len(await queen.dead_letters("orders")) == 1


async def test_bad_filters_are_refused(queen: Queen) -> None:
    for query in (
        "limit=-1",
        "offset=-1",
        "limit=x",
        "from=then",
        "to=now",
        "queue=%00",
        "error=%00",
        f"error={'x' * 1001}",
    ):
        refusal = await queen.refused(f"/api/v1/dlq?{query}", None, "GET")
        assert refusal["field"] == query.partition("=")[0]


# Purging


async def step(queen: Queen, **params: Any) -> dict[str, Any]:
    """One step of a purge."""
    answer = await queen.http.delete("/api/v1/dlq", params=params)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    assert datetime.fromisoformat(body["to"])
    return body


async def test_a_purge_forgets_the_letters_and_not_the_messages(queen: Queen) -> None:
    await bury(queen, "orders", *"abc", group="g")
    await bury(queen, "orders", "d", partition="p", group="g")
    assert (await step(queen, queue="orders", consumerGroup="other"))["purged"] == 0
    assert (await step(queen, queue="orders", partition="p"))["purged"] == 1
    assert (await step(queen, queue="orders", to="2020-01-01T00:00:00Z"))["purged"] == 0
    first = await step(queen, queue="orders", limit=2)
    assert (first["purged"], first["more"]) == (2, True)
    assert data(await queen.dead_letters("orders")) == ["c"]
    last = await step(queen, queue="orders", limit=2)
    assert (last["purged"], last["more"]) == (1, False)
    assert await queen.dead_letters("orders") == []
    assert await queen.pop("orders", consumerGroup="g") == []
    assert len(await queen.drain("orders", consumerGroup="new")) == 4


async def test_a_purge_leaves_alone_what_fails_meanwhile(queen: Queen) -> None:
    await bury(queen, "orders", "a", "b")
    first = await step(queen, queue="orders", limit=1)
    await bury(queen, "orders", "c")
    assert (await step(queen, queue="orders", to=first["to"]))["purged"] == 1
    assert data(await queen.dead_letters("orders")) == ["c"]


async def test_the_queues_of_a_listing_are_counted_if_asked_for(queen: Queen) -> None:
    await bury(queen, "orders", "a", "b")
    await bury(queen, "other", "a", "b", "c")
    assert "queues" not in await queen.dead_letter_page()
    page = (await queen.http.get("/api/v1/dlq", params={"byQueue": "true", "limit": 1})).json()
    assert page["queues"] == [{"name": "other", "total": 3}, {"name": "orders", "total": 2}]
    page = (await queen.http.get("/api/v1/dlq", params={"byQueue": "true", "error": "c IS"})).json()
    assert (page["total"], page["queues"]) == (1, [{"name": "other", "total": 1}])


async def test_a_purge_needs_a_queue_that_exists(queen: Queen) -> None:
    answer = await queen.http.delete("/api/v1/dlq")
    assert (answer.status_code, answer.json()["field"]) == (400, "queue")
    answer = await queen.http.delete("/api/v1/dlq", params={"queue": "unused"})
    assert (answer.status_code, answer.json()["error"]) == (404, "Queue not found")


async def test_what_narrows_only_a_listing_is_refused(queen: Queen) -> None:
    """Ignored, it would have all others purged, too."""
    await bury(queen, "orders", "a")
    for name in ("from", "error", "fingerprint"):
        answer = await queen.http.delete("/api/v1/dlq", params={"queue": "orders", name: "2020-01-01T00:00:00Z"})
        assert (answer.status_code, answer.json()["field"]) == (400, name)
    body: dict[str, Any] = {"queue": "orders", "fingerprints": "x"}
    assert "unknown field 'fingerprints'" in (await queen.refused("/api/v1/dlq/redrive", body))["error"]
    body = {"queue": "orders", "group": "g", "limits": {"leases": 1}}
    assert "unknown field 'group'" in (await queen.refused("/api/v1/policies", body))["error"]
    assert data(await queen.dead_letters("orders")) == ["a"]


class Reporter:
    """One way each in which a consumer says why a message failed."""

    def __init__(self, queen: Queen, server: Server) -> None:
        self._queen = queen
        self._server = server

    async def ack(self, message: Message, error: str) -> None:
        assert (await self._queen.ack(message, "dlq", error=error))["dlq"]

    async def batch(self, message: Message, error: str) -> None:
        [result] = await self._queen.ack_batch([message], "dlq", error=error)
        assert result["dlq"]

    async def transaction(self, message: Message, error: str) -> None:
        done = await self._queen.transact(ack_op(message, "dlq", error=error), leases=[message["leaseId"]])
        assert done["success"]

    async def finish(self, message: Message, error: str) -> None:
        assert (await self._queen.finish(message["leaseId"], status="dlq", error=error))["dlq"] == 1

    async def exception(self, message: Message, error: str) -> None:
        excepted = {"transactionId": message["transactionId"], "status": "dlq", "error": error}
        assert (await self._queen.finish(message["leaseId"], **{"except": [excepted]}))["except"][0]["dlq"]

    async def cycle(self, message: Message, error: str) -> None:
        query = (await register(self._queen, source_queue="orders"))["query_id"]
        said = {name: message[name] for name in ("transactionId", "leaseId")} | {"status": "dlq", "error": error}
        body: Json = {"query_id": query, "partition_id": message["partitionId"], "ack": said}
        answer = await self._queen.http.post("/streams/v1/cycle", json=body)
        assert answer.json()["ack_result"]["dlq"], answer.text

    async def connection(self, message: Message, error: str) -> None:
        # One lease at a time: it takes the message over.
        await self._queen.ack(message, "retry")
        async with consuming(self._server, "orders") as connection:
            await connection.finish(await connection.next_batch(), status="dlq", error=error)


@pytest.mark.parametrize("way", ["ack", "batch", "transaction", "finish", "exception", "cycle", "connection"])
async def test_a_long_error_is_cut(queen: Queen, server: Server, way: str) -> None:
    await queen.push("orders", "a")
    [message] = await queen.pop("orders")
    await getattr(Reporter(queen, server), way)(message, "\U0001f40c" * 5 + "e" * 100_000)
    [letter] = await queen.dead_letters("orders")
    assert letter["errorMessage"] == "\U0001f40c" * 5 + "e" * (MAX_ERROR - 5), "and nobody loses the acknowledgement"


async def test_a_long_error_is_cut_in_sql(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", "a", "b")
    [first, second] = await queen.pop("orders", batch=2)
    await sql.fetch("SELECT queen.finish($1, $2, 'dlq', repeat('e', 100000))", first["leaseId"], first["id"])
    await sql.fetch("SELECT queen.finish($1, NULL, 'dlq', repeat('e', 100000))", second["leaseId"])
    assert [len(letter["errorMessage"]) for letter in await queen.dead_letters("orders")] == [MAX_ERROR] * 2


async def test_long_errors_of_before_do_not_fill_the_answers(queen: Queen, sql: asyncpg.Connection) -> None:
    await bury(queen, "orders", "a", "b")
    await sql.execute("UPDATE queen.dead_letter_queue SET error_message = repeat('é', 1000000)")
    for path in ("/api/v1/status", "/api/v1/troubles", "/api/v1/resources/overview"):
        answer = await queen.http.get(path)
        assert answer.status_code == 200
        assert len(answer.content) < 50_000, path
    [top] = (await queen.http.get("/api/v1/status")).json()["deadLetterQueue"]["topErrors"]
    assert (top["error"], top["count"]) == ("é" * MAX_ERROR, 2)
