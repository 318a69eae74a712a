"""Those who watch this server live: one beat a second for all of them together, and none while there is no watcher.

A watcher always gets the newest beat: one that is slow misses some, and nothing is kept for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from queenmq.errors import Overloaded

BEAT_S: Final = 1.0
MOST_WATCHERS: Final = 100
MOST_BEATS: Final = 600  # then the watcher has to come again, and to show its token again

Beat = Callable[[], Awaitable[bytes]]

log = logging.getLogger(__name__)


class Live:
    def __init__(
        self, beat_s: float = BEAT_S, most_watchers: int = MOST_WATCHERS, most_beats: int = MOST_BEATS
    ) -> None:
        self._beat_s = beat_s
        self._most_watchers = most_watchers
        self._most_beats = most_beats
        self._watchers: set[Watcher] = set()
        self._beating: asyncio.Task[None] | None = None
        self._beaten = asyncio.Event()
        self._closed = False
        self.latest = b""
        self.beats = 0

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def watch(self, beat: Beat) -> Watcher:
        """Begin to watch; close the watcher in the end. `beat` makes what all watchers get.

        Raises Overloaded if too many watch already.
        """
        if len(self._watchers) >= self._most_watchers:
            raise Overloaded(f"{self._most_watchers} live streams are already open: close one, or try again later", 5)
        watcher = Watcher(self, self._most_beats)
        self._watchers.add(watcher)
        if self._beating is None and not self._closed:
            self._beating = asyncio.get_running_loop().create_task(self._beat_on(beat), name="live")
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        if not self._watchers and self._beating is not None:
            self._beating.cancel()
            self._beating = None

    def close(self) -> None:
        """End every watch now, and those that begin from here on."""
        self._closed = True
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        self._announce()

    async def next(self, seen: int) -> int | None:
        """Wait for a beat newer than `seen`; its number, or None at the end."""
        while self.beats <= seen and not self._closed:
            await self._beaten.wait()
        return None if self._closed else self.beats

    async def _beat_on(self, beat: Beat) -> None:
        while True:
            try:
                self.latest = await beat()
                self.beats += 1
                self._announce()
            except Exception:
                log.exception("a live beat failed, it goes on")
            await asyncio.sleep(self._beat_s)

    def _announce(self) -> None:
        self._beaten.set()
        self._beaten = asyncio.Event()


class Watcher:
    """One who watches: a source for a streamed answer, in the form of server-sent events."""

    def __init__(self, live: Live, most_beats: int) -> None:
        self._live = live
        self._seen = live.beats  # what was made for others before may be old
        self._left = most_beats

    async def read(self) -> bytes | None:
        """The newest beat that was not read yet; None when the server stops, or after so many."""
        if not self._left:
            return None
        self._left -= 1
        number = await self._live.next(self._seen)
        if number is None:
            return None
        self._seen = number
        return b"id: %d\ndata: %b\n\n" % (number, self._live.latest)

    def close(self) -> None:
        self._live.leave(self)
