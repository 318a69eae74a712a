"""One journal for several workers: what is asked over the socket, and what happens when the keeper is gone or hangs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from queenmq.core.message import Message
from queenmq.errors import DatabaseUnavailable, Overloaded
from queenmq.journal import shared as shared_journal
from queenmq.journal.board import JournalBoard
from queenmq.journal.files import JournalBounds, JournalFailed
from queenmq.journal.shared import JournalSharing, RemoteJournal, SharedJournal

BOUNDS = JournalBounds(max_bytes=1_000_000, max_records=10, records_per_file=10)


def message(number: int, partition: str = "p") -> Message:
    return Message("q", partition, b"%d" % number, f"id-{number}", f"tx-{number}")


class Workers:
    """The worker that keeps the journal, which may come and go, and another one."""

    def __init__(self, folder: Path, door: socket.socket) -> None:
        self.folder = folder
        self.door = door
        self.memory = JournalBoard.create()
        self.keeper: SharedJournal | None = None
        self.other = RemoteJournal(self._shared(None), BOUNDS)

    def _shared(self, listener: socket.socket | None) -> JournalSharing:
        return JournalSharing(JournalBoard(os.dup(self.memory)), self.door.getsockname(), listener)

    async def start(self) -> SharedJournal:
        self.keeper = SharedJournal(self._shared(self.door.dup()), self.folder / "journal", BOUNDS, ())
        await self.keeper.open()
        return self.keeper

    async def end(self) -> None:
        if self.keeper is not None:
            await self.keeper.close()
            self.keeper = None


@asynccontextmanager
async def workers(tmp_path: Path) -> AsyncIterator[Workers]:
    with TemporaryDirectory(prefix="queen-") as short, socket.socket(socket.AF_UNIX) as door:
        door.bind(short + "/door")
        door.listen()
        pair = Workers(tmp_path, door)
        try:
            yield pair
        finally:
            await pair.other.close()
            await pair.end()
            os.close(pair.memory)


async def stored(keeper: SharedJournal) -> list[bytes]:
    """What is replayed."""
    batch = await keeper.oldest(100, 1000)
    await keeper.finish([held for held, _ in batch])
    return [one.payload for _, messages in batch for one in messages]


async def test_pushes_through_both_are_one_journal_with_one_order(tmp_path: Path) -> None:
    async with workers(tmp_path) as pair:
        keeper, other = await pair.start(), pair.other
        assert not other.holds([message(1)])
        operation, ahead = await other.put([message(1)])
        assert (ahead, keeper.holds([message(2)]), other.holds([message(2)])) == (0, True, True)
        await keeper.put([message(2)])
        _, ahead = await other.put([message(3), message(4, "another")])
        assert ahead == 2
        found = await other.find(operation)
        assert found is not None
        assert (found.queue, found.partition, found.messages) == ("q", "p", 1)
        assert await other.held_in("q", None) == {"p": 3, "another": 1}
        keeper.publish()
        assert (other.figures().messages, other.figures()) == (4, keeper.figures())
        waiting = asyncio.ensure_future(other.turn([("q", "p")], 60))
        assert await stored(keeper) == [b"1", b"2", b"3", b"4"]
        assert await waiting
        assert not other.holds([message(5)])
        assert (await other.find(operation), await other.held_in("q", "p")) == (None, {})


async def test_a_keeper_that_ends_says_nothing_of_those_who_were_connected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with workers(tmp_path) as pair:
        await pair.start()
        await pair.other.put([message(1)])
        await pair.end()
        await asyncio.sleep(0)
    assert not caplog.records


async def test_a_full_journal_refuses_the_pushes_of_the_other_too(tmp_path: Path) -> None:
    async with workers(tmp_path) as pair:
        await pair.start()
        for number in range(BOUNDS.max_records):
            await pair.other.put([message(number)])
        with pytest.raises(Overloaded) as refusal:
            await pair.other.put([message(99)])
        assert refusal.value.retry_after_s == 5
        assert not await pair.other.turn([("q", "p")], 0.01)
        with pytest.raises(DatabaseUnavailable):
            await pair.other.require_turn([message(99)], 0.01)
        await pair.other.require_turn([message(99, "another")], 0.01)


async def test_the_successor_of_a_keeper_goes_on_and_whoever_waits_for_it_is_served(tmp_path: Path) -> None:
    async with workers(tmp_path) as pair:
        await pair.start()
        await pair.other.put([message(1)])
        await pair.end()
        assert pair.other.holds([message(2)]), "nobody writes past it while nobody keeps it"
        putting = asyncio.ensure_future(pair.other.put([message(2)]))
        turning = asyncio.ensure_future(pair.other.turn([("q", "p")], 60))
        await asyncio.sleep(0)
        keeper = await pair.start()
        await putting
        assert await stored(keeper) == [b"1", b"2"]
        assert await turning
        assert not pair.other.holds([message(3)])


async def test_a_push_whose_answer_was_lost_is_journalled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with workers(tmp_path) as pair:
        keeper = await pair.start()
        lost = asyncio.Event()
        answer = SharedJournal._answer

        async def lose(self: SharedJournal, question: object, writer: asyncio.StreamWriter) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            monkeypatch.setattr(SharedJournal, "_answer", answer)
            await self._do(question)  # type: ignore[arg-type]
            lost.set()
            writer.transport.abort()

        monkeypatch.setattr(SharedJournal, "_answer", lose)
        await pair.other.put([message(1)])
        assert lost.is_set()
        assert await stored(keeper) == [b"1"]


async def test_a_keeper_that_hangs_makes_pushes_fail_and_keeps_nothing_of_them_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_journal, "PUT_WITHIN_S", 0.1)
    monkeypatch.setattr(shared_journal, "ANSWER_WITHIN_S", 0.1)
    async with workers(tmp_path) as pair:
        with pytest.raises(JournalFailed):
            await pair.other.put([message(1)])
        keeper = await pair.start()
        await pair.other.put([message(2)])
        assert await stored(keeper) == [b"2"], "the question was read, but its time was over"


async def test_too_many_questions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_journal, "MOST_ASKED", 1)
    async with workers(tmp_path) as pair:
        putting = asyncio.ensure_future(pair.other.put([message(1)]))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await pair.other.put([message(2)])
        await pair.start()
        await putting
