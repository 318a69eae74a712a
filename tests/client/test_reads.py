"""Reading without a group, and pushing with an expected last offset."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from queenmq.client import BlockingQueen, InvalidUse, Item, OffsetConflict, Queen, ReadFailed, TransactionFailed


async def test_pages_of_a_partition(queen: Queen) -> None:
    partition = queen.queue("q").partition("p")
    assert len(await partition.read()) == 0
    await partition.push([{"n": 2**70}, 2, 3])
    first = await partition.read(limit=2)
    assert [(message.offset, message.data) for message in first] == [(1, {"n": 2**70}), (2, 2)]
    assert (first.next_offset, first.first_offset, first.last_offset) == (3, 1, 3)
    rest = await partition.read(first.next_offset)
    assert [bytes(message.raw) for message in rest.messages] == [b"3"]
    assert len(await partition.read(since=datetime.now(UTC) - timedelta(hours=1))) == 3
    with pytest.raises(ReadFailed, match="offsets 1 to 3, not 9") as failure:
        await partition.read(9)
    assert failure.value.reason == "OFFSET_OUT_OF_RANGE"


async def test_a_condition(queen: Queen) -> None:
    partition = queen.queue("q").partition("p")
    assert [result.offset for result in await partition.push([1, 2], expected_last_offset=0)] == [1, 2]
    with pytest.raises(OffsetConflict) as conflict:
        await partition.push(3, expected_last_offset=0)
    assert (conflict.value.actual, conflict.value.status) == (2, 409)
    once = Item(3, transaction_id="three")
    assert (await partition.push(once, expected_last_offset=2))[0].status == "queued"
    assert (await partition.push(once, expected_last_offset=2))[0].status == "duplicate"


async def test_a_condition_of_a_transaction(queen: Queen) -> None:
    await queen.queue("q").push(1)
    refused = queen.transaction()
    refused.queue("q").push(2, expected_last_offset=0)
    with pytest.raises(TransactionFailed) as failure:
        await refused.commit()
    assert [(one.partition, one.expected, one.actual) for one in failure.value.conflicts] == [("Default", 0, 1)]
    async with queen.transaction() as transaction:
        transaction.queue("q").push(2, expected_last_offset=1)
    assert [message.data for message in await queen.queue("q").read()] == [1, 2]


async def test_the_blocking_twin(url: str, queen: Queen) -> None:
    def work() -> list[int]:
        with BlockingQueen(url) as client:
            queue = client.queue("q")
            queue.push([1, 2], expected_last_offset=0)
            return [message.data for message in queue.read()]

    assert await asyncio.to_thread(work) == [1, 2]


async def test_wrong_use(queen: Queen) -> None:
    with pytest.raises(InvalidUse, match="not both"):
        await queen.queue("q").read(1, since=datetime.now(UTC))
    with pytest.raises(InvalidUse, match="time zone"):
        await queen.queue("q").read(since=datetime(2026, 1, 1))
    with pytest.raises(InvalidUse, match="buffer"):
        queen.queue("q").buffer(message_count=10).push(1, expected_last_offset=0)
