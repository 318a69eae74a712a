"""Queries of Spark SQL over queues, upserts into a table, and the tutorial's streams: each exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from pipeline.db import Db
from queenmq.pipeline import write
from queenmq.pipeline.errors import BadOption, PipelineError
from queenmq.pipeline.jobs import upsert as upserts
from queenmq.pipeline.jobs.sql import Settings, sql
from queenmq.pipeline.runs import Run

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "streams.py"


def push(spark: Any, db: Db, queue: str, *messages: tuple[str, Any]) -> None:
    made = [(json.dumps(value), partition) for partition, value in messages]
    write(spark.createDataFrame(made, "value string, partition string").coalesce(1), db.url, queue)


def ran(spark: Any, db: Db, query: str, target: str, place: Path, **more: Any) -> dict[str, list[Any]]:
    settings = Settings(url=db.url, query=query, target=target, checkpoint=str(place), available_now=True, **more)
    with Run(db.url, "sql", None, "local", {}) as run:
        sql(spark, settings, run)
    return db.partitions(target)


def test_a_query_reads_queues_as_streams(spark: Any, db: Db, tmp_path: Path) -> None:
    schemas = {"shop.orders": "id INT, customer INT", "payments": "id INT, paid DOUBLE"}
    push(spark, db, "shop.orders", *[(f"c{n % 2}", {"id": n, "customer": n % 2}) for n in range(6)])
    push(spark, db, "payments", *[("p", {"id": n, "paid": n * 1.5}) for n in (1, 4, 4)])
    joined = """
        SELECT c.name, o.data.id AS id, p.data.paid AS paid, o.partition, concat(o.data.id, '') AS transactionId
        FROM STREAM(`shop.orders`) WATERMARK timestamp DELAY OF INTERVAL 1 HOUR AS o -- not STREAM(x)
        JOIN STREAM( payments ) WATERMARK timestamp DELAY OF INTERVAL 1 HOUR AS p
          ON o.data.id = p.data.id AND p.timestamp BETWEEN o.timestamp AND o.timestamp + INTERVAL 1 HOUR
        JOIN customers AS c ON c.id = o.data.customer WHERE 'STREAM(y)' <> ''
    """
    prepare = (
        "CREATE OR REPLACE TEMPORARY VIEW customers AS SELECT * FROM VALUES (0, 'ann'), (1, 'bob') AS t(id, name)",
    )
    for _ in range(2):  # the second run finds nothing new
        found = ran(spark, db, joined, "paid", tmp_path / "joined", schemas=schemas, prepare=prepare)
        # Two payments of order 4 are one message: its transactionId is stored once.
        assert found == {
            "c0": [{"name": "ann", "id": 4, "paid": 6.0}],
            "c1": [{"name": "bob", "id": 1, "paid": 1.5}],
        }
    counted = (
        "SELECT to_json(named_struct('orders', count(*))) AS value, partition FROM STREAM(`shop.orders`) GROUP BY 2"
    )
    found = ran(spark, db, counted, "counts", tmp_path / "counted", updates=True)
    assert found == {"c0": [{"orders": 3}], "c1": [{"orders": 3}]}
    for query, told in (
        ("SELECT 1", "reads no queue"),
        ("SELECT nothing FROM STREAM(payments)", "Spark refuses the query"),
        ("SELECT partition FROM STREAM(payments)", "no column for the payload"),
    ):
        with pytest.raises(BadOption, match=told):
            ran(spark, db, query, "x", tmp_path / "x")


def test_a_table_has_the_newest_message_of_each_key(spark: Any, db: Db, tmp_path: Path) -> None:
    table = str(tmp_path / "customers")
    settings = upserts.Settings(
        url=db.url, queue="customers", table=table, keys=("id",), schema="id INT, name STRING, gone BOOLEAN",
        checkpoint=str(tmp_path / "checkpoint"), delete="data.gone", available_now=True, most=4,
    )  # fmt: skip

    def rows() -> list[tuple[int, str]]:
        with Run(db.url, "upsert", "customers", "local", {}) as run:
            upserts.upsert(spark, settings, run)
        found = pa.table(deltalake.DeltaTable(table).to_pyarrow_table()).select(["id", "name"]).to_pylist()
        return sorted((one["id"], one["name"]) for one in found)

    changes = [(1, "ann"), (2, "bob"), (1, "anna"), (3, "cid"), (3, "gone"), (2, "bobby"), (4, "dan")]
    push(spark, db, "customers", *[("p", {"id": n, "name": name, "gone": name == "gone"}) for n, name in changes])
    assert rows() == [(1, "anna"), (2, "bobby"), (4, "dan")]
    push(spark, db, "customers", ("p", {"id": 3, "name": "cindy"}), ("p", {"id": 4, "name": "", "gone": True}))
    assert rows() == [(1, "anna"), (2, "bobby"), (3, "cindy")]
    version = deltalake.DeltaTable(table).version()
    assert rows() == [(1, "anna"), (2, "bobby"), (3, "cindy")]
    assert deltalake.DeltaTable(table).version() == version
    push(spark, db, "customers", ("p", {"name": "nobody"}))
    with pytest.raises(Exception, match="no value for the key 'id'"):
        rows()


def test_a_batch_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    def batch(*values: tuple[int, str, int]) -> Any:
        return pa.table(
            {
                "id": pa.array([one[0] for one in values], pa.int32()),
                "name": [one[1] for one in values],
                "queen_partition": ["p"] * len(values),
                "queen_offset": [one[2] for one in values],
                "queen_timestamp": pa.array([0] * len(values), pa.timestamp("us", "UTC")),
                "queen_deleted": [False] * len(values),
            }
        )

    place = str(tmp_path / "table")
    first = upserts.newest(batch((1, "a", 1), (1, "b", 2)), ("id",))
    assert first.column("name").to_pylist() == ["b"]
    upserts.apply(place, first, ("id",), "queen:q", 0)
    upserts.apply(place, batch((1, "c", 3)), ("id",), "queen:q", 1)
    upserts.apply(place, first, ("id",), "queen:q", 0)
    upserts.apply(place, first, ("id",), "queen:another", 0)  # an older message never replaces a newer one
    assert deltalake.DeltaTable(place).to_pyarrow_table().column("name").to_pylist() == ["c"]
    with pytest.raises(PipelineError, match="no value for the key 'id': partition p, offset 7"):
        upserts.newest(batch((None, "a", 7)), ("id",))  # type: ignore[arg-type]


def test_the_tutorial_of_streams(spark: Any, db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", db.url)
    monkeypatch.setenv("WORK", str(tmp_path))
    states = [("ann", "begun"), ("bob", "begun"), ("ann", "paid"), ("cid", "begun")]
    push(spark, db, "tutorial-orders", *[(name, {"customer": name, "state": state}) for name, state in states])
    for customer, minutes in (("ann", 60), ("bob", 50), ("cid", 0)):
        db.sql(
            "UPDATE queen.messages SET created_at = created_at - make_interval(mins => %s) WHERE partition_id = "
            "(SELECT p.id FROM queen.partitions p WHERE p.name = %s)",
            *(minutes, customer),
        )
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    try:
        exec(compile(TUTORIAL.read_text(), str(TUTORIAL), "exec"), {"__name__": "__main__"})
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    assert {name: [one["customer"] for one in found] for name, found in db.partitions("tutorial-unpaid").items()} == {
        "bob": ["bob"]
    }
    assert db.one("SELECT count(*) FROM tutorial_orders") == 4
