"""Pushes in the journal: which partitions they hold, who waits behind them, and what a restart finds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queenmq.core.message import Message
from queenmq.errors import Overloaded
from queenmq.overload.journal import JournalBounds
from queenmq.overload.push_buffer import PushBuffer

BOUNDS = JournalBounds(max_bytes=1_000_000, max_records=100, records_per_file=10)
KEY = bytes(range(32))


def message(number: int, partition: str = "p") -> Message:
    return Message("q", partition, b"%d" % number, f"id-{number}", f"tx-{number}")


async def opened(path: Path, key: bytes | None = None, bounds: JournalBounds = BOUNDS) -> PushBuffer:
    buffer = PushBuffer(path, bounds, key)
    await buffer.open()
    return buffer


async def held(buffer: PushBuffer) -> list[bytes]:
    return [m.payload for _, messages in await buffer.oldest(100, 1000) for m in messages]


async def test_a_partition_is_held_before_the_record_is_on_disk_and_until_it_is_replayed(tmp_path: Path) -> None:
    buffer = await opened(tmp_path)
    putting = asyncio.ensure_future(buffer.put([message(1)]))
    await asyncio.sleep(0)
    assert buffer.holds([message(2)])
    assert not buffer.holds([message(2, "another")])
    await putting
    behind = asyncio.ensure_future(buffer.wait_behind([message(2)], timeout_s=10))
    [(first, _)] = await buffer.oldest(10, 10)
    await buffer.finish([first])
    assert await behind
    assert not buffer.holds([message(2)])
    await buffer.close()


async def test_whoever_waits_too_long_is_told(tmp_path: Path) -> None:
    buffer = await opened(tmp_path)
    await buffer.put([message(1)])
    assert not await buffer.wait_behind([message(2)], timeout_s=0.01)
    assert await buffer.wait_behind([message(2, "another")], timeout_s=0.01)
    await buffer.close()


async def test_a_caller_who_goes_away_leaves_no_record_that_nobody_knows(tmp_path: Path) -> None:
    buffer = await opened(tmp_path)
    putting = asyncio.ensure_future(buffer.put([message(1)]))
    await asyncio.sleep(0)
    putting.cancel()
    await asyncio.wait([putting])
    await buffer.put([message(2)])
    assert await held(buffer) == [b"1", b"2"]
    await buffer.close()


async def test_a_refused_push_holds_nothing(tmp_path: Path) -> None:
    buffer = await opened(tmp_path, bounds=JournalBounds(max_bytes=10, max_records=10, records_per_file=10))
    with pytest.raises(Overloaded):
        await buffer.put([message(1)])
    assert not buffer.holds([message(1)])
    assert buffer.pending == buffer.messages == 0
    await buffer.close()


async def test_another_key_sets_the_record_aside_and_the_rest_goes_on(tmp_path: Path) -> None:
    buffer = await opened(tmp_path, KEY)
    await buffer.put([message(1)])
    await buffer.close()
    other = await opened(tmp_path, KEY[::-1])
    await other.put([message(2)])
    assert await held(other) == [b"2"]
    assert len(other.journal.set_aside_sizes()) == 1
    await other.close()


async def test_what_a_dead_process_left_is_taken_over(tmp_path: Path) -> None:
    first, second = await opened(tmp_path, KEY), await opened(tmp_path, KEY)
    await first.put([message(1)])
    operation = (await second.put([message(2)]))[0].operation_id
    await first.close()
    await second.close()
    heir = await opened(tmp_path, KEY)
    assert sorted(await held(heir)) == [b"1", b"2"]
    assert heir.find(operation) is not None
    await heir.finish([one for one, _ in await heir.oldest(10, 10)])
    await heir.close()
    empty = await opened(tmp_path, KEY)
    assert empty.pending == 0
    await empty.close()


async def test_what_does_not_fit_is_left_where_it_is(tmp_path: Path) -> None:
    first, second = await opened(tmp_path), await opened(tmp_path)
    await first.put([message(1)])
    await second.put([message(2)])
    await first.close()
    await second.close()
    heir = await opened(tmp_path, bounds=JournalBounds(max_bytes=1_000_000, max_records=1, records_per_file=10))
    assert await held(heir) == [b"1"]
    await heir.close()
    whole = await opened(tmp_path)
    assert sorted(await held(whole)) == [b"1", b"2"]
    await whole.close()
