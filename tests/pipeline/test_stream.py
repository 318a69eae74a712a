"""Streams: progress in the checkpoint, new partitions, bounds, and exactly once over restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pipeline.db import Db
from queenmq.pipeline import read_stream, write_stream
from queenmq.pipeline.errors import explained
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.stream import StreamReader


def copy(spark: Any, db: Db, checkpoint: Path, **options: Any) -> Any:
    """Copy what is there to the queue `copy`; returns the ended query."""
    options = {"startingOffsets": "earliest"} | options
    found = read_stream(spark, db.url, "orders", **options).select("value", "partition")
    query = write_stream(found, db.url, "copy", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(120)
    return query


def batches(query: Any) -> list[int]:
    return [int(one["numInputRows"]) for one in query.recentProgress if one["numInputRows"]]


def test_a_stream_goes_on_where_it_was_and_new_partitions_join(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 3, 100)
    copy(spark, db, tmp_path)
    db.assert_copied("orders", "copy")
    db.fill("orders", 3, 10)
    db.fill("orders", 2, 10, first=3)
    copy(spark, db, tmp_path)
    db.assert_copied("orders", "copy")
    copy(spark, db, tmp_path)
    db.assert_copied("orders", "copy")


def test_a_trigger_is_bounded(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 3, 100)
    query = copy(spark, db, tmp_path, maxOffsetsPerTrigger=70)
    assert max(batches(query)) <= 70
    assert sum(batches(query)) == 300
    db.assert_copied("orders", "copy")


def test_an_epoch_that_is_replayed_writes_nothing_twice(spark: Any, db: Db, tmp_path: Path) -> None:
    """The driver died after PostgreSQL had committed the epoch and before Spark wrote it down."""
    db.fill("orders", 2, 50)
    copy(spark, db, tmp_path, maxOffsetsPerTrigger=40)
    newest = max(
        (file for file in (tmp_path / "commits").iterdir() if file.name.isdecimal()), key=lambda f: int(f.name)
    )
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    db.fill("orders", 2, 5)
    copy(spark, db, tmp_path, maxOffsetsPerTrigger=40)
    db.assert_copied("orders", "copy")


def test_latest_is_the_usual_start(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 1, 5)
    query = copy(spark, db, tmp_path, startingOffsets="latest")
    assert batches(query) == []
    db.fill("orders", 1, 5)
    db.fill("orders", 1, 3, first=1)
    copy(spark, db, tmp_path)
    assert {name: len(lane) for name, lane in db.lanes("copy").items()} == {"p0": 5, "p1": 3}


class TestReader:
    """The reader as Spark calls it."""

    def reader(self, db: Db, **changes: Any) -> StreamReader:
        return StreamReader(ReadOptions(url=db.url, queue="orders", **changes), ["partition", "offset"])

    def read(self, reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> int:
        return sum(b.num_rows for task in reader.partitions(start, end) for b in reader.read(task))

    def test_a_hundred_thousand_partitions_are_planned_quickly(self, db: Db) -> None:
        db.fill("orders", 20_000, 1)
        reader = self.reader(db)
        begin = {"queue": reader.initialOffset()["queue"], "offsets": {}}
        end = reader.latestOffset(begin, ReadAllAvailable())
        assert len(json.dumps(end)) < 100_000
        assert len(reader.partitions(begin, end)) < 20
        assert self.read(reader, begin, end) == 20_000
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        db.fill("orders", 1, 3)
        more = reader.latestOffset(end, ReadMaxRows(2))
        assert [task.task.offsets for task in reader.partitions(end, more)] == [2]
        reader.stop()

    def test_deleted_messages_are_told(self, db: Db) -> None:
        db.fill("orders", 1, 10)
        reader = self.reader(db)
        start = reader.initialOffset()
        moved = reader.latestOffset(start, ReadMaxRows(2))
        db.sql("SELECT queen.trim(id, 5) FROM queen.partitions WHERE name = 'p0'")
        with pytest.raises(Exception, match="3 of partition number"):
            reader.latestOffset(moved, ReadAllAvailable())
        lenient = self.reader(db, fail_on_data_loss=False)
        assert self.read(lenient, moved, lenient.latestOffset(moved, ReadAllAvailable())) == 5
        reader.stop()
        lenient.stop()

    def test_a_queue_made_anew_is_told(self, db: Db) -> None:
        db.fill("orders", 1, 10)
        reader = self.reader(db)
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        db.sql("DELETE FROM queen.queues")
        db.fill("orders", 1, 3)
        with pytest.raises(Exception, match="deleted and made anew"):
            reader.latestOffset(start, ReadAllAvailable())
        lenient = self.reader(db, fail_on_data_loss=False)
        end = lenient.latestOffset(start, ReadAllAvailable())
        assert self.read(lenient, start, end) == 3
        reader.stop()
        lenient.stop()

    def test_a_lost_connection_is_made_again(self, db: Db) -> None:
        db.fill("orders", 1, 10)
        reader = self.reader(db)
        start = reader.initialOffset()
        db.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'queen pipeline'")
        assert reader.latestOffset(start, ReadAllAvailable()) != start
        reader.stop()


def test_an_unknown_queue_is_told(spark: Any, db: Db, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no queue 'orders'") as raised:
        copy(spark, db, tmp_path)
    assert "there is no queue 'orders'" in explained(raised.value).message
