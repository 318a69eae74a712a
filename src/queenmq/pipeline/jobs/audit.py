"""audit: proves or disproves that nothing of a queue was lost or doubled.

Checks everything that is stored: offsets without gaps, no message twice, heads and groups in step, every offset below
a group's position accounted for, dead letters complete, and the archive equal to the source, file by file and message
by message, also where the database went back behind its archive. It may run while servers do: what is pushed, consumed
or deleted meanwhile is not a finding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from queenmq.pipeline.connection import connection, rows
from queenmq.pipeline.errors import PipelineError, explained
from queenmq.pipeline.heads import Heads, find_queue, heads, partitions
from queenmq.pipeline.lake import Lake, lost, published, unpublished
from queenmq.pipeline.lake_schema import frame
from queenmq.pipeline.lake_table import differences, open_table
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.runs import Outcome, Run

MOST_SHOWN: Final = 50
IDS: Final = {"messageId": "message id", "transactionId": "transaction id"}
KEYS: Final = "partition string, partitionId string, offset long, transactionId string, messageId string"
ALL: Final = f"{KEYS}, encrypted boolean, value string"


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
    from pyspark.sql import functions as f

    keys = source(spark, settings, KEYS)
    found: list[Finding] = []
    # Hashes cost a fraction of the ids; what they find twice is checked again.
    hashes = [f.xxhash64("partitionId", name).alias(name) for name in IDS]
    hashed = keys.select("partitionId", "partition", "offset", *hashes).persist()
    try:
        counted = (
            hashed.groupBy("partitionId", "partition")
            .agg(f.count("*").alias("rows"), f.min("offset").alias("first"), f.max("offset").alias("last"))
            .collect()
        )
        for name, words in IDS.items():
            if _is_any_twice(hashed, f.col(name)):
                found += _doubled(keys, name, words)
    finally:
        hashed.unpersist()
    by_id = {row["partitionId"]: row for row in counted}
    after = heads(opened, before.queue_id)
    [(seen.deleted_by_hand,)] = rows(opened, "audit_holes", before.queue_id)
    for number, partition in partitions(opened, before.queue_id).items():
        if number not in before.last or number not in after.last:
            continue
        # Messages that retention has deleted meanwhile are not missing; those pushed meanwhile are not checked.
        first, last = after.first[number], before.last[number]
        row = by_id.get(partition.id)
        seen.messages += row["rows"] if row else 0
        seen.stored[partition.name] = (first, last)
        complete = row is not None and row["first"] <= first and row["rows"] == row["last"] - row["first"] + 1
        if last >= first and not (complete and row is not None and row["last"] == last):
            for a, b in rows(opened, "audit_gaps", partition.id, first, last):
                found.append(
                    Finding("offsets", partition.name, f"{a} to {b} are missing" if b > a else f"{a} is missing")
                )
    return found


def source(spark: Any, settings: Settings, schema: str) -> Any:
    """Everything stored, gaps and all, payloads as they are stored."""
    reader = spark.read.format("queen").schema(schema).option("url", settings.url).option("subscribe", settings.queue)
    reader = reader.option("includeHeaders", "true").option("encryptedPayloads", "raw")
    return reader.option("failOnDataLoss", "false").load()


def _is_any_twice(frame: Any, number: Any) -> bool:
    return bool(frame.groupBy(number.alias("number")).count().where("count > 1").take(1))


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
    archived = frame(spark, lake, sound)
    try:
        return found + _compare(spark, settings, opened, queue_id, lake, known, done, archived, seen)
    except PipelineError:
        raise
    except Exception as error:
        return [*found, Finding("archive", settings.lake or "", f"cannot be read: {explained(error).message}")]


def digests(spark: Any, place: str, paths: list[str]) -> list[str | None]:
    """The SHA-256 of each file, computed by tasks."""
    if not paths:
        return []

    context = spark.sparkContext
    given = context.parallelize(paths, min(len(paths), 2 * context.defaultParallelism))
    found: list[str | None] = given.map(lambda path: Lake(place).digest(path)).collect()
    return found


def _compare(
    spark: Any,
    settings: Settings,
    opened: Any,
    queue_id: str,
    lake: Lake,
    known: dict[int, Any],
    done: dict[int, int],
    archived: Any,
    seen: Seen,
) -> list[Finding]:
    """Per partition: the archive has no gap and no message twice, reaches its position, and equals what is still
    stored.
    """
    from pyspark.sql import functions as f

    found: list[Finding] = []
    # Reencryption changes stored payloads, and not those in the lake; who changes one of either cannot decrypt it.
    value = f.when(~f.col("encrypted"), f.col("value"))
    number = f.xxhash64("partitionId", "offset", "transactionId", "messageId", value)
    # In halves, whose sums stay within a bigint.
    checksum = f.struct(f.sum(f.shiftright(number, 32)), f.sum(number.bitwiseAND(f.lit(0xFFFFFFFF))))
    by_id: dict[str, Any] = {}
    if archived is not None:
        # As in `_stored`: they are counted apart only if some are there twice.
        doubled = _is_any_twice(archived, f.xxhash64("partitionId", "offset"))
        shape = archived.groupBy("partitionId", "partition").agg(
            f.count("*").alias("rows"),
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
            (f.count_distinct("offset") if doubled else f.count("*")).alias("distinct"),
        )
        by_id = {row["partitionId"]: row for row in shape.collect()}
    spans = list(by_id), [row["first"] for row in by_id.values()], [row["last"] for row in by_id.values()]
    by_hand = {str(key): count for key, count in rows(opened, "archive_gaps", lake.name, *spans)}
    deleted = _deleted(spark, opened, queue_id)
    seen.archived_messages = sum(row["rows"] for row in by_id.values())
    for row in by_id.values():
        seen.archived[row["partition"]] = (row["first"], row["last"])
        if row["rows"] > row["distinct"]:
            found.append(
                Finding("archive", row["partition"], f"{row['rows'] - row['distinct']} messages are there twice")
            )
        missing = row["last"] - row["first"] + 1 - row["distinct"] - by_hand.get(row["partitionId"], 0)
        if missing > 0:
            found.append(Finding("archive", row["partition"], f"{missing} messages are missing"))
    current = heads(opened, queue_id)
    bounds = []
    for number, position in done.items():
        if number not in known or number not in current.first:
            continue
        partition = known[number]
        row = by_id.get(partition.id)
        upto = row["last"] if row else 0
        if upto < position and _lacks(opened, lake, partition.id, upto + 1, position):
            found.append(Finding("archive", partition.name, f"it ends at {upto}, its position is {position}"))
        if row is not None and current.first[number] <= position:
            low = current.first[number]
            if row["first"] > low and not _lacks(opened, lake, partition.id, low, row["first"] - 1):
                low = row["first"]  # before it the lake has let messages expire
            bounds.append((partition.id, low, position))
    if archived is None or not bounds:
        return found
    window = f.broadcast(spark.createDataFrame(bounds, "partitionId string, low long, high long"))

    def summed(side: Any) -> Any:
        part = side.join(window, "partitionId").where("offset between low and high")
        if deleted is not None:  # of what was deleted by hand, the archive may have a copy and the source has none
            within = (part["partitionId"] == deleted["id"]) & part["offset"].between(deleted["first"], deleted["last"])
            part = part.join(deleted, within, "left_anti")
        return part.groupBy("partitionId", "partition").agg(f.count("*").alias("rows"), checksum.alias("checksum"))

    left, right = summed(source(spark, settings, ALL)), summed(archived)
    joined = left.alias("s").join(right.alias("a"), "partitionId", "full_outer")
    differing = joined.where("s.rows is distinct from a.rows or s.checksum is distinct from a.checksum")
    for row in (
        differing.selectExpr(
            "coalesce(s.partition, a.partition) as partition",
            "coalesce(s.rows, 0) as stored",
            "coalesce(a.rows, 0) as archived",
        )
        .orderBy("partition")
        .limit(MOST_SHOWN)
        .collect()
    ):
        detail = f"{row['stored']} messages are stored and {row['archived']} archived of the same offsets"
        if row["stored"] == row["archived"]:
            detail = "messages differ between source and archive"
        found.append(Finding("archive", row["partition"], detail))
    return found


def _lacks(opened: Any, lake: Lake, partition_id: str, first: int, last: int) -> bool:
    """Whether the archive lacks more of these offsets than were deleted by hand."""
    known = dict(rows(opened, "archive_gaps", lake.name, [partition_id], [first], [last]))
    return sum(known.values()) < last - first + 1


def _deleted(spark: Any, opened: Any, queue_id: str) -> Any:
    """Ranges of offsets that were deleted by hand, as a frame; None if there are none."""
    from pyspark.sql import functions as f

    found = rows(opened, "audit_deleted", queue_id)
    return f.broadcast(spark.createDataFrame(found, "id string, first long, last long")) if found else None


def _positions(opened: Any, queue_id: str, names: list[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for group, name, position in rows(opened, "audit_positions", queue_id, names):
        found.setdefault(group, {})[name] = position
    return found
