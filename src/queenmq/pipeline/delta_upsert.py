"""Changes of rows by key into a table of Delta Lake, by the package `deltalake`: one commit a batch, each batch once.

The number of the batch is in the commit, as the version of an application's transaction (`txn`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import deltalake
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError

from queenmq.pipeline.delta import check_kept
from queenmq.pipeline.errors import BadOption
from queenmq.pipeline.json_values import arrow_of, spark_of
from queenmq.pipeline.lake import fitted
from queenmq.pipeline.lake_schema import wider
from queenmq.pipeline.lake_table import BESIDE, NO_FIT, UPSERT_TRIES, TableChanged


def apply(place: str, rows: Any, keys: tuple[str, ...], flag: str, query: str, number: int) -> None:
    """Merge the rows, one a key, into the table in one commit, unless this batch is in it already.

    The column `flag` says which rows delete. Fields that the table has and the rows have not become null in what is
    written. Raises BadOption if the types of the rows do not fit, TableChanged if others commit all the time.
    """
    for _ in range(UPSERT_TRIES):
        with suppress(CommitFailedError):
            _merge(place, rows, keys, flag, f"queen:{query}", number)
            return
    raise TableChanged(BESIDE)


def _merge(place: str, rows: Any, keys: tuple[str, ...], flag: str, application: str, number: int) -> None:
    stored = rows.drop_columns([flag])
    table = deltalake.DeltaTable.create(place, deltalake.Schema.from_arrow(stored.schema), mode="ignore")
    done = table.transaction_version(application)
    if done is not None and done >= number:
        return
    given = _fitting(table, stored, rows)
    properties = CommitProperties(app_transactions=[Transaction(application, number)])
    same = " AND ".join(f"t.`{key}` = s.`{key}`" for key in keys)
    newer = (
        "CASE WHEN s.queen_partition = t.queen_partition THEN s.queen_offset > t.queen_offset "
        "ELSE s.queen_timestamp >= t.queen_timestamp END"
    )
    columns = {f"`{name}`": f"s.`{name}`" for name in given.column_names if name != flag}
    (
        table.merge(given, same, "s", "t", commit_properties=properties)
        .when_matched_delete(f"s.{flag} AND {newer}")
        .when_matched_update(columns, f"NOT s.{flag} AND {newer}")
        .when_not_matched_insert(columns, f"NOT s.{flag}")
        .execute()
    )


def _fitting(table: Any, stored: Any, rows: Any) -> Any:
    """The rows with all columns of the table, which gets what it lacks of theirs.

    A merge would do both by itself, and lose what is stored: it casts values to narrower types, and makes a struct null
    in rows that it copies if the struct has a field more.
    """
    import pyarrow as pa

    there = pa.schema(table.schema().to_arrow())
    common = pa.struct([there.field(name) for name in stored.column_names if name in there.names])
    has, brings = spark_of(common), spark_of(pa.struct(stored.schema))
    try:
        kind = wider(has, brings, "")
        check_kept(has, kind, "")
    except TypeError as error:
        raise BadOption(NO_FIT.format(error)) from None
    before = {field.name: field.dataType for field in has.fields}
    kinds = {field.name: field.dataType for field in kind.fields}
    added = [pa.field(name, arrow_of(one)) for name, one in kinds.items() if one != before.get(name)]
    if added:
        table.alter.add_columns(list(deltalake.Schema.from_arrow(pa.schema(added)).fields))
    offered = {field.name: field.dataType for field in brings.fields}
    columns = [
        field if kinds.get(field.name) == offered.get(field.name) else pa.field(field.name, arrow_of(kinds[field.name]))
        for field in rows.schema
    ]
    absent = [field for field in there if field.name not in offered]
    target = pa.schema([*columns, *absent])
    return pa.Table.from_batches([fitted(batch, target) for batch in rows.to_batches()], target)
