"""archive: messages of a queue into the lake, incrementally and exactly once.

Tasks read slices beyond the archived positions and write Parquet files; the driver reads them back (`lake_proof`), then
publishes them and moves the positions in one transaction. If the lake has the queue as a table of another format
(`lake_table`), the table commits with it. A run that dies leaves files that nobody reads. Two runs at
once cannot publish the same messages: the second finds that the positions have moved and gives up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader

from queenmq.pipeline.batch import SliceOfWork
from queenmq.pipeline.columns import BASE, HEADERS, PARSED
from queenmq.pipeline.connection import connection, database_error, rows
from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.files import FileWriter
from queenmq.pipeline.generation import hold_generation
from queenmq.pipeline.heads import find_queue, heads, partitions, ranges
from queenmq.pipeline.lake import Lake, published, sweep
from queenmq.pipeline.lake_proof import check_mark, marked, read_back
from queenmq.pipeline.lake_schema import check_schema
from queenmq.pipeline.lake_table import LakeTable, check_there, fit, open_table, reconcile
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.planning import Range, Slice, slices
from queenmq.pipeline.reading import read_slice
from queenmq.pipeline.registry import AUTO, value_schema
from queenmq.pipeline.runs import Outcome, Run
from queenmq.storage.sqlstates import MISSING_PARENT, sqlstate_of

log = logging.getLogger(__name__)

ROUND_OFFSETS: Final = 2_000_000
FILE_BYTES: Final = 64 * 1024 * 1024
WORK: Final = (
    "path string, rows long, bytes long, digest string, first_at timestamp, last_at timestamp, "
    "covered string, gaps string"
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    url: str
    queue: str
    lake: str
    schema: str | None = None
    format: str | None = None
    tasks: int | None = None
    file_bytes: int = FILE_BYTES
    round_offsets: int = ROUND_OFFSETS


@dataclass(frozen=True)
class Plan:
    """What a round archives: ranges by partition, from the archived position to where the heads were."""

    queue_id: str
    ranges: list[Range]
    skipped: int
    gaps: list[Range]  # before the ranges: deleted by hand


def archive(spark: Any, settings: Settings, run: Run) -> Outcome:
    """Archive everything that is stored now.

    Rounds are published one by one, so that a killed run has lost only its last one.
    """
    lake = Lake(settings.lake)
    settings = replace(settings, lake=lake.place)
    outcome = run.outcome
    files = size = skipped = rounds = 0
    touched: set[str] = set()
    with ExitStack() as stack:
        opened = stack.enter_context(connection(settings.url))
        if settings.schema == AUTO:
            settings = replace(settings, schema=value_schema(settings.url, settings.queue))
        queue_id = find_queue(opened, read_options(settings))
        check_there(opened, lake, settings.queue, queue_id, settings.format)
        table = stack.enter_context(open_table(lake, settings.url, settings.queue, settings.format))
        if table is not None:
            settings = replace(settings, schema=fit(table, settings.schema))
        elif settings.schema:
            check_schema(spark, lake, published(opened, lake, settings.queue), settings.schema)
        stack.enter_context(marked(lake, settings.queue, run.id))
        rows(opened, "archive_register", lake.name, queue_id)
        if table is not None:
            reconcile(opened, lake, table, settings.queue, queue_id, run.id)
        until = heads(opened, queue_id).last
        while True:
            plan = plan_round(opened, lake, queue_id, until, settings.round_offsets)
            skipped += plan.skipped
            if not plan.ranges:
                break
            written = run_round(spark, settings, run.id, rounds, plan)
            written = publish(opened, lake, settings.queue, run.id, plan, written, table)
            rounds += 1
            files += len(written)
            size += sum(row["bytes"] for row in written)
            touched |= {part.partition_id for part in plan.ranges}
            run.progress(sum(row["rows"] for row in written))
        # What a table does not count any more, older versions of it still do.
        swept = sweep(opened, lake, settings.queue) if table is None else 0
    outcome.offsets = {"partitions": len(touched), "messages": outcome.rows}
    outcome.summary = {
        "messages": outcome.rows,
        "partitions": len(touched),
        "files": files,
        "bytes": size,
        "deleted before they were archived": skipped,
        "unpublished files swept": swept,
    }
    return outcome


def read_options(settings: Settings) -> ReadOptions:
    # Payloads of encrypted queues stay encrypted in the lake.
    return ReadOptions(
        url=settings.url,
        queue=settings.queue,
        headers=True,
        encrypted="raw",
        value_schema=settings.schema,
        least_tasks=settings.tasks,
    )


def plan_round(opened: Any, lake: Lake, queue_id: str, until: dict[int, int], most: int) -> Plan:
    """At most `most` offsets beyond the positions, whole partitions first."""
    current = heads(opened, queue_id)
    done = dict(rows(opened, "archive_positions", lake.name, queue_id))
    start: dict[int, int] = {}
    end: dict[int, int] = {}
    skipped = left = 0
    left = most
    for number, last in until.items():
        if number not in current.last or not left:
            continue
        before = done.get(number, 0)
        start[number] = max(before, current.first[number] - 1)
        count = min(left, last - start[number])
        if count > 0:
            skipped += start[number] - before
            end[number] = start[number] + count
            left -= count
    known = partitions(opened, queue_id, list(end))
    missed = ranges(known, done, {n: start[n] for n in end})
    bounds = [part.first for part in missed], [part.last for part in missed]
    gone = rows(opened, "pipeline_deleted", [part.partition_id for part in missed], *bounds) if missed else []
    gaps = [Range(str(key), "", first, last) for key, first, last in gone]
    return Plan(queue_id, ranges(known, start, end), skipped, gaps)


def run_round(spark: Any, settings: Settings, run_id: str, number: int, plan: Plan) -> list[Any]:
    """Write the files of a round. Returns a row for each, and one without a path for gaps that a task found."""
    work = slices(plan.ranges, settings.tasks or spark.sparkContext.defaultParallelism)
    spark.dataSource.register(_work_source(settings, run_id, number, work))
    return list(spark.read.format("queen_archive").load().collect())


def publish(
    opened: Any,
    lake: Lake,
    queue: str,
    run_id: str,
    plan: Plan,
    written: list[Any],
    table: LakeTable | None = None,
) -> list[Any]:
    """Make the files count and move the positions, in one transaction. Returns the rows of files.

    Raises PipelineError if a file is not there as it was written, or another run was faster.
    """
    import psycopg

    gaps = plan.gaps + [Range(key, "", a, b) for row in written for key, a, b in json.loads(row["gaps"])]
    _check_cover(plan, written)
    files = [row for row in written if row["path"] is not None]
    read_back(lake, files)
    before: dict[str, int] = {}
    upto: dict[str, int] = {}
    for part in plan.ranges:
        before[part.partition_id] = part.first - 1
        upto[part.partition_id] = part.last
    ids = list(upto)
    try:
        with opened.transaction():
            hold_generation(opened)
            rows(opened, "archive_lock", lake.name, plan.queue_id)
            moved = rows(opened, "archive_advance", lake.name, ids, [before[i] for i in ids], [upto[i] for i in ids])
            if len(moved) < len(ids):
                raise PipelineError("another archive run of this queue was faster: nothing of this round was published")
            columns = ("path", "rows", "bytes", "digest", "first_at", "last_at")
            rows(opened, "archive_publish", lake.name, queue, run_id, *([row[c] for row in files] for c in columns))
            if gaps:
                spans = [g.partition_id for g in gaps], [g.first for g in gaps], [g.last for g in gaps]
                rows(opened, "archive_note_gaps", lake.name, queue, *spans)
            if table is not None and files:
                # The last step: what comes after it can only fail with the database, and is made up for by `reconcile`.
                table.commit(files, {"queen.queue": queue, "queen.run": run_id})
    except psycopg.Error as error:
        if sqlstate_of(error) == MISSING_PARENT:
            raise PipelineError("a partition was deleted while it was archived: run it again") from error
        raise database_error(error) from error
    return files


def _check_cover(plan: Plan, written: list[Any]) -> None:
    """Every planned offset is in a file, once, or was deleted by hand. A file that came twice or not at all must not
    become a position.
    """
    covered: dict[str, int] = {}
    for row in written:
        for partition_id, count in json.loads(row["covered"]).items():
            covered[partition_id] = covered.get(partition_id, 0) + count
        for partition_id, first, last in json.loads(row["gaps"]):
            covered[partition_id] = covered.get(partition_id, 0) + last - first + 1
    planned = {part.partition_id: part.offsets for part in plan.ranges}
    if covered != planned:
        raise PipelineError("the files of this round do not hold what was planned: nothing of it was published")


class ArchiveReader(DataSourceReader):
    """Tasks that write slices; its rows are the files.

    Spark retries and speculates as with any read, and only the rows of attempts that won come back.
    """

    def __init__(self, settings: Settings, run_id: str, number: int, work: list[Slice]) -> None:
        self._settings = settings
        self._run_id = run_id
        self._number = number
        self._work = work

    def partitions(self) -> Sequence[Any]:
        # This object goes along to every task, which needs only its own slice.
        work, self._work = self._work, []
        return [SliceOfWork(task) for task in work]

    def read(self, partition: Any) -> Iterator[Any]:
        return write_slice(self._settings, self._run_id, self._number, partition.task)


def _work_source(settings: Settings, run_id: str, number: int, work: list[Slice]) -> type:
    class ArchiveSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "queen_archive"

        def schema(self) -> str:
            return WORK

        def reader(self, schema: Any) -> Any:
            return ArchiveReader(settings, run_id, number, work)

    return ArchiveSource


def write_slice(settings: Settings, run_id: str, number: int, task: Slice) -> Iterator[Any]:
    """In a task: read a slice and write its files."""
    names = [*BASE, *HEADERS, *([PARSED] if settings.schema else [])]
    lake = Lake(settings.lake)
    check_mark(lake, settings.queue, run_id)
    writer = FileWriter(lake, settings.queue, f"{run_id}-{number}", settings.file_bytes)
    gaps: list[Range] = []
    for batch in read_slice(read_options(settings), names, task, gaps):
        writer.add(batch)
    for file, covered in writer.close():
        yield (file.path, file.rows, file.bytes, file.digest, file.first_at, file.last_at, json.dumps(covered), "[]")
    if gaps:
        found = json.dumps([(part.partition_id, part.first, part.last) for part in gaps])
        yield (None, 0, 0, None, None, None, "{}", found)
