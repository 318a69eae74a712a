"""Pushing: one or many, duplicates, partitions, payloads of every kind, full and encrypted queues."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

from queen import Queen
from stage import check, data_of, drain, fill, gives, play

_PAYLOADS = [
    None,
    {},
    [],
    "",
    0,
    False,
    1.5,
    -(2**53) + 1,
    10**30,
    "text with ünïcödé, \u2028, \U0001f451 and \u0000",
    {"data": {"payload": [None, {"deep": [1, [2, [3]]]}]}},
]
_MEGABYTE = 1024 * 1024


@check
async def one_message_is_queued(queen: Queen, queue: str) -> None:
    [result] = await queen.queue(queue).push({"data": {"n": 1}, "transactionId": "order-17"})
    assert result["status"] == "queued"
    assert result["transaction_id"] == result["transactionId"] == "order-17"
    assert UUID(result["message_id"]).version == 7
    assert result["queueName"] == queue
    [message] = await queen.queue(queue).batch(1).pop()
    assert message["id"] == result["message_id"]
    assert message["partitionId"] == result["partition_id"]
    assert message["transactionId"] == "order-17"
    assert (message["data"], message["partition"], message["producerSub"]) == ({"n": 1}, "Default", None)


@check
async def a_batch_keeps_its_order(queen: Queen, queue: str) -> None:
    results = await fill(queen, queue, *range(100))
    assert [result["index"] for result in results] == list(range(100))
    assert len({result["message_id"] for result in results}) == 100
    assert len({result["transaction_id"] for result in results}) == 100
    await gives(queen, queue, list(range(100)))


@check
async def the_payload_may_be_given_in_three_ways(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push([{"data": {"n": 1}}, {"payload": {"n": 2}}, {"n": 3}])
    await gives(queen, queue, [{"n": 1}, {"n": 2}, {"n": 3}])


@check
async def pushing_nothing_returns_nothing(queen: Queen, queue: str) -> None:
    assert await queen.queue(queue).push([]) == []


@check
async def a_second_push_of_a_key_is_a_duplicate(queen: Queen, queue: str) -> None:
    [first] = await queen.queue(queue).push({"data": 1, "transactionId": "key"})
    [second] = await queen.queue(queue).push({"data": 2, "transactionId": "key"})
    assert (first["status"], second["status"]) == ("queued", "duplicate")
    assert second["message_id"] == first["message_id"]
    await gives(queen, queue, [1])
    [third] = await queen.queue(queue).push({"data": 3, "transactionId": "key"})
    assert third["status"] == "duplicate", "consuming a message must not free its key"


@check
async def duplicates_within_a_request(queen: Queen, queue: str) -> None:
    results = await queen.queue(queue).push([{"data": n, "transactionId": "key"} for n in range(3)])
    assert [result["status"] for result in results] == ["queued", "duplicate", "duplicate"]
    assert len({result["message_id"] for result in results}) == 1
    await gives(queen, queue, [0])


@check
async def of_eight_pushes_at_once_one_is_queued(queen: Queen, queue: str) -> None:
    pushes = (queen.queue(queue).push({"data": n, "transactionId": "key"}) for n in range(8))
    results = [result for [result] in await asyncio.gather(*pushes)]
    assert sorted(result["status"] for result in results) == ["duplicate"] * 7 + ["queued"]
    assert len({result["message_id"] for result in results}) == 1
    [winner] = [n for n, result in enumerate(results) if result["status"] == "queued"]
    await gives(queen, queue, [winner])


@check
async def a_key_counts_per_partition(queen: Queen, queue: str) -> None:
    for partition in ("eu", "us"):
        [result] = await queen.queue(queue).partition(partition).push({"data": partition, "transactionId": "key"})
        assert result["status"] == "queued"
    assert sorted(await drain(queen, queue)) == ["eu", "us"]


@check
async def the_callbacks_sort_the_results(queen: Queen, queue: str) -> None:
    told: dict[str, list[object]] = {"success": [], "duplicate": []}

    async def on_success(items: list[dict[str, object]]) -> None:
        told["success"] += [item["payload"] for item in items]

    async def on_duplicate(items: list[dict[str, object]], error: Exception) -> None:
        told["duplicate"] += [item["payload"] for item in items]

    await queen.queue(queue).push({"data": "old", "transactionId": "old"})
    items = [{"data": "new", "transactionId": "new"}, {"data": "again", "transactionId": "old"}]
    await queen.queue(queue).push(items).on_success(on_success).on_duplicate(on_duplicate)
    assert told == {"success": ["new"], "duplicate": ["again"]}


@check
async def payloads_arrive_as_they_were(queen: Queen, queue: str) -> None:
    await fill(queen, queue, *_PAYLOADS)
    received = await drain(queen, queue)
    assert received == _PAYLOADS
    assert [type(value) for value in received] == [type(value) for value in _PAYLOADS]


@check
async def large_payloads_arrive_intact(queen: Queen, queue: str) -> None:
    large = [{"blob": "x" * (2 * _MEGABYTE)}, [{"n": n, "text": "ä" * 20} for n in range(10_000)]]
    await fill(queen, queue, *large)
    await gives(queen, queue, large)


@check
async def a_trace_id_travels_with_the_message(queen: Queen, queue: str) -> None:
    trace_id = str(uuid4())
    items = [{"data": 1, "traceId": trace_id}, {"data": 2, "traceId": "no uuid"}, {"data": 3}]
    results = await queen.queue(queue).push(items)
    # The client itself leaves out what is not a UUID of version 4.
    assert [result["trace_id"] for result in results] == [trace_id, None, None]
    messages = await queen.queue(queue).batch(3).pop()
    assert [message["traceId"] for message in messages] == [trace_id, None, None]


@check
async def a_full_queue_refuses(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"max_size": 2}).create()
    told: list[object] = []

    async def on_error(items: list[dict[str, object]], error: Exception) -> None:
        told.extend(item["payload"] for item in items)

    results = await queen.queue(queue).push([{"data": n} for n in range(3)]).on_error(on_error)
    assert [result["status"] for result in results] == ["queued", "queued", "failed"]
    assert told == [2]
    try:
        await queen.queue(queue).push({"data": 3})
    except Exception as error:
        assert str(error) == results[2]["error"]
    else:
        raise AssertionError("a full queue took a message")
    await gives(queen, queue, [0, 1])
    await fill(queen, queue, 4)


@check
async def an_encrypted_queue_returns_its_payload(queen: Queen, queue: str) -> None:
    answer = await queen.queue(queue).config({"encryption_enabled": True}).create()
    assert answer["options"]["encryptionEnabled"] is True
    await fill(queen, queue, {"secret": "ünïcödé"}, None)
    await gives(queen, queue, [{"secret": "ünïcödé"}, None])


@check
async def many_partitions(queen: Queen, queue: str) -> None:
    pushes = [fill(queen, queue, n, partition=f"customer-{n}") for n in range(50)]
    await asyncio.gather(*pushes)
    assert sorted(await drain(queen, queue)) == list(range(50))


@check
async def names_with_special_characters(queen: Queen, queue: str) -> None:
    # The client puts names into paths as they are; httpx escapes what a path cannot hold.
    odd, partition = f"{queue} ünïcödé", "eu 1: ä"
    await fill(queen, odd, 1, partition=partition)
    [message] = await queen.queue(odd).partition(partition).batch(1).pop()
    assert (message["data"], message["partition"]) == (1, partition)
    assert data_of(await queen.queue(odd).wait(False).pop()) == []
    assert (await queen.queue(odd).delete())["existed"] is True


if __name__ == "__main__":
    play()
