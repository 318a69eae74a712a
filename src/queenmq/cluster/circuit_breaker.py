"""The circuit breaker of one peer.

closed ── failures in a row ──▶ open ── the wait is over ──▶ half-open ── success ──▶ closed
                                 ▲                               │
                                 └──── failure: twice the wait ──┘
"""

from __future__ import annotations

from enum import Enum

from queenmq.cluster.coordinator_bounds import CoordinatorBounds


class Circuit(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """A caller that `enter` has admitted must report `succeeded`, `failed` or `abandoned`."""

    __slots__ = ("_bounds", "_failures", "_open_until", "_probing", "_wait_s")

    def __init__(self, bounds: CoordinatorBounds) -> None:
        self._bounds = bounds
        self._failures = 0
        self._wait_s = 0.0  # 0: closed
        self._open_until = 0.0
        self._probing = False

    def state(self, now: float) -> Circuit:
        if not self._wait_s:
            return Circuit.CLOSED
        return Circuit.OPEN if now < self._open_until else Circuit.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether a request would be let through now."""
        return not self._wait_s or (now >= self._open_until and not self._probing)

    def enter(self, now: float) -> bool:
        """Let a request through, or not; while half-open only one at a time."""
        if not self._wait_s:
            return True
        if not self.allows(now):
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        self._failures = 0
        self._wait_s = 0.0
        self._probing = False

    def failed(self, now: float) -> None:
        self._failures += 1
        if self._wait_s:
            # A request from before the circuit opened says nothing new.
            if self._probing:
                self._open(now, min(self._wait_s * 2, self._bounds.circuit_longest_s))
        elif self._failures >= self._bounds.circuit_failures:
            self._open(now, self._bounds.circuit_retry_s)

    def abandoned(self) -> None:
        """The request ended without showing anything about the peer."""
        self._probing = False

    def _open(self, now: float, wait_s: float) -> None:
        self._wait_s = wait_s
        self._open_until = now + wait_s
        self._probing = False
