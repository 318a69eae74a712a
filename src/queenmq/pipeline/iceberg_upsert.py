"""Changes of rows by key into a table of Iceberg, by the package `pyiceberg`: one commit a batch, each batch once.

The number of the batch is a property of the table, set in the commit that changes the rows. The catalog is the one of
the archive (`iceberg`), in the database of the queue.

To import this module changes how `pyiceberg` converts what it reads and writes (`_keep_nulls`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Final

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError, ValidationError

from queenmq.pipeline.errors import BadOption, PipelineError
from queenmq.pipeline.iceberg import PROPERTIES, catalog_in, write_hint
from queenmq.pipeline.lake import Lake, fitted
from queenmq.pipeline.lake_table import BESIDE, NO_FIT, UPSERT_TRIES, TableChanged

NAMESPACE: Final = "queen_tables"
# Of a row: where its message was.
PLACE: Final = ("queen_partition", "queen_offset", "queen_timestamp")


def _keep_nulls() -> None:
    """Lists and maps of structs that are null stay so: pyiceberg 0.12 makes them empty, in what it reads and writes."""
    from pyarrow import compute, scalar
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor

    def keeping(convert: Callable[..., Any]) -> Callable[..., Any]:
        def converted(visitor: Any, kind: Any, array: Any, *parts: Any) -> Any:
            made = convert(visitor, kind, array, *parts)
            if made is None or made.null_count == array.null_count:
                return made
            # The cast brings the ids of the fields back.
            return compute.if_else(array.is_valid(), made, scalar(None, made.type)).cast(made.type)

        return converted

    for name in ("list", "map"):
        setattr(ArrowProjectionVisitor, name, keeping(getattr(ArrowProjectionVisitor, name)))


_keep_nulls()


def apply(url: str, place: str, rows: Any, keys: tuple[str, ...], flag: str, query: str, number: int) -> None:
    """Merge the rows, one a key, into the table in one commit, unless this batch is in it already.

    The column `flag` says which rows delete. Fields that the table has and the rows have not become null in what is
    written. Raises BadOption if the types of the rows do not fit, TableChanged if others commit all the time.
    """
    folder, _, name = place.rstrip("/").rpartition("/")
    lake = Lake(folder)
    stored = rows.drop_columns([flag])
    with closing(catalog_in(url)) as catalog:
        catalog.create_namespace_if_not_exists(NAMESPACE)
        for _ in range(UPSERT_TRIES):
            table = _opened(catalog, lake, name, stored.schema)
            if int(table.properties.get(f"queen.batch.{query}", -1)) >= number:
                break
            with suppress(CommitFailedException):
                _merge(table, rows, stored, keys, flag, {f"queen.batch.{query}": str(number)})
                break
        else:
            raise TableChanged(BESIDE)
        write_hint(lake, name, table)


def _opened(catalog: Any, lake: Lake, name: str, schema: Any) -> Any:
    """The table, made if it is not there. A name may be taken by a table at another place."""
    location = lake.location(name)
    for called in (name, f"{name}_{hashlib.sha256(location.encode()).hexdigest()[:8]}"):
        try:
            found = catalog.load_table((NAMESPACE, called))
        except NoSuchTableError:
            with suppress(TableAlreadyExistsError):
                return catalog.create_table((NAMESPACE, called), schema, location, properties=PROPERTIES)
            found = catalog.load_table((NAMESPACE, called))
        if found.location() == location:
            return found
    raise PipelineError(f"the catalog has other tables under the names that one at {location} could have")


def _merge(table: Any, rows: Any, stored: Any, keys: tuple[str, ...], flag: str, noted: dict[str, str]) -> None:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    offered = _tuples(rows, keys)
    before, files = _found(table, stored, keys)
    newer = [_is_newer(at, before.get(key)) for key, at in zip(offered, _tuples(rows, PLACE), strict=True)]
    replaced = {key for is_newer, key in zip(newer, offered, strict=True) if is_newer and key in before}
    kept = [is_newer and not gone for is_newer, gone in zip(newer, rows.column(flag).to_pylist(), strict=True)]
    with table.transaction() as transaction:
        try:
            with transaction.update_schema() as update:
                update.union_by_name(stored.schema)
        except ValidationError as error:
            raise BadOption(NO_FIT.format(error)) from None
        target = schema_to_pyarrow(transaction.table_metadata.schema(), include_field_ids=False)
        _take_out(table, transaction, [task for task, there in files if not replaced.isdisjoint(there)], keys, replaced)
        if any(kept):
            _append(transaction, stored.filter(pa.array(kept)), target)
        transaction.set_properties(noted)


def _found(table: Any, stored: Any, keys: tuple[str, ...]) -> tuple[dict[Any, Any], list[tuple[Any, set[Any]]]]:
    """Where the message of each key was that the table has, and the files that may have some of them, with their keys.

    A filter that names each combination of several columns would be compared with each row. So it asks for each column
    by itself, and finds rows of other keys, too.
    """
    from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, In

    wanted: BooleanExpression = AlwaysTrue()
    for key in keys:
        wanted = And(wanted, In(key, set(stored.column(key).to_pylist())))
    scan = table.scan(wanted, selected_fields=(*keys, *PLACE))
    offered = set(_tuples(stored, keys))
    before: dict[Any, Any] = {}
    files = []
    for task in scan.plan_files():
        part = _read(table, task, scan.projection(), wanted)
        there = {key: at for key, at in zip(_tuples(part, keys), _tuples(part, PLACE), strict=True) if key in offered}
        before |= there
        files.append((task, set(there)))
    return before, files


def _take_out(table: Any, transaction: Any, tasks: list[Any], keys: tuple[str, ...], replaced: set[Any]) -> None:
    """Write the files anew without the rows that are replaced, one after the other."""
    import pyarrow as pa
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    if not tasks:
        return
    with transaction.update_snapshot().overwrite() as update:
        for task in tasks:
            update.delete_data_file(task.file)
    schema = transaction.table_metadata.schema()
    for task in tasks:
        whole = _read(table, task, schema, AlwaysTrue(), transaction.table_metadata)
        left = whole.filter(pa.array([key not in replaced for key in _tuples(whole, keys)], pa.bool_()))
        if left.num_rows:
            _append(transaction, left, schema_to_pyarrow(schema, include_field_ids=False))


def _read(table: Any, task: Any, schema: Any, wanted: Any, metadata: Any = None) -> Any:
    """What a file has, without what was deleted from it beside the file."""
    from pyiceberg.io.pyarrow import ArrowScan

    return ArrowScan(metadata or table.metadata, table.io, schema, wanted).to_table([task])


def _append(transaction: Any, rows: Any, target: Any) -> None:
    import pyarrow as pa

    batches = rows.combine_chunks().to_batches()
    transaction.append(pa.Table.from_batches([fitted(batch, target) for batch in batches], target))


def _tuples(table: Any, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def _is_newer(at: tuple[Any, ...], before: tuple[Any, ...] | None) -> bool:
    """Of one partition by offset, of several by arrival."""
    if before is None:
        return True
    return bool(at[1] > before[1] if at[0] == before[0] else at[2] >= before[2])
