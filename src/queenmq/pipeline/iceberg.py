"""A queue as a table of Iceberg, by the package `pyiceberg`: no jars, and no Spark in it.

The catalog, which names the newest metadata of each table, is in the database of the queue (schema `queen_iceberg`), in
the form that Iceberg's JDBC catalogs share. A commit is refused unless it follows upon the snapshot that was seen.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Any, Final
from urllib.parse import quote

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

from queenmq.clock import utc_now
from queenmq.pipeline.columns import PARSED, archived
from queenmq.pipeline.connection import connection, rows
from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.files import COMPRESSION, ROWS_PER_GROUP
from queenmq.pipeline.json_values import arrow_of, spark_of, spark_type
from queenmq.pipeline.lake import Lake, fitted, folder_of
from queenmq.pipeline.lake_table import BESIDE, KEPT, PartlyDeleted, TableChanged

CATALOG: Final = "queen"
NAMESPACE: Final = "queen"
SCHEMA: Final = "queen_iceberg"
PROPERTIES: Final = {
    "format-version": "2",
    # A second try would come after what another driver has committed.
    "commit.retry.num-retries": "0",
    "write.parquet.compression-codec": "zstd",
}
_EXPIRED: Final = "queen.expired-before"


class IcebergTable:
    def __init__(self, catalog: Any, lake: Lake, queue: str, make: bool) -> None:
        """Raises PipelineError if the catalog has no table at this place, and none is to be made."""
        self._lake = lake
        self._queue = queue
        self._folder = folder_of(queue)
        self._location = lake.location(self._folder)
        # A queue may be in several lakes, and the catalog is one.
        names = (queue, f"{queue}_{hashlib.sha256(lake.name.encode()).hexdigest()[:8]}")
        found = {name: _loaded(catalog, name) for name in names}
        for name in names:
            if make and found[name] is None and not any(map(self._is_here, found.values())):
                found[name] = _create(catalog, (NAMESPACE, name), self._location)
        here = [table for table in found.values() if self._is_here(table)]
        if not here:
            raise PipelineError(
                f"the lake {lake.place} has a table of queue {queue!r} that the catalog in this database does not "
                "know: the database went back or is another one, or the lake has another path here. Nothing was "
                "changed; keep the folder, and archive into another lake"
            )
        self._table = here[0]

    def _is_here(self, table: Any) -> bool:
        return table is not None and table.location() == self._location

    def refresh(self) -> None:
        self._table.refresh()
        self._hint()

    def files(self) -> set[str]:
        return {self._path(task.file) for task in self._table.scan().plan_files()}

    def check_whole(self) -> None:
        if any(task.delete_files for task in self._table.scan().plan_files()):
            raise PartlyDeleted(self._queue)

    def parsed(self) -> Any:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        found = schema_to_pyarrow(self._table.schema(), include_field_ids=False)
        return spark_of(found.field(PARSED).type) if PARSED in found.names else None

    def fitting(self, kind: Any) -> Any:
        from pyiceberg.exceptions import ValidationError

        text = kind.json()
        for key in ("type", "elementType", "valueType"):  # Iceberg has no whole numbers below 32 bits
            for small in ("byte", "short"):
                text = text.replace(f'"{key}":"{small}"', f'"{key}":"integer"')
        made = spark_type(text)
        try:
            self._union(self._table.transaction(), _parsed(made))
        except ValidationError as error:
            raise TypeError(str(error)) from None
        return made

    def evolve(self, kind: Any) -> None:
        self._add(_parsed(kind))

    def complete(self) -> None:
        import pyarrow as pa

        there = {field.name for field in self._table.schema().fields}
        if missing := [field for field in archived() if field.name not in there]:
            self._add(pa.schema(missing))

    def _add(self, columns: Any) -> None:
        try:
            with self._table.transaction() as transaction:
                self._union(transaction, columns)
        except CommitFailedException as error:
            raise TableChanged(BESIDE) from error

    def _union(self, transaction: Any, columns: Any) -> None:
        with transaction.update_schema() as update:
            update.union_by_name(columns)

    def commit(self, added: list[Any], note: dict[str, str]) -> None:
        paths = [self._lake.location(file["path"]) for file in added]
        try:
            self._table.add_files(paths, note, check_duplicate_files=False)
        except CommitFailedException as error:
            raise TableChanged from error
        self._hint()

    def compact(self, size: int) -> None:
        for day, small in self._small(size).items():
            for number, some in enumerate(_packed(small, size)):
                self._rewrite(f"{self._folder}/date={day}/compact-{secrets.token_hex(6)}-{number}.parquet", some)

    def _small(self, size: int) -> dict[str, list[Any]]:
        """Files with less than half of the bytes, by day; without those of which some messages do not count."""
        found: dict[str, list[Any]] = {}
        for task in self._table.scan().plan_files():
            small = task.file.file_size_in_bytes < size // 2 and not task.delete_files
            if small and task.file.partition[0] is not None:
                day = date(1970, 1, 1) + timedelta(days=task.file.partition[0])
                found.setdefault(day.isoformat(), []).append(task.file)
        return found

    def _rewrite(self, path: str, files: list[Any]) -> None:
        """One file for several, in one commit."""
        import pyarrow as pa
        from pyarrow import parquet
        from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow

        target = schema_to_pyarrow(self._table.schema(), include_field_ids=False)
        batches = [
            fitted(batch, target) for file in files for batch in self._lake.batches(self._path(file), ROWS_PER_GROUP)
        ]
        buffer = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_batches(batches), buffer, compression=COMPRESSION)
        self._lake.write(path, buffer.getvalue())
        try:
            with self._table.transaction() as transaction:
                made = parquet_file_to_data_file(self._table.io, transaction.table_metadata, self._lake.location(path))
                with transaction.update_snapshot({"queen.job": "compact"}).overwrite() as update:
                    for file in files:
                        update.delete_data_file(file)
                    update.append_data_file(made)
        except CommitFailedException as error:
            self._lake.delete(path)
            raise TableChanged(BESIDE) from error
        self._hint()

    def expire(self, day: date) -> None:
        from pyiceberg.expressions import LessThan

        try:
            with self._table.transaction() as transaction:
                transaction.delete(LessThan("timestamp", f"{day.isoformat()}T00:00:00+00:00"))
                transaction.set_properties({_EXPIRED: max(day, self.expired() or day).isoformat()})
        except CommitFailedException as error:
            raise TableChanged(BESIDE) from error
        self._hint()

    def expired(self) -> date | None:
        found = self._table.properties.get(_EXPIRED)
        return date.fromisoformat(found) if found else None

    def clean(self, spared: Callable[[str, datetime], bool]) -> None:
        """Snapshots that have not been the newest for a week expire. Files that only these have had are deleted; what
        no snapshot of this table ever had belongs to somebody else.
        """
        before = int((utc_now() - KEPT).timestamp() * 1000)
        snapshots = sorted(self._table.snapshots(), key=lambda one: one.timestamp_ms)
        kept = {ref.snapshot_id for ref in self._table.metadata.refs.values()}
        old = [
            one
            for one, following in pairwise(snapshots)
            if following.timestamp_ms < before and one.snapshot_id not in kept
        ]
        if not old:
            return
        candidates = self._files_of(old)
        try:
            self._table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in old]).commit()
        except CommitFailedException as error:
            raise TableChanged(BESIDE) from error
        self._hint()
        for path in sorted(candidates - self._files_of(self._table.snapshots())):
            if self._lake.exists(path) and not spared(path, self._lake.changed(path)):
                self._lake.delete(path)

    def _files_of(self, snapshots: list[Any]) -> set[str]:
        return {
            self._path(entry.data_file)
            for snapshot in snapshots
            for manifest in snapshot.manifests(self._table.io)
            for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
        }

    def _hint(self) -> None:
        write_hint(self._lake, self._folder, self._table)

    def _path(self, file: Any) -> str:
        return f"{self._folder}/{file.file_path.removeprefix(self._location + '/')}"


def _parsed(kind: Any) -> Any:
    import pyarrow as pa

    return pa.schema([pa.field(PARSED, arrow_of(kind))])


def write_hint(lake: Lake, folder: str, table: Any) -> None:
    """For readers that know the folder and no catalog; an older snapshot is no harm."""
    name = table.metadata_location.rpartition("/")[2].removesuffix(".metadata.json").encode()
    path = f"{folder}/metadata/version-hint.text"
    if lake.digest(path) != hashlib.sha256(name).hexdigest():
        with suppress(PipelineError):
            lake.write(path, name)


def _packed(files: list[Any], size: int) -> Iterator[list[Any]]:
    """Two files or more together, up to so many bytes."""
    group: list[Any] = []
    held = 0
    for file in files:
        group.append(file)
        held += file.file_size_in_bytes
        if held >= size:
            yield group
            group, held = [], 0
    if len(group) > 1:
        yield group


def catalog_in(url: str) -> Any:
    """The catalog in a database, made if it is not there."""
    from pyiceberg.catalog.sql import SqlCatalog

    with connection(url) as opened:
        rows(opened, "iceberg_schema")
    body = url.partition("://")[2]
    search = quote(f"-c search_path={SCHEMA}", safe="")
    uri = f"postgresql+psycopg://{body}{'&' if '?' in body else '?'}options={search}"
    # Keys come from the environment by themselves.
    stores = {
        "s3.endpoint": os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"),
        "s3.region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
    }
    catalog = SqlCatalog(CATALOG, uri=uri, **{name: value for name, value in stores.items() if value})
    catalog.create_namespace_if_not_exists(NAMESPACE)
    return catalog


def _loaded(catalog: Any, name: str) -> Any:
    try:
        return catalog.load_table((NAMESPACE, name))
    except NoSuchTableError:
        return None


def _create(catalog: Any, name: tuple[str, str], location: str) -> Any:
    from pyiceberg.exceptions import TableAlreadyExistsError
    from pyiceberg.transforms import DayTransform

    try:
        made = catalog.create_table_transaction(name, archived(), location, properties=PROPERTIES)
        with made as transaction, transaction.update_spec() as spec:
            spec.add_field("timestamp", DayTransform(), "date")
    except TableAlreadyExistsError:
        pass  # another run was faster
    return catalog.load_table(name)
