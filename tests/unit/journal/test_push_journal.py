"""Pushes in the journal: which partitions they hold, who waits behind them, and what a restart finds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from queenmq.core.message import Message
from queenmq.errors import Overloaded
from queenmq.ids import uuid7_text
from queenmq.journal.board import JournalBoard
from queenmq.journal.files import JournalBounds
from queenmq.journal.folder import WHY, records_in
from queenmq.journal.push_journal import PushJournal
from queenmq.journal.push_records import RecordCodec, mark_of
from queenmq.journal.quarantine import give_up, retry, set_aside_in

BOUNDS = JournalBounds(max_bytes=1_000_000, max_records=100, records_per_file=10)
KEY = bytes(range(32))


def message(number: int, partition: str = "p") -> Message:
    return Message("q", partition, b"%d" % number, f"id-{number}", f"tx-{number}")


async def opened(path: Path, key: bytes | None = None, bounds: JournalBounds = BOUNDS) -> PushJournal:
    journal = PushJournal(path, bounds, () if key is None else (key,))
    await journal.open()
    return journal


def folders_in(path: Path) -> list[str]:
    return sorted(folder.name for folder in path.iterdir())


async def held(journal: PushJournal) -> list[bytes]:
    return [m.payload for _, messages in await journal.oldest(100, 1000) for m in messages]


async def test_a_partition_is_held_before_the_record_is_on_disk_and_until_it_is_replayed(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    putting = asyncio.ensure_future(journal.put([message(1)]))
    await asyncio.sleep(0)
    assert journal.holds([message(2)])
    assert not journal.holds([message(2, "another")])
    await putting
    behind = asyncio.ensure_future(journal.turn([("q", "p")], timeout_s=10))
    [(first, _)] = await journal.oldest(10, 10)
    await journal.finish([first])
    assert await behind
    assert not journal.holds([message(2)])
    await journal.close()


async def test_whoever_waits_too_long_is_told(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    await journal.put([message(1)])
    assert not await journal.turn([("q", "p")], timeout_s=0.01)
    assert await journal.turn([("q", "another")], timeout_s=0.01)
    await journal.close()


async def test_a_caller_who_goes_away_leaves_no_record_that_nobody_knows(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    putting = asyncio.ensure_future(journal.put([message(1)]))
    await asyncio.sleep(0)
    putting.cancel()
    await asyncio.wait([putting])
    await journal.put([message(2)])
    assert await held(journal) == [b"1", b"2"]
    await journal.close()


async def test_a_refused_push_holds_nothing(tmp_path: Path) -> None:
    journal = await opened(tmp_path, bounds=JournalBounds(max_bytes=10, max_records=10, records_per_file=10))
    with pytest.raises(Overloaded):
        await journal.put([message(1)])
    assert not journal.holds([message(1)])
    assert journal.pending == journal.messages == 0
    await journal.close()


class Other(PushJournal):
    """A journal of a version that wrote nothing in clear."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, BOUNDS, [KEY])
        seal, cipher = self._codec.seal, AESGCM(KEY)

        def sealed(operation_id: str, messages: Sequence[Message], marks: Sequence[int]) -> bytes:
            self._codec._cipher = None
            body = seal(operation_id, messages, marks)[1:]
            self._codec._cipher = cipher
            return b"\1" + bytes(12) + cipher.encrypt(bytes(12), body, None)

        self._codec.seal = sealed  # type: ignore[method-assign]


@pytest.mark.parametrize("key", [None, KEY[::-1]])
async def test_a_record_that_needs_another_key_waits_for_it_with_its_partition_and_nothing_else(
    tmp_path: Path, key: bytes | None
) -> None:
    journal = await opened(tmp_path, KEY)
    first, _ = await journal.put([message(1), message(2)])
    await journal.close()
    other = await opened(tmp_path, key)
    assert other.holds([message(3)])
    assert not other.holds([message(3, "another")])
    assert not await other.turn([("q", "p")], timeout_s=60), "nobody waits for what cannot come"
    await other.put([message(3)])
    await other.put([message(4, "another")])
    assert await held(other) == [b"4"]
    assert (other.figures().waiting_for_key, other.figures().stuck, other.pending, other.messages) == (1, 1, 3, 4)
    assert (await other.held_in("q", "p"), await other.find(first) is not None) == ({"p": 2}, True)
    assert other.figures().quarantined == 0
    await other.close()
    again = await opened(tmp_path, KEY)
    waiting = int(key is not None)
    assert again.figures().waiting_for_key == 2 * waiting, "those of the other key wait for it now"
    assert await held(again) == ([b"1", b"2"] if waiting else [b"1", b"2", b"3", b"4"])
    await again.close()


