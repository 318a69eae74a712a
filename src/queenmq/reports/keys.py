"""Which namespaces have keys, and which locks somebody holds."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Struct

from queenmq.core.keys import LOCK_NAMESPACE
from queenmq.errors import InvalidRequest
from queenmq.reports.reading import Query, Reader

MOST_COUNTED: Final = 100
MOST_HOLDERS: Final = 10
_MOST_PAGES: Final = 100  # for a token that may not see all names
_LEAST_PAGE: Final = 1000  # for such a token
_LAST: Final = "\U0010ffff" * 3
# Namespaces of locks are one range of names; other namespaces are before and behind it.
_BEFORE_LOCKS: Final = LOCK_NAMESPACE[:-1] + chr(ord(LOCK_NAMESPACE[-1]) - 1) + _LAST
_BEHIND_LOCKS: Final = LOCK_NAMESPACE[:-1] + chr(ord(LOCK_NAMESPACE[-1]) + 1)


class NamespaceRead(Struct, frozen=True):
    """`keys` counts those that are there of the first hundred; `has_more`: there may be more."""

    namespace: str
    keys: int
    has_more: bool
    is_visible: bool


class HolderRead(Struct, frozen=True):
    namespace: str
    slot: str
    owner: str | None
    since: str | None
    expires_at: datetime
    renewed_at: datetime


_NAMESPACES: Final = Query("key_namespaces", NamespaceRead)
_HOLDERS: Final = Query("lock_holders", HolderRead)


async def namespaces(
    reader: Reader, prefix: str, after: str, limit: int, visible: list[str] | None
) -> tuple[list[NamespaceRead], str | None]:
    """Namespaces that begin with `prefix`, behind `after`, and where to go on if there may be more. Raises
    InvalidRequest if too many come first that are not `visible`."""
    last = prefix + _LAST
    found: list[NamespaceRead] = []
    for first, end in ((prefix, min(last, _BEFORE_LOCKS)), (max(prefix, _BEHIND_LOCKS), last)):
        if len(found) < limit and first <= end:
            found += await _visible(reader, (first, end, after), limit - len(found), MOST_COUNTED, (visible, 1))
    return [one for one in found if _is_shown(one)], found[-1].namespace if len(found) == limit else None


async def locks(
    reader: Reader, prefix: str, after: str, limit: int, visible: list[str] | None
) -> tuple[dict[str, list[HolderRead]], str | None]:
    """Locks that somebody holds, by name, and where to go on if there may be more. Raises as `namespaces`."""
    first = LOCK_NAMESPACE + prefix
    bounds = (first, first + _LAST, LOCK_NAMESPACE + after if after else "")
    found = await _visible(reader, bounds, limit, MOST_HOLDERS, (visible, len(LOCK_NAMESPACE) + 1))
    rows = await reader.rows(_HOLDERS, [one.namespace for one in found if _is_shown(one)], MOST_HOLDERS)
    held: dict[str, list[HolderRead]] = {}
    for row in rows:
        held.setdefault(row.namespace.removeprefix(LOCK_NAMESPACE), []).append(row)
    return held, found[-1].namespace.removeprefix(LOCK_NAMESPACE) if len(found) == limit else None


async def _visible(
    reader: Reader, bounds: tuple[str, str, str], limit: int, most: int, visible: tuple[list[str] | None, int]
) -> list[NamespaceRead]:
    """Those that may be seen. The others are passed over here, because where to go on must not name them."""
    first, end, after = bounds
    size = limit if visible[0] is None else max(limit, _LEAST_PAGE)
    found: list[NamespaceRead] = []
    for _ in range(_MOST_PAGES):
        rows = await reader.rows(_NAMESPACES, first, end, after, size, most, *visible)
        found += (one for one in rows if one.is_visible)
        if len(found) >= limit or len(rows) < size:
            return found[:limit]
        after = rows[-1].namespace
    raise InvalidRequest(
        f"more than {_MOST_PAGES * size:,} names that this token may not see come before the next one: ask with a "
        "prefix of the names that it may see",
        "prefix",
    )


def _is_shown(one: NamespaceRead) -> bool:
    return one.keys > 0 or one.has_more
