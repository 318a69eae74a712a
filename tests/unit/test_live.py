"""Live beats: made once for everybody, and not at all for nobody."""

from __future__ import annotations

import asyncio

import pytest

from queenmq.broker.live import Live
from queenmq.errors import Overloaded


class Heart:
    def __init__(self) -> None:
        self.beats = 0
        self.failures = 0

    async def __call__(self) -> bytes:
        self.beats += 1
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no beat")
        return b"%d" % self.beats


async def test_one_beat_is_for_every_watcher() -> None:
    live, heart = Live(beat_s=3600), Heart()
    watchers = [live.watch(heart) for _ in range(5)]
    read = await asyncio.gather(*(watcher.read() for watcher in watchers))
    assert set(read) == {b"id: 1\ndata: 1\n\n"}
    assert heart.beats == 1
    assert live.watchers == 5
    for watcher in watchers:
        watcher.close()


async def test_nothing_beats_while_nobody_watches() -> None:
    live, heart = Live(beat_s=0), Heart()
    watcher = live.watch(heart)
    await watcher.read()
    watcher.close()
    await asyncio.sleep(0)
    beats = heart.beats
    for _ in range(100):
        await asyncio.sleep(0)
    assert heart.beats == beats
    assert live.watchers == 0
    again = live.watch(heart)
    assert await again.read() is not None
    again.close()


async def test_a_slow_watcher_gets_the_newest_beat_and_misses_the_others() -> None:
    live, heart = Live(beat_s=0), Heart()
    watcher = live.watch(heart)
    await watcher.read()
    while heart.beats < 20:
        await asyncio.sleep(0)
    newest = await watcher.read()
    assert newest is not None
    assert int(newest.split(b"data: ")[1]) >= 20
    watcher.close()


async def test_a_beat_that_fails_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    live, heart = Live(beat_s=0), Heart()
    heart.failures = 2
    watcher = live.watch(heart)
    assert await watcher.read() == b"id: 1\ndata: 3\n\n"
    assert len(caplog.records) == 2
    watcher.close()


async def test_watchers_are_bounded() -> None:
    live, heart = Live(beat_s=3600, most_watchers=2), Heart()
    first, second = live.watch(heart), live.watch(heart)
    with pytest.raises(Overloaded, match="2 live streams are already open"):
        live.watch(heart)
    first.close()
    live.watch(heart).close()
    second.close()


async def test_a_watch_ends_after_so_many_beats() -> None:
    live, heart = Live(beat_s=0, most_beats=3), Heart()
    watcher = live.watch(heart)
    read = [await watcher.read() for _ in range(4)]
    assert [part is None for part in read] == [False, False, False, True]
    watcher.close()


async def test_the_close_ends_who_waits_and_who_comes() -> None:
    live, heart = Live(beat_s=3600), Heart()
    watcher = live.watch(heart)
    await watcher.read()
    waiting = asyncio.create_task(watcher.read())
    await asyncio.sleep(0)
    live.close()
    assert await waiting is None
    late = live.watch(heart)
    assert await late.read() is None
    late.close()
    watcher.close()
