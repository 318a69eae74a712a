"""Popping: waiting or not, batches, partitions, and the lease that comes with the messages."""

from __future__ import annotations

import asyncio
import time

from queen import Queen
from stage import (
    HAS_PARTITIONS,
    HAS_TIMEOUT,
    IS_MODERN,
    ack_all,
    check,
    check_since,
    data_of,
    drain,
    fill,
    gives,
    is_empty,
    play,
)


@check
async def nothing_comes_from_an_empty_queue(queen: Queen, queue: str) -> None:
    await queen.queue(queue).create()
    assert await queen.queue(queue).wait(False).pop() == []


@check
async def nothing_comes_from_an_unknown_queue(queen: Queen, queue: str) -> None:
    assert await queen.queue(queue).wait(False).pop() == []
    assert await queen.queue(queue).partition("eu").wait(False).pop() == []
    assert (await queen.queue(queue).delete())["existed"] is False, "a pop must not create the queue"


@check
async def a_pushed_message_is_visible_at_once(queen: Queen, queue: str) -> None:
    for n in range(20):
        await fill(queen, queue, n)
        [message] = await queen.queue(queue).wait(False).pop()
        assert message["data"] == n
        assert (await queen.ack(message))["success"]


@check
async def a_long_poll_gets_what_comes_later(queen: Queen, queue: str) -> None:
    poll = asyncio.ensure_future(queen.queue(queue).batch(1).pop())
    await fill(queen, f"{queue}_other", "elsewhere")
    assert not poll.done()
    await fill(queen, queue, "later")
    assert data_of(await poll) == ["later"]


@check
async def a_long_poll_ends_at_its_timeout(queen: Queen, queue: str) -> None:
    if not HAS_TIMEOUT:
        # 0.12 cannot say how long it waits: 30 s, always.
        assert not hasattr(queen.queue(queue), "timeout_millis")
        return
    begin = time.monotonic()
    assert await queen.queue(queue).timeout_millis(500).pop() == []
    assert 0.5 <= time.monotonic() - begin < 25  # not the 30 s that it waits by itself


@check
async def a_batch_is_never_larger_than_asked(queen: Queen, queue: str) -> None:
    await fill(queen, queue, *range(10))
    for expected in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9]):
        messages = await queen.queue(queue).batch(4).pop()
        assert data_of(messages) == expected
        await ack_all(queen, messages)
    assert await is_empty(queen, queue)


@check
async def without_a_batch_size(queen: Queen, queue: str) -> None:
    await fill(queen, queue, *range(5))
    messages = await queen.queue(queue).pop()
    # 2.x leaves the size to the broker, the others ask for one message.
    assert data_of(messages) == (list(range(5)) if IS_MODERN else [0])


@check
async def a_partition_can_be_named(queen: Queen, queue: str) -> None:
    for partition in ("eu", "us"):
        await fill(queen, queue, f"{partition}-1", f"{partition}-2", partition=partition)
    messages = await queen.queue(queue).partition("us").batch(10).pop()
    assert data_of(messages) == ["us-1", "us-2"]
    assert {message["partition"] for message in messages} == {"us"}
    assert await queen.queue(queue).partition("asia").wait(False).pop() == []


@check
async def the_default_partition_cannot_be_named(queen: Queen, queue: str) -> None:
    # A fault of all clients: asking for `Default` sends a pop of any partition.
    await fill(queen, queue, "from eu", partition="eu")
    assert data_of(await queen.queue(queue).partition("Default").wait(False).pop()) == ["from eu"]


@check
async def a_leased_partition_is_skipped(queen: Queen, queue: str) -> None:
    for partition in ("eu", "us"):
        await fill(queen, queue, partition, partition, partition=partition)
    [first] = await queen.queue(queue).batch(1).wait(False).pop()
    [second] = await queen.queue(queue).batch(1).wait(False).pop()
    assert {first["partition"], second["partition"]} == {"eu", "us"}
    assert await is_empty(queen, queue), "both partitions are leased"
    assert (await queen.ack(first))["success"]
    [third] = await queen.queue(queue).batch(1).wait(False).pop()
    assert third["partition"] == first["partition"]


@check
async def several_partitions_in_one_pop(queen: Queen, queue: str) -> None:
    for partition in ("a", "b", "c"):
        await fill(queen, queue, f"{partition}-1", f"{partition}-2", partition=partition)
    if not HAS_PARTITIONS:
        # 0.12 cannot ask for several: one partition a pop.
        assert not hasattr(queen.queue(queue), "partitions")
        for _ in range(3):
            messages = await queen.queue(queue).batch(10).pop()
            assert len({message["partitionId"] for message in messages}) == 1
            assert len(messages) == 2
        return
    messages = await queen.queue(queue).batch(10).partitions(3).pop()
    assert sorted(data_of(messages)) == ["a-1", "a-2", "b-1", "b-2", "c-1", "c-2"]
    assert len({message["partitionId"] for message in messages}) == 3
    assert len({message["leaseId"] for message in messages}) == 1
    for message in messages:
        assert (await queen.ack(message))["success"]
    assert await is_empty(queen, queue)