async def test_a_record_of_an_older_version_that_needs_another_key_holds_everything(tmp_path: Path) -> None:
    old = Other(tmp_path)
    await old.open()
    await old.put([message(1)])
    assert await held(old) == [b"1"]
    await old.close()
    without = await opened(tmp_path)
    assert without.holds([message(2, "another")])
    await without.put([message(2, "another")])
    assert await held(without) == []
    assert without.figures().quarantined == 0
    await without.close()
    again = await opened(tmp_path, KEY)
    assert await held(again) == [b"1", b"2"]
    await again.close()


async def test_a_record_that_is_no_push_is_set_aside(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    await journal.own_files.append(b"\0no push")[1]
    await journal.put([message(1)])
    await journal.close()
    again = await opened(tmp_path)
    assert await held(again) == [b"1"]
    assert again.figures().quarantined == 1
    await again.close()


async def test_what_is_parked_keeps_its_partitions_back_and_comes_in_its_place_later(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    await journal.put([message(1)])
    await journal.put([message(2), message(3, "b")])
    await journal.put([message(4, "c")])
    [(first, _), *_] = await journal.oldest(1, 10)
    waiting = asyncio.ensure_future(journal.turn([("q", "p")], timeout_s=60))
    await asyncio.sleep(0)
    journal.park(first, until=5.0)
    assert not await waiting, "it is journalled behind"
    await journal.put([message(5, "b")])
    assert await held(journal) == [b"4"]
    assert journal.figures().stuck == 3, "also what shares a partition with what is behind it"
    assert (journal.unpark(4.0), journal.figures().stuck) == (False, 3)
    assert (journal.unpark(5.0), journal.figures().stuck) == (True, 0)
    assert await held(journal) == [b"1"], "alone: it has failed before"
    [(first, _)] = await journal.oldest(10, 10)
    await journal.finish([first])
    assert await held(journal) == [b"2", b"3", b"4", b"5"]
    await journal.close()


async def test_only_what_is_due_is_tried_again(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    for number, partition in enumerate("aabb"):
        await journal.put([message(number, partition)])
    [(first, _), *_, (third, _), _] = await journal.oldest(10, 10)
    journal.park(first, until=1.0)
    journal.park(third, until=2.0)
    assert await held(journal) == []
    assert journal.unpark(1.0)
    [(again, _)] = await journal.oldest(10, 10)
    assert again is first
    await journal.finish([first])
    assert await held(journal) == [b"1"], "what is behind the other one waits on"
    assert journal.figures().stuck == 2
    await journal.close()


async def test_what_fails_again_and_again_can_be_given_up(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    operation, _ = await journal.put([message(1)])
    await journal.put([message(2)])
    give_up(tmp_path, operation)
    await journal.take_back()
    assert journal.figures().quarantined == 0, "it has not failed"
    [(first, _), _] = await journal.oldest(10, 10)
    journal.park(first, until=1e9)
    assert await held(journal) == []
    give_up(tmp_path, operation)
    await journal.take_back()
    assert (journal.figures().quarantined, journal.unpark(0.0), await held(journal)) == (1, True, [b"2"])
    await journal.close()


async def test_after_something_was_given_up_its_partition_is_as_any_other(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    operation, _ = await journal.put([message(1)])
    [(first, _)] = await journal.oldest(10, 10)
    journal.park(first, until=1e9)
    give_up(tmp_path, operation)
    await journal.take_back()
    assert journal.pending == 0
    await journal.put([message(2)])
    assert await held(journal) == [b"2"], "it is taken for something that is behind what was given up"
    await journal.close()


async def test_what_a_dead_process_left_is_replayed_from_where_it_is_in_the_order_of_acceptance(tmp_path: Path) -> None:
    first, second = await opened(tmp_path, KEY), await opened(tmp_path, KEY)
    for number in range(1, 5):
        operation, _ = await (first if number % 2 else second).put([message(number)])
    await first.close()
    await second.close()
    heir = await opened(tmp_path, KEY)
    assert await held(heir) == [b"1", b"2", b"3", b"4"]
    assert await heir.find(operation) is not None
    await heir.finish([one for one, _ in await heir.oldest(10, 10)])
    await heir.close()
    empty = await opened(tmp_path, KEY)
    assert empty.pending == 0
    await empty.close()


async def test_full_journals_of_several_processes_are_all_replayed_by_one(tmp_path: Path) -> None:
    full = JournalBounds(max_bytes=1_000_000, max_records=30, records_per_file=10)
    first, second = await opened(tmp_path, bounds=full), await opened(tmp_path, bounds=full)
    for number in range(30):
        await first.put([message(number, "a")])
        await second.put([message(number, "b")])
    await first.close()
    await second.close()
    heir = await opened(tmp_path, bounds=full)
    assert (heir.pending, heir.messages, heir.figures().operations) == (60, 60, 60)
    with pytest.raises(Overloaded):
        await heir.put([message(99)])
    while batch := await heir.oldest(7, 100):
        await heir.finish([one for one, _ in batch])
    assert (heir.pending, heir.figures().messages, heir.replayed) == (0, 0, 60)
    assert heir.figures().bytes == 0
    syncs = heir.figures().syncs
    await heir.take_back()
    assert heir.figures().syncs == syncs
    other = await opened(tmp_path)
    assert folders_in(tmp_path) == ["0", "1"], "the empty one was free for another process"
    await other.close()
    await heir.put([message(99)])
    await heir.close()


async def test_what_is_put_again_with_the_same_id_is_there_once(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    operation = uuid7_text()
    await asyncio.gather(journal.put([message(1)], operation), journal.put([message(1)], operation))
    await journal.close()
    again = await opened(tmp_path)
    await again.put([message(1)], operation)
    assert await held(again) == [b"1"]
    await again.close()


# The quarantine


async def test_what_was_set_aside_is_taken_back_when_a_person_wants_it(tmp_path: Path) -> None:
    journal = await opened(tmp_path, KEY)
    for number in (1, 2, 3):
        await journal.put([message(number)])
    [(first, _), (second, _), _] = await journal.oldest(10, 10)
    await journal.set_aside(first, "because")
    await journal.set_aside(second, "because")
    await journal.own_files.look_aside()
    assert journal.figures().quarantined == 2
    folder = journal.own_files.folder
    folder.retry.mkdir()
    for path in records_in(folder.aside):
        assert path.with_name(path.name + WHY).read_text() == "because"
        path.rename(folder.retry / path.name)
    await journal.take_back()
    assert await held(journal) == [b"3", b"1", b"2"]
    assert (journal.figures().quarantined, records_in(folder.retry)) == (0, [])
    await journal.close()
    again = await opened(tmp_path, KEY)
    assert await held(again) == [b"3", b"1", b"2"]
    await again.close()


async def test_what_waits_for_a_key_that_is_given_up_is_set_aside_and_the_rest_goes_on(tmp_path: Path) -> None:
    journal = await opened(tmp_path, KEY)
    await journal.put([message(1)])
    await journal.close()
    other = await opened(tmp_path)
    await other.put([message(2)])
    assert await held(other) == []
    give_up(tmp_path, other._pending.locked[0].needs_key or "")
    await other.take_back()
    other.unpark(0.0)
    assert (await held(other), other.figures().waiting_for_key, other.figures().quarantined) == ([b"2"], 0, 1)
    assert not other.holds([message(3, "another")])
    await other.finish([one for one, _ in await other.oldest(10, 10)])
    assert (other.pending, other.messages, other.holds([message(3)])) == (0, 0, False)
    await other.close()
    [record] = set_aside_in(tmp_path, RecordCodec([KEY]))
    retry(record)
    again = await opened(tmp_path, KEY)
    await again.take_back()
    assert await held(again) == [b"1"]
    await again.close()


async def test_what_cannot_be_read_is_not_taken_back(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    folder = journal.own_files.folder
    folder.aside.mkdir()
    folder.retry.mkdir()
    (folder.retry / "damaged.1").write_bytes(b"QnJ1 and so on")
    await journal.take_back()
    assert (journal.pending, journal.figures().quarantined) == (0, 1)
    await journal.close()


# What other processes see


async def test_others_see_what_is_held_before_it_is_accepted_and_until_it_is_replayed(tmp_path: Path) -> None:
    descriptor = JournalBoard.create()
    seen, board = JournalBoard(os.dup(descriptor)), JournalBoard(descriptor)
    journal = PushJournal(tmp_path, BOUNDS, [KEY], board)
    await journal.open()
    marks = [mark_of("q", "p")]
    assert seen.is_empty
    putting = asyncio.ensure_future(journal.put([message(1)]))
    await asyncio.sleep(0)
    assert (seen.is_empty, seen.holds(marks), seen.holds([mark_of("q", "another")])) == (False, True, False)
    await putting
    assert seen.figures().messages == 1
    journal.publish()
    assert seen.figures() == journal.figures()
    await journal.close()
    assert seen.holds(marks), "the successor has not counted yet"
    successor = PushJournal(tmp_path, BOUNDS, [KEY], board)
    await successor.open()
    assert seen.holds(marks)
    await successor.finish([one for one, _ in await successor.oldest(10, 10)])
    assert (seen.is_empty, seen.holds(marks), seen.figures().replayed_messages) == (True, False, 1)
    await successor.close()


async def test_a_journal_of_a_previous_key_is_replayed(tmp_path: Path) -> None:
    before = await opened(tmp_path, KEY)
    await before.put([message(1)])
    await before.close()
    new = bytes(32)
    after = PushJournal(tmp_path, BOUNDS, [new, KEY])
    await after.open()
    await after.put([message(2)])
    assert await held(after) == [b"1", b"2"]
    await after.close()
    only = await opened(tmp_path, new)
    assert only.figures().waiting_for_key == 1
    assert await held(only) == []
    await only.close()
