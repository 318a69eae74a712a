"""Queries of Spark SQL over queues, upserts into a table, and the tutorial's streams: each exactly once."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import pyarrow as iceberg_arrow
from pyiceberg.table import StaticTable

from pipeline.db import Db
from queenmq.pipeline import delta_upsert, iceberg_upsert, read_stream, write, write_stream_jdbc
from queenmq.pipeline.errors import BadOption, PipelineError
from queenmq.pipeline.iceberg import catalog_in
from queenmq.pipeline.jobs import upsert as upserts
from queenmq.pipeline.jobs.sql import Settings, sql
from queenmq.pipeline.lake_table import UPSERT_TRIES, TableChanged
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
    # The column `queue` of the source does not send its messages back there, where they would be duplicates.
    found = ran(spark, db, "SELECT * FROM STREAM(payments)", "everything", tmp_path / "everything")
    assert [one["id"] for one in found["p"]] == [1, 4, 4]
    for query, told in (
        ("SELECT 1", "reads no queue"),
        ("SELECT nothing FROM STREAM(payments)", "Spark refuses the query"),
        ("SELECT partition FROM STREAM(payments)", "no column for the payload"),
    ):
        with pytest.raises(BadOption, match=told):
            ran(spark, db, query, "x", tmp_path / "x")


@pytest.mark.parametrize("how", ["DISTINCT", "GROUP BY"])
def test_repeated_messages_of_several_partitions_become_one(spark: Any, db: Db, tmp_path: Path, how: str) -> None:
    """Within a window of time, when it is over."""
    stream = "FROM STREAM(orders) WATERMARK timestamp DELAY OF INTERVAL 1 HOUR"
    query = {
        "DISTINCT": f"SELECT DISTINCT data.id AS id, window(timestamp, '1 day') AS day {stream}",
        "GROUP BY": f"SELECT data.id AS id, window(timestamp, '1 day') AS day {stream} GROUP BY 1, 2",
    }[how]
    days = {"p": "2026-01-01 12:00Z", "q": "2026-01-01 13:00Z", "r": "2026-01-02 12:00Z", "s": "2026-02-01 12:00Z"}
    repeated = [("p", 1), ("p", 2), ("p", 2), ("q", 1), ("r", 1)]

    def found(*pushed: tuple[str, int]) -> list[tuple[int, str]]:
        push(spark, db, "orders", *[(partition, {"id": n}) for partition, n in pushed])
        for partition, at in days.items():
            db.sql(
                "UPDATE queen.messages SET created_at = %s FROM queen.partitions p "
                "WHERE p.id = partition_id AND p.name = %s",
                *(at, partition),
            )
        ran(spark, db, query, "once", tmp_path / "once", schemas={"orders": "id INT"})
        all_ = [one for values in db.partitions("once").values() for one in values]
        return sorted((one["id"], one["day"]["start"][:10]) for one in all_)

    assert found(*repeated) == [(1, "2026-01-01"), (2, "2026-01-01")]  # the second day is not over
    wanted = [(1, "2026-01-01"), (1, "2026-01-02"), (2, "2026-01-01")]
    assert found(("s", 7), ("r", 1)) == wanted
    assert found(("p", 2)) == wanted  # which is late


def table_rows(table: Path, kind: str) -> tuple[Any, int]:
    """What the format's own library reads, without our database, and the number of commits."""
    if kind == "delta":
        found = deltalake.DeltaTable(str(table))
        return pa.table(found.to_pyarrow_table()), found.version()
    hint = (table / "metadata" / "version-hint.text").read_text()
    read = StaticTable.from_metadata(f"{table}/metadata/{hint}.metadata.json")
    return read.scan().to_arrow(), int(hint.partition("-")[0])


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_has_the_newest_message_of_each_key(spark: Any, db: Db, tmp_path: Path, kind: str) -> None:
    table = tmp_path / "customers"
    settings = upserts.Settings(
        url=db.url, queue="customers", table=str(table), keys=("id",), schema="id INT, name STRING, gone BOOLEAN",
        checkpoint=str(tmp_path / "checkpoint"), delete="data.gone", available_now=True, most=4, format=kind,
    )  # fmt: skip

    def rows() -> list[tuple[int, str]]:
        with Run(db.url, "upsert", "customers", "local", {}) as run:
            upserts.upsert(spark, settings, run)
        return sorted((one["id"], one["name"]) for one in table_rows(table, kind)[0].to_pylist())

    changes = [(1, "ann"), (2, "bob"), (1, "anna"), (3, "cid"), (3, "gone"), (2, "bobby"), (4, "dan")]
    push(spark, db, "customers", *[("p", {"id": n, "name": name, "gone": name == "gone"}) for n, name in changes])
    assert rows() == [(1, "anna"), (2, "bobby"), (4, "dan")]
    push(spark, db, "customers", ("p", {"id": 3, "name": "cindy"}), ("p", {"id": 4, "name": "", "gone": True}))
    assert rows() == [(1, "anna"), (2, "bobby"), (3, "cindy")]
    version = table_rows(table, kind)[1]
    assert rows() == [(1, "anna"), (2, "bobby"), (3, "cindy")]
    # As if the driver had died after the commit of the table, before Spark could note it.
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink()
    assert rows() == [(1, "anna"), (2, "bobby"), (3, "cindy")]
    assert table_rows(table, kind)[1] == version
    push(spark, db, "customers", ("p", {"name": "nobody"}))
    with pytest.raises(Exception, match="no value for the key 'id'"):
        rows()


