"""Trying again: how often, after which errors, and with which pauses.

Some things are similar and stay apart: the intervals of long polls (`core/group_backoff`), the rows that
are locked (`broker/waiting_for_rows`) and the circuit breaker of a peer remember from one request to the next when to
try, and repeat nothing themselves; an answer that got lost (`LOST_ANSWERS`) is asked for again at once, by each verb in
its own way. The client has rules of its own (`client/retry.py`), which its users set.
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


class Attempts:
    """The attempts at one thing. `began` is when the first did, if that was before this was made."""

    def __init__(
        self,
        is_worth_another: Callable[[Failure], bool],
        pauses: Pauses,
        clock: Clock,
        *,
        began: float | None = None,
    ) -> None:
        self._is_worth_another = is_worth_another
        self._pauses = pauses
        self._clock = clock
        self._began = clock.monotonic() if began is None else began
        self._made = 0

    async def failed(self, error: Exception) -> None:
        """An attempt has failed: pause before the next one, or raise the error if there shall be none."""
        self._made += 1
        pause_s = self._pauses.after(self._made)
        elapsed_s = self._clock.monotonic() - self._began
        if not self._is_worth_another(Failure(error, self._made, elapsed_s, pause_s)):
            raise error
        await self._clock.sleep(pause_s)


async def retried(
    attempt: Callable[[], Awaitable[Result]],
    is_worth_another: Callable[[Failure], bool],
    pauses: Pauses,
    clock: Clock,
) -> Result:
    """What `attempt` returns. After an error it is made again, or the error is raised, as `is_worth_another` says."""
    attempts = Attempts(is_worth_another, pauses, clock)
    while True:
        try:
            return await attempt()
        except Exception as error:
            await attempts.failed(error)
