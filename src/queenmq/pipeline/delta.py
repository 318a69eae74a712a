"""A queue as a table of Delta Lake, by the package `deltalake`: no jars, and no Spark in it.

Each commit of archive is a transaction of the application `queen:<queue>` (`txn` in the log): of two upon the same
state the second is refused. A commit of compact beside it is not, unless both touch the same files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from typing import Any, Final

from queenmq.clock import utc_now
from queenmq.pipeline.columns import PARSED, archived
from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.json_values import arrow_of, spark_of
from queenmq.pipeline.lake import Lake, folder_of
from queenmq.pipeline.lake_table import BESIDE, KEPT, PartlyDeleted, TableChanged

DATE: Final = "date"


class DeltaTable:
    def __init__(self, lake: Lake, queue: str, make: bool) -> None:
        """Raises PipelineError if there is no table, and none is to be made."""
        import deltalake
        import pyarrow as pa
        from deltalake.exceptions import TableNotFoundError

        self._queue = queue
        self._folder = folder_of(queue)
        self._application = f"queen:{queue}"
        self._expiry = f"queen-expired-before:{queue}"
        if not make:
            try:
                self._table = deltalake.DeltaTable(lake.native(self._folder))
            except TableNotFoundError:
                raise PipelineError(
                    f"the log of the table of queue {queue!r} in the lake {lake.place} has no version: the lake is not "
                    "whole. Nothing was changed"
                ) from None
            return
        made = deltalake.Schema.from_arrow(archived().append(pa.field(DATE, pa.date32())))
        self._table = deltalake.DeltaTable.create(
            lake.native(self._folder),
            made,
            mode="ignore",
            partition_by=[DATE],
            name=queue,
            description=f"Messages of the queue {queue}, archived by Queen",
        )

    def refresh(self) -> None:
        self._table.update_incremental()

    def files(self) -> set[str]:
        import pyarrow as pa

        found = pa.table(self._table.get_add_actions(flatten=True))
        return {f"{self._folder}/{path}" for path in found.column("path").to_pylist()}

    def check_whole(self) -> None:
        import pyarrow as pa

        if pa.table(self._table.deletion_vectors().read_all()).num_rows:
            raise PartlyDeleted(self._queue)

    def parsed(self) -> Any:
        import pyarrow as pa

        found = pa.schema(self._table.schema().to_arrow())
        return spark_of(found.field(PARSED).type) if PARSED in found.names else None

    def fitting(self, kind: Any) -> Any:
        there = self.parsed()
        if there is not None:
            check_kept(there, kind, "")
        return kind

    def evolve(self, kind: Any) -> None:
        import pyarrow as pa

        self._add(pa.schema([pa.field(PARSED, arrow_of(kind))]))

    def complete(self) -> None:
        import pyarrow as pa

        there = set(pa.schema(self._table.schema().to_arrow()).names)
        if missing := [field for field in archived() if field.name not in there]:
            self._add(pa.schema(missing))

    def _add(self, columns: Any) -> None:
        import deltalake

        with _told():
            self._table.alter.add_columns(list(deltalake.Schema.from_arrow(columns).fields))

    def commit(self, added: list[Any], note: dict[str, str]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

        now = int(utc_now().timestamp() * 1000)
        actions = []
        for file in added:
            path = file["path"].removeprefix(f"{self._folder}/")
            day = path.partition("/")[0].removeprefix(f"{DATE}=")
            stats = json.dumps({"numRecords": file["rows"]})
            actions.append(AddAction(path, file["bytes"], {DATE: day}, now, True, stats))
        version = (self._table.transaction_version(self._application) or 0) + 1
        properties = CommitProperties(
            custom_metadata=note, app_transactions=[Transaction(self._application, version, now)]
        )
        try:
            self._table.create_write_transaction(
                actions, "append", self._table.schema(), partition_by=[DATE], commit_properties=properties
            )
        except CommitFailedError as error:
            raise TableChanged from error
        self.refresh()  # the object itself is still as it was before

    def compact(self, size: int) -> None:
        from deltalake import WriterProperties

        self.check_whole()
        with _told():
            self._table.optimize.compact(target_size=size, writer_properties=WriterProperties(compression="ZSTD"))
        self.refresh()

    def expire(self, day: date) -> None:
        from deltalake import CommitProperties, Transaction

        if day <= (self.expired() or date.min):
            return
        # A transaction's version is what stays in the log whatever is cleaned.
        noted = CommitProperties(app_transactions=[Transaction(self._expiry, day.toordinal())])
        with _told():
            self._table.delete(f"{DATE} < DATE '{day.isoformat()}'", commit_properties=noted)
        self.refresh()

    def expired(self) -> date | None:
        found = self._table.transaction_version(self._expiry)
        return None if found is None else date.fromordinal(found)

    def clean(self, spared: Callable[[str, datetime], bool]) -> None:
        """What a version had is deleted; files that the table never had stay where they are."""
        self._table.create_checkpoint()
        self._table.vacuum(retention_hours=int(KEPT.total_seconds() // 3600), dry_run=False)


@contextmanager
def _told() -> Iterator[None]:
    """A commit that came second ends with a sentence."""
    from deltalake.exceptions import CommitFailedError

    try:
        yield
    except CommitFailedError as error:
        raise TableChanged(BESIDE) from error


def check_kept(there: Any, kind: Any, path: str) -> None:
    """Fields may be new. What is there keeps its type: readers of Delta know no wider one."""
    if there == kind:
        return
    if there.typeName() != "struct":
        raise TypeError(f"the field {path} is {there.simpleString()} there and {kind.simpleString()} here")
    wanted = {field.name: field.dataType for field in kind.fields}
    for field in there.fields:
        check_kept(field.dataType, wanted[field.name], f"{path}.{field.name}" if path else field.name)
