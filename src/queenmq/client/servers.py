"""Which server gets the next request. No I/O: it gets the time and which requests succeeded."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class Servers:
    """The servers in order of preference.

    A server that failed is left alone for the cool-down. Then one request tries it again while the others stay where
    they are; if that works, all go back to it.
    """

    def __init__(self, urls: Sequence[str], cooldown_s: float, *, round_robin: bool = False) -> None:
        self._urls = tuple(urls)
        self._cooldown_s = cooldown_s
        self._round_robin = round_robin
        self._turn = 0
        self._rests_until: dict[str, float] = {}

    def choose(self, now: float, tried: Collection[str] = ()) -> str | None:
        """A server that is not in `tried`, if possible one that works; None if all are."""
        open_ones = [url for url in self._in_order() if url not in tried]
        for url in open_ones:
            rests_until = self._rests_until.get(url)
            if rests_until is None:
                return url
            if rests_until <= now:
                self._rests_until[url] = now + self._cooldown_s
                return url
        return open_ones[0] if open_ones else None

    def has_other_than(self, tried: Collection[str]) -> bool:
        return any(url not in tried for url in self._urls)

    def worked(self, url: str) -> None:
        self._rests_until.pop(url, None)

    def failed(self, url: str, now: float) -> None:
        self._rests_until[url] = now + self._cooldown_s

    def working(self) -> list[str]:
        return [url for url in self._urls if url not in self._rests_until]

    def _in_order(self) -> Sequence[str]:
        if not self._round_robin:
            return self._urls
        first = self._turn % len(self._urls)
        self._turn += 1
        return self._urls[first:] + self._urls[:first]
