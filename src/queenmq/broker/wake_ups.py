"""How operations announce that something became readable."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, Protocol

# The channel of NOTIFY on which the database announces messages that no server has written (promote.sql,
# messages_allocate.sql); the payload is the queue.
WRITTEN_ELSEWHERE: Final = "queen_written"
# The channel on which it announces leases that an application has finished in its own transaction (finish.sql); the
# payload is a JSON array of queue, partition and group.
FINISHED_ELSEWHERE: Final = "queen_finished"


class Wake(Protocol):
    """Called after the commit. `partitions` are names; None if it is not known which."""

    def __call__(self, queue: str, partitions: Collection[str] | None = None) -> None: ...


def by_queue(places: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """The partitions of each queue, from pairs of both."""
    found: dict[str, set[str]] = {}
    for queue, partition in places:
        found.setdefault(queue, set()).add(partition)
    return found
