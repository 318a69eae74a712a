"""Headers of messages through the pipeline: read, written, copied, archived, replayed and audited as they are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cli.conftest import serving
from deltalake import DeltaTable, Schema
from pyarrow import parquet
from server_settings import settings_with

from pipeline.db import Db
from pipeline.test_tables import findings, foreign, run
from queenmq.pipeline import archived, columns, read, read_stream, write, write_stream
from queenmq.pipeline.connection import connection
from queenmq.pipeline.errors import BadOption, PipelineError, explained
from queenmq.pipeline.heads import batch_ranges
from queenmq.pipeline.iceberg import NAMESPACE, catalog_in
from queenmq.pipeline.jobs.copy import Settings as CopySettings
from queenmq.pipeline.jobs.copy import copy
from queenmq.pipeline.jobs.replay import Settings as ReplaySettings
from queenmq.pipeline.jobs.replay import replay
from queenmq.pipeline.options import ReadOptions, WriteOptions
from queenmq.pipeline.planning import Slice
from queenmq.pipeline.reading import read_slice
from queenmq.pipeline.runs import Run
from queenmq.pipeline.staging import Stager

GIVEN = {"type": "order", "Región": "eu-süd ☃", "empty": ""}
# Names by length, then by bytes: as PostgreSQL keeps them.
IN_SPARK = [("type", b"order"), ("empty", b""), ("Región", "eu-süd ☃".encode())]


def fill(db: Db, each: int = 9) -> None:
    """Every third message has headers."""
    db.fill("orders", 2, each)
    db.sql('UPDATE queen.messages SET headers = %s WHERE "offset" %% 3 = 0', json.dumps(GIVEN))


def in_queue(db: Db, queue: str) -> dict[str, list[Any]]:
    return db.partitions(queue, "m.headers")


def pairs(row: Any) -> list[tuple[str, bytes]] | None:
    return None if row is None else [(pair["key"], bytes(pair["value"])) for pair in row]


def slice_of(db: Db, *names: str) -> list[dict[str, Any]]:
    options = ReadOptions(url=db.url, queue="orders", headers=True, encrypted="raw")
    with connection(db.url) as opened:
        ranges = batch_ranges(opened, options)
    return [row for batch in read_slice(options, list(names), Slice(ranges)) for row in batch.to_pylist()]


@pytest.mark.parametrize("names", [("offset", "headers"), ("offset", "value", "headers")])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_packed_or_one_by_one_they_are_the_same(db: Db, names: tuple[str, ...], one_by_one: bool) -> None:
    fill(db, 700)
    if one_by_one:
        db.sql("UPDATE queen.messages SET is_encrypted = true")
    found = slice_of(db, *names)
    assert len(found) == 1400
    for row in found:
        wanted = None if row["offset"] % 3 else sorted(IN_SPARK)
        assert (sorted(pairs(row["headers"])) if row["headers"] else row["headers"]) == wanted
    assert all("headers" not in row for row in slice_of(db, "offset", "value"))


def test_a_read_has_the_column_of_the_kafka_connector(spark: Any, db: Db, tmp_path: Path) -> None:
    fill(db)
    assert "headers" not in read(spark, db.url, "orders").columns
    found = read(spark, db.url, "orders", includeHeaders=True)
    assert dict(found.dtypes)["headers"] == "array<struct<key:string,value:binary>>"
    named = found.selectExpr("offset", "CAST(map_from_entries(headers)['type'] AS STRING) AS type").collect()
    assert {row["offset"]: row["type"] for row in named} == {n: None if n % 3 else "order" for n in range(1, 10)}

    stream = read_stream(spark, db.url, "orders", includeHeaders=True, startingOffsets="earliest")
    chosen = stream.select("value", "partition", "headers")
    query = write_stream(chosen, db.url, "streamed", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    assert in_queue(db, "streamed") == in_queue(db, "orders")


@pytest.mark.parametrize("commit_rows", [5000, 4])
def test_a_write_takes_the_form_of_kafka_and_maps(spark: Any, db: Db, commit_rows: int) -> None:
    """At once and in steps."""
    fill(db)
    found = read(spark, db.url, "orders", includeHeaders=True)
    write(found.select("value", "partition", "headers").coalesce(1), db.url, "arrays", commitRows=commit_rows)
    maps = found.selectExpr(
        "value", "partition", "transform_values(map_from_entries(headers), (k, v) -> string(v)) AS headers"
    )
    write(maps.coalesce(1), db.url, "maps", commitRows=commit_rows)
    assert in_queue(db, "arrays") == in_queue(db, "maps") == in_queue(db, "orders")
    assert set(map(json.dumps, in_queue(db, "arrays")["p0"])) == {"null", json.dumps(in_queue(db, "orders")["p0"][2])}
    with pytest.raises(
        Exception, match="cannot be string: it is array<struct<key:string,value:binary>> or map"
    ) as told:
        write(found.selectExpr("value", "'a=b' AS headers"), db.url, "wrong")
    assert isinstance(explained(told.value), BadOption)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([("a", b"\xff")], "its header 'a' is no text in UTF-8"),
        ([("a", b"1"), ("a", b"2")], "its header 'a' is there twice"),
        ([("a", None)], "its header 'a' has no value"),
        ([(None, b"1")], "has no name"),
        ([("", b"1")], "the name of a header"),
        ([("a", b"x" * 20_000)], "at most 16384 are allowed"),
    ],
)
def test_what_cannot_be_a_header_is_refused(given: list[tuple[str | None, bytes | None]], told: str) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = [[{"key": key, "value": value} for key, value in given]]
    batch = pa.record_batch({"value": ["1"], "headers": pa.array(rows, kind)})
    with pytest.raises(PipelineError, match=told):
        Stager(WriteOptions(url="", queue="q"), set()).make(batch)


def test_the_checksum_is_the_same_without_and_another_one_with_headers() -> None:
    """A write that an older version began is the same one; one with other headers is not."""

    def checksum(**more: Any) -> int:
        stager = Stager(WriteOptions(url="", queue="q"), set())
        stager.make(pa.record_batch({"value": ["1", "2"], **more}))
        return stager.checksum

    kind = pa.map_(pa.string(), pa.string())
    assert checksum() == checksum(headers=pa.array([None, None], kind))
    some = [checksum(headers=pa.array(given, kind)) for given in ([[("a", "b")], None], [None, [("a", "b")]])]
    assert len({checksum(), *some}) == 3


def test_copies_keep_them(spark: Any, db: Db, tmp_path: Path) -> None:
    fill(db)
    settings = CopySettings(
        url=db.url,
        source="orders",
        target="large",
        checkpoint=str(tmp_path),
        where="exists(headers, h -> h.key = 'type' AND string(h.value) = 'order')",
        available_now=True,
    )
    with Run(db.url, "copy", "orders", "local", {}) as recorded:
        copy(spark, settings, recorded)
    assert in_queue(db, "large") == {
        f"p{p}": [found for found in in_queue(db, "orders")["p0"] if found] for p in (0, 1)
    }


def run_replay(spark: Any, db: Db, lake: Path, **changes: Any) -> int:
    settings = ReplaySettings(url=db.url, queue="orders", lake=str(lake), **changes)
    with Run(db.url, "replay", "orders", "local", {}) as recorded:
        return replay(spark, settings, recorded).summary["messages written"]


def test_the_lake_keeps_them(spark: Any, db: Db, tmp_path: Path) -> None:
    fill(db)
    run(spark, db, tmp_path, None)
    found = archived(spark, db.url, "orders", str(tmp_path)).collect()
    assert sorted(pairs(row["headers"]) == IN_SPARK for row in found) == [False] * 12 + [True] * 6
    assert run_replay(spark, db, tmp_path, into="again") == 18
    assert in_queue(db, "again") == in_queue(db, "orders")
    assert findings(spark, db, tmp_path) == []
    db.sql("""UPDATE queen.messages SET headers = '{"type": "forged"}' WHERE "offset" = 3""")
    assert findings(spark, db, tmp_path) == [
        f"archive: p{p}: messages differ between source and archive" for p in range(2)
    ]


def test_files_of_older_versions_have_none(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 2, 5)
    run(spark, db, tmp_path, None)
    for file in tmp_path.rglob("*.parquet"):
        parquet.write_table(parquet.read_table(file, partitioning=None).drop_columns(["headers"]), file)
        content = file.read_bytes()
        db.sql(
            "UPDATE queen.archive_files SET bytes = %s, digest = %s WHERE path = %s",
            len(content),
            hashlib.sha256(content).hexdigest(),
            str(file.relative_to(tmp_path)),
        )
    assert findings(spark, db, tmp_path) == []
    assert run_replay(spark, db, tmp_path, into="again") == 10
    db.fill("orders", 2, 1)
    db.sql('UPDATE queen.messages SET headers = %s WHERE "offset" = 6', json.dumps(GIVEN))
    run(spark, db, tmp_path, None)
    assert findings(spark, db, tmp_path) == []
    found = archived(spark, db.url, "orders", str(tmp_path)).collect()
    assert [pairs(row["headers"]) for row in found if row["offset"] == 6] == [IN_SPARK] * 2
    assert run_replay(spark, db, tmp_path, into="anew") == 12
    assert in_queue(db, "anew") == in_queue(db, "orders")


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_of_older_versions_get_the_column(spark: Any, db: Db, tmp_path: Path, kind: str) -> None:
    """A table as a version before made it, then as this one archives into it."""
    db.fill("orders", 2, 5)
    now = columns.archived()
    before = now.remove(now.get_field_index("headers"))
    lake, folder = tmp_path / "lake", tmp_path / "lake" / "queue=orders"
    if kind == "delta":
        made = before.append(pa.field("date", pa.date32()))
        DeltaTable.create(str(folder), Schema.from_arrow(made), partition_by=["date"], name="orders")
    else:
        from pyiceberg.transforms import DayTransform

        catalog = catalog_in(db.url)
        with (
            catalog.create_table_transaction((NAMESPACE, "orders"), before, f"file://{folder}") as transaction,
            transaction.update_spec() as spec,
        ):
            spec.add_field("timestamp", DayTransform(), "date")
        catalog.close()
    run(spark, db, lake, kind)
    db.fill("orders", 2, 5)
    db.sql('UPDATE queen.messages SET headers = %s WHERE "offset" > 7', json.dumps(GIVEN))
    run(spark, db, lake, kind)
    table, _ = foreign(lake, kind)
    found = zip(*(table.column(name).to_pylist() for name in ("messageId", "headers")), strict=True)
    wanted = db.sql('SELECT id::text, "offset" > 7 FROM queen.messages')
    # (pyiceberg reads a list that is null as an empty one.)
    assert {key: pairs(given) or None for key, given in found} == {
        key: IN_SPARK if has else None for key, has in wanted
    }
    assert findings(spark, db, lake) == []


def test_through_a_server_they_are_the_same(spark: Any, db: Db) -> None:
    fill(db)
    with serving(settings_with(), db.url) as server:
        found = read(spark, server.url, "orders", includeHeaders=True)
        rows = {(row["partition"], row["offset"]): pairs(row["headers"]) for row in found.collect()}
        assert rows == {(f"p{p}", n): None if n % 3 else IN_SPARK for p in range(2) for n in range(1, 10)}
        kept = found.select("value", "partition", "transactionId", "headers").coalesce(1)
        write(kept.sortWithinPartitions("partition", "offset"), server.url, "copied")
        # Without an id of its own, a row is known by its content, headers included.
        write(found.selectExpr("'1' AS value", "'p' AS partition", "headers").coalesce(1), server.url, "made")
    assert in_queue(db, "copied") == in_queue(db, "orders")
    assert sorted(map(bool, in_queue(db, "made")["p"])) == [False] * 12 + [True] * 6
