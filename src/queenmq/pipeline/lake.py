"""The lake: folders of Parquet files on any file system that Arrow knows, and the manifest in PostgreSQL that says
which of them count.

A file is written whole under a name of its own and published later, by a row in `queen.archive_files`. A file without
one is rubbish of a run that died; nobody reads it, and it is swept. If it has messages that the database should have
and has not, the database went back (a failover to a standby that lagged, a restored backup): the audit tells it, and
the file stays. The layout is `queue=<name>/date=<day>/<run>-<number>.parquet`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from queenmq.clock import utc_now
from queenmq.pipeline.connection import rows
from queenmq.pipeline.errors import BadOption, PipelineError

SWEEP_AFTER: Final = timedelta(days=1)
KEYS_AT_ONCE: Final = 10_000
_AZURE: Final = re.compile(r"[a-z0-9$-]{3,63}@[a-z0-9]{3,24}(\.[a-z0-9-]+)+")


@dataclass(frozen=True, slots=True)
class File:
    """A published or just written file of the lake, its path relative to the lake."""

    path: str
    rows: int
    bytes: int
    digest: str
    first_at: datetime
    last_at: datetime
    number: int = field(default=0, kw_only=True)


class Lake:
    """A place for files. `name` is how PostgreSQL knows it, the same for every way to write the place."""

    def __init__(self, place: str) -> None:
        from pyarrow import ArrowInvalid, fs

        if not place:
            raise BadOption("the lake is missing: a folder, or a URI such as s3://bucket/folder")
        check_address(place)
        try:
            if re.match(r"[a-z][a-z0-9+.-]*://", place):
                place = re.sub(r"^s3a://", "s3://", place)  # Hadoop's name for it
                self._files, root = fs.FileSystem.from_uri(place)
            else:
                self._files, root = fs.LocalFileSystem(), str(Path(place).expanduser().resolve())
        except (ArrowInvalid, OSError) as error:
            raise BadOption(f"the lake {place!r} cannot be opened: {error}") from None
        self.root = root.rstrip("/")
        # The container of Azure is one of an account, which the address has.
        account = f"{place.partition('@')[2].partition('/')[0]}/" if self._files.type_name == "abfs" else ""
        self.name = f"{self._files.type_name}:{account}{self.root}"
        # What tasks open: they have another current folder, and perhaps another home.
        self.place = self.root or "/" if self._files.type_name == "local" else place.rstrip("/")

    def uri(self, path: str) -> str:
        """The path as Spark wants it."""
        if self._files.type_name == "local":
            return f"file://{self.root}/{path}"  # Spark takes it as it is, percent signs included
        return f"{self.place.replace('s3://', 's3a://', 1)}/{path}"

    def write(self, path: str, content: Any) -> str:
        """Store a buffer under a new name, all of it or nothing. Returns its SHA-256.

        Raises PipelineError if the lake cannot be written to.
        """
        whole = f"{self.root}/{path}"
        local = self._files.type_name == "local"
        target = f"{whole}.part" if local else whole
        try:
            if local:
                self._files.create_dir(whole.rsplit("/", 1)[0], recursive=True)
            with self._files.open_output_stream(target) as stream:
                stream.write(content)
            if local:
                self._files.move(target, whole)
        except OSError as error:
            raise PipelineError(f"the lake {self.place} cannot be written to: {str(error).splitlines()[0]}") from error
        return hashlib.sha256(content).hexdigest()

    def native(self, path: str) -> str:
        """The path as libraries want it that know nothing of Hadoop."""
        return f"{self.place}/{path}"

    def location(self, path: str) -> str:
        """The path as a URI of Iceberg, which takes it as it is, too."""
        return f"file://{self.root}/{path}" if self._files.type_name == "local" else self.native(path)

    def exists(self, path: str) -> bool:
        """Whether there is a file, or a folder with something in it."""
        from pyarrow import fs

        return bool(self._files.get_file_info(f"{self.root}/{path}").type != fs.FileType.NotFound)

    def changed(self, path: str) -> datetime:
        """When the file was written."""
        return (self._files.get_file_info(f"{self.root}/{path}").mtime or utc_now()).astimezone(UTC)

    def described(self, path: str) -> File:
        """A file of messages, as it is there."""
        import pyarrow.compute as pc
        from pyarrow import parquet

        with self._files.open_input_file(f"{self.root}/{path}") as opened:
            times = parquet.read_table(opened, columns=["timestamp"]).column("timestamp")
        span = pc.min_max(times)
        ends = (span["min"].as_py(), span["max"].as_py())
        return File(path, len(times), self.size(path) or 0, self.digest(path) or "", *ends)

    def size(self, path: str) -> int | None:
        """The bytes of a file; None if there is none."""
        from pyarrow import fs

        info = self._files.get_file_info(f"{self.root}/{path}")
        return int(info.size) if info.type == fs.FileType.File else None

    def digest(self, path: str) -> str | None:
        """The SHA-256 of a file, read in pieces; None if there is none."""
        found = hashlib.sha256()
        try:
            with self._files.open_input_stream(f"{self.root}/{path}") as stream:
                while piece := stream.read(1 << 20):
                    found.update(piece)
        except FileNotFoundError:
            return None
        return found.hexdigest()

    def listed(self, queue: str) -> Iterator[tuple[str, datetime]]:
        """Every file of a queue with the time of its last change, without those of a table format."""
        from pyarrow import fs

        folder = fs.FileSelector(f"{self.root}/{folder_of(queue)}", allow_not_found=True, recursive=True)
        of_ours = re.compile(rf"{re.escape(folder_of(queue))}/(date=|_run-)")
        for info in self._files.get_file_info(folder):
            path = info.path[len(self.root) + 1 :]
            if info.type == fs.FileType.File and of_ours.match(path):
                yield path, (info.mtime or utc_now()).astimezone(UTC)

    def entries(self, folder: str) -> list[str]:
        """The files and folders that are directly in a folder, none if it is not there."""
        from pyarrow import fs

        found = self._files.get_file_info(fs.FileSelector(f"{self.root}/{folder}", allow_not_found=True))
        return [info.path[len(self.root) + 1 :] for info in found]

    def keys(self, path: str) -> Iterator[tuple[list[str], list[str], list[int], list[str]]]:
        """Partition ids, names, offsets and message ids of the messages in a file, in pieces."""
        from pyarrow import parquet

        columns = ["partitionId", "partition", "offset", "messageId"]
        with self._files.open_input_file(f"{self.root}/{path}") as opened:
            for batch in parquet.ParquetFile(opened).iter_batches(KEYS_AT_ONCE, columns=columns):
                ids, names, offsets, messages = (batch.column(name).to_pylist() for name in columns)
                yield ids, names, offsets, messages

    def kind_of(self, path: str, column: str) -> str:
        """The type of a column in a file; empty if it has none."""
        from pyarrow import parquet

        with self._files.open_input_file(f"{self.root}/{path}") as opened:
            found = parquet.read_schema(opened)
        return str(found.field(column).type) if column in found.names else ""

    def parsed_type(self, path: str) -> str | None:
        """The type of the parsed values in a file, as the JSON of Spark; None if it has none."""
        from pyarrow import parquet

        from queenmq.pipeline.columns import PARSED
        from queenmq.pipeline.json_values import spark_of

        with self._files.open_input_file(f"{self.root}/{path}") as opened:
            found = parquet.read_schema(opened)
        return str(spark_of(found.field(PARSED).type).json()) if PARSED in found.names else None

    def batches(self, path: str, rows: int, columns: list[str] | None = None) -> Iterator[Any]:
        """The messages of a file, in pieces, with all columns or some of these."""
        from pyarrow import parquet

        with self._files.open_input_file(f"{self.root}/{path}") as opened:
            yield from parquet.ParquetFile(opened).iter_batches(rows, columns=columns)

    def delete(self, path: str) -> None:
        self._files.delete_file(f"{self.root}/{path}")


def fitted(batch: Any, target: Any) -> Any:
    """The batch of a file with other columns and types: what it lacks is null."""
    import pyarrow as pa

    there = set(batch.schema.names)
    arrays = [
        batch.column(field.name).cast(field.type) if field.name in there else pa.nulls(batch.num_rows, field.type)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def check_address(place: str) -> None:
    """Raise BadOption for an address with more than a place: it is written into tables, manifests and records of runs.

    What is wrong with it is not shown: it may be a secret.
    """
    scheme, found, rest = place.partition("://")
    if not found or not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        return
    host = rest.partition("/")[0]
    if scheme in ("abfs", "abfss") and _AZURE.fullmatch(host):
        host = ""  # container@account: a place, and no user
    if "@" in host or (scheme in ("s3", "s3a", "gs", "gcs") and (":" in host or "@" in rest)):
        raise BadOption(
            f"the address of the lake ({scheme}://…) has a user or a key in it, which others could read: leave it out, "
            "and give keys by the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for example)"
        )
    if "?" in rest or "#" in rest:
        raise BadOption(
            f"the address of the lake ({scheme}://…) has options behind its folder: leave them out, and give region "
            "and endpoint by the environment (AWS_REGION and AWS_ENDPOINT_URL)"
        )


def folder_of(queue: str) -> str:
    return f"queue={quote(queue, safe='')}"


def published(opened: Any, lake: Lake, queue: str) -> list[File]:
    return [File(*file, number=number) for *file, number in rows(opened, "archive_files", lake.name, queue)]


def sweep(opened: Any, lake: Lake, queue: str, now: datetime | None = None, after: timedelta = SWEEP_AFTER) -> int:
    """Delete files that are not published and too old to be written just now. Returns how many.

    One with messages that the database has lost stays.
    """
    before = (now or utc_now()) - after
    swept = 0
    for path, changed in unpublished(opened, lake, queue):
        if changed < before and not lost(opened, lake, queue, path, changed):
            lake.delete(path)
            swept += 1
    return swept


def unpublished(opened: Any, lake: Lake, queue: str) -> list[tuple[str, datetime]]:
    """Files of the queue that do not count, each with the time of its last change."""
    listed = list(lake.listed(queue))
    known = {path for (path,) in rows(opened, "archive_known", lake.name, [path for path, _ in listed])}
    return [(path, changed) for path, changed in listed if path not in known]


def lost(opened: Any, lake: Lake, queue: str, path: str, changed: datetime) -> dict[str, list[int]]:
    """Offsets by partition of messages in an unpublished file that the database should have and has not.

    Nothing if it is not whole, or gone by now. Raises OSError if it cannot be read.
    """
    from pyarrow import ArrowException

    found: dict[str, list[int]] = {}
    try:
        for keys in lake.keys(path):
            for name, offset in rows(opened, "archive_lost", queue, changed, *keys):
                found.setdefault(name, []).append(offset)
    except (ArrowException, KeyError, FileNotFoundError):
        return {}
    return found
