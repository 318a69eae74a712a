"""Seek: moving a group back, forward and to the end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg

from integration.queen import Queen, age_messages, data, leases

FAR_PAST = "1970-01-01T00:00:00Z"


async def push_one_by_one(queen: Queen, count: int = 4) -> None:
    for n in range(count):
        await queen.push("orders", n)


async def test_far_back_replays_everything(queen: Queen) -> None:
    await push_one_by_one(queen)
    await queen.drain("orders", consumerGroup="g")
    answer = await queen.seek("g", "orders", timestamp=FAR_PAST)
    assert answer == {
        "success": True,
        "consumerGroup": "g",
        "queueName": "orders",
        "partitionsUpdated": 1,
        "seekToEnd": False,
        "targetTimestamp": "1970-01-01T00:00:00.000Z",
    }
    assert data(await queen.drain("orders", consumerGroup="g")) == [0, 1, 2, 3]


async def test_a_group_that_subscribed_to_new_is_really_rewound(queen: Queen) -> None:
    await push_one_by_one(queen)
    await queen.pop("orders", consumerGroup="g", subscriptionMode="new")
    await queen.seek("g", "orders", timestamp=FAR_PAST)
    assert data(await queen.drain("orders", consumerGroup="g")) == [0, 1, 2, 3]


async def test_to_a_timestamp_resumes_strictly_after_it(queen: Queen) -> None:
    await push_one_by_one(queen)
    times = [message["createdAt"] for message in await queen.drain("orders", consumerGroup="g")]
    await queen.seek("g", "orders", timestamp=times[1])
    assert data(await queen.drain("orders", consumerGroup="g")) == [2, 3]


async def test_forward_to_a_timestamp_skips_what_is_pending(queen: Queen) -> None:
    await push_one_by_one(queen)
    times = [message["createdAt"] for message in await queen.drain("orders")]
    [first] = await queen.pop("orders", consumerGroup="g")
    await queen.ack(first)
    await queen.seek("g", "orders", timestamp=times[2])
    assert data(await queen.drain("orders", consumerGroup="g")) == [3]


async def test_to_the_end_skips_what_is_pending(queen: Queen) -> None:
    await push_one_by_one(queen)
    [first] = await queen.pop("orders", consumerGroup="g")
    await queen.ack(first)
    answer = await queen.seek("g", "orders", toEnd=True)
    assert (answer["seekToEnd"], answer["targetTimestamp"], answer["partitionsUpdated"]) == (True, None, 1)
    assert await queen.pop("orders", consumerGroup="g") == []
    await queen.push("orders", "later")
    assert data(await queen.drain("orders", consumerGroup="g")) == ["later"]


async def test_every_partition_of_the_queue_is_moved(queen: Queen) -> None:
    for queue in ("orders", "other"):
        await queen.push_items(*({"queue": queue, "partition": f"p{n}"} for n in range(5)))
        await queen.drain(queue, consumerGroup="g", partitions=5)
    assert (await queen.seek("g", "orders", timestamp=FAR_PAST))["partitionsUpdated"] == 5
    assert len(await queen.drain("orders", consumerGroup="g", partitions=5)) == 5
    assert await queen.pop("other", consumerGroup="g") == []


async def test_only_that_group_is_moved(queen: Queen) -> None:
    await push_one_by_one(queen)
    for group in ("g", "other"):
        await queen.drain("orders", consumerGroup=group)
    await queen.seek("g", "orders", timestamp=FAR_PAST)
    assert await queen.pop("orders", consumerGroup="other") == []


async def test_it_ends_leases_and_forgets_failures(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders", retryDelay=60_000)
    await push_one_by_one(queen)
    [message] = await queen.pop("orders", consumerGroup="g")
    await queen.ack(message, "failed")
    await queen.seek("g", "orders", timestamp=FAR_PAST)
    [held] = await queen.pop("orders", consumerGroup="g")
    assert held["retryCount"] == 0
    await queen.seek("g", "orders", timestamp=FAR_PAST)
    assert await leases(sql) == 0
    assert (await queen.ack(held))["error"] == "Invalid or expired lease"
    await queen.extend(held["leaseId"], status=404)
    assert data(await queen.drain("orders", consumerGroup="g")) == [0, 1, 2, 3]


async def test_messages_finished_out_of_order_are_replayed_too(queen: Queen) -> None:
    await push_one_by_one(queen)
    batch = await queen.pop("orders", consumerGroup="g", batch=4)
    await queen.ack(batch[2])
    await queen.seek("g", "orders", timestamp=FAR_PAST)
    assert data(await queen.drain("orders", consumerGroup="g")) == [0, 1, 2, 3]


async def test_an_idle_group_wakes_up(queen: Queen) -> None:
    await push_one_by_one(queen)
    await queen.drain("orders", consumerGroup="g")
    for _ in range(3):
        assert await queen.pop("orders", consumerGroup="g", wait=True, timeout=20) == []
    await queen.seek("g", "orders", timestamp=FAR_PAST)
    assert data(await queen.pop("orders", consumerGroup="g", batch=9)) == [0, 1, 2, 3]


async def test_it_wakes_the_group_whatever_its_idle_mark_says(queen: Queen, sql: asyncpg.Connection) -> None:
    await push_one_by_one(queen)
    mark = "UPDATE queen.partition_consumers SET ready_at = clock_timestamp() + interval '1 day'"
    await queen.drain("orders", consumerGroup="g")
    await sql.execute(mark)
    await queen.seek("g", "orders", timestamp=FAR_PAST)
    assert data(await queen.drain("orders", consumerGroup="g")) == [0, 1, 2, 3]
    await sql.execute(mark)
    await queen.delete_group("g", "orders")
    assert data(await queen.drain("orders", consumerGroup="g")) == [0, 1, 2, 3]


async def test_an_unknown_group_or_queue_succeeds_with_nothing_moved(queen: Queen) -> None:
    await push_one_by_one(queen)
    for group, queue in (("never", "orders"), ("g", "unknown")):
        for target in ({"toEnd": True}, {"timestamp": FAR_PAST}):
            answer = await queen.seek(group, queue, **target)
            assert (answer["success"], answer["partitionsUpdated"]) == (True, 0)
    assert data(await queen.drain("orders", consumerGroup="never")) == [0, 1, 2, 3]


async def test_partitions_that_come_later_are_not_affected(queen: Queen) -> None:
    await push_one_by_one(queen)
    await queen.pop("orders", consumerGroup="g")
    await queen.seek("g", "orders", toEnd=True)
    await queen.push("orders", "m", partition="new")
    assert data(await queen.drain("orders", consumerGroup="g")) == ["m"]


async def test_the_queue_mode_can_be_moved(queen: Queen) -> None:
    await push_one_by_one(queen)
    await queen.drain("orders")
    assert (await queen.seek("__QUEUE_MODE__", "orders", timestamp=FAR_PAST))["partitionsUpdated"] == 1
    assert len(await queen.drain("orders")) == 4


async def test_the_target_must_be_said(queen: Queen) -> None:
    path = "/api/v1/consumer-groups/g/queues/orders/seek"
    for body in (None, {}, {"toEnd": False}):
        assert (await queen.refused(path, body))["error"] == "Must specify either 'toEnd': true or 'timestamp'"
    assert (await queen.refused(path, {"timestamp": "then"}))["field"] == "timestamp"


async def test_what_a_seek_would_do_is_told_before(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", "old", "older", partition="a")
    await age_messages(sql, "orders", 1000)
    await queen.push("orders", "new", "newer", partition="a")
    await queen.push("orders", "other", partition="b")
    await queen.pop("orders", consumerGroup="g", subscriptionMode="all", partitions=5, autoAck=True, batch=3)
    path = "/api/v1/consumer-groups/g/queues/orders/seek"
    moment = (datetime.now(UTC) - timedelta(seconds=500)).isoformat()
    for asked, again, skipped, partitions in (
        ({"toEnd": True}, 0, 2, 2),
        ({"timestamp": "1970-01-01T00:00:00Z"}, 3, 0, 2),
        ({"timestamp": moment}, 1, 0, 2),
        ({"timestamp": moment, "partition": "b"}, 0, 0, 1),
    ):
        told = (await queen.http.get(path, params=asked)).json()
        assert (told["deliveredAgain"], told["skipped"], told["partitions"]) == (again, skipped, partitions), asked
    await queen.seek("g", "orders", timestamp="1970-01-01T00:00:00Z")
    assert len(await queen.drain("orders", consumerGroup="g")) == 5
    for unknown in (path.replace("orders", "nowhere"), path + "?partition=nowhere"):
        assert (await queen.http.get(unknown)).status_code == 404
