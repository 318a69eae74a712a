"""Who keeps old row versions alive: the holders of the horizon behind which VACUUM removes dead rows.

PostgreSQL does not say since when a slot or a standby holds it, nor, to an ordinary role, how old the session of
another role is. There the time counts from when this process has first seen the same transaction held.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct, structs

from queenmq.clock import SYSTEM
from queenmq.reports.reading import Query, Reports

Kind = Literal["session", "standby", "slot", "prepared"]
KINDS: Final[tuple[Kind, ...]] = ("session", "standby", "slot", "prepared")

_MOST_HOLDERS: Final = 20


class Holder(Struct, frozen=True):
    """A session or the connection of a standby has a `pid`; a slot and a prepared transaction have a `name`.

    `has_finished`: it has changed positions of groups, as `queen.finish` does; meanwhile no floor of pops moves.
    """

    kind: Kind
    name: str | None
    pid: int | None
    username: str | None
    application: str | None
    state: str | None
    seconds: float | None
    xid: str
    transactions: int
    has_finished: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        return self.kind, self.name or str(self.pid), self.xid


class Horizon(Struct, frozen=True):
    """The holders, the oldest first; all have `seconds`. `sees_all` is false if our role is not shown all of others."""

    holders: list[Holder]
    sees_all: bool


class FirstSeen:
    """Since when this process has known the holders of today."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, ...], float] = {}

    def aged(self, holders: list[Holder], now: float) -> list[Holder]:
        self._since = {holder.key: self._since.get(holder.key, now) for holder in holders}
        return [
            structs.replace(holder, seconds=now - self._since[holder.key]) if holder.seconds is None else holder
            for holder in holders
        ]


class _Sight(Struct, frozen=True):
    sees_all: bool


_HOLDERS: Final = Query("horizon_holders", Holder)
_SIGHT: Final = Query("sees_all_sessions", _Sight)


async def horizon(reports: Reports, first_seen: FirstSeen) -> Horizon:
    found = await reports.rows(_HOLDERS, _MOST_HOLDERS)
    sight = await reports.one(_SIGHT)
    return Horizon(first_seen.aged(found, SYSTEM.monotonic()), sight.sees_all)


def described(holder: Holder) -> str:
    """One holder in words, for a person."""
    if holder.has_finished:
        return f"{_named(holder)}, which has finished messages (queen.finish) and so keeps all pops on old versions,"
    return _named(holder)


def _named(holder: Holder) -> str:
    match holder.kind:
        case "slot":
            return f"the replication slot {holder.name} ({holder.state})"
        case "prepared":
            return f"the prepared transaction {holder.name} of {holder.username}"
        case "standby":
            return f"the standby {holder.application} (hot_standby_feedback, process {holder.pid})"
    state = f", {holder.state}" if holder.state else ""
    return f"the session {holder.pid} of {holder.username} ({holder.application or 'no application name'}{state})"


def advice(holder: Holder) -> str:
    """What to do about it."""
    match holder.kind:
        case "slot":
            return "connect its standby, or drop the slot: SELECT pg_drop_replication_slot(name)"
        case "prepared":
            return "end it: COMMIT PREPARED or ROLLBACK PREPARED with its name"
        case "standby":
            return "end long queries on the standby, or set hot_standby_feedback = off there"
    return (
        f"commit it, or end it: SELECT pg_terminate_backend({holder.pid}); "
        "idle_in_transaction_session_timeout ends forgotten ones"
    )


def statement(holder: Holder) -> str | None:
    """SQL that an administrator of the database ends it with; None if that is not done by a statement here."""
    match holder.kind:
        case "slot":
            return f"SELECT pg_drop_replication_slot({_quoted(holder.name)})"
        case "prepared":
            return f"ROLLBACK PREPARED {_quoted(holder.name)}"
        case "standby":
            return None
    return f"SELECT pg_terminate_backend({holder.pid})"


def _quoted(name: str | None) -> str:
    return "'" + (name or "").replace("'", "''") + "'"
