"""The figures of one scenario on one server, in the form in which they are written to JSON."""

from __future__ import annotations

import msgspec

Extra = float | int | str | bool | None
Series = dict[str, list[tuple[float, float]]]


class Latency(msgspec.Struct):
    p50_ms: float | None
    p99_ms: float | None


class Result(msgspec.Struct, kw_only=True):
    """CPU seconds are per 100,000 messages. What does not apply or cannot be known is None."""

    scenario: str = ""
    server: str = ""
    repeat: int = 0
    ack_mode: str = "-"
    messages: int = 0
    seconds: float = 0.0
    rate: float | None = None
    latency: dict[str, Latency] = {}
    worst_age_ms: float | None = None
    pending: int | None = None
    server_cpu_s: float | None = None
    postgres_cpu_s: float | None = None
    generator_cpu_s: float | None = None
    server_rss_mb: float | None = None
    postgres_mb: float | None = None
    extra: dict[str, Extra] = {}
    series: Series = {}  # values by seconds since the beginning
    problems: list[str] = []

    def main_latency(self) -> Latency:
        """Of the verb that the scenario is about, which is the one noted first."""
        return next(iter(self.latency.values()), Latency(None, None))
