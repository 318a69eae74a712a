"""Where a read begins and ends: offsets, moments, or the ends of what is stored. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from queenmq.core.names import parse_timestamp
from queenmq.errors import InvalidRequest
from queenmq.pipeline.errors import BadOption

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
# Kafka's numbers for the two in a JSON map.
_NUMBERS: Final = {-2: EARLIEST, -1: LATEST}

Place = str | int | datetime


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a read: a place for each named partition and one for all others.

    A number is an offset, a moment stands for the first message that is not older.
    """

    others: Place
    named: dict[str, Place] = field(default_factory=dict)


def bound_of(options: Mapping[str, str], side: str, queue: str, usual: str) -> Bound:
    """What the options of a side, `starting` or `ending`, say of it. Raises BadOption."""
    given = [
        name
        for name in (f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp")
        if options.get(name.lower()) is not None
    ]
    if len(given) > 1:
        raise BadOption(f"{given[0]} and {given[1]} contradict each other: give one of them")
    if not given:
        return Bound(usual)
    name, raw = given[0], options[given[0].lower()]
    rest = EARLIEST if side == "starting" else LATEST
    if name.endswith("Offsets"):
        if raw.lower() in (EARLIEST, LATEST):
            return Bound(raw.lower())
        return Bound(rest, {key: _offset(value, name) for key, value in _map(raw, name, queue).items()})
    if name.endswith("Timestamp") and not name.endswith("ByTimestamp"):
        return Bound(moment(raw, name))
    return Bound(rest, {key: moment(str(value), name) for key, value in _map(raw, name, queue).items()})


def _map(raw: str, name: str, queue: str) -> dict[str, object]:
    """`{"partition": place}`, or Kafka's form with the queue around it."""
    found = parsed_json(raw, name)
    if isinstance(found, dict) and list(found) == [queue] and isinstance(found[queue], dict):
        found = found[queue]
    if not isinstance(found, dict) or any(isinstance(value, dict) for value in found.values()):
        raise BadOption(f'{name} must be earliest, latest or JSON like {{"{queue}": {{"partition": 17}}}}')
    return found


def parsed_json(raw: str, name: str) -> object:
    try:
        parsed: object = json.loads(raw)
    except ValueError:
        raise BadOption(f"{name} is not valid JSON") from None
    return parsed


def _offset(value: object, name: str) -> Place:
    if isinstance(value, bool) or not isinstance(value, int) or value < -2:
        raise BadOption(f"{name}: an offset is a whole number, -2 for earliest or -1 for latest, not {value!r}")
    return _NUMBERS.get(value, value)


def moment(raw: str, name: str) -> datetime:
    """Milliseconds since 1970, or ISO-8601."""
    if re.fullmatch(r"\d{1,15}", raw):
        return datetime.fromtimestamp(int(raw) / 1000, UTC)
    try:
        return parse_timestamp(raw, name)
    except InvalidRequest:
        raise BadOption(f"{name} must be milliseconds since 1970 or an ISO-8601 timestamp, not {raw!r}") from None
