"""Batch writes: each row once, in order, whatever happens to tasks."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow
import pytest
from pyspark import TaskContext

from pipeline.db import Db
from queenmq.broker.wake_ups import WRITTEN_ELSEWHERE
from queenmq.core.encryption import PayloadKeys, Place
from queenmq.pipeline import promotion, read, write
from queenmq.pipeline.errors import PartitionsBusy, PipelineError, explained
from queenmq.pipeline.options import WriteOptions
from queenmq.pipeline.promotion import promote
from queenmq.pipeline.sink import stage

KEY = bytes(range(32))


def refused(frame: Any, url: str, queue: str, **options: Any) -> str:
    with pytest.raises(Exception) as raised:
        write(frame, url, queue, **options)
    told = explained(raised.value)
    return told.message


def numbers(spark: Any, count: int, tasks: int = 2) -> Any:
    return spark.range(0, count, 1, tasks).selectExpr(
        "to_json(struct(id)) AS value", "concat('p', id % 3) AS partition"
    )


def batches(count: int) -> list[pyarrow.RecordBatch]:
    """The same as a task gets them."""
    rows = {"value": [f'{{"id": {n}}}' for n in range(count)], "partition": [f"p{n % 3}" for n in range(count)]}
    return pyarrow.table(rows).to_batches()


def test_rows_arrive_once_and_in_order(spark: Any, db: Db) -> None:
    write(numbers(spark, 3000), db.url, "orders")
    partitions = db.partitions("orders")
    assert {name: [one["id"] for one in partition] for name, partition in partitions.items()} == {
        f"p{n}": list(range(n, 3000, 3)) for n in range(3)
    }
    db.assert_healthy("orders")
    assert db.one("SELECT count(*) FROM queen.pipeline_chunks") == 0


def test_offsets_go_on_behind_what_is_there(spark: Any, db: Db) -> None:
    db.fill("orders", 3, 10)
    write(numbers(spark, 30), db.url, "orders")
    assert db.count("orders") == 60
    db.assert_healthy("orders")


def test_a_transaction_id_is_stored_once(spark: Any, db: Db) -> None:
    db.fill("orders", 1, 5)
    rows = [("1", "p0", "5"), ("2", "p0", "new"), ("3", "p0", "new"), ("4", "p1", "5"), ("5", "p0", None)]
    frame = spark.createDataFrame(rows, "value string, partition string, transactionId string").coalesce(1)
    write(frame, db.url, "orders")
    assert db.partitions("orders")["p0"][5:] == [2, 5]
    assert db.partitions("orders")["p1"] == [4]
    db.assert_healthy("orders")


def test_the_same_write_is_done_once(spark: Any, db: Db) -> None:
    for _ in range(2):
        write(numbers(spark, 30), db.url, "orders", write_id="monday")
    assert db.count("orders") == 30
    write(numbers(spark, 30), db.url, "orders", write_id="tuesday")
    assert db.count("orders") == 60


def test_the_same_write_with_other_rows_is_refused(spark: Any, db: Db) -> None:
    write(numbers(spark, 30), db.url, "orders", write_id="monday")
    told = refused(numbers(spark, 40), db.url, "orders", writeId="monday")
    assert "writeId 'monday' was written before with other messages (30 rows then, 40 now)" in told
    assert db.count("orders") == 30
    write(numbers(spark, 40), db.url, "orders", write_id="monday", repeatedWrite="skip")
    assert db.count("orders") == 30


def test_rows_choose_their_queue(spark: Any, db: Db) -> None:
    frame = spark.createDataFrame([("1", "a"), ("2", None)], "value string, queue string")
    write(frame, db.url, "usual")
    assert (db.partitions("a"), db.partitions("usual")) == ({"Default": [1]}, {"Default": [2]})


def test_a_waiting_group_gets_them(spark: Any, db: Db) -> None:
    db.fill("orders", 1, 1)
    db.sql("SELECT queen.subscribe('orders', NULL, 'g', 'new', NULL)")
    assert db.one("SELECT count(*) FROM queen.partition_consumers WHERE ready_at IS NOT NULL") == 0
    write(numbers(spark, 3), db.url, "orders")
    assert db.one("SELECT count(*) FROM queen.partition_consumers WHERE ready_at IS NOT NULL") == 3


def test_servers_are_told_of_it(spark: Any, db: Db) -> None:
    frame = spark.createDataFrame([("1", "a"), ("2", "b"), ("3", "a")], "value string, queue string")
    with psycopg.connect(db.url, autocommit=True) as listener:
        listener.execute(f"LISTEN {WRITTEN_ELSEWHERE}")
        write(frame, db.url, "usual")
        told = [notice.payload for notice in listener.notifies(timeout=10, stop_after=2)]
    assert sorted(told) == ["a", "b"]


class TestFailures:
    def test_a_task_that_fails_after_it_wrote_is_repeated_without_doubling(self, spark: Any, db: Db) -> None:
        """Every first attempt stages all of its rows and then dies, before its commit."""
        rows = numbers(spark, 3000).rdd.mapPartitions(fail_at_the_end())
        frame = spark.createDataFrame(rows, "value string, partition string")
        write(frame, db.url, "orders")
        assert db.count("orders") == 3000
        assert db.one("SELECT count(*) FROM queen.pipeline_chunks") == 0
        db.assert_healthy("orders")

    def test_a_naive_sink_doubles_in_the_same_harness(self, spark: Any, db: Db) -> None:
        """The control: without staging, the rows of the attempts that died are there, too."""
        db.sql("CREATE TABLE naive (value text)")
        numbers(spark, 3000).rdd.mapPartitions(insert_naively(db.url)).mapPartitions(fail_at_the_end()).count()
        assert db.one("SELECT count(*) FROM naive") > 3000

    def test_a_write_that_fails_for_good_leaves_nothing(self, spark: Any, db: Db) -> None:
        bad = numbers(spark, 100).selectExpr("IF(value LIKE '%99%', '{', value) AS value", "partition")
        assert "not JSON" in refused(bad, db.url, "orders")
        assert db.one("SELECT count(*) FROM queen.messages") == 0
        assert db.one("SELECT count(*) FROM queen.pipeline_chunks") == 0

    def test_of_two_attempts_that_both_finish_one_counts(self, db: Db) -> None:
        """Speculation: both attempts have staged everything, the driver is told of one."""
        options = WriteOptions(url=db.url, queue="orders")
        rows = batches(30)
        first = stage(options, "s", 1, iter(rows))
        stage(options, "s", 1, iter(rows))
        assert promote(options, "s", 1, [first, None]) == (30, 0)
        assert (db.count("orders"), db.one("SELECT count(*) FROM queen.pipeline_chunks")) == (30, 0)

    def test_a_replayed_epoch_changes_nothing(self, db: Db) -> None:
        options = WriteOptions(url=db.url, queue="orders")
        rows = batches(30)
        for _ in range(2):
            assert promote(options, "s", 1, [stage(options, "s", 1, iter(rows))]) == (30, 0)
        assert (db.count("orders"), db.one("SELECT count(*) FROM queen.pipeline_chunks")) == (30, 0)

    def test_an_epoch_that_comes_again_with_other_rows_is_refused(self, db: Db) -> None:
        options = WriteOptions(url=db.url, queue="orders")
        promote(options, "s", 1, [stage(options, "s", 1, iter(batches(30)))])
        other = [batches(31)[0].slice(1)]
        with pytest.raises(PipelineError, match="was written before with other messages"):
            promote(options, "s", 1, [stage(options, "s", 1, iter(other))])
        assert db.count("orders") == 30
        # The rows of an epoch may come in another order and from other tasks.
        halves = [batches(30)[0].slice(15), batches(30)[0].slice(0, 15)]
        assert promote(options, "s", 1, [stage(options, "s", 1, iter([half])) for half in halves]) == (30, 0)
        assert promote(replace(options, strict=False), "s", 1, [stage(options, "s", 1, iter(other))]) == (30, 0)
        assert (db.count("orders"), db.one("SELECT count(*) FROM queen.pipeline_chunks")) == (30, 0)

    def test_what_an_epoch_was_made_of_counts_more_than_its_rows(self, db: Db) -> None:
        """Sums of numbers with a point, random ids: rows of the same batch may differ the second time."""
        options = WriteOptions(url=db.url, queue="orders")
        promote(options, "s", 1, [stage(options, "s", 1, iter(batches(30)))], made_of="a")
        assert promote(options, "s", 1, [stage(options, "s", 1, iter(batches(29)))], made_of="a") == (30, 0)
        with pytest.raises(PipelineError, match="was written before with other messages"):
            promote(options, "s", 1, [stage(options, "s", 1, iter(batches(30)))], made_of="b")

    def test_an_epoch_behind_the_newest_is_refused(self, db: Db) -> None:
        """So old that its commit is forgotten, or a batch of a checkpoint that was restored."""
        options = WriteOptions(url=db.url, queue="orders")
        promote(options, "s", 3, [stage(options, "s", 3, iter(batches(3)))])
        with pytest.raises(PipelineError, match=r"batch 2 .* comes after batch 3"):
            promote(options, "s", 2, [stage(options, "s", 2, iter(batches(3)))])
        assert db.count("orders") == 3
        assert db.one("SELECT count(*) FROM queen.pipeline_commits") == 1

    def test_an_epoch_that_leaves_some_out_is_refused(self, db: Db) -> None:
        """The database was restored: it has forgotten epochs that the checkpoint has behind it."""
        options = WriteOptions(url=db.url, queue="orders")
        for epoch in (1, 2):
            promote(options, "s", epoch, [stage(options, "s", epoch, iter(batches(3)))], made_of=str(epoch))
        with pytest.raises(PipelineError, match="last batch of this stream that is known here is 2, and now comes 5"):
            promote(options, "s", 5, [stage(options, "s", 5, iter(batches(3)))], made_of="5")
        with pytest.raises(PipelineError, match="known here is 2"):
            promote(options, "s", 5, [stage(options, "s", 5, iter([]))], made_of="5")
        assert db.count("orders") == 6
        promote(options, "s", 3, [stage(options, "s", 3, iter([]))], made_of="3")
        promote(options, "s", 4, [stage(options, "s", 4, iter(batches(3)))], made_of="4")
        assert db.count("orders") == 9

    def test_a_commit_of_an_older_version_is_compared_by_its_rows(self, db: Db) -> None:
        options = WriteOptions(url=db.url, queue="orders")
        db.sql("INSERT INTO queen.pipeline_commits (sink, epoch, rows, duplicates) VALUES ('s', 1, 29, 1)")
        assert promote(options, "s", 1, [stage(options, "s", 1, iter(batches(30)))]) == (29, 1)
        with pytest.raises(PipelineError, match="30 rows then, 31 now"):
            promote(options, "s", 1, [stage(options, "s", 1, iter(batches(31)))])

    def test_staged_rows_that_are_gone_are_missed(self, db: Db) -> None:
        """A crash of PostgreSQL empties the staging table."""
        options = WriteOptions(url=db.url, queue="orders")
        staged = stage(options, "s", 1, iter(batches(30)))
        db.sql("DELETE FROM queen.pipeline_chunks")
        with pytest.raises(PipelineError, match="30 rows were staged and 0 are there"):
            promote(options, "s", 1, [staged])
        assert db.one("SELECT count(*) FROM queen.pipeline_commits") == 0

    def test_what_was_staged_days_ago_is_swept(self, db: Db) -> None:
        options = WriteOptions(url=db.url, queue="orders")
        rows = batches(30)
        stage(options, "forgotten", 1, iter(rows))
        counting = stage(options, "s", 1, iter(rows))
        before = db.one("SELECT (extract(epoch FROM now() - interval '2 days') * 1000)::bigint << 22")
        db.sql("UPDATE queen.pipeline_chunks SET attempt = %s WHERE attempt <> %s", before, counting.attempt)
        promote(options, "s", 1, [counting])
        assert (db.count("orders"), db.one("SELECT count(*) FROM queen.pipeline_chunks")) == (30, 0)

    def test_queued_pushes_are_waited_for(self, spark: Any, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
        db.fill("orders", 3, 1)
        queued = "INSERT INTO queen.operation_queue (id, kind, queue_name, partition_id) "
        db.sql(queued + "SELECT gen_random_uuid(), 'push', 'orders', id FROM queen.partitions WHERE name = 'p1'")
        written: list[int] = []

        def stored_meanwhile(_: float) -> None:
            written.append(db.count("orders"))
            if len(written) == 2:
                db.sql("UPDATE queen.operation_queue SET status = 'completed'")

        monkeypatch.setattr(promotion, "time", SimpleNamespace(sleep=stored_meanwhile))
        options = WriteOptions(url=db.url, queue="orders")
        staged = stage(options, "s", 1, iter(numbers(spark, 30).toArrow().to_batches()))
        assert promote(options, "s", 1, [staged]) == (30, 0)
        assert written == [3, 3]
        db.assert_healthy("orders")
        db.sql("UPDATE queen.operation_queue SET status = 'pending'")
        staged = stage(options, "s", 2, iter(numbers(spark, 30).toArrow().to_batches()))
        monkeypatch.setattr(promotion, "BUSY_TRIES", 1)
        with pytest.raises(PartitionsBusy):
            promote(options, "s", 2, [staged])

    def test_a_full_queue_takes_nothing(self, spark: Any, db: Db) -> None:
        db.fill("orders", 1, 5)
        db.make("orders", max_size=10)
        assert 'full (maxSize), nothing was written: ["orders"]' in refused(numbers(spark, 6), db.url, "orders")
        assert db.count("orders") == 5
        write(numbers(spark, 5), db.url, "orders")
        assert db.count("orders") == 10


def fail_at_the_end() -> Any:
    """Made here, so that it travels to the workers as it is: they do not have the tests."""

    def fail(rows: Any) -> Any:
        yield from rows
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("injected: after the rows were written")

    return fail


def insert_naively(url: str) -> Any:
    def insert(rows: Any) -> Any:
        with psycopg.connect(url, autocommit=True) as connection:
            for row in rows:
                connection.execute("INSERT INTO naive VALUES (%s)", (row["value"],))
                yield row

    return insert


def test_wrong_frames_are_told_before_any_work(spark: Any, db: Db) -> None:
    rows = spark.createDataFrame([(1, "a")], "value int, colour string")
    assert "to_json makes text" in refused(rows.select("value"), db.url, "q")
    assert "need a column value" in refused(rows.select("colour"), db.url, "q")
    assert "unknown column 'colour'" in refused(rows.selectExpr("string(value)", "colour"), db.url, "q")


def test_encrypted_queues(spark: Any, db: Db) -> None:
    db.make("secret", encryption_enabled=True)
    frame = spark.createDataFrame([("1",)], "value string")
    assert "demands encrypted payloads" in refused(frame, db.url, "secret")
    write(frame, db.url, "secret", encryptionKey=KEY.hex())
    [(payload, flag, key)] = db.sql("SELECT payload, is_encrypted, transaction_id FROM queen.messages")
    assert flag
    assert PayloadKeys([KEY]).decrypt(bytes(payload), Place("secret", "Default", key)) == b"1"
    assert read(spark, db.url, "secret", encryptionKey=KEY.hex()).first()["value"] == "1"


def test_a_copy_equals_its_source(spark: Any, db: Db) -> None:
    db.fill("orders", 5, 3000)
    copied = read(spark, db.url, "orders", minPartitions=3).select("value", "partition", "transactionId")
    write(copied, db.url, "copy")
    db.assert_copied("orders", "copy")
    assert json.dumps(db.partitions("copy", "m.transaction_id")) == json.dumps(
        db.partitions("orders", "m.transaction_id")
    )
