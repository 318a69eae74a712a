"""When a repeated timer is due next: cron expressions in a time zone, and `@every` with a duration. No I/O."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from queenmq.errors import InvalidRequest

_EVERY = re.compile(r"@every +(?P<number>[0-9]{1,9})(?P<unit>ms|s|m|h|d)", re.ASCII)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_SHORTEST = timedelta(seconds=1)
_LONGEST = timedelta(days=3660)
_MOST_CHARACTERS = 500
_FIELDS = 5


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidRequest(
            f"timeZone {name!r} is not the name of a time zone; one is 'Europe/Rome'", "timeZone"
        ) from None


def check_schedule(schedule: str, time_zone: str | None, now: datetime) -> None:
    """Raise InvalidRequest unless the schedule has a next moment."""
    if len(schedule) > _MOST_CHARACTERS:  # reading it takes as long as it is
        raise InvalidRequest(f"schedule must have at most {_MOST_CHARACTERS} characters", "schedule")
    if _EVERY.fullmatch(schedule) and time_zone is not None:
        raise InvalidRequest("timeZone is only for cron expressions: @every counts from its last moment", "timeZone")
    if len(schedule.split()) == _FIELDS + 1:  # with seconds; next_moment reads it, because it was accepted once
        raise InvalidRequest(
            f"schedule {schedule!r} has six fields, and a cron expression has five: minute, hour, day of the month, "
            "month and day of the week; for seconds, use @every, such as '@every 5s'",
            "schedule",
        )
    next_moment(schedule, time_zone, now, now)


def next_moment(schedule: str, time_zone: str | None, last: datetime, now: datetime) -> datetime:
    """The first moment of the schedule after `now`; `last` is the one before it.

    Moments that have passed while no server was there are left out, so that a timer that is late is pushed once.
    Where clocks are set forward, a moment that does not exist is moved behind the gap; where they are set back, one
    that exists twice comes once.
    """
    if match := _EVERY.fullmatch(schedule):
        return _after_pause(timedelta(**{_UNITS[match["unit"]]: int(match["number"])}), last, now)
    expression = _SHORT.get(schedule, schedule)
    zone = _zone(time_zone or "UTC")
    try:
        found = next(CronSim(expression, now.astimezone(zone)))
    except (CronSimError, StopIteration):
        if _comes_never(expression):
            complaint = "never comes: none of its months has such a day"
        else:
            complaint = (
                "is neither a cron expression with five fields, such as '0 9 * * 1-5', "
                "nor @every with a duration, such as '@every 10m'"
            )
        raise InvalidRequest(f"schedule {schedule!r} {complaint}", "schedule") from None
    return found.astimezone(UTC)


def _comes_never(expression: str) -> bool:
    """Whether each field of a refused expression is right by itself: then none of its months has the day."""
    fields = expression.split()
    if len(fields) != _FIELDS:
        return False
    minute, hour, day, month, weekday = fields
    try:
        for one in (f"{minute} {hour} {day} * {weekday}", f"{minute} {hour} * {month} {weekday}"):
            CronSim(one, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError:
        return False
    return True


def _after_pause(pause: timedelta, last: datetime, now: datetime) -> datetime:
    if not _SHORTEST <= pause <= _LONGEST:
        raise InvalidRequest("schedule: @every takes a duration from 1s to 3660d", "schedule")
    missed = max(0, (now - last) // pause)
    return last + (missed + 1) * pause
