"""Delayed processing and the window buffer: when a message may be delivered."""

from __future__ import annotations

import asyncio
import time

import asyncpg

from integration.queen import Queen, age_messages, data, leases


async def test_a_delayed_message_is_invisible_at_once_and_visible_later(queen: Queen) -> None:
    await queen.configure("orders", delayedProcessing=1)
    await queen.push("orders", "m")
    pushed = time.monotonic()
    assert await queen.pop("orders") == []
    assert data(await queen.wait("orders")) == ["m"]
    assert time.monotonic() - pushed > 0.9


async def test_the_end_of_the_delay_wakes_a_long_poll_that_waits_already(queen: Queen) -> None:
    await queen.configure("orders", delayedProcessing=1)
    poll = asyncio.create_task(queen.wait("orders"))
    await queen.push("orders", "m")
    assert data(await poll) == ["m"]


async def test_a_delayed_partition_is_not_leased(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders", delayedProcessing=60)
    await queen.push("orders", "m")
    assert await queen.pop("orders", wait=True, timeout=50) == []
    assert await queen.pop("orders", "Default") == []
    assert await queen.pop("orders", autoAck=True) == []
    assert await leases(sql) == 0


async def test_only_what_is_ripe_is_delivered_and_in_order(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders", delayedProcessing=60)
    await queen.push("orders", "old 1", "old 2")
    await age_messages(sql, "orders", 61)
    await queen.push("orders", "young")
    assert data(await queen.pop("orders", batch=10)) == ["old 1", "old 2"]


async def test_delayed_partitions_do_not_use_up_the_claim(queen: Queen, sql: asyncpg.Connection) -> None:
    """In a queue with delayed partitions a single claim still finds the ripe ones."""
    await queen.configure("orders", delayedProcessing=60)
    await queen.push_items(*({"queue": "orders", "partition": f"ripe{n}"} for n in range(3)))
    await age_messages(sql, "orders", 61)
    await queen.push_items(*({"queue": "orders", "partition": f"young{n}"} for n in range(10)))
    popped = [message["partition"] for _ in range(4) for message in await queen.pop("orders")]
    assert sorted(popped) == ["ripe0", "ripe1", "ripe2"]
    together = await queen.pop("orders", batch=10, partitions=3, consumerGroup="g")
    assert sorted(message["partition"] for message in together) == ["ripe0", "ripe1", "ripe2"]


async def test_after_an_ack_the_partition_waits_for_its_next_message(queen: Queen, sql: asyncpg.Connection) -> None:
    """No pop has to look at it before."""
    await queen.configure("orders", delayedProcessing=60)
    await queen.push("orders", "old")
    await age_messages(sql, "orders", 61)
    popped = await queen.pop("orders")
    await queen.push("orders", "young")
    await queen.ack(*popped)
    waits = await sql.fetchval("SELECT ready_at > now() + interval '30 seconds' FROM queen.partition_consumers")
    assert waits is True


async def test_the_delay_counts_from_the_push_not_from_the_redelivery(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders", delayedProcessing=60)
    await queen.push("orders", "m")
    await age_messages(sql, "orders", 61)
    [message] = await queen.pop("orders")
    await queen.ack(message, "retry")
    assert data(await queen.pop("orders")) == ["m"]


async def test_a_window_delivers_nothing_first_then_everything_in_one_batch(queen: Queen) -> None:
    await queen.configure("orders", windowBuffer=1)
    await queen.push("orders", 1, 2, 3)
    assert await queen.pop("orders", batch=10) == []
    assert data(await queen.wait("orders", batch=10)) == [1, 2, 3]


async def test_the_end_of_the_window_wakes_a_long_poll_that_waits_already(queen: Queen) -> None:
    await queen.configure("orders", windowBuffer=1)
    poll = asyncio.create_task(queen.wait("orders", batch=10))
    for n in range(3):
        await queen.push("orders", n)
    assert data(await poll) == [0, 1, 2]


async def test_new_messages_postpone_the_window(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders", windowBuffer=60)
    await queen.push("orders", "old")
    await age_messages(sql, "orders", 61)
    await queen.push("orders", "young")
    assert await queen.pop("orders", batch=10) == []
    assert await leases(sql) == 0


async def test_a_quiet_window_is_open(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders", windowBuffer=60)
    await queen.push("orders", 1, 2)
    await age_messages(sql, "orders", 61)
    assert data(await queen.pop("orders")) == [1]


async def test_the_window_belongs_to_the_partition(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders", windowBuffer=60)
    await queen.push("orders", "quiet", partition="quiet")
    await age_messages(sql, "orders", 61)
    await queen.push("orders", "busy", partition="busy")
    assert data(await queen.pop("orders", batch=10, partitions=10)) == ["quiet"]


async def test_a_claimed_batch_is_finished_although_the_window_closes_again(
    queen: Queen, sql: asyncpg.Connection
) -> None:
    await queen.configure("orders", windowBuffer=60)
    await queen.push("orders", 1, 2)
    await age_messages(sql, "orders", 61)
    [first] = await queen.pop("orders")
    await queen.push("orders", 3)
    assert (await queen.ack(first))["success"]
    assert await queen.pop("orders") == []


async def test_delay_and_window_together_are_the_longer_of_both(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders", delayedProcessing=30, windowBuffer=40)
    await queen.pop("orders")
    await queen.push("orders", "m")
    wait = "SELECT extract(epoch FROM c.ready_at - clock_timestamp()) FROM queen.partition_consumers c"
    assert 30 < await sql.fetchval(wait) <= 40


async def test_a_changed_delay_holds_for_stored_messages(queen: Queen) -> None:
    await queen.configure("orders")
    await queen.push("orders", "m")
    [message] = await queen.pop("orders")
    await queen.ack(message, "retry")
    await queen.configure("orders", delayedProcessing=60)
    assert await queen.pop("orders") == []
    await queen.configure("orders")
    assert data(await queen.pop("orders")) == ["m"]
