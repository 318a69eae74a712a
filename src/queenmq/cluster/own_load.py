"""The load of this process, as its heartbeats report it."""

from __future__ import annotations

from collections.abc import Callable

from queenmq.cluster.load_tracker import Sample


class OwnLoad:
    """`requests` gives the parked long polls and the requests that are being worked on; `cpu_s` the CPU time used."""

    def __init__(self, requests: Callable[[], tuple[int, int]], cpu_s: Callable[[], float], now: float) -> None:
        self._requests = requests
        self._cpu_s = cpu_s
        self._at = now
        self._used_s = cpu_s()

    def measure(self, now: float) -> Sample:
        """Now, and for the CPU the mean since the last time."""
        used_s = self._cpu_s()
        elapsed_s = now - self._at
        cpu = (used_s - self._used_s) / elapsed_s if elapsed_s > 0 else 0.0
        self._at, self._used_s = now, used_s
        return Sample(*self._requests(), max(0.0, cpu))
