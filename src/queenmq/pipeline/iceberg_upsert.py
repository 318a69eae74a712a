"""Changes of rows by key into a table of Iceberg, by the package `pyiceberg`: one commit a batch, each batch once.

The number of the batch is a property of the table, set in the commit that changes the rows. The catalog is the one of
the archive (`iceberg`), in the database of the queue.
"""

from __future__ import annotations

import hashlib
from contextlib import closing, suppress
from typing import Any, Final

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table.upsert_util import create_match_filter

from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.iceberg import PROPERTIES, catalog_in, write_hint
from queenmq.pipeline.lake import Lake, fitted
from queenmq.pipeline.lake_table import BESIDE, TableChanged

NAMESPACE: Final = "queen_tables"
# Somebody may compact the table meanwhile: what is to be changed is then found anew.
TRIES: Final = 5


def apply(url: str, place: str, rows: Any, keys: tuple[str, ...], flag: str, query: str, number: int) -> None:
    """Merge the rows, one a key, into the table in one commit, unless this batch is in it already.

    The column `flag` says which rows delete. Raises TableChanged if others commit all the time.
    """
    folder, _, name = place.rstrip("/").rpartition("/")
    lake = Lake(folder)
    stored = rows.drop_columns([flag])
    with closing(catalog_in(url)) as catalog:
        catalog.create_namespace_if_not_exists(NAMESPACE)
        for _ in range(TRIES):
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

    place = ("queen_partition", "queen_offset", "queen_timestamp")
    there = table.scan(create_match_filter(stored, list(keys)), selected_fields=(*keys, *place)).to_arrow()
    before = dict(zip(_tuples(there, keys), _tuples(there, place), strict=True))
    newer = [_is_newer(at, before.get(key)) for key, at in zip(_tuples(rows, keys), _tuples(rows, place), strict=True)]
    replaced = [is_newer and key in before for is_newer, key in zip(newer, _tuples(rows, keys), strict=True)]
    kept = [is_newer and not gone for is_newer, gone in zip(newer, rows.column(flag).to_pylist(), strict=True)]
    with table.transaction() as transaction:
        with transaction.update_schema() as update:
            update.union_by_name(stored.schema)
        if any(replaced):
            transaction.delete(create_match_filter(stored.filter(pa.array(replaced)), list(keys)))
        if any(kept):
            target = schema_to_pyarrow(transaction.table_metadata.schema(), include_field_ids=False)
            added = stored.filter(pa.array(kept)).combine_chunks().to_batches()
            transaction.append(pa.Table.from_batches([fitted(batch, target) for batch in added], target))
        transaction.set_properties(noted)


def _tuples(table: Any, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def _is_newer(at: tuple[Any, ...], before: tuple[Any, ...] | None) -> bool:
    """Of one partition by offset, of several by arrival."""
    if before is None:
        return True
    return bool(at[1] > before[1] if at[0] == before[0] else at[2] >= before[2])
