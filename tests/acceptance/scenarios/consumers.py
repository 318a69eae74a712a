"""Consuming: order, concurrency, limits, failures, and who acknowledges."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

from queen import Queen
from stage import HAS_TIMEOUT, IS_MODERN, ack_all, check, data_of, fill, gives, is_empty, play

Message = dict[str, object]


@check
async def one_by_one_in_order(queen: Queen, queue: str) -> None:
    await fill(queen, queue, *range(20))
    seen: list[object] = []

    async def handler(message: Message) -> None:
        seen.append(message["data"])

    await queen.queue(queue).batch(1).limit(20).consume(handler)
    assert seen == list(range(20))
    assert await is_empty(queen, queue)


@check
async def without_a_batch_size(queen: Queen, queue: str) -> None:
    await fill(queen, queue, *range(3))
    seen: list[object] = []

    async def handler(given: Message | list[Message]) -> None:
        # 2.x leaves the size to the broker and always hands over a list then.
        seen.append(data_of(given) if isinstance(given, list) else given["data"])

    await queen.queue(queue).limit(3).consume(handler)
    assert seen == ([[0, 1, 2]] if IS_MODERN else [0, 1, 2])


@check
async def in_batches_in_order(queen: Queen, queue: str) -> None:
    await fill(queen, queue, *range(25))
    seen: list[list[object]] = []

    async def handler(messages: list[Message]) -> None:
        seen.append(data_of(messages))

    await queen.queue(queue).batch(10).limit(25).consume(handler)
    assert seen == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    assert await is_empty(queen, queue)


@check
async def each_message_of_a_batch_by_itself(queen: Queen, queue: str) -> None:
    await fill(queen, queue, *range(10))
    seen: list[object] = []

    async def handler(message: Message) -> None:
        seen.append(message["data"])

    await queen.queue(queue).batch(5).each().limit(10).consume(handler)
    assert seen == list(range(10))
    assert await is_empty(queen, queue)


@check
async def ten_thousand_messages_in_order(queen: Queen, queue: str) -> None:
    await fill(queen, queue, *range(10_000))
    seen: list[object] = []

    async def handler(messages: list[Message]) -> None:
        seen.extend(data_of(messages))

    await queen.queue(queue).batch(1000).limit(10_000).consume(handler)
    assert seen == list(range(10_000))


@check
async def ten_workers_on_one_partition(queen: Queen, queue: str) -> None:
    await fill(queen, queue, *range(100))
    seen: list[object] = []
    done = asyncio.Event()

    async def handler(messages: list[Message]) -> None:
        seen.extend(data_of(messages))
        if len(seen) >= 100:
            done.set()

    await queen.queue(queue).concurrency(10).batch(4).wait(False).consume(handler, signal=done)
    assert seen == list(range(100))
    assert await is_empty(queen, queue)


@check
async def many_workers_on_many_partitions(queen: Queen, queue: str) -> None:
    names = [f"customer-{n}" for n in range(6)]
    for name in names:
        await fill(queen, queue, *range(40), partition=name)
    seen: dict[object, list[object]] = defaultdict(list)
    busy: list[object] = []
    most_busy = 0
    shared: set[object] = set()
    done = asyncio.Event()

    async def handler(messages: list[Message]) -> None:
        # Nothing may be asserted here: the client takes it for a failure of the message and tries again.
        nonlocal most_busy
        partition = messages[0]["partition"]
        shared.update(name for name in busy if name == partition)
        busy.append(partition)
        most_busy = max(most_busy, len(busy))
        await fill(queen, f"{queue}_other", "the work")
        seen[partition] += data_of(messages)
        busy.remove(partition)
        if sum(map(len, seen.values())) >= 240:
            done.set()

    builder = queen.queue(queue).concurrency(8).batch(7).wait(False)
    if IS_MODERN:
        builder.partitions(1)
    await builder.consume(handler, signal=done)
    assert dict(seen) == {name: list(range(40)) for name in names}
    assert not shared, "two workers had the same partition at the same time"
    assert most_busy > 1, "the workers worked one after the other"
    assert await is_empty(queen, queue)


@check
async def waiting_workers(queen: Queen, queue: str) -> None:
    """Workers whose long polls are there before the messages; the limit counts for each worker by itself."""
    seen: list[object] = []

    async def handler(message: Message) -> None:
        seen.append(message["data"])

    workers = asyncio.ensure_future(queen.queue(queue).concurrency(5).batch(1).limit(4).consume(handler))
    for n in range(20):
        await fill(queen, queue, n, partition=f"p{n}")
    await workers
    assert sorted(seen) == list(range(20))
    assert await is_empty(queen, queue)


@check
async def an_idle_consumer_ends_by_itself(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1, 2, 3)
    seen: list[object] = []

    async def handler(messages: list[Message]) -> None:
        seen.extend(data_of(messages))

    builder = queen.queue(queue).batch(10).idle_millis(1000)
    # The client looks at its clock between polls only; 0.12 cannot shorten a long poll from 30 s.
    builder = builder.timeout_millis(400) if HAS_TIMEOUT else builder.wait(False)
    begin = time.monotonic()
    await builder.consume(handler)
    assert time.monotonic() - begin >= 1
    assert seen == [1, 2, 3]


@check
async def a_failed_batch_is_retried(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"retry_limit": 3, "retry_delay": 20}).create()
    await fill(queen, queue, 1, 2, 3)
    attempts: list[list[object]] = []
    done = asyncio.Event()

    async def handler(messages: list[Message]) -> None:
        attempts.append(data_of(messages))
        if len(attempts) < 3:
            raise RuntimeError("not yet")
        done.set()

    await queen.queue(queue).group("unsteady").batch(3).wait(False).consume(handler, signal=done)
    assert attempts == [[1, 2, 3]] * 3
    assert await is_empty(queen, queue, "unsteady")
    await gives(queen, queue, [1, 2, 3], "steady")
    assert (await queen.queue(queue).dlq().get())["total"] == 0


@check
async def a_failure_keeps_what_came_before_it(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"retry_delay": 20}).create()
    await fill(queen, queue, *range(6))
    handled: list[object] = []
    failed: list[object] = []
    done = asyncio.Event()

    async def handler(message: Message) -> None:
        if message["data"] == 2 and not failed:
            failed.append(2)
            raise RuntimeError("not yet")
        handled.append(message["data"])
        if handled[-4:] == [2, 3, 4, 5]:
            done.set()

    await queen.queue(queue).batch(6).each().wait(False).consume(handler, signal=done)
    if IS_MODERN:
        # 2.x leaves the rest of the batch alone after a failure.
        assert handled == [0, 1, 2, 3, 4, 5]
    else:
        # 0.12 and 0.15 go on with a lease that their failure has ended: the acks are refused, the messages come again.
        assert handled == [0, 1, 3, 4, 5, 2, 3, 4, 5]
    assert await is_empty(queen, queue)


@check
async def acknowledging_by_hand(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1, 2, 3)
    seen: list[object] = []

    async def handler(messages: list[Message]) -> None:
        seen.extend(data_of(messages))
        await ack_all(queen, messages)

    await queen.queue(queue).batch(2).auto_ack(False).limit(3).consume(handler)
    assert seen == [1, 2, 3]
    assert await is_empty(queen, queue)


@check
async def callbacks_acknowledge(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"retry_limit": 0}).create()
    await fill(queen, queue, "good", "bad")

    async def handler(message: Message) -> object:
        if message["data"] == "bad":
            raise RuntimeError("no good")
        return "fine"

    async def on_success(message: Message, result: object) -> None:
        assert result == "fine"
        assert (await queen.ack(message))["success"]

    async def on_error(message: Message, error: Exception) -> None:
        assert (await queen.ack(message, False, {"error": str(error)}))["success"]

    consumer = queen.queue(queue).batch(1).limit(2).consume(handler)
    await consumer.on_success(on_success).on_error(on_error)
    [dead] = (await queen.queue(queue).dlq().get())["messages"]
    assert (dead["data"], dead["errorMessage"]) == ("bad", "no good")
    assert await is_empty(queen, queue)


@check
async def a_cancelled_consumer_leaves_no_lease(queen: Queen, queue: str) -> None:
    first = asyncio.Event()

    async def handler(message: Message) -> None:
        first.set()

    consumer = asyncio.ensure_future(queen.queue(queue).concurrency(3).batch(1).consume(handler))
    await fill(queen, queue, "for the consumer")
    await first.wait()
    # The acknowledgement is on its way; the next message shows that it has arrived.
    first.clear()
    await fill(queen, queue, "one more")
    await first.wait()
    consumer.cancel()
    await asyncio.wait([consumer])
    await fill(queen, queue, "afterwards", partition="fresh")
    [message] = await queen.queue(queue).partition("fresh").batch(1).pop()
    assert message["data"] == "afterwards"


if __name__ == "__main__":
    play()
