"""What is stored of a queue at a moment, and which ranges of it a read is about.

Owns the questions to PostgreSQL that a plan needs; cutting ranges into tasks is left to `planning`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from queenmq.pipeline.bounds import EARLIEST, LATEST, Bound, Place
from queenmq.pipeline.connection import rows
from queenmq.pipeline.errors import BadOption, DataLost, NoSuchQueue, PipelineError
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.planning import Range

log = logging.getLogger(__name__)

_NAMED: Final = 5


@dataclass(slots=True)
class Heads:
    """First and last stored offset of each partition, by partition number."""

    queue_id: str
    first: dict[int, int]
    last: dict[int, int]


@dataclass(frozen=True, slots=True)
class Partition:
    number: int
    id: str
    name: str


def find_queue(opened: Any, options: ReadOptions) -> str:
    """The id of the queue. Raises if there is none, or if its payloads could not be read."""
    found = rows(opened, "pipeline_queue", options.queue)
    if not found:
        raise NoSuchQueue(f"there is no queue {options.queue!r}")
    queue_id, encrypted, _ = found[0]
    if encrypted and not options.keys and options.encrypted == "fail":
        raise BadOption(
            f"the payloads of {options.queue!r} are encrypted: give encryptionKey, or encryptedPayloads=null or raw"
        )
    return str(queue_id)


def heads(opened: Any, queue_id: str) -> Heads:
    [(numbers, first, last)] = rows(opened, "pipeline_heads", queue_id)
    return Heads(queue_id, dict(zip(numbers, first, strict=True)), dict(zip(numbers, last, strict=True)))


def partitions(opened: Any, queue_id: str, numbers: list[int] | None = None) -> dict[int, Partition]:
    """Who the partitions are: those with the numbers, or all."""
    if numbers is None:
        found = rows(opened, "pipeline_all_partitions", queue_id)
    else:
        found = rows(opened, "pipeline_partitions", queue_id, numbers)
    return {number: Partition(number, str(key), name) for number, key, name in found}


def chosen(known: dict[int, Partition], options: ReadOptions) -> dict[int, Partition]:
    """Those that the options name. Raises BadOption for one that does not exist."""
    names = {partition.name for partition in known.values()}
    wanted = options.partitions
    named = (wanted or frozenset()) | options.start.named.keys() | options.end.named.keys()
    if unknown := sorted(named - names):
        raise BadOption(f"queue {options.queue!r} has no partition {some(unknown)}")
    return {number: p for number, p in known.items() if wanted is None or p.name in wanted}


def positions(
    opened: Any, current: Heads, chosen_ones: dict[int, Partition], bound: Bound, *, starting: bool, fail: bool
) -> dict[int, int]:
    """For each partition the last offset before the bound: what lies behind it starts there, or ends there."""
    moments: dict[datetime, dict[int, int]] = {}
    before: dict[int, tuple[int, int]] = {}
    found: dict[int, int] = {}
    for number, partition in chosen_ones.items():
        if number not in current.last:
            continue  # made after the heads were taken
        place: Place = bound.named.get(partition.name, bound.others)
        first, last = current.first[number], current.last[number]
        if place == EARLIEST:
            found[number] = first - 1
        elif place == LATEST:
            found[number] = last
        elif isinstance(place, datetime):
            if place not in moments:
                moments[place] = dict(rows(opened, "pipeline_offsets_at", current.queue_id, place))
            found[number] = min(last, max(first - 1, moments[place].get(number, 0)))
        elif isinstance(place, int):
            if starting and place < first:
                before[number] = (max(1, place), first - 1)
            if place > last + 1:
                raise BadOption(f"partition {partition.name!r} has no offset {place}: the last one is {last}")
            found[number] = max(first - 1, place - 1)
    lost = unread(opened, current.queue_id, before)
    report_loss([f"{name} from {before[n][0]} (stored from {before[n][1] + 1})" for n, (name, _) in lost.items()], fail)
    return found


def unread(opened: Any, queue_id: str, gone: dict[int, tuple[int, int]]) -> dict[int, tuple[str, int]]:
    """Of ranges of offsets whose messages are gone, by partition number: name and number of those that were not deleted
    by hand.
    """
    given = {number: span for number, span in gone.items() if span[0] <= span[1]}
    if not given:
        return {}
    first, last = [a for a, _ in given.values()], [b for _, b in given.values()]
    found = rows(opened, "pipeline_unread", queue_id, list(given), first, last)
    return {number: (name, count) for number, name, count in found if count > 0}


def report_loss(lost: list[str], fail: bool) -> None:
    """Raise DataLost, or warn, for messages that are asked for and deleted."""
    if not lost:
        return
    sentence = f"messages that are asked for were already deleted: {some(lost)}"
    if fail:
        raise DataLost(f"{sentence}; failOnDataLoss=false reads what is left")
    log.warning("%s", sentence)


def batch_ranges(opened: Any, options: ReadOptions) -> list[Range]:
    """What a batch read is about, by partition."""
    queue_id = find_queue(opened, options)
    current = heads(opened, queue_id)
    ones = chosen(partitions(opened, queue_id), options)
    fail = options.fail_on_data_loss
    start = positions(opened, current, ones, options.start, starting=True, fail=fail)
    end = positions(opened, current, ones, options.end, starting=False, fail=fail)
    return ranges(ones, start, end)


def ranges(known: dict[int, Partition], start: dict[int, int], end: dict[int, int]) -> list[Range]:
    """From one position to the other, in the order of the partitions' ids, as the table's index has them."""
    found = []
    for number, last in end.items():
        first = start.get(number, 0) + 1
        if last >= first:
            if number not in known:
                raise PipelineError("a partition was deleted while its messages were to be read")
            found.append(Range(known[number].id, known[number].name, first, last))
    return sorted(found, key=lambda part: part.partition_id)


def some(names: list[str]) -> str:
    """The first few of them."""
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
