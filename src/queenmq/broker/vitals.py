"""How this process is: its age, processor time, memory, and how late its event loop runs."""

from __future__ import annotations

import os
import resource
import socket
from dataclasses import dataclass
from pathlib import Path

from queenmq.clock import Clock

_MEMORY = Path("/proc/self/statm")
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Memory:
    resident: int
    virtual: int


class Vitals:
    """`loop_lag_ms` is written by what measures it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self.hostname = socket.gethostname()
        self.pid = os.getpid()
        self.loop_lag_ms = 0.0

    @property
    def uptime_s(self) -> float:
        return self._clock.monotonic() - self._started

    def processor_us(self) -> tuple[int, int]:
        """Time spent in the process and in the kernel for it."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return round(used.ru_utime * _MICROSECONDS), round(used.ru_stime * _MICROSECONDS)

    def memory(self) -> Memory:
        try:
            virtual, resident = (int(pages) for pages in _MEMORY.read_text().split()[:2])
        except (OSError, ValueError):
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            return Memory(most, most)
        page = resource.getpagesize()
        return Memory(resident * page, virtual * page)
