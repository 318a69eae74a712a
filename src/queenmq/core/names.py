"""Names and timestamps that come from callers: what is allowed, and where a group starts. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from queenmq.errors import InvalidRequest

MAX_NAME = 255
DEFAULT_PARTITION = "Default"
QUEUE_MODE = "__QUEUE_MODE__"

_FROM_THE_START = frozenset({"", "all", "from_beginning"})
_FROM_NOW = frozenset({"new", "new-only", "now"})
START_MODES = _FROM_THE_START | _FROM_NOW


def check_name(value: str, field: str) -> None:
    """Raise InvalidRequest unless `value` can name something: 1 to 255 characters, no NUL, valid Unicode."""
    if not value or len(value) > MAX_NAME or "\0" in value:
        raise InvalidRequest(_complaint(value, field), field)
    if not value.isascii():
        check_text(value, field)


def is_plain_name(value: str) -> bool:
    """Whether it can name something for certain; `check_name` decides about the others, and says what is wrong."""
    return value.isascii() and 0 < len(value) <= MAX_NAME and "\0" not in value


def are_plain_names(values: Sequence[str], joined: str) -> bool:
    """The same of many at once; `joined` is all of them with something plain between them."""
    return joined.isascii() and "\0" not in joined and min(map(len, values)) > 0 and max(map(len, values)) <= MAX_NAME


def _complaint(value: str, field: str) -> str:
    if not value:
        return f"{field} must not be empty"
    if "\0" in value:
        return f"{field} must not contain NUL"
    return f"{field} must have at most {MAX_NAME} characters"


def check_text(value: str, field: str) -> None:
    """Raise InvalidRequest if `value` cannot be stored as text."""
    if "\0" in value:
        raise InvalidRequest(f"{field} must not contain NUL", field)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field} must be valid Unicode", field) from None


def parse_timestamp(value: str, field: str) -> datetime:
    """An ISO-8601 timestamp in UTC; without an offset it is taken as UTC."""
    try:
        parsed = datetime.fromisoformat(value)
        if parsed.tzinfo is None:
            parsed = parsed.replace(tzinfo=UTC)
        return parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(f"{field} must be an ISO-8601 timestamp", field) from None


def iso_millis(moment: datetime) -> str:
    return _in_utc(moment).isoformat(timespec="milliseconds")[:-6] + "Z"


def optional_iso_millis(moment: datetime | None) -> str | None:
    return None if moment is None else iso_millis(moment)


def iso_micros(moment: datetime) -> str:
    return _in_utc(moment).isoformat(timespec="microseconds")[:-6] + "Z"


def _in_utc(moment: datetime) -> datetime:
    """The driver returns infinite times as the first and the last possible time, without an offset."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a group begins that has no position yet."""

    mode: str  # "all", "new" or "timestamp"
    since: datetime | None = None


BEGINNING = Start("all")


def parse_start(group: str, mode: str | None, since: str | None, default_mode: str) -> Start:
    """The start that a pop asks for. Raises InvalidRequest for a mode or timestamp that means nothing."""
    if mode is not None and mode not in START_MODES:
        raise InvalidRequest("subscriptionMode must be 'all', 'from_beginning', 'new' or 'now'", "subscriptionMode")
    start = _start(default_mode if mode is None else mode, since)
    return BEGINNING if group == QUEUE_MODE else start


def _start(mode: str, since: str | None) -> Start:
    if since is not None and since not in ("", "now"):
        return Start("timestamp", parse_timestamp(since, "subscriptionFrom"))
    if since == "now" or mode in _FROM_NOW:
        return Start("new")
    return BEGINNING
