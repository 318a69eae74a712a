"""Lakes in an open table format, Delta Lake or Iceberg: what the two have in common.

Tasks write the same Parquet files as for a plain lake. Which of them count is said by the table's own log, for
everybody, and by `queen.archive_files`, for the jobs. A round is published in one transaction of PostgreSQL, whose last
step is the commit of the table. If the driver dies between the two commits, the table has files that the database does
not know: `reconcile` takes them over before anything else is archived. A driver that was taken for dead cannot commit
behind the back of its successor, because the table refuses a commit upon a state that is not the newest of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib.util import find_spec
from typing import Any, Final, Protocol

from queenmq.pipeline.connection import rows
from queenmq.pipeline.errors import BadOption, PipelineError
from queenmq.pipeline.heads import heads, partitions, some
from queenmq.pipeline.json_values import has_variant, spark_type
from queenmq.pipeline.lake import File, Lake, folder_of, published
from queenmq.pipeline.lake_schema import wider

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
FORMATS: Final = (PARQUET, DELTA, ICEBERG)
# What only a table of the format has in its folder, and the package that the format needs.
_MARKS: Final = {DELTA: "_delta_log", ICEBERG: "metadata"}
_NEEDED: Final = {DELTA: "deltalake", ICEBERG: "pyiceberg"}
# How long readers may go on with a version of a table that is not the newest.
KEPT: Final = timedelta(days=7)
# How often an upsert is tried: what it changes is found anew if somebody has committed to the table meanwhile.
UPSERT_TRIES: Final = 5
_FASTER: Final = "another archive run of this queue was faster: nothing of this round was published"
# What compact and a change of the columns say when they come second.
BESIDE: Final = "somebody else has changed the table meanwhile: run it again"
# What an upsert says of a schema.
NO_FIT: Final = (
    "the schema does not fit the table: {}. Nothing of this batch was written; keep the type, give the field another "
    "name, or write into another table"
)
_PARTLY: Final = (
    "somebody has deleted messages from the table of queue {!r} without writing its files anew: the files still have "
    "them. Let the tool that did it rewrite them, or read the table with that tool"
)


class PartlyDeleted(PipelineError):
    """Files of the table have messages that do not count."""

    code = "partly_deleted"

    def __init__(self, queue: str) -> None:
        super().__init__(_PARTLY.format(queue))


class TableChanged(PipelineError):
    """Somebody else has committed to the table meanwhile."""

    code = "table_changed"

    def __init__(self, message: str = _FASTER) -> None:
        super().__init__(message)


class LakeTable(Protocol):
    """One queue as a table. Paths are relative to the lake, as those of `File`."""

    def refresh(self) -> None:
        """See what others have committed, and let readers see it who know only the folder."""

    def files(self) -> set[str]:
        """The files that count."""

    def check_whole(self) -> None:
        """Raise PipelineError if some messages in the files that count do not count."""

    def parsed(self) -> Any:
        """The Spark type of the parsed values; None if the table has none."""

    def fitting(self, kind: Any) -> Any:
        """The type, as near as the format has it. Raises TypeError if the table cannot become that."""

    def evolve(self, kind: Any) -> None:
        """Give the table a column for parsed values of this type, or its new fields."""

    def complete(self) -> None:
        """Give the table the columns that it lacks because an older version has made it."""

    def commit(self, added: list[Any], note: dict[str, str]) -> None:
        """Let files (path, rows, bytes) count, all of them or none. The note stays with the commit.

        Raises TableChanged if the table is not as this object has last seen it.
        """

    def compact(self, size: int) -> None:
        """Put small files of a day together, into files of about so many bytes."""

    def expire(self, day: date) -> None:
        """Let no message from before this day count, and keep the day with the table."""

    def expired(self) -> date | None:
        """The day before which messages were let expire; None if none were."""

    def clean(self, spared: Callable[[str, datetime], bool]) -> None:
        """Delete files that counted once and have not for a week, except those that are to be spared."""


def format_of(lake: Lake, queue: str) -> str:
    """How the lake has the queue; `parquet` if it has nothing of it."""
    for name, mark in _MARKS.items():
        if lake.exists(f"{folder_of(queue)}/{mark}"):
            return name
    return PARQUET


def check_installed(chosen: str) -> None:
    """Raise PipelineError with what to install unless the package of the format is there."""
    if find_spec(_NEEDED[chosen]) is None:
        raise PipelineError(f"the format {chosen} needs {_NEEDED[chosen]}: pip install 'queenmq[pipeline,{chosen}]'")


@contextmanager
def open_table(lake: Lake, url: str, queue: str, wanted: str | None = None) -> Iterator[LakeTable | None]:
    """The queue as a table, made if a format is wanted and it is not there; None if the lake has it, or is to have it,
    as plain Parquet.

    Raises BadOption if it is there in another format than the wanted one, PipelineError if it cannot be opened.
    """
    there = format_of(lake, queue)
    if wanted is not None and there not in (wanted, PARQUET):
        raise BadOption(f"the lake {lake.place} has queue {queue!r} as {there}: keep that format, or use another lake")
    chosen = wanted or there
    if chosen == PARQUET:
        yield None
        return
    check_installed(chosen)
    filled = any(path.endswith(".parquet") for path, _ in lake.listed(queue))
    if there == PARQUET and filled:
        raise BadOption(f"the lake {lake.place} has queue {queue!r} as plain Parquet: use another lake for {chosen}")
    if chosen == DELTA:
        from queenmq.pipeline.delta import DeltaTable

        yield DeltaTable(lake, queue, make=there == PARQUET)
        return
    from queenmq.pipeline.iceberg import IcebergTable, catalog_in

    with closing(catalog_in(url)) as catalog:
        # Metadata without files is what a run leaves that died while it made the table.
        yield IcebergTable(catalog, lake, queue, make=wanted is not None and not filled)


def fit(table: LakeTable, schema: str | None) -> str | None:
    """Let the table have what the schema asks for. Returns the schema to parse with: everything that the table has.

    Raises BadOption if they do not go together.
    """
    table.complete()
    there = table.parsed()
    given = spark_type(schema) if schema else None
    if given is None:
        return None if there is None else str(there.json())
    if has_variant(given):
        raise BadOption("the lake has no VARIANT: leave the field out, and use parse_json(value) of what is archived")
    try:
        kind = table.fitting(given if there is None else wider(there, given, ""))
    except TypeError as error:
        raise BadOption(
            f"the schema does not fit the table: {error}. Nothing was archived; keep the type, give the field another "
            "name, or archive into another lake"
        ) from None
    if kind != there:
        table.evolve(kind)
    return str(kind.json())


def check_there(opened: Any, lake: Lake, queue: str, queue_id: str, wanted: str | None) -> None:
    """Raise PipelineError if the lake should have the queue, by what the database knows, and has nothing of it."""
    if format_of(lake, queue) != PARQUET or any(path.endswith(".parquet") for path, _ in lake.listed(queue)):
        return
    files, positions = published(opened, lake, queue), rows(opened, "archive_positions", lake.name, queue_id)
    if (files and positions) or (wanted not in (None, PARQUET) and (files or positions)):
        raise PipelineError(
            f"the lake {lake.place} has nothing of queue {queue!r}, of which {len(files)} files were published there: "
            "it is not mounted, or was emptied. Nothing was changed; bring it back, or archive into another lake"
        )


def reconcile(opened: Any, lake: Lake, table: LakeTable, queue: str, queue_id: str, run_id: str) -> int:
    """Let the database know what the table has: files whose run died before it could say so, or that somebody has
    compacted, or that have expired. Returns how many files are new.

    Raises PipelineError if the table has messages that the database has lost, or lacks some that it should have.
    """
    with opened.transaction():
        rows(opened, "archive_lock", lake.name, queue_id)
        table.refresh()
        known, there = {file.path: file for file in published(opened, lake, queue)}, table.files()
        gone = [known[path] for path in sorted(known.keys() - there)]
        new = sorted(there - known.keys())
        covered = _advance(opened, lake, queue, queue_id, new, gone) if new else 0
        if gone:
            _let_go(opened, lake, table, queue, queue_id, gone, covered)
        if new:
            files = [lake.described(path) for path in new]
            columns = ("path", "rows", "bytes", "digest", "first_at", "last_at")
            rows(
                opened, "archive_publish", lake.name, queue, run_id, *([getattr(f, c) for f in files] for c in columns)
            )
    return len(new)


def _let_go(
    opened: Any, lake: Lake, table: LakeTable, queue: str, queue_id: str, gone: list[File], covered: int
) -> None:
    """Unpublish files that the table has no more. Those that expired are noted: the lake lacks them on purpose."""
    day = table.expired()
    expired = [file for file in gone if day is not None and file.last_at.astimezone(UTC).date() < day]
    lacking = sum(file.rows for file in gone) - sum(file.rows for file in expired) - covered
    if lacking > 0:
        raise PipelineError(
            f"the table of queue {queue!r} in the lake {lake.place} lacks {lacking} messages of files that were "
            "published: it is an older copy, or somebody has deleted from it. Nothing was changed; bring the table "
            "back, or archive into another lake"
        )
    last: dict[str, int] = {}
    for file in expired:
        for one, offset in _keys_of(lake, file.path):
            last[one] = max(offset, last.get(one, 0))
    ids = [partition.id for partition in partitions(opened, queue_id).values() if partition.id in last]
    if ids:
        rows(opened, "archive_note_gaps", lake.name, queue, ids, [1] * len(ids), [last[one] for one in ids])
    rows(opened, "archive_unpublish", lake.name, [file.path for file in gone])


def _keys_of(lake: Lake, path: str) -> Iterator[tuple[str, int]]:
    """Partition ids and offsets of the messages in a file; none if it is deleted."""
    with suppress(FileNotFoundError):
        for ids, _, offsets, _ in lake.keys(path):
            yield from zip(ids, offsets, strict=True)


def _advance(opened: Any, lake: Lake, queue: str, queue_id: str, paths: list[str], gone: list[File]) -> int:
    """Move the positions over the messages in these files. Returns how many of the messages were archived before."""
    done = dict(rows(opened, "archive_positions", lake.name, queue_id))
    stored = heads(opened, queue_id).first
    known = partitions(opened, queue_id).items()
    before = {partition.id: done.get(number, 0) for number, partition in known}
    first_stored = {partition.id: stored.get(number, 1) for number, partition in known}
    beyond: dict[str, set[int]] = {}
    names: dict[str, str] = {}
    covered = 0

    @cache
    def former() -> set[str]:
        """Partitions that were published, some of which may be dropped by now."""
        return {one for file in gone for one, _ in _keys_of(lake, file.path)}

    for path in paths:
        written = lake.changed(path)
        for ids, called, offsets, messages in lake.keys(path):
            fresh = [
                found
                for found in zip(ids, called, offsets, messages, strict=True)
                if (found[2] > before[found[0]] if found[0] in before else found[0] not in former())
            ]
            covered += len(ids) - len(fresh)
            if fresh and (lost := rows(opened, "archive_lost", queue, written, *map(list, zip(*fresh, strict=True)))):
                raise PipelineError(
                    f"the table of queue {queue!r} in the lake {lake.place} has {len(lost)} messages that the database "
                    f"has lost ({lost[0][0]}, offset {lost[0][1]}, for example): it went back, by a failover or a "
                    "restore. Keep the table, and archive into another lake"
                )
            for partition_id, name, offset, _ in fresh:
                if partition_id in before:
                    beyond.setdefault(partition_id, set()).add(offset)
                    names[partition_id] = name
    ids = list(beyond)
    first = [before[one] + 1 for one in ids]
    last = [max(beyond[one]) for one in ids]
    deleted = [(str(key), a, b) for key, a, b in rows(opened, "pipeline_deleted", ids, first, last)] if ids else []
    for one in ids:
        by_hand = {offset for key, a, b in deleted if key == one for offset in range(a, b + 1)}
        start = max(before[one] + 1, first_stored[one])
        missing = sorted(set(range(start, max(beyond[one]))) - beyond[one] - by_hand)
        if missing:
            raise PipelineError(
                f"the table of queue {queue!r} in the lake {lake.place} lacks messages before others that are new in "
                f"it (partition {names[one]!r}, offsets {some([str(offset) for offset in missing])}): somebody has "
                "changed it. Archive into another lake"
            )
    rows(opened, "archive_advance", lake.name, ids, [offset - 1 for offset in first], last)
    if deleted:
        spans = [key for key, _, _ in deleted], [a for _, a, _ in deleted], [b for _, _, b in deleted]
        rows(opened, "archive_note_gaps", lake.name, queue, *spans)
    return covered


def check_whole(lake: Lake, url: str, queue: str) -> None:
    """Raise PipelineError if the files of the queue cannot be read without the table's own reader."""
    with open_table(lake, url, queue) as table:
        if table is not None:
            table.check_whole()


def differences(opened: Any, lake: Lake, table: LakeTable | None, queue: str) -> tuple[set[str], set[str]]:
    """Files that only the database, and files that only the table has.

    Raises PipelineError if some messages in them do not count.
    """
    if table is None:
        return set(), set()
    table.check_whole()
    known, there = {file.path for file in published(opened, lake, queue)}, table.files()
    return known - there, there - known