def test_an_upsert_takes_no_variant(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("customers", 1, 1)
    settings = upserts.Settings(
        url=db.url,
        queue="customers",
        table=str(tmp_path),
        keys=("p",),
        checkpoint=str(tmp_path),
        schema="p INT, v VARIANT",
    )
    with pytest.raises(BadOption, match="no VARIANT"):
        upserts.changes(spark, settings)


def batch(*values: tuple[Any, str, int], **more: Any) -> Any:
    """Rows of an upsert: id, name and offset, of one partition."""
    return pa.table(
        {
            "id": pa.array([one[0] for one in values], pa.int32()),
            "name": [one[1] for one in values],
            "queen_partition": ["p"] * len(values),
            "queen_offset": [one[2] for one in values],
            "queen_timestamp": pa.array([0] * len(values), pa.timestamp("us", "UTC")),
            "queen_deleted": [False] * len(values),
            **more,
        }
    )


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_batch_that_comes_again_changes_nothing(db: Db, tmp_path: Path, kind: str) -> None:
    def apply(rows: Any, query: str, number: int) -> None:
        if kind == "delta":
            delta_upsert.apply(place, rows, ("id",), "queen_deleted", query, number)
        else:
            iceberg_upsert.apply(db.url, place, rows, ("id",), "queen_deleted", query, number)

    place = str(tmp_path / "table")
    first = upserts.newest(batch((1, "a", 1), (1, "b", 2)), ("id",))
    assert first.column("name").to_pylist() == ["b"]
    apply(first, "q", 0)
    apply(batch((1, "c", 3)), "q", 1)
    apply(first, "q", 0)
    apply(first, "another", 0)  # an older message never replaces a newer one
    assert table_rows(tmp_path / "table", kind)[0].column("name").to_pylist() == ["c"]
    apply(batch((2, "d", 4), (1, "e", 5), age=[7, None]), "q", 2)  # a field that is new
    found = table_rows(tmp_path / "table", kind)[0].select(["id", "name", "age"]).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [
        {"id": 1, "name": "e", "age": None},
        {"id": 2, "name": "d", "age": 7},
    ]
    with pytest.raises(PipelineError, match="no value for the key 'id': partition p, offset 7"):
        upserts.newest(batch((None, "a", 7)), ("id",))


def changed(db: Db, place: Path, kind: str, number: int, *messages: dict[str, Any], **types: Any) -> None:
    """Apply a batch of messages with an id, and fields of these types in Arrow."""
    rows = pa.table(
        {
            "id": pa.array([one["id"] for one in messages], pa.int32()),
            **{name: pa.array([one[name] for one in messages], type_) for name, type_ in types.items()},
            "queen_partition": ["p"] * len(messages),
            "queen_offset": [10 * number + at for at in range(len(messages))],
            "queen_timestamp": pa.array([number] * len(messages), pa.timestamp("us", "UTC")),
            "queen_deleted": [False] * len(messages),
        }
    )
    if kind == "delta":
        delta_upsert.apply(str(place), rows, ("id",), "queen_deleted", "q", number)
    else:
        iceberg_upsert.apply(db.url, str(place), rows, ("id",), "queen_deleted", "q", number)


def table_of(place: Path, kind: str, *names: str) -> list[dict[str, Any]]:
    found = table_rows(place, kind)[0].select(["id", *names]).to_pylist()
    return sorted(found, key=lambda row: row["id"])


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_fields_of_an_upsert_come_and_go_at_any_depth(db: Db, tmp_path: Path, kind: str) -> None:
    """Rows of other keys keep what they have, and a row has nothing of an older message of its key."""
    place, number = tmp_path / "table", pa.int64()
    small = pa.struct([("a", number)])
    large = pa.struct([("a", number), ("b", pa.list_(small))])
    changed(db, place, kind, 0, {"id": 1, "v": {"a": 1}, "n": 1}, {"id": 2, "v": {"a": 2}, "n": 2}, v=small, n=number)
    changed(db, place, kind, 1, {"id": 1, "v": {"a": 3, "b": [{"a": 4}]}}, v=large)
    assert table_of(place, kind, "v", "n") == [
        {"id": 1, "v": {"a": 3, "b": [{"a": 4}]}, "n": None},
        {"id": 2, "v": {"a": 2, "b": None}, "n": 2},
    ]
    changed(db, place, kind, 2, {"id": 2, "v": {"a": 5}, "n": 6}, {"id": 3, "v": None, "n": 7}, v=small, n=pa.int32())
    assert table_of(place, kind, "v", "n") == [
        {"id": 1, "v": {"a": 3, "b": [{"a": 4}]}, "n": None},
        {"id": 2, "v": {"a": 5, "b": None}, "n": 6},
        {"id": 3, "v": None, "n": 7},
    ]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_what_is_null_in_a_message_is_null_in_the_table_of_an_upsert(db: Db, tmp_path: Path, kind: str) -> None:
    """When it is written, and when its file is written anew because of another key."""
    place, struct = tmp_path / "table", pa.struct([("a", pa.int64())])
    types = {
        "list": pa.list_(struct),
        "map": pa.map_(pa.string(), struct),
        "deep": pa.struct([("b", pa.list_(struct))]),
    }
    full: dict[str, Any] = {"list": [{"a": 1}], "map": [("x", {"a": 1})], "deep": {"b": [{"a": 1}]}}
    empty = {"list": [], "map": [], "deep": {"b": []}}
    null = {"list": None, "map": None, "deep": {"b": None}}
    none = {"list": [None], "map": [("x", None)], "deep": None}
    rows: list[dict[str, Any]] = [{"id": id, **values} for id, values in enumerate((full, empty, null, none))]
    changed(db, place, kind, 0, *rows, {"id": 4, **full}, **types)
    changed(db, place, kind, 1, {"id": 4, **null}, **types)
    # As they are in the files: the reader of Iceberg makes them empty, too.
    written = [row for path in place.rglob("*.parquet") for row in pq.read_table(path).to_pylist() if row["id"] < 4]
    assert len(written) == 2 * len(rows)
    for row in written:
        assert {name: row[name] for name in ("id", *types)} == rows[row["id"]]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize(
    ("there", "here"),
    [
        (pa.int32(), pa.float64()),
        (pa.int32(), pa.string()),
        (pa.string(), pa.int32()),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.string())])),
    ],
)
def test_a_type_that_does_not_fit_the_table_of_an_upsert_is_refused(
    db: Db, tmp_path: Path, kind: str, there: Any, here: Any
) -> None:
    def value(type_: Any, number: int) -> Any:
        if pa.types.is_struct(type_):
            return {"a": value(type_[0].type, number)}
        return str(number) if type_ == pa.string() else number

    place = tmp_path / "table"
    changed(db, place, kind, 0, {"id": 1, "v": value(there, 7)}, v=there)
    with pytest.raises(BadOption, match=r"the schema does not fit the table.* v"):
        changed(db, place, kind, 1, {"id": 1, "v": value(here, 8)}, {"id": 2, "v": value(here, 8)}, v=here)
    assert table_of(place, kind, "v") == [{"id": 1, "v": value(there, 7)}]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("conflicts", [UPSERT_TRIES - 1, UPSERT_TRIES])
