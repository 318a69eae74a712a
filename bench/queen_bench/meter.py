"""The stopwatch of one measured phase: requests with their latency, messages, and what the processes used."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Final

from queen_bench.figures import percentile
from queen_bench.processes import Usage, Watch
from queen_bench.result import Latency, Result

PER_MESSAGES: Final = 100_000
KB_PER_MB: Final = 1024


class Meter:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.latencies: dict[str, list[float]] = defaultdict(list)
        self.messages: dict[str, int] = defaultdict(int)
        self.started_at = self._last_at = 0.0
        self._before = self._after = Usage()
        self._own_cpu_s = 0.0

    def start(self) -> None:
        self._before = self._watch.usage()
        self._own_cpu_s = time.process_time()
        self.started_at = self._last_at = time.perf_counter()

    def note(self, verb: str, began_at: float, messages: int) -> float:
        """A request is done; answers the time."""
        now = time.perf_counter()
        self.latencies[verb].append(now - began_at)
        self.messages[verb] += messages
        self._last_at = now
        return now

    def stop(self) -> None:
        self._own_cpu_s = time.process_time() - self._own_cpu_s
        self._after = self._watch.usage()

    @property
    def elapsed_s(self) -> float:
        """From the start to the last thing that was noted: what waits in vain after that does not count."""
        return max(self._last_at - self.started_at, 1e-9)

    def rate(self, verb: str) -> float:
        return self.messages[verb] / self.elapsed_s

    def result(self, verb: str) -> Result:
        """The figures of the phase, counted in messages of one verb."""
        messages = self.messages[verb]
        return Result(
            messages=messages,
            seconds=self.elapsed_s,
            rate=self.rate(verb),
            latency={name: latency(values) for name, values in self.latencies.items()},
            server_cpu_s=per_messages(self._before.server_cpu_s, self._after.server_cpu_s, messages),
            postgres_cpu_s=per_messages(self._before.postgres_cpu_s, self._after.postgres_cpu_s, messages),
            generator_cpu_s=per_messages(0.0, self._own_cpu_s, messages),
            server_rss_mb=_mb(self._after.server_rss_kb),
            postgres_mb=_mb(self._after.postgres_pss_kb),
        )


def latency(values_s: list[float]) -> Latency:
    return Latency(p50_ms=ms(percentile(values_s, 0.5)), p99_ms=ms(percentile(values_s, 0.99)))


def ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def per_messages(before_s: float | None, after_s: float | None, messages: int) -> float | None:
    """CPU seconds per 100,000 messages."""
    if before_s is None or after_s is None or not messages:
        return None
    return (after_s - before_s) / messages * PER_MESSAGES


def _mb(kilobytes: int | None) -> float | None:
    return None if kilobytes is None else kilobytes / KB_PER_MB
