"""Traces that a handler leaves at its messages. What was stored is looked up by the test."""

from __future__ import annotations

from queen import Queen
from stage import check, fill, play

Message = dict[str, object]


async def _consume_one(queen: Queen, queue: str, handler: object, group: str | None = None) -> None:
    builder = queen.queue(queue).batch(1).limit(1)
    await (builder.group(group) if group else builder).consume(handler)


@check
async def a_trace_with_everything(queen: Queen, queue: str) -> object:
    await fill(queen, queue, 1)
    answers: list[dict[str, object]] = []

    async def handler(message: Message) -> None:
        names = ["order-17", "customer-4"]
        data = {"text": "ünïcödé", "n": [1, None]}
        answers.append(await message["trace"]({"data": data, "traceName": names, "eventType": "step"}))

    await _consume_one(queen, queue, handler, "billing")
    [answer] = answers
    assert answer["success"] is True, answer
    return answer["traceId"]


@check
async def a_trace_with_only_data(queen: Queen, queue: str) -> object:
    await fill(queen, queue, 1)
    answers: list[dict[str, object]] = []

    async def handler(message: Message) -> None:
        answers.append(await message["trace"]({"data": None}))
        answers.append(await message["trace"]({"data": "second", "traceName": "alone"}))

    await _consume_one(queen, queue, handler)
    assert [answer["success"] for answer in answers] == [True, True], answers
    return [answer["traceId"] for answer in answers]


@check
async def traces_of_a_batch(queen: Queen, queue: str) -> object:
    """A fault of all clients: the traces of all messages of a batch are left at its last message."""
    results = await queen.queue(queue).push([{"data": n, "transactionId": f"tx-{n}"} for n in range(3)])
    assert len(results) == 3
    answers: list[dict[str, object]] = []

    async def handler(messages: list[Message]) -> None:
        answers.extend([await message["trace"]({"data": message["data"]}) for message in messages])

    await queen.queue(queue).batch(3).limit(3).consume(handler)
    assert [answer["success"] for answer in answers] == [True] * 3, answers
    return [answer["traceId"] for answer in answers]


@check
async def a_trace_never_fails_the_handler(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1)
    answers: list[dict[str, object]] = []

    async def handler(message: Message) -> None:
        answers.append(await message["trace"]({"no": "data"}))
        await queen.queue(queue).delete()
        answers.append(await message["trace"]({"data": "the message is gone"}))

    await _consume_one(queen, queue, handler)
    assert [answer["success"] for answer in answers] == [False, False]
    assert answers[1]["error"] == "Message not found"


if __name__ == "__main__":
    play()
