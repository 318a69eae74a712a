"""Which groups are behind or idle, for `queen status` and `queen doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

MOST_GROUPS: Final = 10_000
T = TypeVar("T")


def permitted(question: Callable[[], T]) -> T | None:
    """The answer, None if the token is not for it: one that is restricted to some queues sees nothing of the servers,
    and still what there is of its queues. None from a server of an older version, too."""
    from queenmq.client.errors import Forbidden, NotFound

    try:
        return question()
    except (Forbidden, NotFound):
        return None


def unlisted(groups: Sequence[Mapping[str, Any]]) -> int:
    """How many more there are than the server has put on this first page. A server of an older version does not say."""
    return max(0, groups[0].get("total", 0) - len(groups)) if groups else 0


def behind_idle_or_paused(groups: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that nobody reads or that cannot keep up, and those that are paused while messages are due, the longest
    waiting first."""
    found = [group for group in groups if _waits(group)]
    return sorted(found, key=lambda group: -group["maxTimeLag"])


def _waits(group: Mapping[str, Any]) -> bool:
    return group["standing"] in ("Behind", "Idle") or (group["standing"] == "Paused" and bool(group["totalLag"]))


def counted(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """How many there are of each: 2 behind, 1 idle."""
    counts = Counter(group["standing"] for group in found)
    return [f"{number:,} {state.lower()}" for state, number in counts.most_common()]
