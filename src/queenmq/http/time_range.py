"""The stretch of time that a history is asked for, and how fine it is told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from queenmq.clock import SystemClock
from queenmq.core.names import iso_millis
from queenmq.errors import InvalidRequest
from queenmq.http.decoding import query_time
from queenmq.http.messages import Request
from queenmq.http.openapi import MOMENT, Parameter

_clock = SystemClock()
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_LONGEST = timedelta(days=366)
# Up to so many minutes, buckets of so many minutes; beyond, the last.
_WIDTHS = ((60, 1), (360, 5), (1440, 15), (10080, 60))
_WIDEST = 360
PARAMETERS = (
    Parameter("from", MOMENT, "Begin of the range; how far back it is by default depends on the route."),
    Parameter("to", MOMENT, "End of the range; now by default."),
)


@dataclass(frozen=True, slots=True)
class TimeRange:
    since: datetime
    until: datetime

    @property
    def bucket_minutes(self) -> int:
        minutes = (self.until - self.since).total_seconds() / 60
        return next((width for most, width in _WIDTHS if minutes <= most), _WIDEST)

    def shown(self) -> dict[str, str]:
        return {"from": iso_millis(self.since), "to": iso_millis(self.until)}


def end_of_minute(at: datetime) -> datetime:
    """The last moment of the minute of `at`."""
    return at.replace(second=59, microsecond=999_999)


def query_range(request: Request, default_hours: float, longest: timedelta | None = _LONGEST) -> TimeRange:
    """The range of `from` and `to`. Raises InvalidRequest if it ends before it begins, or is longer than a year.

    That is for histories, which are told in full; what is cut to a page may have a range of any length.
    """
    until = query_time(request, "to") or datetime.fromtimestamp(_clock.wall(), UTC)
    since = query_time(request, "from") or max(_EARLIEST, until) - timedelta(hours=default_hours)
    since, until = max(_EARLIEST, since), max(_EARLIEST, until)
    if since > until:
        raise InvalidRequest("from must not be after to", "from")
    if longest is not None and until - since > longest:
        raise InvalidRequest("the range from 'from' to 'to' must not be longer than a year", "from")
    return TimeRange(since, until)
