"""Push: what is stored, what is a duplicate, what is refused, and in which order it is read."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any
from uuid import RFC_4122, UUID, uuid4

import asyncpg
import httpx
import jwt
import pytest
from server_settings import settings_with

from integration.queen import Json, Queen, another_server, blocked, data, stored
from queenmq.config import Settings


async def test_a_plain_push_is_queued(queen: Queen) -> None:
    configured = await queen.configure("orders")
    trace_id = str(uuid4())
    item = {"queue": "orders", "payload": {"n": 1}, "transactionId": "order-17", "traceId": trace_id}
    [result] = await queen.push_items(item)
    message_id = result["message_id"]
    assert UUID(message_id).version == 7
    assert result == {
        "index": 0,
        "status": "queued",
        "queueName": "orders",
        "transaction_id": "order-17",
        "transactionId": "order-17",
        "message_id": message_id,
        "messageId": message_id,
        "partition_id": configured["partitionId"],
        "partitionId": configured["partitionId"],
        "trace_id": trace_id,
        "offset": 1,
    }
    [message] = await queen.pop("orders")
    assert (message["id"], message["transactionId"], message["traceId"]) == (message_id, "order-17", trace_id)


async def test_pushing_nothing_is_an_empty_list(queen: Queen) -> None:
    assert await queen.push_items() == []


async def test_the_same_key_again_is_a_duplicate_with_the_first_id(queen: Queen) -> None:
    [first] = await queen.push_items({"queue": "orders", "payload": 1, "transactionId": "t"})
    [second] = await queen.push_items({"queue": "orders", "payload": 2, "transactionId": "t"})
    assert second == {
        "index": 0,
        "status": "duplicate",
        "queueName": "orders",
        "transaction_id": "t",
        "transactionId": "t",
        "message_id": first["message_id"],
        "messageId": first["message_id"],
        "offset": 1,
    }
    assert data(await queen.drain("orders")) == [1]


async def test_a_key_is_unique_in_its_partition_only(queen: Queen, sql: asyncpg.Connection) -> None:
    items = [{"queue": q, "partition": p, "transactionId": "t"} for q in ("a", "b") for p in ("x", "y")]
    results = await queen.push_items(*items)
    assert [result["status"] for result in results] == ["queued"] * 4
    assert len({result["message_id"] for result in results}) == 4
    assert await stored(sql, "a") == 2


async def test_equal_keys_in_one_request_are_one_message(queen: Queen) -> None:
    items = [{"queue": "orders", "payload": n, "transactionId": "t"} for n in (1, 2, 3)]
    results = await queen.push_items(*items)
    assert [(result["index"], result["status"]) for result in results] == [
        (0, "queued"),
        (1, "duplicate"),
        (2, "duplicate"),
    ]
    assert len({result["message_id"] for result in results}) == 1
    assert data(await queen.drain("orders")) == [1]


async def test_concurrent_pushes_of_one_key_are_one_message(
    queen: Queen, settings: Settings, database_url: str
) -> None:
    item = {"queue": "orders", "transactionId": "t"}
    async with another_server(settings, database_url) as other:
        answers = await asyncio.gather(*(each.push_items(item) for each in (queen, other) * 4))
    results = [result for [result] in answers]
    assert Counter(result["status"] for result in results) == {"queued": 1, "duplicate": 7}
    assert len({result["message_id"] for result in results}) == 1


async def test_a_hundred_pushes_without_a_key_have_a_hundred_ids(queen: Queen) -> None:
    answers = await asyncio.gather(*(queen.push("orders", {"n": n}) for n in range(100)))
    assert {result["status"] for [result] in answers} == {"queued"}
    assert len({result["message_id"] for [result] in answers}) == 100
    assert len({result["transaction_id"] for [result] in answers}) == 100


async def test_results_come_in_request_order_over_queues_and_partitions(queen: Queen) -> None:
    items = [{"queue": f"q{n % 3}", "partition": f"p{n % 2}", "transactionId": f"t{n}"} for n in range(20)]
    results = await queen.push_items(*items)
    assert [result["index"] for result in results] == list(range(20))
    assert [result["transaction_id"] for result in results] == [item["transactionId"] for item in items]
    assert [result["queueName"] for result in results] == [item["queue"] for item in items]
    partitions = {(item["queue"], item["partition"]): set() for item in items}
    for item, result in zip(items, results, strict=True):
        partitions[item["queue"], item["partition"]].add(result["partition_id"])
    assert all(len(ids) == 1 for ids in partitions.values())


async def test_unknown_queues_and_partitions_are_made(queen: Queen) -> None:
    await queen.push("new.queue", "m", partition="new partition")
    [message] = await queen.pop("new.queue")
    assert (message["queue"], message["partition"], message["data"]) == ("new.queue", "new partition", "m")


async def test_ids_of_partitions_are_ordered_by_time(queen: Queen) -> None:
    ids = []
    for name in ("first", "second"):
        [result] = await queen.push_items({"queue": "orders", "partition": name})
        ids.append(UUID(result["partition_id"]))
    assert [made.version for made in ids] == [7, 7]
    assert [made.variant for made in ids] == [RFC_4122, RFC_4122]
    assert ids == sorted(ids)
    assert abs(time.time() * 1000 - (ids[0].int >> 80)) < 60_000


async def test_items_of_one_request_keep_their_order(queen: Queen) -> None:
    await queen.push("orders", *range(500))
    assert data(await queen.drain("orders", batch=77)) == list(range(500))


async def test_ten_thousand_items_in_one_push_stay_in_order(queen: Queen) -> None:
    results = await queen.push("orders", *range(10_000))
    assert [result["index"] for result in results] == list(range(10_000))
    assert data(await queen.drain("orders", batch=1000)) == list(range(10_000))


PAYLOADS = [
    "null",
    "{}",
    "[]",
    '""',
    "0",
    "-0",
    "false",
    "1e400",
    "123456789012345678901234567890",
    "1.10",
    '"\\u0000 \\ud83d\\ude00 \\/"',
    '"😀"',
    '{"a":1,"a":2}',
    '{"deep":[[[[{"x":null}]]]]}',
]


async def test_a_payload_is_kept_as_it_came(queen: Queen) -> None:
    items = ",".join(f'{{"queue":"orders","payload":{text}}}' for text in PAYLOADS)
    pushed = await queen.http.post("/api/v1/push", content=f'{{"items":[{items}]}}'.encode())
    assert pushed.status_code == 201
    for text in PAYLOADS:
        popped = await queen.http.get("/api/v1/pop/queue/orders?autoAck=true")
        assert f'"data":{text},'.encode() in popped.content


async def test_an_absent_payload_is_null(queen: Queen) -> None:
    await queen.push_items({"queue": "orders"})
    assert data(await queen.pop("orders")) == [None]


async def test_content_under_another_name_is_refused(queen: Queen, sql: asyncpg.Connection) -> None:
    """Pops call it `data`; a push of it would store null instead."""
    good, bad = {"queue": "q", "payload": 1}, {"queue": "q", "data": {"a": 1}}
    operations = [{"type": "push", "items": [good, bad]}]
    cycle = {"query_id": str(uuid4()), "partition_id": str(uuid4()), "push_items": [good, bad]}
    for path, body, field in (
        ("/api/v1/push", {"items": [good, bad]}, "items[1]"),
        ("/api/v1/push", {"items": [good, bad | {"data": None}]}, "items[1]"),
        ("/api/v1/transaction", {"operations": operations}, "operations[0].items[1]"),
        ("/streams/v1/cycle", cycle, "push_items[1]"),
    ):
        refusal = await queen.refused(path, body)
        assert refusal["error"] == f"{field} has data and no payload: push the content as payload"
    assert await sql.fetchval("SELECT count(*) FROM queen.messages") == 0
    await queen.push_items(bad | {"payload": 2})
    assert data(await queen.pop("q")) == [2]


async def test_payloads_of_megabytes_arrive_intact(queen: Queen) -> None:
    payloads: list[Any] = ["x" * 2_000_000, {"list": list(range(100_000))}, [{"key": "ü" * 100}] * 5000]
    await queen.push_items(*({"queue": "orders", "payload": payload} for payload in payloads))
    assert data(await queen.drain("orders", batch=10)) == payloads


async def test_a_malformed_trace_id_does_no_harm(queen: Queen) -> None:
    good = str(uuid4())
    results = await queen.push_items(
        {"queue": "orders", "payload": 1, "traceId": "not-a-uuid"}, {"queue": "orders", "payload": 2, "traceId": good}
    )
    assert [result["trace_id"] for result in results] == [None, good]
    assert [message["traceId"] for message in await queen.pop("orders", batch=2)] == [None, good]


async def test_other_keys_of_an_item_are_ignored(queen: Queen) -> None:
    await queen.push_items({"queue": "orders", "producerSub": "mallory", "bufferMs": 10, "bufferMax": 5, "id": "x"})
    [message] = await queen.pop("orders")
    assert message["producerSub"] is None


REFUSALS: list[tuple[Json, str]] = [
    ({}, "items array is required"),
    ({"items": "many"}, "items array is required"),
    ({"items": [{}]}, "Queue must be a string"),
    ({"items": [{"queue": 1}]}, "Queue must be a string"),
    ({"items": [{"queue": "q", "partition": None}]}, "Partition must be a string"),
    ({"items": [{"queue": "q", "partition": 3}]}, "Partition must be a string"),
    ({"items": [{"queue": "q", "transactionId": 5}]}, "TransactionId must be a string"),
    ({"items": [{"queue": "q", "traceId": 5}]}, "TraceId must be a string"),
    ({"items": [{"queue": "a\0b"}]}, "items[0].queue must not contain NUL"),
    ({"items": [{"queue": "q", "partition": "p" * 256}]}, "items[0].partition must have at most 255 characters"),
]


async def test_a_bad_item_refuses_its_request_and_nothing_is_written(queen: Queen, sql: asyncpg.Connection) -> None:
    for body, error in REFUSALS:
        if isinstance(body.get("items"), list):
            body["items"] = [*body["items"], {"queue": "good"}]
        assert (await queen.refused("/api/v1/push", body))["error"] == error
    assert await sql.fetchval("SELECT count(*) FROM queen.queues") == 0


async def test_a_bad_request_beside_good_ones_harms_only_itself(queen: Queen) -> None:
    async def good(n: int) -> None:
        await queen.push("orders", {"n": n})

    async def bad(n: int) -> None:
        await queen.refused("/api/v1/push", {"items": [{"queue": "orders", "transactionId": "\0" * (n + 1)}]})

    await asyncio.gather(*(each(n) for n in range(20) for each in (good, bad)))
    assert len(await queen.drain("orders")) == 20


async def test_overlapping_transactions_that_commit_late_are_not_missed(queen: Queen, sql: asyncpg.Connection) -> None:
    """The later push waits for the earlier transaction, so no reader can pass a message that is still to come."""
    partition_id = (await queen.configure("orders"))["partitionId"]
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("INSERT INTO queen.messages (partition_id, payload) VALUES ($1, $2)", partition_id, b'"early"')
    late = asyncio.create_task(queen.push("orders", "late"))
    elsewhere = await queen.push("orders", "other", partition="other")
    assert elsewhere[0]["status"] == "queued"
    assert data(await queen.drain("orders")) == ["other"]
    assert not late.done()
    await transaction.commit()
    await late
    assert data(await queen.drain("orders")) == ["early", "late"]


async def test_a_row_inserted_by_psql_is_delivered(queen: Queen, sql: asyncpg.Connection) -> None:
    partition_id = (await queen.configure("orders"))["partitionId"]
    await queen.push("orders", "first")
    assert data(await queen.drain("orders")) == ["first"]
    await sql.execute(
        "INSERT INTO queen.messages (partition_id, payload) VALUES ($1, $2), ($1, $3)", partition_id, b'{"n":1}', b"2"
    )
    await queen.push("orders", "last")
    assert data(await queen.drain("orders")) == [{"n": 1}, 2, "last"]
    offsets = await sql.fetch('SELECT "offset" FROM queen.messages ORDER BY 1')
    assert [row["offset"] for row in offsets] == [1, 2, 3, 4]


async def test_a_row_of_an_unknown_partition_is_refused(sql: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await sql.execute("INSERT INTO queen.messages (partition_id, payload) VALUES ($1, 'null')", uuid4())


async def test_the_key_of_a_deleted_message_is_free_again(queen: Queen, sql: asyncpg.Connection) -> None:
    [first] = await queen.push("orders", "t")
    await sql.execute("DELETE FROM queen.messages")
    [second] = await queen.push("orders", "t")
    assert second["status"] == "queued"
    assert second["message_id"] != first["message_id"]


async def test_merged_pushes_over_many_partitions_in_opposite_orders_do_not_deadlock(
    queen: Queen, settings: Settings, database_url: str
) -> None:
    names = [f"p{n}" for n in range(300)]
    async with another_server(settings, database_url) as other:
        for _ in range(3):
            items = [{"queue": "orders", "partition": name} for name in names]
            await asyncio.gather(queen.push_items(*items), other.push_items(*reversed(items)))
    assert len(await queen.drain("orders", partitions=1000)) == 6 * len(names)


class TestProducerIdentity:
    SECRET = "a secret that is long enough for HS256"

    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(auth={"enabled": True, "secret": self.SECRET})

    @pytest.fixture
    def alice(self, http: httpx.AsyncClient) -> Queen:
        token = jwt.encode({"sub": "alice", "role": "read-write"}, self.SECRET, "HS256")
        http.headers["Authorization"] = f"Bearer {token}"
        return Queen(http)

    async def test_it_is_the_subject_of_the_token(self, alice: Queen) -> None:
        await alice.push_items({"queue": "orders", "producerSub": "mallory"})
        [message] = await alice.pop("orders")
        assert message["producerSub"] == "alice"

    async def test_a_transaction_is_stamped_like_a_push(self, alice: Queen) -> None:
        item = {"queue": "orders", "producerSub": "mallory"}
        assert (await alice.transact({"type": "push", "items": [item]}))["success"]
        [message] = await alice.pop("orders")
        assert message["producerSub"] == "alice"

    async def test_dead_letters_show_it(self, alice: Queen) -> None:
        await alice.push("orders", "m")
        [message] = await alice.pop("orders")
        await alice.ack(message, "dlq")
        assert (await alice.dead_letters())[0]["producerSub"] == "alice"


async def test_a_push_is_in_the_database_when_it_is_answered(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", {"n": 1})
    assert json.loads(await sql.fetchval("SELECT convert_from(payload, 'UTF8') FROM queen.messages")) == {"n": 1}


async def test_a_waiting_push_goes_through_when_its_partition_is_free(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", "first")
    async with sql.transaction():
        await sql.execute("SELECT 1 FROM queen.partition_lookup FOR UPDATE")
        waiting = asyncio.create_task(queen.push("orders", "second"))
        await blocked(sql)
        assert not waiting.done()
    [result] = await waiting
    assert result["status"] == "queued"


async def test_a_result_has_the_offset_of_the_message_that_is_stored(queen: Queen, sql: asyncpg.Connection) -> None:
    """Also if some of a push are duplicates, repeated or refused, and after them."""

    def item(partition: str, transaction: str) -> Json:
        return {"queue": "q", "partition": partition, "payload": 1, "transactionId": transaction}

    first = await queen.push_items(item("a", "1"), item("b", "1"), item("a", "2"))
    assert [one["offset"] for one in first] == [1, 1, 2]
    second = await queen.push_items(
        item("a", "3"), item("a", "1"), item("a", "4"), item("b", "2"), item("a", "3"), item("a", "5")
    )
    found = [(one["status"], one["offset"]) for one in second]
    again = "duplicate"
    assert found == [("queued", 3), (again, 1), ("queued", 4), ("queued", 2), (again, 3), ("queued", 5)]
    rows = await sql.fetch('SELECT id::text, "offset" FROM queen.messages')
    assert {(one["message_id"], one["offset"]) for one in first + second} == set(map(tuple, rows))
    committed = await queen.transact({"type": "push", "items": [item("b", "3"), item("c", "1"), item("b", "4")]})
    assert [one["offset"] for one in committed["results"]] == [3, 1, 4]


async def test_what_a_full_queue_refuses_has_no_offset(queen: Queen) -> None:
    await queen.configure("small", maxSize=2)
    results = await queen.push("small", 1, 2, 3)
    assert [(one["status"], one.get("offset")) for one in results] == [("queued", 1), ("queued", 2), ("failed", None)]
