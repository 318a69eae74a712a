"""Popping and consuming by namespace and task instead of a queue's name."""

from __future__ import annotations

import asyncio

from queen import Queen
from stage import check, data_of, fill, play

Message = dict[str, object]


@check
async def by_namespace_and_task(queen: Queen, queue: str) -> None:
    for task in ("mail", "sms"):
        await queen.queue(f"{queue}_{task}").namespace(queue).task(task).create()
        await fill(queen, f"{queue}_{task}", task)
    [message] = await queen.queue().namespace(queue).task("sms").batch(1).pop()
    assert (message["data"], message["queue"]) == ("sms", f"{queue}_sms")
    assert (await queen.ack(message))["success"] is True
    [message] = await queen.queue().namespace(queue).batch(1).wait(False).pop()
    assert (message["data"], message["queue"]) == ("mail", f"{queue}_mail")
    assert await queen.queue().namespace(queue).wait(False).pop() == []
    assert await queen.queue().namespace("nowhere").wait(False).pop() == []


@check
async def by_task_alone(queen: Queen, queue: str) -> None:
    await queen.queue(queue).namespace("any").task(f"{queue}_task").create()
    await fill(queen, queue, 1)
    [message] = await queen.queue().task(f"{queue}_task").batch(1).pop()
    assert message["queue"] == queue


@check
async def names_of_queues_made_by_a_push(queen: Queen, queue: str) -> None:
    await fill(queen, f"{queue}.mail.eu", "mail")
    await fill(queen, f"{queue}.sms", "sms")
    [message] = await queen.queue().namespace(queue).task("mail").batch(1).pop()
    assert message["queue"] == f"{queue}.mail.eu"
    [message] = await queen.queue().namespace(queue).batch(1).wait(False).pop()
    assert message["queue"] == f"{queue}.sms"


@check
async def the_highest_priority_comes_first(queen: Queen, queue: str) -> None:
    for priority in (1, 3, 2):
        name = f"{queue}_{priority}"
        await queen.queue(name).namespace(queue).config({"priority": priority}).create()
        await fill(queen, name, priority)
    order = [data_of(await queen.queue().namespace(queue).batch(1).pop()) for _ in range(3)]
    assert order == [[3], [2], [1]]


@check
async def a_long_poll_over_a_namespace(queen: Queen, queue: str) -> None:
    await queen.queue(queue).namespace(f"{queue}_ns").create()
    poll = asyncio.ensure_future(queen.queue().namespace(f"{queue}_ns").batch(1).pop())
    await fill(queen, f"{queue}_other", "elsewhere")
    assert not poll.done()
    await fill(queen, queue, "later")
    assert data_of(await poll) == ["later"]


@check
async def consuming_a_namespace_as_a_group(queen: Queen, queue: str) -> None:
    for n in range(3):
        await queen.queue(f"{queue}_{n}").namespace(queue).task("work").create()
        await fill(queen, f"{queue}_{n}", f"{n}-a", f"{n}-b")
    for group in ("billing", "audit"):
        seen: list[object] = []

        async def handler(message: Message, seen: list[object] = seen) -> None:
            seen.append(message["data"])

        builder = queen.queue().namespace(queue).task("work").group(group).subscription_mode("all")
        await builder.batch(1).limit(6).consume(handler)
        assert sorted(seen) == ["0-a", "0-b", "1-a", "1-b", "2-a", "2-b"]
        for n in range(3):
            assert seen.index(f"{n}-a") < seen.index(f"{n}-b")


@check
async def without_a_name_at_all(queen: Queen, queue: str) -> None:
    async def handler(message: Message) -> None:
        raise AssertionError("there is nothing to consume")

    try:
        await queen.queue().consume(handler)
    except ValueError as error:
        assert str(error) == "Must specify queue, namespace, or task"
    else:
        raise AssertionError("a consumer of nothing was started")


if __name__ == "__main__":
    play()
