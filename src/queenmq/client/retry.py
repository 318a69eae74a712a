"""When to retry. No I/O: it gets what failed and returns how long to wait, or that there are no more attempts."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random

from queenmq.client.errors import Overloaded, QueenError
from queenmq.client.options import ClientOptions
from queenmq.clock import utc_now

_SPREAD = 0.1


class Retries:
    """The failures of one request. Failures and 429s are counted apart: an overloaded server is not a broken one."""

    def __init__(self, options: ClientOptions, random: Random) -> None:
        self._options = options
        self._random = random
        self._failures = 0
        self._overloads = 0

    def delay_after(self, error: QueenError) -> float | None:
        """Seconds to wait before the next attempt; None if there shall be none."""
        if isinstance(error, Overloaded):
            return self._after_overload(error)
        self._failures += 1
        return self._backoff(self._failures) if self._failures < self._options.retry_attempts else None

    def _after_overload(self, error: Overloaded) -> float | None:
        self._overloads += 1
        if not self._options.retry_on_429 or self._overloads >= self._options.retry_attempts_429:
            return None
        if self._options.honor_retry_after and error.retry_after_s is not None:
            # Never before the time that the server names; spread, so that not all come back in one moment.
            asked = error.retry_after_s * (1 + _SPREAD * self._random.random())
            return min(asked, self._options.max_retry_delay / 1000)
        return self._backoff(self._overloads)

    def _backoff(self, count: int) -> float:
        longest = self._options.max_retry_delay
        delay: float = min(self._options.retry_delay_millis * 2 ** min(count - 1, 30), longest)
        return delay * self._random.uniform(0.5, 1.0) / 1000


def parse_retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds from a `Retry-After` header, which has seconds or a date; None if it has neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = _seconds_until(value, now)
    return max(0.0, seconds) if seconds == seconds and seconds != float("inf") else None


def _seconds_until(value: str, now: datetime | None) -> float:
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return float("nan")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - (now or utc_now())).total_seconds()
