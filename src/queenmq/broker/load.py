"""The load of this server, measured: what the load manager decides by."""

from __future__ import annotations

from collections import Counter
from typing import Any

from queenmq.broker.lane import Lane
from queenmq.broker.load_manager import Choice, Decision, Load, Thresholds, decide, estimated_wait_s, retry_after_s
from queenmq.broker.standing_queue import StandingQueue
from queenmq.clock import SYSTEM, Clock
from queenmq.config import OverloadSettings
from queenmq.storage.database import Database

DEFERRALS = ("system_busy", "maintaining_order", "maintenance", "database_unavailable")
_EXECUTE = Decision(Choice.EXECUTE)
# For so long a decision holds for whatever else comes: the load does not change faster, and measuring it costs.
_HOLDS_S = 0.001
_AVERAGE_WEIGHT = 0.3
DRAIN_WINDOW_S = 10  # what the drain rate is measured over


class LoadWatch:
    """What is cheap is measured at every decision; a service reports depth, drain rate and loop delay."""

    def __init__(self, database: Database, settings: OverloadSettings, pool_size: int, clock: Clock = SYSTEM) -> None:
        self._database = database
        self._pool_size = pool_size
        self._clock = clock
        self._checked = settings.enabled
        self._limits = Thresholds(
            pool_used=settings.pool_threshold,
            wait_s=settings.wait_threshold_ms / 1000,
            loop_delay_s=settings.loop_threshold_ms / 1000,
            queue_depth=settings.queue_depth,
        )
        self.queue_limit = self._limits.queue_depth
        standing = settings.standing_wait_ms / 1000, settings.standing_after_ms / 1000
        self._standing = StandingQueue(*standing)
        self._standing_queued = StandingQueue(*standing)
        self._standing_pool = StandingQueue(0.0, settings.standing_after_ms / 1000)
        self._lanes: tuple[Lane[Any, Any], ...] = ()
        self.load = Load()
        self._slow = False
        self.is_calm = False  # no wait is being timed, and the event loop is not late
        self._decision = _EXECUTE
        self._decided_at = 0.0
        self.decisions = dict.fromkeys(Choice, 0)
        self.deferred = Counter(dict.fromkeys(DEFERRALS, 0))  # messages that are stored later, by reason
        self.refused = 0  # messages
        self._idle_since: float | None = None  # operations wait, and none is finished

    def watch(self, *lanes: Lane[Any, Any]) -> None:
        """The lanes in which pushes wait: first the direct one."""
        self._lanes = lanes

    def decide_push(self) -> Decision:
        if not self._checked:
            return _EXECUTE
        direct, queued = self._lanes
        if not (direct.pending or self._database.waiting or self._slow):
            # Nothing waits for anything: the rest of the question need not be asked.
            if not self.is_calm:
                self._standing.stands(0.0, 0.0)
                self._standing_pool.stands(0.0, 0.0)
                self.is_calm = True
            self.decisions[Choice.EXECUTE] += 1
            return _EXECUTE
        now = self._clock.monotonic()
        if not 0 <= now - self._decided_at < _HOLDS_S:
            self._decision = self._decide(direct, queued)
            self._decided_at = now
        self.decisions[self._decision.choice] += 1
        return self._decision

    def _decide(self, direct: Lane[Any, Any], queued: Lane[Any, Any]) -> Decision:
        decision = decide(self.measured(direct), self._limits)
        # When even queueing waits too long, nothing more can be taken.
        if decision.choice is Choice.QUEUE and self._is_stuck(queued):
            return Decision(Choice.REJECT, "system_busy", self.retry_after_s())
        return decision

    def _is_stuck(self, lane: Lane[Any, Any]) -> bool:
        now = self._clock.monotonic()
        wait_s = lane.wait_s(now)
        return self._standing_queued.stands(now, wait_s) or wait_s > self._limits.wait_s

    def measured(self, lane: Lane[Any, Any] | None = None) -> Load:
        self.is_calm = False
        load = self.load
        load.pool_waiting = self._database.waiting
        load.pool_used = self._database.in_use / self._pool_size
        now = self._clock.monotonic()
        load.pool_stands = self._standing_pool.stands(now, load.pool_waiting)
        load.wait_s = (lane or self._lanes[0]).wait_s(now)
        load.stands = self._standing.stands(now, load.wait_s)
        return load

    def note(self, *, queue_depth: int | None = None, drain_rate: float | None = None) -> None:
        if queue_depth is not None:
            self.load.queue_depth = queue_depth
        if drain_rate is not None:
            self.load.drain_rate = drain_rate
            self._note_stall()

    def _note_stall(self) -> None:
        """What was queued a moment ago had no time to be done, so that a rate of 0 says nothing yet."""
        now = self._clock.monotonic()
        if self.load.drain_rate > 0 or not self.load.queue_depth:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        self.load.is_stalled = self._idle_since is not None and now - self._idle_since >= DRAIN_WINDOW_S

    def note_queued(self, depth: int) -> None:
        """Operations were made just now, so many are open."""
        self.load.queue_depth = max(self.load.queue_depth, depth)

    @property
    def may_have_operations(self) -> bool:
        """False only if the last check found none; before the first check, True."""
        return not self._checked or self.load.queue_depth > 0

    def note_loop_delay(self, delay_s: float) -> None:
        """Averaged: one slow turn is no overload."""
        self.load.loop_delay_s += (delay_s - self.load.loop_delay_s) * _AVERAGE_WEIGHT
        self._slow = self.load.loop_delay_s > self._limits.loop_delay_s
        if self._slow:
            self.is_calm = False

    def estimated_wait_s(self, position: int) -> float | None:
        return estimated_wait_s(position, self.load.drain_rate)

    def retry_after_s(self) -> int:
        return retry_after_s(self.load)
