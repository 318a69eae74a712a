"""Pushing to a real server: results, order, identity, and payloads that arrive as they were."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from queenmq.client import InvalidItem, InvalidPayload, InvalidRequest, Item, PushFailed, PushResult, Queen
from queenmq.client.items import to_push_items
from queenmq.client.payload import decode, encode

# A busy machine is no fault of the encoder.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


async def drained(queen: Queen, queue: str, partition: str | None = None) -> list[Any]:
    """Everything that is there, acknowledged."""
    found: list[Any] = []
    builder = queen.queue(queue).batch(1000).wait(False)
    if partition:
        builder.partition(partition)
    while messages := await builder.pop():
        found += [message.data for message in messages]
        assert all(result.success for result in await queen.ack(messages))
    return found


async def test_a_push_is_answered_per_item_and_in_order(queen: Queen) -> None:
    results = await queen.queue("orders").partition("eu").push([{"n": 1}, {"n": 2}])
    assert [(r.status, r.index, r.queue, r.partition) for r in results] == [
        ("queued", 0, "orders", "eu"),
        ("queued", 1, "orders", "eu"),
    ]
    assert results.stored
    assert results.operations == []
    assert results[0].message_id != results[1].message_id
    messages = await queen.queue("orders").batch(10).pop()
    assert [message.data for message in messages] == [{"n": 1}, {"n": 2}]
    assert [message.transaction_id for message in messages] == [result.transaction_id for result in results]
    assert (messages[0].id, messages[0].partition_id) == (results[0].message_id, results[0].partition_id)
    assert (messages[0].queue, messages[0].partition, messages[0].retry_count) == ("orders", "eu", 0)


async def test_the_client_makes_time_ordered_transaction_ids(queen: Queen) -> None:
    results = await queen.queue("q").push([1, 2, 3])
    ids = [UUID(result.transaction_id) for result in results]
    assert [one.version for one in ids] == [7, 7, 7]
    assert ids == sorted(ids)


async def test_the_ways_to_give_an_item(queen: Queen) -> None:
    trace = "6f9619ff-8b86-4011-b42d-00cf4fc964ff"
    ways = [
        {"data": 1, "transactionId": "one"},
        {"payload": 2, "transaction_id": "two", "traceId": trace},
        Item(3, transaction_id="three"),
        {"n": 4},
        {"data": 5, "user": "kept"},
        Item({"data": 6}),
        "seven",
        None,
    ]
    results = await queen.queue("q").push(ways)
    assert [result.transaction_id for result in results[:3]] == ["one", "two", "three"]
    assert results[1].trace_id == trace
    expected = [1, 2, 3, {"n": 4}, {"data": 5, "user": "kept"}, {"data": 6}, "seven", None]
    assert await drained(queen, "q") == expected


@pytest.mark.parametrize(
    "given",
    [
        {"data": 1},
        {"payload": 1},
        {"data": 1, "payload": 2},
        {"data": 1, "headers": {"a": "b"}},
        {"data": 1, "transactionId": "t", "delay": 5},
        {"payload": 1, "priority": 3, "queue": "q", "partition": "p"},
    ],
    ids=str,
)
async def test_what_may_be_a_payload_or_a_message_is_refused(queen: Queen, given: dict[str, Any]) -> None:
    for push in (queen.queue("q").push, queen.transaction().queue("q").push):
        for items in (given, [1, given]):
            with pytest.raises(InvalidItem, match=r"push Item\({...}\) to store the whole dict"):
                push(items)
    await queen.queue("q").push(Item(given))
    assert await drained(queen, "q") == [given]


@pytest.mark.parametrize("trace", ["none", "", 5, "6f9619ff-8b86-4011-b42d"])
async def test_a_trace_id_that_the_server_would_drop_is_refused(queen: Queen, trace: Any) -> None:
    with pytest.raises(InvalidItem, match="must be a UUID"):
        queen.queue("q").push(Item(1, trace_id=trace))
    with pytest.raises(InvalidItem, match="must be a UUID"):
        queen.queue("q").push({"data": 1, "traceId": trace})


async def test_options_that_were_not_sent_are_not_ignored(queen: Queen) -> None:
    orders = queen.queue("q").config(lease_time=7)
    for use in (lambda: orders.push(1), lambda: orders.consume(print)):
        with pytest.raises(ValueError, match="does not apply the options given to config"):
            use()
    with pytest.raises(ValueError, match="does not apply the options given to config"):
        await orders.pop()
    await orders.create()
    await orders.push(1)
    [message] = await orders.pop()
    assert message.data == 1


async def test_pushing_nothing(queen: Queen) -> None:
    assert await queen.queue("q").push([]) == []


async def test_a_duplicate_is_a_result(queen: Queen) -> None:
    [first] = await queen.queue("q").push(Item(1, "key"))
    [second] = await queen.queue("q").push(Item(2, "key"))
    assert (second.status, second.message_id, second.stored) == ("duplicate", first.message_id, True)
    assert await drained(queen, "q") == [1]


async def test_callbacks_sort_the_results(queen: Queen) -> None:
    await queen.queue("q").config(max_size=2).create()
    await queen.queue("q").push(Item(0, "old"))
    told: dict[str, list[str]] = {}

    def note(kind: str) -> Any:
        def take(results: list[PushResult], *error: Exception) -> None:
            told[kind] = [result.transaction_id for result in results]

        return take

    async def note_later(results: list[PushResult]) -> None:
        await asyncio.sleep(0)
        told["success"] = [result.transaction_id for result in results]

    push = queen.queue("q").push([Item(1, "old"), Item(2, "new"), Item(3, "over")])
    results = await push.on_success(note_later).on_duplicate(note("duplicate")).on_error(note("error"))
    assert told == {"success": ["new"], "duplicate": ["old"], "error": ["over"]}
    assert not results.stored


async def test_refused_items_are_raised_with_all_results(queen: Queen) -> None:
    await queen.queue("q").config({"maxSize": 1}).create()
    with pytest.raises(PushFailed, match="full") as caught:
        await queen.queue("q").push([1, 2])
    assert [result.status for result in caught.value.results] == ["queued", "failed"]


async def test_a_push_that_is_never_awaited_warns(queen: Queen) -> None:
    with pytest.warns(RuntimeWarning, match="never awaited"):
        queen.queue("q").push(1)


async def test_ten_thousand_at_once(queen: Queen) -> None:
    numbers = list(range(10_000))
    assert (await queen.queue("q").push(numbers)).stored
    assert await drained(queen, "q") == numbers


async def test_large_payloads(queen: Queen) -> None:
    large = {"blob": "ä" * (2 * 1024 * 1024)}
    await queen.queue("q").push(large)
    assert await drained(queen, "q") == [large]


@pytest.mark.parametrize("name", ["a/b", "..", ".", "ünï cödé", "a?b#c%2F", "x" * 255, "%"])
async def test_names_with_any_character(queen: Queen, name: str) -> None:
    await queen.queue(name).partition(name).push(name)
    assert await drained(queen, name, name) == [name]
    assert (await queen.queue(name).delete())["existed"] is True


async def test_a_refusal_names_code_and_field(queen: Queen) -> None:
    with pytest.raises(InvalidRequest, match="at most 255") as caught:
        await queen.queue("q").push([1, Item(2, "x" * 256)])
    assert (caught.value.status, caught.value.code) == (400, "invalid_request")
    assert caught.value.field == "items[1].transactionId"
    assert await drained(queen, "q") == []


PAYLOADS = [
    *(None, {}, [], "", 0, -0.0, False, 1.5, 1e-300),
    *(2**53 + 1, -(2**63) - 1, 2**64, 10**400),
    "text with ünïcödé, \u2028, \U0001f451 and \u0000",
    {"z": 1, "a": {"payload": [None, {"deep": [1, [2]]}]}},
]


async def test_payloads_arrive_as_they_were(queen: Queen) -> None:
    await queen.queue("q").push([Item(payload) for payload in PAYLOADS])
    found = await drained(queen, "q")
    assert found == PAYLOADS
    assert [type(value) for value in found] == [type(value) for value in PAYLOADS]
    assert list(found[-1]) == ["z", "a"]


async def test_raw_json_is_not_touched(queen: Queen, sql: asyncpg.Connection) -> None:
    text = b'{ "a" :1.00, "b":[1E5 ,9007199254740993],"a":"\\u00e4" }'
    await queen.queue("q").push(Item(Raw(text)))
    assert await sql.fetchval("SELECT payload FROM queen.messages") == text
    [message] = await queen.queue("q").pop()
    assert bytes(message.raw) == text
    assert message.data == json.loads(text)


@pytest.mark.parametrize("payload", [float("nan"), float("inf"), {1, 2}, object(), b"bytes", "\ud800"])
async def test_what_is_no_json_is_refused_before_it_is_sent(queen: Queen, payload: object) -> None:
    with pytest.raises(InvalidPayload):
        queen.queue("q").push(Item(payload))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@calm
@given(_json)
def test_encoding_is_exact(value: Any) -> None:
    assert decode(encode(value)) == value
    [item] = to_push_items(Item(value), "q", "p")
    assert decode(item.payload) == value


async def test_headers_go_and_come_with_a_message(queen: Queen) -> None:
    queue = queen.queue("headed")
    await queue.push([Item(1, headers={"type": "a"}), {"data": 2, "transactionId": "t", "headers": {"type": "b"}}, 3])
    await queue.schedule(4, key="k", delay=0, headers={"type": "c"})
    stored = await queue.read()
    assert [message.headers for message in stored][:3] == [{"type": "a"}, {"type": "b"}, {}]
    found: list[dict[str, str]] = []
    while len(found) < 4:
        found += [message.headers for message in await queue.batch(10).auto_ack(True).wait(True).pop()]
    assert found == [{"type": "a"}, {"type": "b"}, {}, {"type": "c"}]
    async with queen.transaction() as transaction:
        transaction.queue("headed").push(Item(5, headers={"type": "d"}))
    [message] = await queue.pop()
    assert message.headers == {"type": "d"}
