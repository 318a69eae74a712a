"""Trying again: how often, after which errors, and with which pauses.

What is not done with `retried` is not an attempt that is repeated: the intervals of long polls (`core/group_backoff`)
and of rows that are locked, the circuit breaker of a peer and the replay of the journal remember failures from one
request or turn to the next, and say only when to try.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from queenmq.clock import Clock

Result = TypeVar("Result")

_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Pauses:
    """Each is twice as long as the one before, up to a bound. They are spread by so large a part of themselves, to both
    sides, that those who failed together do not come back together."""

    first_s: float
    longest_s: float
    spread: float = 0.25

    def after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, which are at least one."""
        pause_s = min(self.first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), self.longest_s)
        return pause_s * (1.0 + self.spread * random.uniform(-1.0, 1.0))  # noqa: S311 - no secret


@dataclass(frozen=True, slots=True)
class Failure:
    error: Exception
    attempts: int  # that were made, all in vain
    elapsed_s: float  # since the first began
    pause_s: float  # until the next, if there is one


async def retried(
    attempt: Callable[[], Awaitable[Result]],
    is_worth_another: Callable[[Failure], bool],
    pauses: Pauses,
    clock: Clock,
) -> Result:
    """What `attempt` returns. After an error it is made again, or the error is raised, as `is_worth_another` says."""
    began, attempts = clock.monotonic(), 0
    while True:
        try:
            return await attempt()
        except Exception as error:
            attempts += 1
            pause_s = pauses.after(attempts)
            if not is_worth_another(Failure(error, attempts, clock.monotonic() - began, pause_s)):
                raise
        await clock.sleep(pause_s)
