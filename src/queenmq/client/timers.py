"""Timers: messages that the server pushes at a later moment. `Queue.schedule` makes one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct, field

from queenmq.client.errors import InvalidUse
from queenmq.client.models import Json
from queenmq.client.options import timestamp
from queenmq.client.payload import encode
from queenmq.client.verbs import Verbs, path_of


class Timer(Struct, kw_only=True, rename="camel"):
    """A timer, or what became of it.

    | status | meaning |
    |---|---|
    | `scheduled` | it is stored and will be pushed |
    | `rescheduled` | the same; it has replaced the one of the same key |
    | `cancelled` | it was stored and will not be pushed |
    | `absent` | there is none: it was cancelled before, or it was pushed |
    | `waiting` | of a listing: it waits for its moment |

    `transaction_id`, `message_id` and `deliver_at` are those of the next message that it becomes.
    """

    queue: str
    key: str = field(name="timerKey")
    status: str = "waiting"
    partition: str | None = None
    transaction_id: str | None = field(name="txn", default=None)
    message_id: str | None = None
    deliver_at: str | None = None
    schedule: str | None = None
    time_zone: str | None = None
    attempts: int = 0
    last_error: str | None = None
    headers: dict[str, str] = {}


class _Changed(Struct):
    results: list[Timer]


class _Page(Struct, rename="camel"):
    rows: list[Timer]
    next_after: str | None = None


def moment(delay: timedelta | float | None, at: datetime | None, schedule: str | None, time_zone: str | None) -> Json:
    """When a timer is due, as the wire says it. Raises InvalidUse unless exactly one of the three is given."""
    if sum(given is not None for given in (delay, at, schedule)) != 1:
        raise InvalidUse("a timer needs one of delay, at and schedule")
    if time_zone is not None and schedule is None:
        raise InvalidUse("time_zone is only for a schedule")
    if at is not None:
        return {"deliverAt": timestamp(at, "at")}
    if schedule is not None:
        return {"schedule": schedule} | ({} if time_zone is None else {"timeZone": time_zone})
    given: Any = delay.total_seconds() if isinstance(delay, timedelta) else delay
    try:
        return {"delayMs": round(float(given) * 1000)}
    except (TypeError, ValueError, OverflowError):
        raise InvalidUse(f"delay must be a timedelta or a number of seconds, not {delay!r}") from None


async def set_timer(verbs: Verbs, operation: Json, data: Any) -> Timer:
    body = {"operations": [operation | {"op": "schedule", "data": encode(data)}]}
    answer = await verbs.ask("POST", "/api/v1/timers", body)
    return msgspec.convert(answer, _Changed).results[0]


async def cancel_timer(verbs: Verbs, queue: str, key: str) -> Timer:
    answer = await verbs.ask("DELETE", path_of("api", "v1", "timers", queue, key))
    return msgspec.convert(answer, Timer)


async def list_timers(verbs: Verbs, queue: str, limit: int) -> list[Timer]:
    found: list[Timer] = []
    after: str | None = None
    while len(found) < limit:
        params = {"after": after, "limit": min(limit - len(found), 1000)}
        page = msgspec.convert(await verbs.ask("GET", path_of("api", "v1", "timers", queue), params=params), _Page)
        found += page.rows
        after = page.next_after
        if after is None:
            break
    return found
