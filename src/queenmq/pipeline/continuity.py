"""Whether the database is the one that a checkpoint was made with, and has kept what the checkpoint has not read.

Found are: partitions that were dropped with messages that were not read (from the record that a drop leaves, for 90
days); positions behind the last message, and other messages at offsets that were read, as after a restore from an
older copy of the database. Not found are: a restore to a moment after the newest message that was read, which loses the
stream nothing; and one after which retention has removed all of the few messages that are compared.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from queenmq.pipeline.connection import rows
from queenmq.pipeline.errors import DataLost
from queenmq.pipeline.heads import Heads, some
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.progress import Progress, Read

log = logging.getLogger(__name__)

# How many of the newest messages are remembered, and in how many partitions of a batch they are searched.
REMEMBERED: Final = 4
MOST_LOOKED_AT: Final = 1_000


def compare(opened: Any, options: ReadOptions, current: Heads, start: Progress, *, names: bool) -> Progress:
    """The progress to go on from. Raises DataLost, or warns and leaves out what cannot be had.

    `names`: also compare messages; that is needed once for each connection.
    """
    positions, dropped = _without_dropped(opened, options, current, start)
    positions = _within_heads(opened, options, current, positions)
    newest = _still_there(opened, options, current, start.newest) if names else start.newest
    return Progress(current.queue_id, positions, dropped, newest)


def newest_read(opened: Any, before: Progress, moved: dict[int, int]) -> tuple[Read, ...]:
    """The newest messages up to the positions that have moved, and of those that were known before."""
    numbers = list(moved)[-MOST_LOOKED_AT:]
    at = [moved[number] for number in numbers]
    found = [
        Read(number, offset, str(key), round(created.timestamp() * 1_000_000))
        for number, offset, key, created in rows(
            opened, "pipeline_newest_read", before.queue_id, numbers, at, REMEMBERED
        )
    ]
    fresh = {one.number for one in found}
    known = [one for one in before.newest if one.number not in fresh]
    return tuple(sorted(found + known, key=lambda one: (-one.at, one.number))[:REMEMBERED])


def _without_dropped(
    opened: Any, options: ReadOptions, current: Heads, start: Progress
) -> tuple[dict[int, int], int | None]:
    """The positions of partitions that exist, and the newest record of a drop."""
    gone = [number for number in start.positions if number not in current.last]
    newest = start.dropped
    if newest is None:
        [(newest,)] = rows(opened, "pipeline_newest_drop", current.queue_id)
    found = rows(opened, "pipeline_dropped", current.queue_id, newest, gone)
    lost, recorded, before = [], set(), newest
    for record, number, name, last, forgotten in found:
        newest = max(newest, record)
        recorded.add(number)
        at = start.positions.get(number, 0)
        if options.partitions is not None and name not in options.partitions:
            if number in start.positions and (last is None or last > at):
                log.warning("partition %r, which is left out, was dropped; it had been read up to %d", name, at)
            continue
        if last is None and number not in start.positions:
            log.warning("partition %r was deleted in SQL when it was empty; nothing of it had been read", name)
        elif last is None:
            lost.append(f"what partition {name!r} had behind offset {at}, which was deleted in SQL when it was empty")
        elif last > at:
            lost.append(f"{last - at} of partition {name!r}, which was dropped")
        if forgotten and record > before:
            lost.append(f"what partitions had that were dropped before {name!r}: their records are no longer kept")
    lost += [
        f"what partition number {number}, read up to {start.positions[number]}, had: it is gone and left no record"
        for number in gone
        if number not in recorded
    ]
    _report(
        options,
        f"messages of queue {options.queue!r} are gone that were not read: {some(lost)}" if lost else None,
        "failOnDataLoss=false goes on without them",
    )
    return {n: at for n, at in start.positions.items() if n in current.last}, newest


def _within_heads(opened: Any, options: ReadOptions, current: Heads, positions: dict[int, int]) -> dict[int, int]:
    behind = {n: at for n, at in positions.items() if at > current.last[n]}
    if not behind:
        return positions
    known = {n: name for n, _, name in rows(opened, "pipeline_partitions", current.queue_id, list(behind))}
    told = [
        f"partition {known.get(n, n)!r} ends at {current.last[n]}, and was read up to {at}" for n, at in behind.items()
    ]
    _report(
        options,
        f"the database is older than the checkpoint, as after a restore: {some(told)}",
        "failOnDataLoss=false continues at the ends; a new checkpoint starts from the beginning",
    )
    return positions | {n: current.last[n] for n in behind}


def _still_there(opened: Any, options: ReadOptions, current: Heads, newest: tuple[Read, ...]) -> tuple[Read, ...]:
    if not newest:
        return newest
    given = [one.number for one in newest], [one.offset for one in newest]
    found = {
        (number, offset): (name, str(key))
        for number, name, offset, key in rows(opened, "pipeline_messages_at", current.queue_id, *given)
    }
    other = [one for one in newest if (one.number, one.offset) in found and found[one.number, one.offset][1] != one.id]
    told = [f"offset {one.offset} of partition {found[one.number, one.offset][0]!r}" for one in other]
    _report(
        options,
        f"{some(told)} is another message than the one that was read: the database was restored from an older copy and "
        "written to since, and what was written up to the positions of the checkpoint would not be read"
        if told
        else None,
        "begin with a new checkpoint, or failOnDataLoss=false goes on from the positions",
    )
    return tuple(one for one in newest if one not in other)


def _report(options: ReadOptions, sentence: str | None, remedy: str) -> None:
    if sentence is None:
        return
    if options.fail_on_data_loss:
        raise DataLost(f"{sentence}; {remedy}")
    log.warning("%s", sentence)
