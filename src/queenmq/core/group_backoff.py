"""How often a group of parked long polls is probed: soon at first, less often while it finds nothing. No I/O.

This is the safety net under the wake-ups, which may get lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffSettings:
    base_s: float = 0.1
    threshold: int = 3
    multiplier: float = 2.0
    longest_s: float = 1.0


class GroupBackoff:
    __slots__ = ("_read", "_settings", "empty", "interval_s")

    def __init__(self, read: Callable[[], BackoffSettings]) -> None:
        """`read` is asked again after every probe that has found nothing: the settings of a queue may change."""
        self._read = read
        self._settings = read()
        self.interval_s = self._settings.base_s
        self.empty = 0

    @property
    def backed_off(self) -> bool:
        return self.empty >= self._settings.threshold

    def found_nothing(self) -> None:
        self.empty += 1
        settings = self._read()
        if settings != self._settings:
            self._settings, self.interval_s = settings, settings.base_s
        if self.backed_off:
            self.interval_s = min(self.interval_s * self._settings.multiplier, self._settings.longest_s)

    def reset(self) -> None:
        """Something happened: probe soon again."""
        self.empty = 0
        self.interval_s = self._settings.base_s