def test_somebody_compacts_the_table_meanwhile(
    db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, conflicts: int
) -> None:
    """What is to be changed is found anew, a few times, and the batch is still done once."""
    place, keys, left = str(tmp_path / "table"), ("id",), conflicts

    def apply(rows: Any, number: int) -> None:
        if kind == "delta":
            delta_upsert.apply(place, rows, keys, "queen_deleted", "q", number)
        else:
            iceberg_upsert.apply(db.url, place, rows, keys, "queen_deleted", "q", number)

    def compact() -> None:
        """As somebody else does it: all rows in one new file."""
        if kind == "delta":
            deltalake.DeltaTable(place).optimize.z_order(["id"])
        else:
            with closing(catalog_in(db.url)) as catalog:
                table = catalog.load_table((iceberg_upsert.NAMESPACE, "table"))
                table.overwrite(table.scan().to_arrow())

    def beside(*given: Any) -> Any:
        nonlocal left
        seen = looked(*given)
        if left:
            left -= 1
            compact()
        return seen

    for number, name in enumerate("abc"):
        apply(batch((number, name, number)), number)
    owner, look = (deltalake.DeltaTable, "transaction_version") if kind == "delta" else (iceberg_upsert, "_found")
    looked = getattr(owner, look)
    with monkeypatch.context() as patch:
        patch.setattr(owner, look, beside)
        if conflicts == UPSERT_TRIES:
            with pytest.raises(TableChanged, match="somebody else has changed the table meanwhile"):
                apply(batch((0, "A", 7), (1, "B", 8)), 3)
        else:
            apply(batch((0, "A", 7), (1, "B", 8)), 3)
    assert left == 0
    apply(batch((0, "A", 7), (1, "B", 8)), 3)
    found = table_rows(tmp_path / "table", kind)[0].select(["id", "name"]).to_pylist()
    assert sorted((one["id"], one["name"]) for one in found) == [(0, "A"), (1, "B"), (2, "c")]


