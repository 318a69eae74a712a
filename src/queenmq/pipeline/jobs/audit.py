"""audit: proves or disproves that nothing of a queue was lost or doubled.

Checks everything that is stored: offsets without gaps, no message twice, heads and groups in step, every offset below
a group's position accounted for, dead letters complete, and the archive equal to the source, file by file and message
by message, also where the database went back behind its archive. It may run while servers do: what is pushed, consumed
or deleted meanwhile is not a finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from queenmq.pipeline import tallies
from queenmq.pipeline.connection import connection, rows
from queenmq.pipeline.errors import PipelineError, explained
from queenmq.pipeline.heads import Heads, batch_ranges, find_queue, heads, partitions
from queenmq.pipeline.lake import File, Lake, lost, published, unpublished
from queenmq.pipeline.lake_table import differences, open_table
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.planning import Range, slices
from queenmq.pipeline.runs import Outcome, Run

MOST_SHOWN: Final = 50
IDS: Final = {"messageId": "message id", "transactionId": "transaction id"}
KEYS: Final = "partition string, partitionId string, offset long, transactionId string, messageId string"


@dataclass(frozen=True)
class Settings:
    url: str
    queue: str
    lake: str | None = None
    plot: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    where: str
    detail: str


@dataclass
class Seen:
    """What the audit has checked, for the report and the plot."""

    stored: dict[str, tuple[int, int]] = field(default_factory=dict)
    archived: dict[str, tuple[int, int]] = field(default_factory=dict)
    messages: int = 0
    archived_messages: int = 0
    files: int = 0
    deleted_by_hand: int = 0


def audit(spark: Any, settings: Settings, run: Run) -> Outcome:
    """Findings are in the summary; the outcome is not ok if there are any."""
    options = ReadOptions(url=settings.url, queue=settings.queue, encrypted="raw")
    seen = Seen()
    findings: list[Finding] = []
    with connection(settings.url) as opened:
        queue_id = find_queue(opened, options)
        lake = Lake(settings.lake) if settings.lake else None
        before = heads(opened, queue_id)
        findings += _lookup(opened, settings.queue)
        findings += _groups(opened, queue_id)
        findings += _letters(opened, queue_id)
        findings += _stored(spark, settings, opened, before, seen)
        if lake is not None:
            findings += _archive(spark, settings, opened, queue_id, lake, seen)
        positions = _positions(opened, queue_id, sorted(seen.stored)[:MOST_SHOWN]) if settings.plot else {}
    if settings.plot:
        from queenmq.pipeline.audit_plot import draw

        draw(settings.plot, settings.queue, seen.stored, seen.archived, positions, findings)
    outcome = run.outcome
    outcome.rows = seen.messages
    outcome.ok = not findings
    outcome.offsets = {"partitions": len(seen.stored), "messages": seen.messages}
    outcome.summary = {
        "verdict": f"{len(findings)} findings" if findings else "nothing is lost or doubled",
        "messages": seen.messages,
        "partitions": len(seen.stored),
        "deleted by hand": seen.deleted_by_hand,
        "archived messages": seen.archived_messages,
        "archived files": seen.files,
        "findings": [f"{f.check}: {f.where}: {f.detail}" for f in findings[:MOST_SHOWN]],
    }
    return outcome


def _lookup(opened: Any, queue: str) -> list[Finding]:
    return [Finding("partition_lookup", name, problem) for name, problem in rows(opened, "audit_lookup", queue)]


def _groups(opened: Any, queue_id: str) -> list[Finding]:
    found = rows(opened, "audit_groups", queue_id)
    return [Finding("group", f"{name}, group {group}", problem) for name, group, problem in found]


def _letters(opened: Any, queue_id: str) -> list[Finding]:
    found = rows(opened, "audit_letters", queue_id)
    return [Finding("dead letters", f"{name}, group {group}", problem) for name, group, problem in found]


def _stored(spark: Any, settings: Settings, opened: Any, before: Heads, seen: Seen) -> list[Finding]:
    options = ReadOptions(url=settings.url, queue=settings.queue, encrypted="raw", fail_on_data_loss=False)
    ranges = batch_ranges(opened, options)
    large = [part for part in ranges if part.offsets > tallies.WHOLE]
    context, url, queue = spark.sparkContext, settings.url, settings.queue
    tasks = 2 * context.defaultParallelism
    work = tallies.whole_slices([part for part in ranges if part.offsets <= tallies.WHOLE], tasks) + slices(
        large, tasks
    )
    counted = _done(spark, work, lambda task: tallies.stored(url, queue, task))
    by_id: dict[str, tuple[int, int, int]] = {}
    doubled: set[str] = set()
    for one in counted:
        rows_, first, last = by_id.get(one.partition_id, (0, one.first, one.last))
        by_id[one.partition_id] = (rows_ + one.rows, min(first, one.first), max(last, one.last))
        doubled |= one.doubled
    if large:
        doubled |= _twice_in(spark, settings, [part.partition for part in large])
    found: list[Finding] = []
    for name in (name for name in IDS if name in doubled):
        found += _doubled(source(spark, settings, KEYS), name, IDS[name])
    after = heads(opened, before.queue_id)
    [(seen.deleted_by_hand,)] = rows(opened, "audit_holes", before.queue_id)
    for number, partition in partitions(opened, before.queue_id).items():
        if number not in before.last or number not in after.last:
            continue
        # Messages that retention has deleted meanwhile are not missing; those pushed meanwhile are not checked.
        first, last = after.first[number], before.last[number]
        count, low, high = by_id.get(partition.id, (0, 0, 0))
        seen.messages += count
        seen.stored[partition.name] = (first, last)
        complete = count > 0 and low <= first and count == high - low + 1
        if last >= first and not (complete and high >= last):
            for a, b in rows(opened, "audit_gaps", partition.id, first, last):
                found.append(
                    Finding("offsets", partition.name, f"{a} to {b} are missing" if b > a else f"{a} is missing")
                )
    return found


def _twice_in(spark: Any, settings: Settings, names: list[str]) -> set[str]:
    """The columns in which a value seems to be twice in one of these partitions, each of which several tasks read."""
    from pyspark.sql import functions as f

    keys = source(spark, settings, KEYS, partitions=json.dumps(names))
    hashed = keys.select(*(f.xxhash64("partitionId", name).alias(name) for name in IDS)).persist()
    try:
        return {name for name in IDS if hashed.groupBy(name).count().where("count > 1").take(1)}
    finally:
        hashed.unpersist()


def source(spark: Any, settings: Settings, schema: str, **options: str) -> Any:
    """Everything stored, gaps and all, payloads as they are stored."""
    reader = spark.read.format("queen").schema(schema).option("url", settings.url).option("subscribe", settings.queue)
    reader = reader.option("includeHeaders", "true").option("encryptedPayloads", "raw")
    return reader.option("failOnDataLoss", "false").options(**options).load()


def _doubled(keys: Any, column: str, words: str) -> list[Finding]:
    from pyspark.sql import functions as f

    twice = (
        keys.groupBy("partition", column)
        .agg(f.count("*").alias("rows"), f.sort_array(f.collect_list("offset")).alias("offsets"))
        .where("rows > 1")
        .orderBy("partition", column)
        .limit(MOST_SHOWN)
        .collect()
    )
    return [
        Finding("doubled", row["partition"], f"{words} {row[column]} is there {row['rows']} times, at {row['offsets']}")
        for row in twice
    ]


def _archive(spark: Any, settings: Settings, opened: Any, queue_id: str, lake: Lake, seen: Seen) -> list[Finding]:
    files = published(opened, lake, settings.queue)
    seen.files = len(files)
    found: list[Finding] = []
    sound = []
    for file, digest in zip(files, digests(spark, lake.place, [f.path for f in files]), strict=True):
        if digest == file.digest:
            sound.append(file)
        else:
            found.append(
                Finding("archive", file.path, "the file is missing" if digest is None else "the file is damaged")
            )
    for path, changed in unpublished(opened, lake, settings.queue):
        for name, offsets in lost(opened, lake, settings.queue, path, changed).items():
            found.append(
                Finding(
                    "archive",
                    name,
                    f"{len(offsets)} messages, offsets {offsets[0]} to {offsets[-1]}, were archived ({path}), and the "
                    "database has lost them and the record of that file: it went back, by a failover or a restore",
                )
            )
    with open_table(lake, settings.url, settings.queue) as table:
        ours, theirs = differences(opened, lake, table, settings.queue)
    found += [Finding("archive", path, "the table has not this file, which was published") for path in sorted(ours)]
    found += [
        Finding("archive", path, "only the table has this file: the next run of archive takes it over")
        for path in sorted(theirs)
    ]
    done = dict(rows(opened, "archive_positions", lake.name, queue_id))
    known = partitions(opened, queue_id)
    try:
        return found + _compare(spark, settings, opened, queue_id, lake, known, done, sound, seen)
    except PipelineError:
        raise
    except Exception as error:
        return [*found, Finding("archive", settings.lake or "", f"cannot be read: {explained(error).message}")]


def digests(spark: Any, place: str, paths: list[str]) -> list[str | None]:
    """The SHA-256 of each file, computed by tasks."""
    return _done(spark, [[path] for path in paths], lambda some: [Lake(place).digest(path) for path in some])


def _done(spark: Any, work: list[Any], do: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """What tasks make of the pieces of work, in order."""
    if not work:
        return []
    context = spark.sparkContext
    found: list[Any] = context.parallelize(work, min(len(work), 4 * context.defaultParallelism)).flatMap(do).collect()
    return found


def _compare(
    spark: Any,
    settings: Settings,
    opened: Any,
    queue_id: str,
    lake: Lake,
    known: dict[int, Any],
    done: dict[int, int],
    files: list[File],
    seen: Seen,
) -> list[Finding]:
    """Per partition: the archive has no gap and no message twice, reaches its position, and equals what is still
    stored.
    """
    found: list[Finding] = []
    place, paths = lake.place, [file.path for file in files]
    many = 4 * spark.sparkContext.defaultParallelism
    work = [paths[number::many] for number in range(min(many, len(paths)))]
    shapes = shapes_of(_done(spark, work, lambda some: tallies.archived(place, some)))
    spans = list(shapes), [shape.first for shape in shapes.values()], [shape.last for shape in shapes.values()]
    by_hand = {str(key): count for key, count in rows(opened, "archive_gaps", lake.name, *spans)}
    seen.archived_messages = sum(shape.rows for shape in shapes.values())
    for key, shape in shapes.items():
        seen.archived[shape.partition] = (shape.first, shape.last)
        if shape.rows > shape.distinct:
            found.append(Finding("archive", shape.partition, f"{shape.rows - shape.distinct} messages are there twice"))
        missing = shape.last - shape.first + 1 - shape.distinct - by_hand.get(key, 0)
        if missing > 0:
            found.append(Finding("archive", shape.partition, f"{missing} messages are missing"))
    current = heads(opened, queue_id)
    windows: dict[str, tuple[int, int]] = {}
    numbers: dict[str, int] = {}
    for number, position in done.items():
        if number not in known or number not in current.first:
            continue
        partition = known[number]
        there = shapes.get(partition.id)
        upto = there.last if there else 0
        if upto < position and _lacks(opened, lake, partition.id, upto + 1, position):
            found.append(Finding("archive", partition.name, f"it ends at {upto}, its position is {position}"))
        if there is not None and current.first[number] <= position:
            low = current.first[number]
            if there.first > low and not _lacks(opened, lake, partition.id, low, there.first - 1):
                low = there.first  # before it the lake has let messages expire
            windows[partition.id] = (low, position)
            numbers[partition.id] = number
    # Of what was deleted by hand, the archive may have a copy and the source has none.
    deleted: dict[str, list[tuple[int, int]]] = {}
    for key, first, last in rows(opened, "audit_deleted", queue_id):
        deleted.setdefault(str(key), []).append((first, last))
    url, queue = settings.url, settings.queue
    ranges = [Range(key, known[numbers[key]].name, *window) for key, window in sorted(windows.items())]
    bounds = spark.sparkContext.broadcast((windows, deleted))
    left = tallies.merged(
        _done(spark, slices(ranges, many), lambda task: [tallies.stored_sums(url, queue, task, bounds.value[1])])
    )
    right = tallies.merged(
        _done(spark, work, lambda some: [tallies.archived_sums(place, some, *bounds.value)]) if windows else []
    )
    first_now = heads(opened, queue_id).first
    differing = []
    for key, number in numbers.items():
        # What retention has deleted meanwhile cannot be compared any more.
        if left.get(key) != right.get(key) and first_now.get(number, 0) <= windows[key][0]:
            differing.append((known[number].name, left.get(key, (0, 0))[0], right.get(key, (0, 0))[0]))
    for name, here, there_ in sorted(differing)[:MOST_SHOWN]:
        detail = f"{here} messages are stored and {there_} archived of the same offsets"
        if here == there_:
            detail = "messages differ between source and archive"
        found.append(Finding("archive", name, detail))
    return found


@dataclass(slots=True)
class Shape:
    """What the archive has of a partition."""

    partition: str
    rows: int
    distinct: int
    first: int
    last: int


def shapes_of(parts: Iterable[tuple[str, str, list[tuple[int, int]]]]) -> dict[str, Shape]:
    """By the ids of the partitions, of the runs of offsets that tasks have found."""
    runs: dict[str, list[tuple[int, int]]] = {}
    names: dict[str, str] = {}
    for key, name, some in parts:
        runs.setdefault(key, []).extend(some)
        names[key] = name
    found = {}
    for key, ones in runs.items():
        ones.sort()
        distinct, reached = 0, 0
        for first, last in ones:
            distinct += max(0, last - max(reached, first - 1))
            reached = max(reached, last)
        rows_ = sum(last - first + 1 for first, last in ones)
        found[key] = Shape(names[key], rows_, distinct, ones[0][0], reached)
    return found


def _lacks(opened: Any, lake: Lake, partition_id: str, first: int, last: int) -> bool:
    """Whether the archive lacks more of these offsets than were deleted by hand."""
    known = dict(rows(opened, "archive_gaps", lake.name, [partition_id], [first], [last]))
    return sum(known.values()) < last - first + 1


def _positions(opened: Any, queue_id: str, names: list[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for group, name, position in rows(opened, "audit_positions", queue_id, names):
        found.setdefault(group, {})[name] = position
    return found
