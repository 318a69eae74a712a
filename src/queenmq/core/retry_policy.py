"""What becomes of messages that fail: how long each waits, how often it is tried, and what its partition does. No I/O.

However a policy is written, the database knows it as a list of delays: after the first failure of a message, after the
second, and so on; the last one is for all others.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from queenmq.core.options import MAX_COUNT
from queenmq.errors import InvalidRequest

LONGEST_MS = 30 * 86_400_000
_MOST_DELAYS = 100
_EXPONENTIAL_JITTER = 0.5

MOST_OUTCOMES = 1000

Poison = Literal["block", "skip", "park"]
DelayMs = Annotated[int, Meta(ge=0, le=LONGEST_MS)]


class RetryPolicy(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """`fixed` waits `delayMs`; `exponential` waits `delayMs`, then `factor` times as long after each failure, up to
    `maxDelayMs`; `list` waits what `delaysMs` says, and the last of it from then on. Without a strategy, the queue's
    `retryDelay`. `jitter` is the part by which a delay may be shorter at random (exponential: 0.5 unless it is given).
    `limit` is how often a message may fail before it is given up (else the queue's `retryLimit`). `poison` says what
    the partition does: `block`, `skip` or `park`."""

    strategy: Literal["fixed", "exponential", "list"] | None = None
    delay_ms: DelayMs | None = None
    factor: Annotated[float, Meta(ge=1, le=100)] | None = None
    max_delay_ms: DelayMs | None = None
    delays_ms: Annotated[list[DelayMs], Meta(min_length=1, max_length=_MOST_DELAYS)] | None = None
    jitter: Annotated[float, Meta(ge=0, le=1)] | None = None
    limit: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    poison: Poison = "block"

    @property
    def least_part(self) -> float:
        """By which part a delay may be shorter."""
        if self.jitter is not None:
            return self.jitter
        return _EXPONENTIAL_JITTER if self.strategy == "exponential" else 0.0

    def delays(self) -> list[int] | None:
        """The delays in milliseconds, None for the queue's own. Raises InvalidRequest for what contradicts itself."""
        wanted = {"fixed": ("delayMs",), "exponential": ("delayMs", "factor", "maxDelayMs"), "list": ("delaysMs",)}
        allowed = wanted[self.strategy] if self.strategy else ()
        given = {
            "delayMs": self.delay_ms,
            "factor": self.factor,
            "maxDelayMs": self.max_delay_ms,
            "delaysMs": self.delays_ms,
        }
        for name, value in given.items():
            if value is not None and name not in allowed:
                of = f"strategy {self.strategy!r} has no {name}" if self.strategy else f"{name} needs a strategy"
                raise InvalidRequest(f"retry: {of}", f"retry.{name}")
        if allowed and given[allowed[0]] is None:
            raise InvalidRequest(f"retry: strategy {self.strategy!r} needs {allowed[0]}", f"retry.{allowed[0]}")
        if self.strategy == "list":
            return self.delays_ms
        if self.strategy == "exponential":
            return self._growing()
        return None if self.delay_ms is None else [self.delay_ms]

    def _growing(self) -> list[int]:
        most = 3_600_000 if self.max_delay_ms is None else self.max_delay_ms
        delay, factor = float(self.delay_ms or 0), 2.0 if self.factor is None else self.factor
        delays: list[int] = []
        while len(delays) < _MOST_DELAYS:
            delays.append(round(min(delay, most)))
            if delay >= most or delay * factor == delay:
                break
            delay *= factor
        return delays


class BreakerPolicy(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """When more than `failures` of the last `of` messages of a group have failed, the group is paused. After
    `pauseSeconds` one batch is let through: if it is completed, the pause ends, and if it fails, it begins again."""

    failures: Annotated[int, Meta(ge=0, lt=MOST_OUTCOMES)]
    of: Annotated[int, Meta(ge=1, le=MOST_OUTCOMES)]
    pause_seconds: Annotated[int, Meta(ge=1, le=86_400)] = 30

    def check(self) -> None:
        """Raise InvalidRequest if it could never open."""
        if self.failures >= self.of:
            raise InvalidRequest("breaker: failures must be fewer than of, or it never opens", "breaker.failures")
