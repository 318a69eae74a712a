"""analytics: rows by queue, group and minute."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.db import Db
from queenmq.pipeline.jobs.analytics import Settings, sample
from queenmq.pipeline.runs import Run

NOW = datetime.now(UTC).replace(second=0, microsecond=0)


def run(spark: Any, db: Db, now: datetime, **changes: Any) -> None:
    with Run(db.url, "analytics", None, "local", {}) as recorded:
        sample(spark, Settings(db.url, **changes), recorded, now)


def minutes(db: Db, group: str, *columns: str) -> list[tuple[Any, ...]]:
    return db.sql(
        f"SELECT {', '.join(columns)} FROM queen.pipeline_analytics WHERE queue_name = 'orders' "
        "AND consumer_group = %s ORDER BY minute",
        group,
    )


def test_arrivals_groups_and_dead_letters(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 3, 10)
    db.fill("orders", 1, 30)
    at = NOW - timedelta(minutes=3)
    db.sql("UPDATE queen.messages SET created_at = %s", at + timedelta(seconds=5))
    db.sql("UPDATE queen.partition_lookup SET last_message_at = %s", at + timedelta(seconds=5))
    db.sql("SELECT queen.subscribe('orders', NULL, 'g', 'all', NULL)")
    run(spark, db, NOW, lake=str(tmp_path))
    assert minutes(db, "", "arrived")[0] == (60,)
    [(hottest, skew)] = minutes(db, "", "hottest", "skew")[:1]
    assert hottest[0] == {"partition": "p0", "arrived": 40}
    assert skew == 2.0
    assert minutes(db, "g", "lag", "consumed", "retries") == [(60, 0, 0)]
    db.sql(
        "UPDATE queen.partition_consumers SET position = 4, total_consumed = 4, attempts = 1, last_consumed_at = %s",
        at + timedelta(minutes=3, seconds=10, milliseconds=500),
    )
    db.sql("SELECT queen.bury(id, 'g', '{[3,5)}', 'poison', NULL) FROM queen.partitions")
    db.sql("UPDATE queen.dead_letter_queue SET failed_at = %s", NOW)
    run(spark, db, NOW + timedelta(minutes=1), lake=str(tmp_path))
    assert minutes(db, "g", "lag", "consumed", "retries", "dead_letters")[-1] == (48, 12, 3, None)
    assert minutes(db, "g", "dead_letters", "reasons")[0] == (6, {"poison": 6})
    assert minutes(db, "g", "latency_ms")[-1][0]["p50"] == 185_500
    tables = [pq.read_table(path) for path in sorted(tmp_path.rglob("*.parquet"))]
    assert sum(table.num_rows for table in tables) >= 4


def test_each_minute_of_a_group_is_in_one_file_of_the_lake(spark: Any, db: Db, tmp_path: Path) -> None:
    """Whether a run comes right after the one before, in the same minute, or after more than it looks back."""
    db.fill("orders", 1, 100)
    db.sql("SELECT queen.subscribe('orders', NULL, 'g', 'all', NULL)")
    consumed = 0
    for minute in (0, 1, 1, 2, 5, 90, 91):
        db.sql("UPDATE queen.partition_consumers SET position = %s, total_consumed = %s", consumed, consumed)
        run(spark, db, NOW + timedelta(minutes=minute), lake=str(tmp_path))
        consumed += 10
    last = NOW + timedelta(minutes=91)
    read = pa.concat_tables([pq.read_table(path) for path in tmp_path.rglob("*.parquet")]).to_pylist()
    found = sorted((one["group"], one["minute"], one["consumed"]) for one in read)
    wanted = db.sql(
        "SELECT consumer_group, minute, consumed FROM queen.pipeline_analytics WHERE minute < %s ORDER BY 1, 2", last
    )
    assert found == wanted
    assert sum(one or 0 for *_, one in found) == 50


def test_what_a_run_without_the_lake_has_stored_is_in_the_lake_after_the_next_one(
    spark: Any, db: Db, tmp_path: Path
) -> None:
    """Somebody looks by hand, or into another lake, while a declared pipeline fills this one."""
    db.fill("orders", 1, 10)
    ours, other = str(tmp_path / "ours"), str(tmp_path / "other")
    for minute, lake in ((1, ours), (2, None), (3, other), (4, ours), (5, other), (6, ours)):
        run(spark, db, NOW + timedelta(minutes=minute), lake=lake)
    for place, last in ((ours, 6), (other, 5)):
        read = pa.concat_tables([pq.read_table(path) for path in Path(place).rglob("*.parquet")]).to_pylist()
        until = NOW + timedelta(minutes=last)
        wanted = db.sql("SELECT minute, arrived FROM queen.pipeline_analytics WHERE minute < %s ORDER BY 1", until)
        assert sorted((one["minute"], one["arrived"]) for one in read) == wanted, place


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


def test_minutes_are_those_of_utc_wherever_the_driver_is(spark: Any, db: Db, tokyo: None) -> None:
    db.fill("orders", 1, 10)
    [pushed] = db.sql("SELECT DISTINCT date_trunc('minute', created_at) FROM queen.messages")
    run(spark, db, pushed[0] + timedelta(minutes=2))
    arrived = minutes(db, "", "minute", "arrived")
    assert [one for one in arrived if one[1]] == [(pushed[0], 10)]
    assert arrived[-1][0] == pushed[0] + timedelta(minutes=1)


def test_a_second_look_at_the_same_minute_changes_nothing(spark: Any, db: Db) -> None:
    db.fill("orders", 1, 10)
    at = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    run(spark, db, at)
    before = db.sql("SELECT * FROM queen.pipeline_analytics ORDER BY 1, 2, 3")
    run(spark, db, at)
    assert db.sql("SELECT * FROM queen.pipeline_analytics ORDER BY 1, 2, 3") == before
    assert sum(arrived for (arrived,) in minutes(db, "", "arrived")) == 10


def test_figures_and_their_file_are_published_together(spark: Any, db: Db, tmp_path: Path) -> None:
    """A lake that cannot be written: the minutes are not taken for done, and the next run has them in both."""
    db.fill("orders", 1, 10)
    at = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    lake = tmp_path / "lake"
    lake.write_text("in the way")
    with pytest.raises(Exception, match="lake"):
        run(spark, db, at, lake=str(lake))
    assert minutes(db, "", "arrived") == []
    lake.unlink()
    run(spark, db, at, lake=str(lake))
    [file] = lake.rglob("*.parquet")
    assert sum(pq.read_table(file).column("arrived").to_pylist()) == sum(n for (n,) in minutes(db, "", "arrived")) == 10
