"""A handler that raises Reject decides what becomes of its message."""

from __future__ import annotations

import logging

import pytest

from queenmq.client import Message, Queen, Reject


@pytest.mark.parametrize("connection", [True, False])
async def test_a_dead_letter_at_once(queen: Queen, connection: bool) -> None:
    await queen.queue("q").push(["bad", "good"])
    seen: list[str] = []

    async def handle(message: Message) -> None:
        seen.append(message.data)
        if message.data == "bad":
            raise Reject("no such customer")
        consumer.stop()

    consumer = queen.queue("q").connection(connection).consume(handle)
    await consumer
    assert seen == ["bad", "good"]
    [letter] = await queen.queue("q").dlq().get()
    assert (letter.data, letter.error_message) == ("bad", "no such customer")


@pytest.mark.parametrize("connection", [True, False])
async def test_given_back_without_counting(queen: Queen, connection: bool) -> None:
    await queen.queue("q").config(retry_limit=0).create()
    await queen.queue("q").push("again")
    tries: list[int] = []

    async def handle(message: Message) -> None:
        tries.append(message.retry_count)
        if len(tries) < 4:
            raise Reject("busy", "retry")
        consumer.stop()

    consumer = queen.queue("q").connection(connection).consume(handle)
    await consumer
    assert tries == [0, 0, 0, 0]
    assert (await queen.queue("q").dlq().get()).total == 0


async def test_it_is_one_line_in_the_log(queen: Queen, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "queenmq.client")
    await queen.queue("q").push("bad")

    async def handle(_: Message) -> None:
        raise Reject("no such customer")

    await queen.queue("q").limit(1).consume(handle)
    [record] = [record for record in caplog.records if "handler" in record.getMessage()]
    assert (record.levelno, record.exc_info) == (logging.INFO, None)
    assert record.getMessage().endswith("(attempt 1): no such customer (dlq)")