@check_since(0, 15)
async def the_batch_counts_over_all_partitions(queen: Queen, queue: str) -> None:
    for n in range(8):
        await fill(queen, queue, 1, 2, 3, partition=f"p{n}")
    messages = await queen.queue(queue).batch(10).partitions(100).pop()
    assert len(messages) == 10
    await ack_all(queen, messages)
    assert len(await drain(queen, queue)) == 14


@check
async def acknowledging(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1, 2)
    [message] = await queen.queue(queue).batch(1).pop()
    answer = await queen.ack(message)
    assert (answer["success"], answer["queueName"], answer["leaseReleased"]) == (True, queue, True)
    answer = await queen.ack(message)
    assert (answer["success"], answer["error"]) == (False, "Invalid or expired lease")
    unknown = {**message, "transactionId": "nobody"}
    assert (await queen.ack(unknown))["error"] == "Message not found"
    without_partition = {key: value for key, value in message.items() if key != "partitionId"}
    assert "partitionId" in (await queen.ack(without_partition))["error"]
    await gives(queen, queue, [2])


@check
async def acknowledging_in_any_order(queen: Queen, queue: str) -> None:
    await fill(queen, queue, *range(5))
    messages = await queen.queue(queue).batch(4).pop()
    for n in (2, 0, 3):
        answer = await queen.ack(messages[n])
        assert (answer["success"], answer["leaseReleased"]) == (True, False)
    assert (await queen.ack(messages[1]))["leaseReleased"] is True
    await gives(queen, queue, [4])


@check
async def acknowledging_with_different_results(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"retry_delay": 20}).create()
    await fill(queen, queue, "good", "bad", "unlucky")
    messages = await queen.queue(queue).batch(3).pop()
    messages[1] |= {"_status": False, "_error": "broken"}
    answer = await queen.ack(messages)
    assert len(answer["results"]) == 3
    # Nothing is lost: the failed message and what came behind it are delivered again.
    again = await queen.queue(queue).batch(3).pop()
    assert data_of(again) in (["bad"], ["bad", "unlucky"])
    await ack_all(queen, again)
    assert await is_empty(queen, queue)


@check
async def acknowledging_nothing(queen: Queen, queue: str) -> None:
    assert await queen.ack([]) == {"processed": 0, "results": []}


@check
async def consuming_at_delivery(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1, 2)
    if not IS_MODERN:
        # A fault of 0.12 and 0.15: auto_ack(True) is the default of consume(), so pop() takes it for "not set"
        # and sends no autoAck. The message is leased like any other.
        [message] = await queen.queue(queue).batch(1).auto_ack(True).pop()
        assert message["leaseId"]
        assert await is_empty(queen, queue)
        assert (await queen.ack(message))["success"]
        await gives(queen, queue, [2])
        return
    [message] = await queen.queue(queue).batch(1).commit_on_delivery().pop()
    assert (message["data"], message["leaseId"]) == (1, "")
    [message] = await queen.queue(queue).batch(1).commit_on_delivery().wait(False).pop()
    assert message["data"] == 2
    assert await is_empty(queen, queue)


@check_since(2)
async def only_the_newest_of_each_partition(queen: Queen, queue: str) -> None:
    newest = queen.queue(queue).group("g").conflation().batch(10)
    assert await newest.wait(False).pop() == []
    await fill(queen, queue, 1, 2, 3)
    [message] = await newest.wait(True).pop()
    assert message["data"] == 3
    assert (await queen.ack(message, True, {"group": "g"}))["success"]
    await gives(queen, queue, [1, 2, 3])
    await fill(queen, queue, 4, 5)
    seen: list[object] = []

    async def handler(message: dict[str, object]) -> None:
        seen.append(message["data"])

    await queen.queue(queue).group("g").conflation().batch(1).each().limit(1).consume(handler)
    assert seen == [5]
    for refused in (queen.queue(queue).conflation(), queen.queue(queue).group("h").conflation().commit_on_delivery()):
        try:
            await refused.wait(False).pop()
        except Exception as error:
            assert "conflation" in str(error)
        else:
            raise AssertionError("it was not refused")


@check_since(2)
async def a_group_that_reads_everything_goes_on_so(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1, 2)
    [message] = await queen.queue(queue).group("g").batch(1).pop()
    assert (await queen.ack(message, True, {"group": "g"}))["success"]
    # The client warns and goes on.
    [message] = await queen.queue(queue).group("g").conflation().batch(1).pop()
    assert message["data"] == 2


@check
async def a_client_that_goes_away_leaves_no_lease(queen: Queen, queue: str) -> None:
    for n in range(5):
        poll = asyncio.ensure_future(queen.queue(queue).batch(1).pop())
        await fill(queen, f"{queue}_other", "elsewhere")
        poll.cancel()
        await fill(queen, queue, n)
        await asyncio.wait([poll])
        [message] = await queen.queue(queue).batch(1).pop()
        assert message["data"] == n
        assert (await queen.ack(message))["success"]


if __name__ == "__main__":
    play()
