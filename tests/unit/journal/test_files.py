"""The journal on disk: what was synced survives a power cut, and damage takes nothing with it."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest

from queenmq.errors import Overloaded
from queenmq.journal.files import JournalBounds, JournalFailed, JournalFiles, RecordRef
from queenmq.journal.folder import JournalFolder, take_all

BOUNDS = JournalBounds(max_bytes=1_000_000, max_records=1000, records_per_file=4)


async def opened(path: Path, bounds: JournalBounds = BOUNDS) -> JournalFiles:
    folder = JournalFolder.take(path)
    assert folder is not None
    return await JournalFiles.open(folder, bounds)


async def written(journal: JournalFiles, *bodies: bytes) -> list[RecordRef]:
    places = await asyncio.gather(*[journal.append(body)[1] for body in bodies])
    return [place for place in places if place is not None]


async def bodies_of(journal: JournalFiles) -> list[bytes | None]:
    return [await journal.read(place) for place in journal.recovered]


def files(path: Path) -> list[Path]:
    return sorted(path.glob("*.journal"))


async def test_what_was_appended_is_there_after_a_restart_in_order(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    for number in range(10):
        await written(journal, b"%d" % number)
    await journal.close()
    assert len(files(tmp_path)) == 3
    again = await opened(tmp_path)
    assert await bodies_of(again) == [b"%d" % number for number in range(10)]
    await again.close()


async def test_what_waits_together_is_synced_once(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    await written(journal, *[b"x"] * 50)
    assert journal.syncs <= 2
    await journal.close()


async def test_what_was_replayed_never_comes_back_and_its_files_go(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    places = [(await written(journal, b"%d" % number))[0] for number in range(10)]
    await journal.finish([places[1], *places[4:9]])
    assert len(files(tmp_path)) == 3, "the first file has unfinished records, and later marks must not go before it"
    await journal.close()
    again = await opened(tmp_path)
    assert await bodies_of(again) == [b"0", b"2", b"3", b"9"]
    await again.finish(again.recovered)
    assert files(tmp_path) == []
    assert again.size == again.open_records == 0
    await written(again, b"new")
    await again.close()
    third = await opened(tmp_path)
    assert await bodies_of(third) == [b"new"]
    await third.close()


async def test_a_power_cut_at_any_byte_after_the_last_sync(tmp_path: Path) -> None:
    """The bytes behind the last sync may be there up to any point; what was synced before is there."""
    source = tmp_path / "source"
    journal = await opened(source)
    await written(journal, b"first", b"second")
    synced = files(source)[0].stat().st_size
    await written(journal, b"third")
    await journal.close()
    whole = files(source)[0].stat().st_size
    for size in range(synced, whole + 1):
        copy = tmp_path / str(size)
        shutil.copytree(source, copy)
        os.truncate(files(copy)[0], size)
        again = await opened(copy)
        expected = [b"first", b"second"] + ([b"third"] if size == whole else [])
        assert await bodies_of(again) == expected
        assert again.torn_bytes == (0 if size == whole else size - synced)
        assert again.damaged == 0
        await written(again, b"after")
        await again.close()
        third = await opened(copy)
        assert await bodies_of(third) == [*expected, b"after"]
        await third.close()
        shutil.rmtree(copy)


async def test_one_bit_flipped_in_each_record_in_turn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = tmp_path / "source"
    journal = await opened(source)
    places = await written(journal, *[b"record %d" % number for number in range(4)])
    await journal.close()
    for guilty, place in enumerate(places):
        for at in range(place.start, place.end):
            copy = tmp_path / "copy"
            shutil.copytree(source, copy)
            data = bytearray(files(copy)[0].read_bytes())
            data[at] ^= 1 << at % 8
            files(copy)[0].write_bytes(data)
            caplog.clear()
            again = await opened(copy)
            assert await bodies_of(again) == [b"record %d" % number for number in range(4) if number != guilty]
            assert again.damaged == 1
            assert "quarantined" in caplog.text
            assert again.folder.aside_sizes() == [place.end - place.start]
            await again.close()
            shutil.rmtree(copy)


async def test_damage_is_reported_once_and_the_rest_can_be_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = await opened(tmp_path)
    [place, _] = await written(journal, b"first", b"second")
    await journal.close()
    data = bytearray(files(tmp_path)[0].read_bytes())
    data[place.end - 1] ^= 1
    files(tmp_path)[0].write_bytes(data)
    await (await opened(tmp_path)).close()
    caplog.clear()
    again = await opened(tmp_path)
    assert "quarantined" not in caplog.text
    await again.finish(again.recovered)
    assert files(tmp_path) == []
    assert len(again.folder.aside_sizes()) == 1
    await again.close()


async def test_a_record_that_rots_later_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    [place] = await written(journal, b"body")
    data = bytearray(files(tmp_path)[0].read_bytes())
    data[-1] ^= 1
    files(tmp_path)[0].write_bytes(data)
    body = await journal.read(place)
    assert body is None
    await journal.set_aside(place, body, "it is damaged")
    assert (journal.open_records, len(journal.folder.aside_sizes())) == (0, 1)
    await journal.close()


async def test_both_bounds_refuse_and_keep_nothing(tmp_path: Path) -> None:
    journal = await opened(tmp_path, JournalBounds(max_bytes=300, max_records=2, records_per_file=10))
    await written(journal, b"a", b"b")
    with pytest.raises(Overloaded):
        journal.append(b"c")
    await journal.close()
    again = await opened(tmp_path, JournalBounds(max_bytes=300, max_records=9, records_per_file=10))
    with pytest.raises(Overloaded):
        again.append(b"x" * 300)
    assert again.open_records == 2
    await again.close()


async def test_a_disk_that_refuses_keeps_nothing_and_the_next_write_may_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = await opened(tmp_path)
    await written(journal, b"before")

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(JournalFailed, match="No space"):
            await written(journal, b"lost")
        assert not journal.healthy
    await written(journal, b"after")
    assert journal.healthy
    await journal.close()
    again = await opened(tmp_path)
    assert await bodies_of(again) == [b"before", b"after"]
    await again.close()


def test_each_process_has_its_folder_and_takes_over_what_a_dead_one_left(tmp_path: Path) -> None:
    [first] = take_all(tmp_path)
    [second] = take_all(tmp_path)
    assert first.path != second.path
    first.release()
    second.release()
    taken = take_all(tmp_path)
    assert {folder.path for folder in taken} == {first.path, second.path}
    for folder in taken:
        folder.release()
