"""What is known of a row that is locked, and of a request that waits for it; how long calls wait for a lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from queenmq.broker.locked_rows import Row
from queenmq.clock import Timer
from queenmq.errors import QueenError

FIRST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 0.2
# A row is probed again after this share of the time for which it has been known to be locked.
PAUSE_SHARE: Final = 0.1
# A row for which nobody waits is kept in mind for so long, so that the next request need not find out again.
IDLE_PAUSE_S: Final = 1.0

# The lock_timeout of a call in ms, as PostgreSQL wants it: long against the time that servers hold a row for each
# other, short against what a client notices.
FIRST_TIMEOUT: Final = "50"
# While something is known to be locked, more of it may be.
NEXT_TIMEOUT: Final = "10"
# In the call of those who have waited there is nobody else, and they are to get a row that many want.
AGAIN_TIMEOUT: Final = "500"


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that may have to wait. `go` is called when it may go on, `fail` when it has waited for too long."""

    rows: frozenset[Row]
    since: float
    go: Callable[[], None]
    fail: Callable[[QueenError], None]
    give_up_at: float | None = field(default=None, kw_only=True)
    blocked: set[Row] = field(default_factory=set, kw_only=True)
    timer: Timer | None = field(default=None, kw_only=True)
    # It was let go to find out whether this row is still locked, and has to run alone.
    trying: Row | None = field(default=None, kw_only=True)


@dataclass(slots=True, eq=False)
class LockedRow:
    """What is known of a row that is locked."""

    since: float
    due: float
    wanted_at: float
    probed: bool
    mark: str = field(default="", kw_only=True)
    waiting: dict[Ticket, None] = field(default_factory=dict, kw_only=True)
    tried_by: Ticket | None = field(default=None, kw_only=True)
    holder: asyncio.Task[str] | None = field(default=None, kw_only=True)
    holder_at: float = field(default=0.0, kw_only=True)
    logged_at: float | None = field(default=None, kw_only=True)

    def defer(self, now: float, least_s: float = 0.0) -> None:
        pause = min(max((now - self.since) * PAUSE_SHARE, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self.due = now + max(pause if self.waiting else IDLE_PAUSE_S, least_s)
