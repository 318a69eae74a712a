"""When a repeated timer is due next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from queenmq.core.schedule import check_schedule, next_moment
from queenmq.errors import InvalidRequest

NOW = datetime(2026, 3, 27, 12, 0, 30, tzinfo=UTC)  # a Friday


@pytest.mark.parametrize(
    ("schedule", "time_zone", "expected"),
    [
        ("* * * * *", None, "2026-03-27T12:01:00"),
        ("0 9 * * 1-5", None, "2026-03-30T09:00:00"),
        ("0 9 * * 1-5", "Europe/Rome", "2026-03-30T07:00:00"),  # clocks are set forward on the Sunday before
        ("0 18 * * *", "America/New_York", "2026-03-27T22:00:00"),
        ("0 9 L * *", None, "2026-03-31T09:00:00"),
        ("0 9 LW 5 *", None, "2026-05-29T09:00:00"),  # a Friday; the 31st is a Sunday
        ("0 9 * * 5L", None, "2026-04-24T09:00:00"),
        ("0 9 * * MON#2", None, "2026-04-13T09:00:00"),
        ("0 9 1 JAN *", None, "2027-01-01T09:00:00"),
        ("0 9 13 * 5", None, "2026-04-03T09:00:00"),  # on each 13th, and on each Friday
        ("@hourly", None, "2026-03-27T13:00:00"),
        ("@daily", "Asia/Tokyo", "2026-03-27T15:00:00"),
        ("@every 10m", None, "2026-03-27T12:10:30"),
        ("@every 1500ms", None, "2026-03-27T12:00:31.500000"),
    ],
)
def test_the_next_moment(schedule: str, time_zone: str | None, expected: str) -> None:
    assert next_moment(schedule, time_zone, NOW, NOW) == datetime.fromisoformat(expected).replace(tzinfo=UTC)


def test_a_moment_that_clocks_leave_out_comes_behind_the_gap() -> None:
    eve = datetime(2026, 3, 28, 22, tzinfo=UTC)
    assert next_moment("30 2 * * *", "Europe/Rome", eve, eve) == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)


def test_a_moment_that_clocks_repeat_comes_once() -> None:
    moments = []
    last = datetime(2026, 10, 24, 12, tzinfo=UTC)
    for _ in range(2):
        last = next_moment("30 2 * * *", "Europe/Rome", last, last)
        moments.append(last)
    assert moments == [datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 26, 1, 30, tzinfo=UTC)]


def test_a_schedule_with_seconds_that_was_stored_goes_on() -> None:
    assert next_moment("*/5 * * * * *", None, NOW, NOW) == NOW + timedelta(seconds=5)


def test_missed_moments_are_left_out_and_the_rhythm_is_kept() -> None:
    late = NOW + timedelta(minutes=34)
    assert next_moment("@every 10m", None, NOW, late) == NOW + timedelta(minutes=40)


@pytest.mark.parametrize(
    ("schedule", "time_zone", "complaint"),
    [
        ("", None, "neither a cron expression"),
        ("* * * *", None, "neither a cron expression"),
        ("61 * * * *", None, "neither a cron expression"),
        ("0 0 30 2 *", None, "'0 0 30 2 \\*' never comes: none of its months has such a day"),
        ("0 0 31 2,4,6 *", "Europe/Rome", "never comes"),
        ("0 0 32 2 *", None, "neither a cron expression"),
        ("0 0 31 2 8", None, "neither a cron expression"),
        ("*/5 * * * * *", None, "has six fields.*for seconds, use @every"),
        ("0 0 0 30 2 *", None, "has six fields"),
        ("a b c d e f g", None, "neither a cron expression"),
        ("@every", None, "neither a cron expression"),
        ("@every 5", None, "neither a cron expression"),
        ("@every 10ms", None, "from 1s to 3660d"),
        ("@every 5000d", None, "from 1s to 3660d"),
        ("@every 5m", "Europe/Rome", "only for cron"),
        ("0 9 * * *", "Mars/Olympus", "time zone"),
        ("0 9 * * *", "../etc/passwd", "time zone"),
        ("1," * 30_000 + "1 * * * *", None, "at most 500 characters"),
    ],
)
def test_what_is_no_schedule(schedule: str, time_zone: str | None, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        check_schedule(schedule, time_zone, NOW)
