"""Streams: progress in the checkpoint, new partitions, bounds, and exactly once over restarts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pipeline.db import Db
from queenmq.pipeline import read_stream, write_stream
from queenmq.pipeline.errors import DataLost, explained
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


def test_a_checkpoint_of_yesterday_is_refused(spark: Any, db: Db, tmp_path: Path) -> None:
    """Its next batch has the number of one that was written, and holds other messages."""
    checkpoint, yesterday = tmp_path / "checkpoint", tmp_path / "yesterday"
    db.fill("orders", 1, 10)
    copy(spark, db, checkpoint)
    shutil.copytree(checkpoint, yesterday)
    db.fill("orders", 1, 10)
    copy(spark, db, checkpoint)
    db.fill("orders", 1, 10)
    with pytest.raises(Exception, match=r"batch 1 .* was written before with other messages"):
        copy(spark, db, yesterday)
    assert db.count("copy") == 20, "nothing is written until it is decided what shall be done"
    copy(spark, db, checkpoint)
    db.assert_copied("orders", "copy")
    found = read_stream(spark, db.url, "orders", startingOffsets="earliest").select("value", "partition")
    again = write_stream(found, db.url, "copy", str(yesterday), streamName="after the restore").trigger(
        availableNow=True
    )
    again.start().awaitTermination(120)
    assert db.count("copy") == 30 + 20, "what the old copy does not know of is written once more, because it was asked"


def test_latest_is_the_usual_start(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 1, 5)
    query = copy(spark, db, tmp_path, startingOffsets="latest")
    assert batches(query) == []
    db.fill("orders", 1, 5)
    db.fill("orders", 1, 3, first=1)
    copy(spark, db, tmp_path)
    assert {name: len(partition) for name, partition in db.partitions("copy").items()} == {"p0": 5, "p1": 3}


def drop(db: Db, name: str, by: str) -> None:
    """The partition goes: emptied and dropped by retention, or deleted in a psql session."""
    if by == "hand":
        db.sql("DELETE FROM queen.partitions WHERE name = %s", name)
        return
    db.sql("SELECT queen.trim(id, 1000000) FROM queen.partitions WHERE name = %s", name)
    db.sql("UPDATE queen.partitions SET created_at = '2020-01-01' WHERE name = %s", name)
    for table, column in (("partition_lookup", "last_message_at"), ("partition_ages", "idle_since")):
        db.sql(
            f"UPDATE queen.{table} SET {column} = '2020-01-01' "
            "WHERE partition_id = (SELECT id FROM queen.partitions WHERE name = %s)",
            name,
        )
    assert db.sql("SELECT partition_name FROM queen.drop_idle_partitions(now(), 100)") == [(name,)]


def go_back(db: Db, name: str, upto: int) -> None:
    """The partition as an older backup of the database has it."""
    db.sql(
        "DELETE FROM queen.messages m USING queen.partitions p WHERE p.name = %s AND m.partition_id = p.id "
        'AND m."offset" > %s',
        name,
        upto,
    )
    db.sql(
        "UPDATE queen.partition_lookup l SET last_offset = %s, last_message_id = NULL FROM queen.partitions p "
        "WHERE p.name = %s AND l.partition_id = p.id",
        upto,
        name,
    )


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
        with pytest.raises(Exception, match="3 of partition 'p0'"):
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
        with pytest.raises(Exception, match="deleted and created again"):
            reader.latestOffset(start, ReadAllAvailable())
        lenient = self.reader(db, fail_on_data_loss=False)
        end = lenient.latestOffset(start, ReadAllAvailable())
        assert self.read(lenient, start, end) == 3
        reader.stop()
        lenient.stop()

    def offsets(self, reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for task in reader.partitions(start, end):
            for batch in reader.read(task):
                for row in batch.to_pylist():
                    found.setdefault(row["partition"], []).append(row["offset"])
        return found

    @pytest.mark.parametrize("by", ["retention", "hand"])
    @pytest.mark.parametrize("read", [0, 3])
    def test_a_partition_that_was_dropped_unread_is_told(self, db: Db, by: str, read: int) -> None:
        db.fill("orders", 1, 5, first=1)
        reader = self.reader(db)
        begin = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        db.fill("orders", 1, 10)
        start = reader.latestOffset(begin, ReadMaxRows(read)) if read else begin
        reader.stop()
        drop(db, "p0", by)
        db.fill("orders", 1, 5, first=1)
        again = self.reader(db)
        with pytest.raises(DataLost, match=rf"{10 - read} of partition 'p0', which was dropped"):
            again.latestOffset(start, ReadAllAvailable())
        again.stop()
        lenient = self.reader(db, fail_on_data_loss=False)
        end = lenient.latestOffset(start, ReadAllAvailable())
        assert self.offsets(lenient, start, end) == {"p1": [6, 7, 8, 9, 10]}
        assert lenient.latestOffset(end, ReadAllAvailable()) == end
        lenient.stop()

    @pytest.mark.parametrize("by", ["retention", "hand"])
    def test_a_partition_that_was_dropped_when_it_was_read_is_none_of_our_business(self, db: Db, by: str) -> None:
        db.fill("orders", 2, 10)
        reader = self.reader(db)
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        drop(db, "p0", by)
        end = reader.latestOffset(start, ReadAllAvailable())
        assert self.offsets(reader, start, end) == {}
        db.fill("orders", 1, 4)
        after = reader.latestOffset(end, ReadAllAvailable())
        assert self.offsets(reader, end, after) == {"p0": [1, 2, 3, 4]}, "a new partition of the same name is another"
        reader.stop()

    def test_a_partition_of_an_old_checkpoint_that_left_no_record_is_told(self, db: Db) -> None:
        db.fill("orders", 2, 10)
        reader = self.reader(db)
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        old = {"queue": start["queue"], "offsets": start["offsets"] | {"4711": 5}}
        with pytest.raises(DataLost, match=r"partition number 4711, .* no record"):
            reader.latestOffset(old, ReadAllAvailable())
        reader.stop()

    def test_records_of_drops_that_are_not_kept_any_more_are_missed(self, db: Db) -> None:
        """A stream that was away for longer than records are kept cannot know what it has lost."""
        db.fill("orders", 1, 5, first=9)
        reader = self.reader(db)
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        for name in ("p0", "p1", "p2"):
            db.fill("orders", 1, 2, first=int(name[1:]))
            drop(db, name, "retention")
        db.sql("UPDATE queen.dropped_partitions SET dropped_at = dropped_at - interval '89 days'")
        db.sql("SELECT queen.drop_idle_partitions('2000-01-01', 100)")
        assert db.one("SELECT count(*) FROM queen.dropped_partitions") == 3
        db.sql("UPDATE queen.dropped_partitions SET dropped_at = dropped_at - interval '2 days'")
        db.sql("SELECT queen.drop_idle_partitions('2000-01-01', 100)")
        assert db.sql("SELECT name, forgotten FROM queen.dropped_partitions") == [("p2", True)]
        with pytest.raises(DataLost, match="dropped before 'p2': their records are no longer kept"):
            reader.latestOffset(start, ReadAllAvailable())
        fresh = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert reader.latestOffset(fresh, ReadAllAvailable()) == fresh
        reader.stop()
        db.sql("DELETE FROM queen.queues")
        assert db.one("SELECT count(*) FROM queen.dropped_partitions") == 0

    def test_a_database_of_yesterday_is_told(self, db: Db) -> None:
        db.fill("orders", 2, 10)
        reader = self.reader(db)
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        reader.stop()
        go_back(db, "p0", 7)
        again = self.reader(db)
        with pytest.raises(DataLost, match=r"partition 'p0' ends at 7, .* read up to 10"):
            again.latestOffset(start, ReadAllAvailable())
        lenient = self.reader(db, fail_on_data_loss=False)
        db.fill("orders", 1, 1, first=1)
        end = lenient.latestOffset(start, ReadAllAvailable())
        assert self.offsets(lenient, start, end) == {"p1": [11]}
        db.fill("orders", 1, 2)
        more = lenient.latestOffset(end, ReadAllAvailable())
        assert self.offsets(lenient, end, more) == {"p0": [8, 9]}
        lenient.stop()
        again.stop()

    def test_a_database_of_yesterday_that_has_grown_since_is_told(self, db: Db) -> None:
        db.fill("orders", 2, 10)
        reader = self.reader(db)
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        reader.stop()
        go_back(db, "p0", 7)
        db.fill("orders", 1, 5)
        again = self.reader(db)
        with pytest.raises(DataLost, match=r"offset 10 of partition 'p0' is another message"):
            again.latestOffset(start, ReadAllAvailable())
        lenient = self.reader(db, fail_on_data_loss=False)
        end = lenient.latestOffset(start, ReadAllAvailable())
        assert self.offsets(lenient, start, end) == {"p0": [11, 12]}
        assert lenient.latestOffset(end, ReadAllAvailable()) == end
        lenient.stop()
        again.stop()

    def test_partitions_that_are_left_out_for_a_while_keep_their_place(self, db: Db) -> None:
        db.fill("orders", 2, 10)
        everything = self.reader(db)
        start = everything.latestOffset(everything.initialOffset(), ReadAllAvailable())
        db.fill("orders", 2, 1)
        narrow = self.reader(db, partitions=frozenset({"p0"}))
        middle = narrow.latestOffset(start, ReadAllAvailable())
        assert self.offsets(narrow, start, middle) == {"p0": [11]}
        end = everything.latestOffset(middle, ReadAllAvailable())
        assert self.offsets(everything, middle, end) == {"p1": [11]}
        narrow.stop()
        everything.stop()

    def test_a_message_deleted_by_hand_is_no_loss(self, db: Db) -> None:
        db.fill("orders", 1, 10)
        reader = self.reader(db)
        start = reader.initialOffset()
        for one in ("1", "5", "6"):
            db.delete_message("p0", one)
        end = reader.latestOffset(start, ReadAllAvailable())
        assert self.offsets(reader, start, end) == {"p0": [2, 3, 4, 7, 8, 9, 10]}
        db.sql("DELETE FROM queen.messages WHERE transaction_id = '8'")
        with pytest.raises(DataLost, match=r"1 messages of queue 'orders', partition 'p0', .* offset 8"):
            self.offsets(reader, start, end)
        reader.stop()

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
