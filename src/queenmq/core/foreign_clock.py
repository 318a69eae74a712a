"""Another machine's clock, seen from here: was it set back? No I/O.

Our own measure is a clock that cannot be set. What the other one shows at a moment is known only as well as the time
between a question and its answer allows, so a step is believed only beyond all that.
"""

from __future__ import annotations

from datetime import datetime, timedelta

# Clocks that are slowed down to be corrected, and ours against theirs, drift by less between two measurements.
_TOLERANCE = timedelta(milliseconds=100)


class ForeignClock:
    def __init__(self) -> None:
        self._observed: datetime | None = None
        self._asked_at = 0.0
        self._received_at = 0.0
        self.steps = 0  # how often it was set back
        self.reached: datetime | None = None  # the latest that it can have shown, while it is behind that

    def observe(self, time: datetime, asked_at: float, received_at: float) -> timedelta | None:
        """It showed `time` between these two moments of ours. Returns by how much it was set back since the last."""
        before, asked_before, received_before = self._observed, self._asked_at, self._received_at
        self._observed, self._asked_at, self._received_at = time, asked_at, received_at
        if self.reached is not None and time > self.reached:
            self.reached = None
        if before is None:
            return None
        step = before + timedelta(seconds=max(0.0, asked_at - received_before)) - time
        if step <= _TOLERANCE:
            return None
        self.steps += 1
        latest = before + timedelta(seconds=received_at - asked_before)
        self.reached = latest if self.reached is None else max(latest, self.reached)
        return step
