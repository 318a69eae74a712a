"""audit: nothing on a healthy system, and every planted fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.db import Db
from queenmq.pipeline.jobs import archive as archiving
from queenmq.pipeline.jobs.audit import Settings, audit
from queenmq.pipeline.runs import Run


@pytest.fixture
def lake(spark: Any, db: Db, tmp_path: Path) -> Path:
    db.fill("orders", 4, 50)
    db.sql("SELECT queen.subscribe('orders', NULL, 'g', 'all', NULL)")
    with Run(db.url, "archive", "orders", "local", {}) as recorded:
        archiving.archive(spark, archiving.Settings(url=db.url, queue="orders", lake=str(tmp_path)), recorded)
    db.fill("orders", 4, 5)
    return tmp_path


def findings(spark: Any, db: Db, lake: Path, plot: Path | None = None) -> list[str]:
    settings = Settings(db.url, "orders", str(lake), None if plot is None else str(plot))
    with Run(db.url, "audit", "orders", "local", {}) as recorded:
        outcome = audit(spark, settings, recorded)
    assert outcome.ok == (not outcome.summary["findings"])
    return outcome.summary["findings"]


def partition(db: Db, name: str) -> str:
    return db.one("SELECT id::text FROM queen.partitions WHERE name = %s", name)


def test_a_healthy_system_has_no_findings(spark: Any, db: Db, lake: Path) -> None:
    assert findings(spark, db, lake, lake / "plot.png") == []
    assert (lake / "plot.png").read_bytes().startswith(b"\x89PNG")
    db.sql("SELECT queen.trim(id, 20) FROM queen.partitions WHERE name = 'p1'")
    assert findings(spark, db, lake) == []
    assert db.sql("SELECT state FROM queen.pipeline_runs WHERE job = 'audit'") == [("finished",), ("finished",)]


def test_planted_faults_are_found(spark: Any, db: Db, lake: Path) -> None:
    """A fault in each partition: nothing else is reported, and none is missed."""
    delete = 'DELETE FROM queen.messages WHERE partition_id = %s::uuid AND "offset"'
    db.sql(f"{delete} IN (1, 17, 55)", partition(db, "p0"))
    db.sql(
        "INSERT INTO queen.messages (partition_id, id, payload) SELECT partition_id, id, payload FROM queen.messages "
        'WHERE partition_id = %s::uuid AND "offset" = 3',
        partition(db, "p1"),
    )
    db.sql(
        "UPDATE queen.messages SET payload = '0' WHERE partition_id = %s::uuid AND \"offset\" = 3", partition(db, "p2")
    )
    db.sql("UPDATE queen.partition_lookup SET last_offset = 50 WHERE partition_id = %s::uuid", partition(db, "p3"))
    db.sql("UPDATE queen.partition_consumers SET position = 99 WHERE partition_id = %s::uuid", partition(db, "p1"))
    db.sql("UPDATE queen.partition_consumers SET position = 20 WHERE partition_id = %s::uuid", partition(db, "p2"))
    db.sql("SELECT queen.bury_message(%s::uuid, '7', 'bad')", partition(db, "p3"))
    db.sql("DELETE FROM queen.dead_letter_queue")
    found = findings(spark, db, lake)
    assert [one for one in found if not one.startswith("doubled")] == [
        "partition_lookup: p3: last offset is 50, the newest message has 55",
        "group: p1, group g: position 99 is behind the last offset 56",
        "group: p2, group g: of 20 offsets up to position 20 and beyond it 20 are not accounted for: "
        "neither finished, nor dead letters, nor passed over",
        "dead letters: p3, group g: the dead letter of offset 7 is missing",
        "offsets: p0: 1 is missing",
        "offsets: p0: 17 is missing",
        "offsets: p0: 55 is missing",
        "archive: p0: 48 messages are stored and 50 archived of the same offsets",
        "archive: p2: messages differ between source and archive",
    ]
    [doubled] = [one for one in found if one.startswith("doubled")]
    assert doubled.startswith("doubled: p1: message id")
    assert doubled.endswith("[3, 56]")
    assert db.one("SELECT state FROM queen.pipeline_runs WHERE job = 'audit'") == "failed"


def test_a_damaged_file(spark: Any, db: Db, lake: Path) -> None:
    [file] = lake.rglob("*.parquet")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    found = findings(spark, db, lake)
    assert found[0].endswith("the file is damaged")
    assert "archive: p0: it ends at 0, its position is 50" in found


def test_a_file_that_is_published_twice_and_one_that_is_missing(spark: Any, db: Db, lake: Path) -> None:
    [file] = lake.rglob("*.parquet")
    file.with_name("copy.parquet").write_bytes(file.read_bytes())
    db.sql(
        "INSERT INTO queen.archive_files (lake, queue_name, path, run_id, rows, bytes, digest, first_at, last_at) "
        "SELECT lake, queue_name, regexp_replace(path, '[^/]*$', 'copy.parquet'), run_id, rows, bytes, digest, "
        "first_at, last_at FROM queen.archive_files"
    )
    missing = (
        "INSERT INTO queen.archive_files (lake, queue_name, path, run_id, rows, bytes, digest, first_at, last_at) "
    )
    db.sql(
        missing
        + "SELECT lake, queue_name, 'gone', run_id, 0, 0, '', first_at, last_at FROM queen.archive_files LIMIT 1"
    )
    found = findings(spark, db, lake)
    assert "archive: gone: the file is missing" in found
    assert "archive: p0: 50 messages are there twice" in found