def test_an_upsert_with_two_keys_compares_each_row_with_a_filter_of_fixed_size(
    db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted are the comparisons that Arrow is given for each row: not one for each key of the batch."""
    place, keys, compared = str(tmp_path / "table"), ("id", "name"), 0
    visitor: Any = iceberg_arrow._ConvertToArrowExpression

    def counting(visit: Any) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            nonlocal compared
            compared += 1
            return visit(*given, **named)

        return counted

    # Of 40 keys all combinations of 8 and 5 values; half of them are replaced, and the others share values with them.
    combined = [(number % 8, "abcde"[number % 5]) for number in range(40)]
    rows = [(*key, 1 + place) for place, key in enumerate(combined)]
    iceberg_upsert.apply(db.url, place, batch(*rows[:25]), keys, "queen_deleted", "q", 0)
    iceberg_upsert.apply(db.url, place, batch(*rows[25:]), keys, "queen_deleted", "q", 1)
    replaced = [(one, name, offset + 100) for one, name, offset in rows if offset % 2]
    for name in ("visit_equal", "visit_in"):
        monkeypatch.setattr(visitor, name, counting(getattr(visitor, name)))
    iceberg_upsert.apply(db.url, place, batch(*replaced, seen=[True] * 20), keys, "queen_deleted", "q", 2)
    assert 0 < compared <= 4  # two columns, two files
    found = table_rows(tmp_path / "table", "iceberg")[0].select(["id", "name", "queen_offset", "seen"])
    wanted = [
        (one, name, offset + 100, True) if offset % 2 else (one, name, offset, None) for one, name, offset in rows
    ]
    assert sorted(tuple(one.values()) for one in found.to_pylist()) == sorted(wanted, key=lambda row: row[:3])


def derby(spark: Any, url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Rows of the last statement, in a database whose driver comes with PySpark."""
    connection = spark._jvm.java.sql.DriverManager.getConnection(url)
    try:
        for text in statements[:-1]:
            connection.createStatement().execute(text)
        found = connection.createStatement().executeQuery(statements[-1])
        width = found.getMetaData().getColumnCount()
        rows = []
        while found.next():
            rows.append(tuple(found.getObject(place) for place in range(1, width + 1)))
        return sorted(rows)
    finally:
        connection.close()


def test_a_table_of_any_database_gets_every_row_once(spark: Any, db: Db, tmp_path: Path) -> None:
    """The driver dies between the commit of the table and Spark's own; then the checkpoint is an older copy."""
    url, checkpoint = f"jdbc:derby:{tmp_path}/derby;create=true", tmp_path / "checkpoint"
    made = "CREATE TABLE orders (customer VARCHAR(20), id INT, PRIMARY KEY (customer, id))"
    assert derby(spark, url, made, "SELECT * FROM orders") == []

    def run(most: int = 2, **more: str) -> None:
        found = read_stream(spark, db.url, "orders", startingOffsets="earliest", maxOffsetsPerTrigger=most,
                            valueSchema="id INT")  # fmt: skip
        rows = found.selectExpr("data.id AS id", "partition AS Customer")
        write_stream_jdbc(rows, url, "orders", str(checkpoint), **more).trigger(
            availableNow=True
        ).start().awaitTermination()

    push(spark, db, "orders", *[(f"c{n % 2}", {"id": n}) for n in range(5)])
    run()
    wanted = sorted((f"c{n % 2}", n) for n in range(5))
    assert derby(spark, url, "SELECT * FROM orders") == wanted
    yesterday = tmp_path / "yesterday"
    shutil.copytree(checkpoint, yesterday)
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink()
    derby(spark, url, "CREATE TABLE queen_staged_leftover (id INT)", "SELECT * FROM orders")
    run()
    assert derby(spark, url, "SELECT * FROM orders") == wanted
    tables = "SELECT tablename FROM sys.systables WHERE tablename LIKE 'QUEEN%'"
    assert derby(spark, url, tables) == [("QUEEN_BATCHES",), ("QUEEN_STAGED_LEFTOVER",)]  # which is another stream's
    [(query, batch)] = derby(spark, url, "SELECT query_id, batch FROM queen_batches")
    assert int(newest.name) == batch

    push(spark, db, "orders", ("c1", {"id": 7}))
    run()
    assert derby(spark, url, "SELECT * FROM orders") == sorted([*wanted, ("c1", 7)])
    shutil.rmtree(checkpoint)
    shutil.move(yesterday, checkpoint)
    push(spark, db, "orders", ("c1", {"id": 9}))
    with pytest.raises(Exception, match="was restored from an older copy") as told:
        run(most=100)
    assert query in str(told.value)
    assert derby(spark, url, "SELECT * FROM orders") == sorted([*wanted, ("c1", 7)])
    with pytest.raises(Exception, match="has no column 'nothing': it has CUSTOMER, ID"):
        write_stream_jdbc(
            read_stream(spark, db.url, "orders", startingOffsets="earliest").selectExpr("1 AS nothing"),
            *(url, "orders", str(tmp_path / "c2")),
        ).trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(BadOption, match="must be one of JDBC"):
        write_stream_jdbc(spark.range(1), "postgresql://x/y", "t", "c")


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
