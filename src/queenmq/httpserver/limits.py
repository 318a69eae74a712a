"""The bounds of the HTTP front. The ones an operator may set come from `Settings`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from queenmq.config import HttpSettings

MAX_SWEEP_INTERVAL_S = 1.0
MOST_BACKLOG = 4096
MOST_LINGERING = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    max_body_bytes: int = 16 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    max_target_bytes: int = 16 * 1024
    max_connections: int = 20_000
    max_per_address: int = 0
    """Most connections of one address; 0 leaves a quarter of all connections to other addresses."""
    backlog: int = MOST_BACKLOG
    """Connections that the system may hold ready; so many may come at once beyond `max_connections`."""
    max_lingering: int = MOST_LINGERING
    """Connections beyond `max_connections` that have their last answer and wait for the client to read it."""
    unchecked_body_bytes: int = 32 * 1024
    """Bodies up to this are read before the caller is known, and outside the budget."""
    body_budget_bytes: int = 128 * 1024 * 1024
    body_s: float = 120.0
    """Longest time for a body to arrive for which there is room in the budget."""
    body_wait_s: float = 30.0
    """Longest wait for that room; then the request is refused."""
    pressed_s: float = 5.0
    """While others wait for room, a body that has been arriving for so long must have come at `pressed_bytes_a_s`."""
    pressed_bytes_a_s: int = 128 * 1024
    input_bytes: int = 128 * 1024 * 1024
    """Requests that have not arrived whole or wait behind others, without the bodies that have room in the budget."""
    unsent_bytes: int = 256 * 1024 * 1024
    """Answers that wait to be read by their clients; beyond it no further large one is made."""
    unread_s: float = 5.0
    """Beyond that, clients that have taken longer than this to read their answer are given up."""
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
    def of(cls, http: HttpSettings, workers: int) -> Limits:
        return cls(
            max_body_bytes=http.max_body_bytes,
            body_budget_bytes=http.body_budget_bytes // workers,
            body_s=http.body_timeout_s,
            input_bytes=http.input_budget_bytes // workers,
            unsent_bytes=http.answer_budget_bytes // workers,
            max_connections=http.max_connections,
            max_per_address=http.max_connections_per_address,
            keep_alive_s=http.keep_alive_s,
        )

    @property
    def files(self) -> int:
        """Most descriptors that connections need."""
        return self.max_connections + self.backlog + self.max_lingering

    def within(self, files: int) -> Limits:
        """The same with so many connections that `files` descriptors are enough, also while others are refused."""
        if files >= self.files:
            return self
        spare = max(1, min(MOST_LINGERING, files // 8))
        most = max(1, min(self.max_connections, files - 2 * spare))
        return replace(self, max_connections=most, backlog=spare, max_lingering=spare)

    @property
    def most_per_address(self) -> int:
        return min(self.max_per_address or -(-self.max_connections * 3 // 4), self.max_connections)

    @property
    def budget_bytes(self) -> int:
        """At least one body of every permitted size must find room."""
        return max(self.body_budget_bytes, self.max_body_bytes)

    @property
    def sweep_interval_s(self) -> float:
        shortest_s = min(self.keep_alive_s, self.stall_s, self.linger_s, self.half_closed_s)
        return min(MAX_SWEEP_INTERVAL_S, shortest_s / 4)
