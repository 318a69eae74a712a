"""The registry of schemas in Spark: valueSchema=auto, rows that are checked, a lake that follows, and infer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.db import Db
from queenmq.pipeline import archived, read, read_stream, write
from queenmq.pipeline.errors import PipelineError, explained
from queenmq.pipeline.jobs.archive import Settings as ArchiveSettings
from queenmq.pipeline.jobs.archive import archive
from queenmq.pipeline.jobs.infer import Settings, infer
from queenmq.pipeline.runs import Run

FIRST: dict[str, Any] = {
    "type": "object",
    "properties": {"p": {"type": "integer"}, "n": {"type": "integer"}},
    "required": ["n"],
}
SECOND = FIRST | {"properties": FIRST["properties"] | {"n": {"type": "number"}, "pad": {"type": "string"}}}


def give(db: Db, queue: str, version: int, schema: dict[str, Any], *, check: bool = False) -> None:
    db.sql(
        "INSERT INTO queen.schemas (queue_id, version, schema) SELECT id, %s, %s FROM queen.queues WHERE name = %s",
        *(version, json.dumps(schema), queue),
    )
    db.sql(
        "INSERT INTO queen.schema_rules (queue_id, version, compatibility, is_checked) "
        "SELECT id, %s, 'backward', %s FROM queen.queues WHERE name = %s "
        "ON CONFLICT (queue_id) DO UPDATE SET version = excluded.version, is_checked = excluded.is_checked",
        *(version, check, queue),
    )


def told(raised: pytest.ExceptionInfo[BaseException]) -> str:
    return explained(raised.value).message


def test_a_read_takes_the_types_of_the_registry(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 1, 3)
    with pytest.raises(Exception) as raised:
        read(spark, db.url, "orders", valueSchema="auto")
    assert "valueSchema is auto, and queue 'orders' has no schema" in told(raised)
    give(db, "orders", 1, FIRST)
    found = read(spark, db.url, "orders", valueSchema="auto")
    assert found.schema["data"].dataType.simpleString() == "struct<p:bigint,n:bigint>"
    assert sorted(row["data"]["n"] for row in found.collect()) == [1, 2, 3]
    stream = read_stream(spark, db.url, "orders", valueSchema="auto", startingOffsets="earliest").selectExpr("data.n")
    give(db, "orders", 2, SECOND)  # a stream that was planned keeps its types
    query = stream.writeStream.format("memory").queryName("auto").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(row["n"] for row in spark.table("auto").collect()) == [1, 2, 3]
    lake = str(tmp_path / "lake")
    for version in (1, 2):
        db.sql("UPDATE queen.schema_rules SET version = %s", version)
        settings = ArchiveSettings(url=db.url, queue="orders", lake=lake, schema="auto")
        with Run(db.url, "archive", "orders", "local", {}) as run:
            archive(spark, settings, run)
        db.fill("orders", 1, 2)
    both = archived(spark, db.url, "orders", lake)
    assert both.schema["data"].dataType.simpleString() == "struct<p:bigint,n:double,pad:string>"
    assert sorted(row["data"]["n"] for row in both.collect()) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_rows_for_a_checked_queue_must_fit(spark: Any, db: Db) -> None:
    db.make("orders")
    give(db, "orders", 1, FIRST, check=True)
    bad = spark.createDataFrame([('{"n": 1}',), ('{"n": "one"}',)], "value string")
    with pytest.raises(Exception) as raised:
        write(bad, db.url, "orders")
    assert "it does not fit schema 1 of queue 'orders': /n: the value is not of type \"integer\"" in told(raised)
    assert db.one("SELECT count(*) FROM queen.messages") == 0
    write(bad, db.url, "orders", checkSchema=False)
    write(bad.limit(1), db.url, "orders")
    assert db.one("SELECT count(*) FROM queen.messages") == 3


def test_a_schema_is_inferred_from_all_messages(spark: Any, db: Db) -> None:
    db.fill("orders", 2, 50)
    values = [
        {"p": 1, "n": 2.5, "pad": None, "at": "2026-01-01T00:00:00Z", "tags": ["a", 1]},
        {
            "p": 1,
            "n": 3,
            "pad": "",
            "at": "2026-01-02T00:00:00+01:00",
            "lines": [{"sku": "a"}, {"sku": "b", "count": 2}],
        },
    ]
    rows = spark.createDataFrame([(json.dumps(value), "p1") for value in values], "value string, partition string")
    write(rows, db.url, "orders")
    with Run(db.url, "infer", "orders", "local", {}) as run:
        found = infer(spark, Settings(url=db.url, queue="orders"), run).summary
    assert found["messages"] == 102
    fields = found["schema"]["properties"]
    assert found["schema"]["required"] == ["n", "p", "pad"]
    assert fields["n"] == {"type": "number"}
    assert fields["pad"] == {"type": ["null", "string"]}
    assert fields["at"] == {"type": "string", "format": "date-time"}
    assert fields["tags"] == {"type": "array", "items": {"type": ["integer", "string"]}}
    line = fields["lines"]["items"]
    assert (line["required"], sorted(line["properties"])) == (["sku"], ["count", "sku"])
    with Run(db.url, "infer", "orders", "local", {}) as run:
        assert infer(spark, Settings(url=db.url, queue="orders", sample=1), run).summary["messages"] == 2
    db.make("empty")
    with pytest.raises(PipelineError, match="has no messages"), Run(db.url, "infer", "empty", "local", {}) as run:
        infer(spark, Settings(url=db.url, queue="empty"), run)
