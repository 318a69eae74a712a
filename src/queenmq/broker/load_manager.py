"""Decides from the load whether an operation is executed, queued or refused. No I/O: the load is handed in.

Only pushes are queued. Acks are not, because they would lose their leases meanwhile: they have a lane of their own,
which is bounded. Pops are not, because their consumers wait for the answer. Messages between servers are never held.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

LONGEST_RETRY_AFTER_S: Final = 30
# What the operation queue does on a modest machine: until it is measured, a better guess than that nothing moves.
_GUESSED_DRAIN_RATE: Final = 200.0


class Choice(Enum):
    EXECUTE = "execute"
    QUEUE = "queue"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Beyond which load operations of one kind are queued, and beyond which depth they are refused instead."""

    pool_used: float
    wait_s: float
    loop_delay_s: float
    queue_depth: int


@dataclass(slots=True, kw_only=True)
class Load:
    """What is measured."""

    pool_used: float = 0.0  # share of the connections that are in use
    pool_waiting: int = 0  # calls that wait for one
    pool_stands: bool = False  # whether that is no burst
    wait_s: float = 0.0  # that requests of the kind wait for their call
    stands: bool = False  # whether that wait is no burst
    loop_delay_s: float = 0.0
    queue_depth: int = 0  # operations that are not finished
    drain_rate: float = 0.0  # operations finished in a second
    is_stalled: bool = False  # none was finished for as long as that is measured over, although some wait


@dataclass(frozen=True, slots=True)
class Decision:
    choice: Choice
    reason: str = ""
    retry_after_s: int = 0


_EXECUTE: Final = Decision(Choice.EXECUTE)


def decide(load: Load, limits: Thresholds) -> Decision:
    reason = _overload(load, limits)
    if reason is None:
        return _EXECUTE
    if load.queue_depth >= limits.queue_depth:
        return Decision(Choice.REJECT, "operation_queue_full", retry_after_s(load))
    return Decision(Choice.QUEUE, reason)


def _overload(load: Load, limits: Thresholds) -> str | None:
    if load.wait_s > limits.wait_s or load.stands:
        return "system_busy"
    if load.pool_stands and load.pool_used > limits.pool_used:
        return "pool_exhausted"
    if load.loop_delay_s > limits.loop_delay_s:
        return "server_busy"
    return None


def estimated_wait_s(position: int, drain_rate: float) -> float | None:
    """How long it takes until that many operations are done, as measured; None while nothing is being done."""
    return None if drain_rate <= 0 else round(position / drain_rate, 3)


def retry_after_s(load: Load) -> int:
    """When a tenth of what waits will be done: then there is room again. At least 1 second, at most 30."""
    if load.is_stalled:
        return LONGEST_RETRY_AFTER_S
    drain_rate = load.drain_rate if load.drain_rate > 0 else _GUESSED_DRAIN_RATE
    return max(1, math.ceil(min(LONGEST_RETRY_AFTER_S, load.queue_depth / 10 / drain_rate)))
