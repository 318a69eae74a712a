"""Batching in the client: nothing is visible until it is sent, then everything is, in order and once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from integration.queen import until
from server_settings import settings_with

from client.faults import REFUSED, Answer, Cut, Lose, Proxy, Stall
from queenmq.client import BufferNotFlushed, InvalidRequest, Item, PushFailed, Queen
from queenmq.config import Settings

BY_HAND = {"message_count": 1000, "time_millis": 600_000}


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Queen]:
    async with Queen(proxy.url, retry_attempts=2, retry_delay_millis=1) as one:
        yield one


async def everything(queen: Queen, queue: str = "q") -> list[Any]:
    return [message.data for message in await queen.queue(queue).batch(10_000).wait(False).pop()]


async def test_nothing_is_sent_until_the_flush(client: Queen, proxy: Proxy, queen: Queen) -> None:
    results = await client.queue("q").buffer(BY_HAND).push([0, 1])
    await client.queue("q").buffer(BY_HAND).push(2)
    assert [(result.status, result.stored) for result in results] == [("pending", False)] * 2
    stats = client.get_buffer_stats()
    assert (stats.active_buffers, stats.buffered_messages) == (1, 3)
    assert not proxy.seen
    await client.queue("q").flush_buffer()
    assert len(proxy.seen) == 1
    assert client.get_buffer_stats().buffered_messages == 0
    messages = await queen.queue("q").batch(5).pop()
    assert [message.data for message in messages] == [0, 1, 2]
    assert messages[0].transaction_id == results[0].transaction_id


async def test_a_full_buffer_and_an_old_one_send_themselves(client: Queen, proxy: Proxy) -> None:
    await client.queue("full").buffer(message_count=3, time_millis=600_000).push([1, 2, 3])
    await until(lambda: len(proxy.seen) == 1)
    await client.queue("old").buffer(message_count=100, time_millis=20).push(1)
    await until(lambda: len(proxy.seen) == 2)


async def test_partitions_have_buffers_of_their_own(client: Queen, queen: Queen) -> None:
    for name in ("eu", "us"):
        await client.queue("q").partition(name).buffer(BY_HAND).push(name)
    await client.queue("q").partition("eu").flush_buffer()
    assert await everything(queen) == ["eu"]
    await client.flush_all_buffers()
    assert await everything(queen) == ["us"]


async def test_closing_flushes(url: str, queen: Queen) -> None:
    async with Queen(url) as client:
        await client.queue("q").buffer(BY_HAND).push([1, 2])
    assert await everything(queen) == [1, 2]


async def test_order_holds_over_many_batches_and_faults(client: Queen, proxy: Proxy, queen: Queen) -> None:
    proxy.script.extend([None, Cut(), Lose(), Cut(), None, REFUSED, Lose(0), Lose(), REFUSED] * 3)
    for n in range(500):
        await client.queue("q").buffer({"message_count": 20, "time_millis": 5, "max_size": 1000}).push(n)
    while client.get_buffer_stats().buffered_messages:
        try:
            await client.flush_all_buffers()
        except BufferNotFlushed:
            continue
    assert await everything(queen) == list(range(500))


async def test_one_batch_at_a_time(client: Queen, proxy: Proxy, queen: Queen) -> None:
    proxy.script.append(Stall())
    await client.queue("q").buffer(message_count=2, time_millis=1).push([1, 2])
    await proxy.arrived.wait()
    await client.queue("q").buffer(message_count=2, time_millis=1).push([3, 4])
    await client.queue("other").push("a round trip, in which the second batch would have been sent")
    assert len(proxy.seen) == 2
    await proxy.stop()
    await proxy.start()
    await client.flush_all_buffers()
    assert await everything(queen) == [1, 2, 3, 4]


async def test_what_could_not_be_sent_stays_and_is_told(client: Queen, proxy: Proxy, queen: Queen) -> None:
    proxy.script.extend([REFUSED] * 2)
    await client.queue("q").buffer(BY_HAND).push([1, 2])
    with pytest.raises(BufferNotFlushed, match="2 messages") as caught:
        await client.queue("q").flush_buffer()
    assert caught.value.count == 2
    assert client.get_buffer_stats().buffered_messages == 2
    await client.queue("q").flush_buffer()
    assert await everything(queen) == [1, 2]


async def test_a_client_that_cannot_flush_says_so_when_it_is_closed(proxy: Proxy) -> None:
    client = Queen(proxy.url, retry_attempts=1)
    await client.queue("q").buffer(BY_HAND).push([1, 2, 3])
    await proxy.stop()
    with pytest.raises(BufferNotFlushed) as caught:
        await client.close()
    assert caught.value.count == 3
    assert not client._session.transport.is_open
    await proxy.start()


async def test_what_the_server_refuses_for_good_does_not_hold_up_the_rest(client: Queen, queen: Queen) -> None:
    await client.queue("q").buffer(message_count=1, time_millis=1).push(Item("bad", "x" * 300))
    await until(lambda: not client.get_buffer_stats().buffered_messages)
    await client.queue("q").buffer(BY_HAND).push("good")
    with pytest.raises(InvalidRequest):
        await client.flush_all_buffers()
    assert await everything(queen) == ["good"]
    # It is told once.
    await client.flush_all_buffers()


async def test_items_that_are_refused_one_by_one_are_told(client: Queen, queen: Queen) -> None:
    await queen.queue("q").config(max_size=1).create()
    await client.queue("q").buffer(BY_HAND).push([1, 2])
    with pytest.raises(PushFailed):
        await client.queue("q").flush_buffer()
    assert client.get_buffer_stats().buffered_messages == 0


async def test_a_push_waits_while_the_buffer_is_full(client: Queen, proxy: Proxy, queen: Queen) -> None:
    limits = {"message_count": 2, "time_millis": 600_000, "max_size": 4}
    proxy.script.append(Stall())
    await client.queue("q").buffer(limits).push([1, 2])
    await proxy.arrived.wait()
    await client.queue("q").buffer(limits).push([3, 4])
    waiting = asyncio.ensure_future(client.queue("q").buffer(limits).push([5]))
    await queen.queue("other").push("a round trip, in which it would have been taken")
    assert not waiting.done()
    await proxy.stop()
    await proxy.start()
    assert (await waiting)[0].status == "pending"
    await client.flush_all_buffers()
    assert await everything(queen) == [1, 2, 3, 4, 5]


async def test_a_full_buffer_that_cannot_be_sent_refuses_more(client: Queen, proxy: Proxy) -> None:
    limits = {"message_count": 2, "time_millis": 600_000, "max_size": 2}
    proxy.script.extend([Answer(500)] * 8)
    await client.queue("q").buffer(limits).push([1, 2])
    with pytest.raises(BufferNotFlushed, match=r"is full .* 500"):
        await client.queue("q").buffer(limits).push([3])
    assert client.get_buffer_stats().buffered_messages == 2
    proxy.script.clear()


async def test_batches_are_bounded_in_bytes(client: Queen, proxy: Proxy) -> None:
    await client.queue("q").buffer(BY_HAND).push(["x" * 1_500_000] * 5)
    await client.flush_all_buffers()
    assert [len(seen.json()["items"]) for seen in proxy.seen] == [2, 2, 1]


class TestWithASmallServer:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(limits={"max_items": 10})

    async def test_a_batch_that_is_too_large_is_sent_in_parts(self, client: Queen, queen: Queen) -> None:
        await client.queue("q").buffer(BY_HAND).push(list(range(64)))
        await client.flush_all_buffers()
        found: list[Any] = []
        while messages := await queen.queue("q").batch(10).auto_ack().wait(False).pop():
            found += [message.data for message in messages]
        assert found == list(range(64))


async def test_many_partitions_leave_no_empty_buffers(client: Queen, queen: Queen, monkeypatch: Any) -> None:
    monkeypatch.setattr("queenmq.client.buffer._FIRST_SWEEP", 10)
    client._session.buffers._sweep_at = 10
    for n in range(60):
        await client.queue("q").partition(str(n)).buffer(message_count=1, time_millis=1).push(n)
        await until(lambda: not client.get_buffer_stats().buffered_messages)
    assert len(client._session.buffers._buffers) <= 20


@pytest.mark.parametrize("limits", [{"message_count": 0}, {"time_millis": -1}, {"max_size": -1}])
async def test_limits_that_make_no_sense(queen: Queen, limits: Any) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        queen.queue("q").buffer(limits)
