"""How many database calls may run at once: the idea of TCP Vegas, on the time that calls take. No I/O.

The fastest call seen lately shows what the database needs when it is not crowded. The more slowly calls come back than
that, the more of them are only queueing inside it; the limit grows while few do and shrinks when many do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VegasSettings:
    min_limit: int = 1
    max_limit: int = 32
    alpha: float = 3.0
    beta: float = 12.0
    window_samples: int = 50
    min_window_s: float = 30.0
    update_interval_s: float = 1.0


class Vegas:
    def __init__(self, settings: VegasSettings, initial: int = 2) -> None:
        self._settings = settings
        self.limit = min(max(initial, settings.min_limit), settings.max_limit)
        self._stretches: deque[float] = deque(maxlen=settings.window_samples)
        self._fastest: dict[int, tuple[float, float]] = {}  # size class -> (seconds, when seen)
        self._updated = 0.0

    def record(self, now: float, seconds: float, weight: int) -> None:
        """Learn from a finished call that carried `weight` items. Calls are compared with calls of their size."""
        size = weight.bit_length()
        best = self._fastest.get(size)
        if best is None or seconds <= best[0] or now - best[1] > self._settings.min_window_s:
            best = self._fastest[size] = (seconds, now)
        self._stretches.append(seconds / best[0] if best[0] > 0 else 1.0)
        if now - self._updated >= self._settings.update_interval_s:
            self._updated = now
            self._adjust()

    def _adjust(self) -> None:
        stretch = sum(self._stretches) / len(self._stretches)
        queueing = self.limit * (1 - 1 / max(stretch, 1.0))
        if queueing < self._settings.alpha:
            self.limit = min(self.limit + 1, self._settings.max_limit)
        elif queueing > self._settings.beta:
            self.limit = max(self.limit - 1, self._settings.min_limit)
