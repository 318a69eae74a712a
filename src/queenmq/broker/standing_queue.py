"""Distinguishes a burst from a standing queue. No I/O: the time and the wait are handed in.

A burst makes requests wait, too, but is worked off. When the wait has not been short even once for a while, more
comes than goes, and holding requests back only makes all of them slow (the idea of CoDel, RFC 8289).
"""

from __future__ import annotations

from typing import Final

MEMORY_S: Final = 1.0


class StandingQueue:
    def __init__(self, target_s: float, after_s: float) -> None:
        """It stands when the wait was above `target_s` for `after_s` without a break; soon after it stood, at once."""
        self._target_s = target_s
        self._after_s = after_s
        self._above_since: float | None = None
        self._stood_at: float | None = None

    def stands(self, now: float, wait_s: float) -> bool:
        if wait_s <= self._target_s:
            self._above_since = None
            return False
        if self._above_since is None:
            self._above_since = now
        # Without the memory, every break in a lasting overload would let another burst in.
        again = self._stood_at is not None and now - self._stood_at < MEMORY_S
        if not again and now - self._above_since < self._after_s:
            return False
        self._stood_at = now
        return True
