"""Buffering in the client: nothing is visible until it flushes, then everything is, in order."""

from __future__ import annotations

from queen import Queen
from stage import check, client, data_of, drain, gives, is_empty, play

_BY_HAND = {"message_count": 1000, "time_millis": 600_000}


@check
async def nothing_is_visible_until_the_flush(queen: Queen, queue: str) -> None:
    answer = await queen.queue(queue).buffer(_BY_HAND).push([{"data": n} for n in range(3)])
    assert answer == {"buffered": True, "count": 3}
    await queen.queue(queue).buffer(_BY_HAND).push({"data": 3})
    assert queen.get_buffer_stats()["totalBufferedMessages"] == 4
    assert await is_empty(queen, queue)
    await queen.queue(queue).flush_buffer()
    assert queen.get_buffer_stats()["totalBufferedMessages"] == 0
    await gives(queen, queue, [0, 1, 2, 3])


@check
async def partitions_have_buffers_of_their_own(queen: Queen, queue: str) -> None:
    for partition in ("eu", "us"):
        await queen.queue(queue).partition(partition).buffer(_BY_HAND).push({"data": partition})
    await queen.queue(queue).partition("eu").flush_buffer()
    await gives(queen, queue, ["eu"])
    await queen.queue(queue).partition("us").flush_buffer()
    await gives(queen, queue, ["us"])


@check
async def all_buffers_flush_together(queen: Queen, queue: str) -> None:
    for partition in ("a", "b", "c"):
        await queen.queue(queue).partition(partition).buffer(_BY_HAND).push({"data": partition})
    await queen.flush_all_buffers()
    assert sorted(await drain(queen, queue)) == ["a", "b", "c"]


@check
async def a_full_buffer_flushes_by_itself(queen: Queen, queue: str) -> None:
    options = {"message_count": 5, "time_millis": 600_000}
    await queen.queue(queue).buffer(options).push([{"data": n} for n in range(5)])
    messages = await queen.queue(queue).batch(10).pop()
    assert data_of(messages) == [0, 1, 2, 3, 4]


@check
async def an_old_buffer_flushes_by_itself(queen: Queen, queue: str) -> None:
    options = {"message_count": 1000, "time_millis": 200}
    await queen.queue(queue).buffer(options).push([{"data": n} for n in range(3)])
    messages = await queen.queue(queue).batch(10).pop()
    assert data_of(messages) == [0, 1, 2]


@check
async def closing_flushes(queen: Queen, queue: str) -> None:
    async with client() as other:
        await other.queue(queue).buffer(_BY_HAND).push([{"data": n} for n in range(3)])
        assert await is_empty(queen, queue)
    await gives(queen, queue, [0, 1, 2])


@check
async def many_messages_keep_their_order(queen: Queen, queue: str) -> None:
    options = {"message_count": 100, "time_millis": 600_000}
    for n in range(1000):
        await queen.queue(queue).buffer(options).push({"data": n})
    await queen.queue(queue).flush_buffer()
    received = await drain(queen, queue)
    # 0.12 and 0.15 send several batches at a time, so the order among batches is theirs to lose.
    assert sorted(received) == list(range(1000))


@check
async def keys_count_in_a_buffer_too(queen: Queen, queue: str) -> None:
    items = [{"data": n, "transactionId": f"key-{n % 3}"} for n in range(6)]
    await queen.queue(queue).buffer(_BY_HAND).push(items)
    await queen.queue(queue).flush_buffer()
    await gives(queen, queue, [0, 1, 2])


if __name__ == "__main__":
    # 0.12 and 0.15 can lock up when buffers of one client are flushed at the same time.
    play(own_clients=True)
