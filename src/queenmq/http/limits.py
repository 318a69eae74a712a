"""The bounds of the HTTP front. The ones an operator may set come from `Settings`."""

from __future__ import annotations

from dataclasses import dataclass

from queenmq.config import Settings

MAX_SWEEP_INTERVAL_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    max_body_bytes: int = 16 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    max_target_bytes: int = 16 * 1024
    max_connections: int = 20_000
    keep_alive_s: float = 75.0
    stall_s: float = 30.0
    """Longest time for a header block to arrive, and for a body or an answer to make no progress."""
    linger_s: float = 5.0
    """Longest time that a closing connection waits for its client to read the last answer."""
    half_closed_s: float = 5.0
    """Longest time that a request goes on whose client has closed its sending side."""
    max_drain_bytes: int = 64 * 1024 * 1024
    """Most input that is read and thrown away so that a refused client can read why."""

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        return cls(
            max_body_bytes=settings.max_body_bytes,
            max_connections=settings.max_connections,
            keep_alive_s=settings.keep_alive_s,
        )

    @property
    def sweep_interval_s(self) -> float:
        shortest_s = min(self.keep_alive_s, self.stall_s, self.linger_s, self.half_closed_s)
        return min(MAX_SWEEP_INTERVAL_S, shortest_s / 4)
