"""Delayed queues and windowed queues."""

from __future__ import annotations

import asyncio
import time

from queen import Queen
from stage import ack_all, check, data_of, fill, is_empty, play

_SECONDS = 2


@check
async def a_delayed_message_comes_later(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"delayed_processing": _SECONDS}).create()
    begin = time.monotonic()
    await fill(queen, queue, "later")
    assert await is_empty(queen, queue) or time.monotonic() - begin > _SECONDS
    [message] = await queen.queue(queue).batch(1).pop()
    assert message["data"] == "later"
    assert time.monotonic() - begin >= _SECONDS
    assert (await queen.ack(message))["success"] is True


@check
async def every_message_has_its_own_delay(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"delayed_processing": _SECONDS}).create()
    begins = [time.monotonic()]
    await fill(queen, queue, 0)
    # The second message has to be younger than the first by more than the longest pause of a long poll.
    await asyncio.sleep(1.2)
    begins.append(time.monotonic())
    await fill(queen, queue, 1)
    seen: list[object] = []
    while len(seen) < 2:
        messages = await queen.queue(queue).batch(10).pop()
        now = time.monotonic()
        assert all(now - begins[message["data"]] >= _SECONDS for message in messages), messages
        seen += data_of(messages)
        await ack_all(queen, messages)
    assert seen == [0, 1]


@check
async def a_window_gathers_messages(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"window_buffer": _SECONDS}).create()
    # The long poll is there first: without the window it would get the first message alone.
    poll = asyncio.ensure_future(queen.queue(queue).batch(10).pop())
    for n in range(3):
        begin = time.monotonic()
        await fill(queen, queue, n)
    assert data_of(await poll) == [0, 1, 2]
    assert time.monotonic() - begin >= _SECONDS


@check
async def a_message_keeps_the_window_open(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"window_buffer": _SECONDS}).create()
    poll = asyncio.ensure_future(queen.queue(queue).batch(10).pop())
    first = time.monotonic()
    await fill(queen, queue, "first")
    # Into the window of the first message.
    await asyncio.sleep(1)
    second = time.monotonic()
    await fill(queen, queue, "second")
    was_in_time = time.monotonic() - first < _SECONDS
    messages = await poll
    assert data_of(messages) == (["first", "second"] if was_in_time else ["first"])
    assert time.monotonic() - (second if was_in_time else first) >= _SECONDS


@check
async def windows_are_per_partition(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"window_buffer": _SECONDS}).create()
    begin = time.monotonic()
    for partition in ("eu", "us"):
        await fill(queen, queue, f"{partition}-1", f"{partition}-2", partition=partition)
    received = [data_of(await queen.queue(queue).batch(10).pop()) for _ in range(2)]
    assert sorted(received) == [["eu-1", "eu-2"], ["us-1", "us-2"]]
    assert time.monotonic() - begin >= _SECONDS


@check
async def a_consumer_of_a_delayed_queue(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"delayed_processing": _SECONDS}).create()
    seen: list[object] = []

    async def handler(message: dict[str, object]) -> None:
        seen.append(message["data"])

    begin = time.monotonic()
    await fill(queen, queue, *range(3))
    await queen.queue(queue).batch(1).limit(3).consume(handler)
    assert seen == [0, 1, 2]
    assert time.monotonic() - begin >= _SECONDS


if __name__ == "__main__":
    play()
