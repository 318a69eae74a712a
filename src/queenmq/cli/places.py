"""Partitions as people name them: queue/partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from queenmq.cli import exits
from queenmq.cli.remote import require_queue
from queenmq.ids import is_uuid

if TYPE_CHECKING:
    from queenmq.client import BlockingQueen

_PAGE: Final = 1000


def queue_and_partition(given: str, nor: str = "") -> tuple[str, str]:
    queue, separator, partition = given.partition("/")
    if not separator:
        raise exits.Failed(f"{given!r} is {'neither' if nor else 'not'} queue/partition{nor}", exits.USAGE)
    return queue, partition


def partition_id(queen: BlockingQueen, given: str) -> str:
    """The id of `queue/partition`, or the id itself. Ends the command if there is no such partition."""
    if is_uuid(given):
        return given
    queue, partition = queue_and_partition(given, " nor the id of a partition")
    require_queue(queen, queue)
    offset = 0
    while found := queen.admin.get_partitions(queue=queue, limit=_PAGE, offset=offset)["partitions"]:
        for row in found:
            if row["name"] == partition:
                return str(row["id"])
        offset += len(found)
    raise exits.Failed(
        f"{queue} has no partition {partition!r}; `queen partitions {queue}` lists them", exits.NOT_FOUND
    )
