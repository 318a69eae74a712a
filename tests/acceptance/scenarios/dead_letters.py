"""Failures until the dead-letter queue, and looking into it."""

from __future__ import annotations

import asyncio

from queen import Queen
from stage import IS_MODERN, check, data_of, fill, gives, is_empty, play

Message = dict[str, object]


async def _fails_until_dead(queen: Queen, queue: str, attempts: int, group: str | None = None) -> list[Message]:
    """Fail a message `attempts` times by hand; every time but the last it must come again."""
    context = {"error": "card declined"} | ({"group": group} if group else {})
    seen = []
    for attempt in range(1, attempts + 1):
        builder = queen.queue(queue).batch(1)
        [message] = await (builder.group(group) if group else builder).pop()
        answer = await queen.ack(message, False, context)
        assert (answer["success"], answer["dlq"]) == (True, attempt == attempts), answer
        seen.append(message)
    return seen


@check
async def two_failures_with_one_retry(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"retry_limit": 1, "retry_delay": 20}).create()
    await fill(queen, queue, {"order": 17})
    assert (await queen.queue(queue).dlq().get())["total"] == 0
    first, second = await _fails_until_dead(queen, queue, 2)
    assert first["id"] == second["id"]
    assert (first["retryCount"], second["retryCount"]) == (0, 1)
    answer = await queen.queue(queue).dlq().get()
    assert answer["total"] == 1
    [dead] = answer["messages"]
    assert (dead["data"], dead["errorMessage"]) == ({"order": 17}, "card declined")
    assert (dead["id"], dead["transactionId"]) == (first["id"], first["transactionId"])
    assert (dead["queue"], dead["partition"]) == (queue, "Default")
    assert dead["retryCount"] == 1
    assert await is_empty(queen, queue)


@check
async def the_default_delay_is_kept(queen: Queen, queue: str) -> None:
    """Every client sends no retryDelay by itself: a second lies between a failure and the next delivery."""
    await queen.queue(queue).config({"retry_limit": 1}).create()
    await fill(queen, queue, 1)
    [message] = await queen.queue(queue).batch(1).pop()
    loop = asyncio.get_running_loop()
    failed = loop.time()
    assert (await queen.ack(message, False))["success"]
    [again] = await queen.queue(queue).batch(1).pop()
    assert loop.time() - failed >= 1
    assert (await queen.ack(again, False))["dlq"] is True
    [dead] = (await queen.queue(queue).dlq().get())["messages"]
    assert dead["errorMessage"] == "Retries exhausted"


@check
async def three_failures_with_two_retries(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"retry_limit": 2, "retry_delay": 20}).create()
    await fill(queen, queue, 1)
    await _fails_until_dead(queen, queue, 3)
    assert (await queen.queue(queue).dlq().get())["total"] == 1


@check
async def a_failing_handler(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"retry_limit": 1, "retry_delay": 20}).create()
    await fill(queen, queue, "bad", "good")
    attempts: list[object] = []

    async def handler(message: Message) -> None:
        attempts.append(message["data"])
        if message["data"] == "bad":
            raise RuntimeError("no good")

    await queen.queue(queue).batch(1).limit(3).consume(handler)
    assert attempts == ["bad", "bad", "good"]
    [dead] = (await queen.queue(queue).dlq().get())["messages"]
    # 0.12 and 0.15 do not tell why the handler failed.
    assert (dead["data"], dead["errorMessage"]) == ("bad", "no good" if IS_MODERN else "Retries exhausted")


@check
async def a_failing_batch(queen: Queen, queue: str) -> None:
    """All of a batch has the same number of attempts, and none of it is lost at the end."""
    await queen.queue(queue).config({"retry_limit": 1, "retry_delay": 20}).create()
    await fill(queen, queue, 1, 2, 3)
    attempts: list[list[object]] = []

    async def handler(messages: list[Message]) -> None:
        attempts.append(data_of(messages))
        raise RuntimeError("no good")

    await queen.queue(queue).batch(3).limit(6).consume(handler)
    assert attempts == [[1, 2, 3], [1, 2, 3]]
    dead = (await queen.queue(queue).dlq().get())["messages"]
    assert sorted(data_of(dead)) == [1, 2, 3]


@check
async def without_retries(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"retry_limit": 0}).create()
    await fill(queen, queue, 1, 2)
    await _fails_until_dead(queen, queue, 1)
    await gives(queen, queue, [2])


@check
async def straight_to_the_dead_letters(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1, 2)
    [message] = await queen.queue(queue).batch(1).pop()
    answer = await queen.ack(message, "dlq", {"error": "poison"})
    assert (answer["success"], answer["dlq"]) == (True, True)
    [dead] = (await queen.queue(queue).dlq().get())["messages"]
    assert (dead["data"], dead["errorMessage"], dead["retryCount"]) == (1, "poison", 0)
    await gives(queen, queue, [2])


@check
async def giving_back_costs_no_attempt(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"retry_limit": 0, "retry_delay": 20}).create()
    await fill(queen, queue, 1)
    for _ in range(3):
        [message] = await queen.queue(queue).batch(1).pop()
        answer = await queen.ack(message, "retry")
        assert (answer["success"], answer["dlq"]) == (True, False)
    assert (await queen.queue(queue).dlq().get())["total"] == 0
    [message] = await queen.queue(queue).batch(1).pop()
    assert message["data"] == 1


@check
async def an_unknown_status_is_refused(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1)
    [message] = await queen.queue(queue).batch(1).pop()
    answer = await queen.ack(message, "done")
    assert answer["success"] is False
    assert answer["error"]
    assert (await queen.ack(message))["success"] is True


@check
async def the_list_can_be_filtered(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"retry_limit": 0}).create()
    for partition in ("eu", "us"):
        await fill(queen, queue, partition, partition=partition)
    for group in ("billing", "audit"):
        await _fails_until_dead(queen, queue, 1, group)
        await _fails_until_dead(queen, queue, 1, group)
    everything = await queen.queue(queue).dlq().get()
    assert everything["total"] == 4
    billing = await queen.queue(queue).dlq("billing").get()
    assert billing["total"] == 2
    assert {dead["consumerGroup"] for dead in billing["messages"]} == {"billing"}
    european = await queen.queue(queue).partition("eu").dlq().get()
    assert data_of(european["messages"]) == ["eu", "eu"]
    assert (await queen.queue(f"{queue}_other").dlq().get())["total"] == 0

    first = await queen.queue(queue).dlq().limit(3).get()
    second = await queen.queue(queue).dlq().limit(3).offset(3).get()
    assert (len(first["messages"]), len(second["messages"]), first["total"], second["total"]) == (3, 1, 4, 4)
    assert first["messages"] + second["messages"] == everything["messages"]

    newest, oldest = everything["messages"][0], everything["messages"][-1]
    assert newest["failedAt"] >= oldest["failedAt"]
    assert (await queen.queue(queue).dlq().from_("2100-01-01T00:00:00Z").get())["total"] == 0
    assert (await queen.queue(queue).dlq().to("2000-01-01T00:00:00Z").get())["total"] == 0
    between = await queen.queue(queue).dlq().from_("2000-01-01T00:00:00Z").to("2100-01-01T00:00:00Z").get()
    assert between["total"] == 4


if __name__ == "__main__":
    play()
