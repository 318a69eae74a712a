"""What a report is about: which queues, and which stretch of time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

# Up to so many minutes, buckets of so many minutes; beyond, the widest.
_WIDTHS: Final = ((60, 1), (360, 5), (1440, 15), (10080, 60))
_WIDEST: Final = 360


@dataclass(frozen=True, slots=True)
class Scope:
    """The queues of a name, of a namespace and of a task, each if given."""

    queue: str | None = None
    namespace: str | None = None
    task: str | None = None


EVERYTHING: Final = Scope()


@dataclass(frozen=True, slots=True)
class TimeRange:
    since: datetime
    until: datetime

    @property
    def bucket_minutes(self) -> int:
        """How wide the points of a history over this range are."""
        minutes = (self.until - self.since).total_seconds() / 60
        return next((width for most, width in _WIDTHS if minutes <= most), _WIDEST)
