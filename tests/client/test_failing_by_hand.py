"""Handlers that acknowledge themselves, and raise: what they have not settled is acknowledged as failed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from integration.queen import expire_leases

from queenmq.client import Message, Queen, Reject
from queenmq.client.verbs import Verbs

GIVE_UP_MS = 20_000  # far more than it takes, and much less than a lease lasts


async def test_a_failed_step_is_retried_and_becomes_a_dead_letter(queen: Queen) -> None:
    await queen.queue("q").config(retry_limit=1).create()
    await queen.queue("q").push(["bad", "good"])
    seen: list[tuple[Any, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.data, message.retry_count))
        async with queen.transaction() as step:
            step.ack(message)
            step.queue("sink").push({"of": {"good": 1}[message.data]})
        consumer.stop()

    consumer = queen.queue("q").auto_ack(False).idle_millis(GIVE_UP_MS).consume(handle)
    stats = await consumer
    assert seen == [("bad", 0), ("bad", 1), ("good", 0)]
    assert (stats.handled, stats.failed, stats.refused) == (1, 2, 0)
    [letter] = await queen.queue("q").dlq().get()
    assert (letter.data, letter.error_message) == ("bad", "'bad'")
    assert [message.data for message in await queen.queue("sink").batch(5).pop()] == [{"of": 1}]


async def test_what_the_handler_has_acknowledged_of_a_batch_stays_so(queen: Queen) -> None:
    await queen.queue("q").push([1, 2, 3])
    seen: list[list[tuple[Any, int]]] = []

    async def handle(messages: list[Message]) -> None:
        seen.append([(message.data, message.retry_count) for message in messages])
        assert (await queen.ack(messages[0])).success
        if len(seen) == 1:
            raise KeyError
        assert all(result.success for result in await queen.ack(messages))
        consumer.stop()

    consumer = queen.queue("q").batch(3).auto_ack(False).idle_millis(GIVE_UP_MS).consume(handle)
    await consumer
    assert seen == [[(1, 0), (2, 0), (3, 0)], [(2, 1), (3, 1)]]
    assert await queen.queue("q").wait(False).pop() == []


async def test_one_by_one_only_what_failed_counts_as_failed(queen: Queen) -> None:
    await queen.queue("q").push([1, 2, 3])
    seen: list[tuple[Any, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.data, message.retry_count))
        if seen[-1] == (2, 0):
            raise KeyError
        assert (await queen.ack(message)).success
        if message.data == 3:
            consumer.stop()

    consumer = queen.queue("q").batch(3).each().auto_ack(False).idle_millis(GIVE_UP_MS).consume(handle)
    await consumer
    assert seen == [(1, 0), (2, 0), (2, 1), (3, 0)]
    assert await queen.queue("q").wait(False).pop() == []


async def test_one_by_one_cancelling_is_no_failure(queen: Queen) -> None:
    """What it had is the handler's to settle: nothing of it counts as failed or finished."""
    await queen.queue("q").config(retry_limit=0).create()
    await queen.queue("q").push([1, 2, 3])
    begun = asyncio.Event()

    async def handle(_: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with queen.queue("q").batch(3).each().auto_ack(False).consume(handle) as consumer:
        async with asyncio.timeout(30):
            await begun.wait()
        consumer.cancel()
    assert (consumer.stats.handled, consumer.stats.failed, consumer.stats.refused) == (0, 0, 0)
    assert (await queen.queue("q").dlq().get()).total == 0


async def test_reject_says_what_becomes_of_it(queen: Queen) -> None:
    await queen.queue("q").push("bad")

    async def handle(_: Message) -> None:
        consumer.stop()
        raise Reject("no such customer")

    consumer = queen.queue("q").auto_ack(False).idle_millis(GIVE_UP_MS).consume(handle)
    await consumer
    [letter] = await queen.queue("q").dlq().get()
    assert letter.error_message == "no such customer"


@pytest.mark.parametrize("settled", ["committed", "lost"])
async def test_a_failure_after_the_end_of_the_lease_changes_nothing_and_alarms_nobody(
    queen: Queen, sql: Any, settled: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "queenmq.client")
    await queen.queue("q").config(retry_limit=0).create()
    await queen.queue("q").push(1)

    async def handle(message: Message) -> None:
        consumer.stop()
        if settled == "committed":
            await queen.transaction().ack(message).queue("sink").push(2).commit()
        else:
            await expire_leases(sql)
        raise KeyError

    consumer = queen.queue("q").auto_ack(False).idle_millis(GIVE_UP_MS).consume(handle)
    stats = await consumer
    assert stats.refused == 0
    assert (await queen.queue("q").dlq().get()).total == 0
    assert [message.data for message in await queen.queue("sink").wait(False).pop()] == [2] * (settled == "committed")
    [refusal] = [record for record in caplog.records if "settled already" in record.getMessage()]
    assert refusal.levelno == logging.INFO
    assert [record.levelno for record in caplog.records if "refused" in record.getMessage()] == []


async def test_callbacks_for_errors_still_decide_themselves(queen: Queen, sql: Any) -> None:
    await queen.queue("q").config(retry_limit=0).create()
    await queen.queue("q").push(1)

    async def handle(_: Message) -> None:
        raise KeyError

    await queen.queue("q").auto_ack(False).limit(1).consume(handle).on_error(lambda *_: None)
    assert (await queen.queue("q").dlq().get()).total == 0
    assert await sql.fetchval("SELECT count(*) FROM queen.partition_consumers WHERE lease_id IS NOT NULL") == 1


async def test_what_was_finished_at_delivery_is_left_alone(queen: Queen, monkeypatch: pytest.MonkeyPatch) -> None:
    await queen.queue("q").push([1, 2])
    said: list[Any] = []
    monkeypatch.setattr(Verbs, "ack", lambda *given: said.append(given))

    async def handle(_: Message) -> None:
        raise KeyError

    stats = await queen.queue("q").commit_on_delivery().limit(2).consume(handle)
    assert (stats.failed, stats.refused, said) == (2, 0, [])
