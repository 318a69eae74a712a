"""The stretch of time that a request asks about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from queenmq.clock import utc_now
from queenmq.core.names import iso_millis
from queenmq.errors import InvalidRequest
from queenmq.http.decoding import query_time
from queenmq.http.openapi import MOMENT, Parameter
from queenmq.httpserver.messages import Request
from queenmq.reports.scope import TimeRange

_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
# The last moment there is stands for infinity in the database, and a history would have no end.
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)
_LONGEST = timedelta(days=366)
PARAMETERS = (
    Parameter("from", MOMENT, "Begin of the range; how far back it is by default depends on the route."),
    Parameter("to", MOMENT, "End of the range; now by default."),
)


def shown(span: TimeRange) -> dict[str, str]:
    return {"from": iso_millis(span.since), "to": iso_millis(span.until)}


def end_of_minute(at: datetime) -> datetime:
    """The last moment of the minute of `at`."""
    return at.replace(second=59, microsecond=999_999)


def query_range(request: Request, default_hours: float, longest: timedelta | None = _LONGEST) -> TimeRange:
    """The range of `from` and `to`. Raises InvalidRequest if it ends before it begins, or is longer than a year.

    That is for histories, which are returned in full; what is cut to a page may have a range of any length.
    """
    until = query_time(request.query, "to") or utc_now()
    since = query_time(request.query, "from") or max(_EARLIEST, until) - timedelta(hours=default_hours)
    since, until = (min(max(_EARLIEST, at), _LATEST) for at in (since, until))
    if since > until:
        raise InvalidRequest("from must not be after to", "from")
    if longest is not None and until - since > longest:
        raise InvalidRequest("the range from 'from' to 'to' must not be longer than a year", "from")
    return TimeRange(since, until)
