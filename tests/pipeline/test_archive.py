"""archive: every message in a published file once, whatever happens, and retention waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.db import Db
from queenmq.pipeline import archived
from queenmq.pipeline.connection import connection, rows
from queenmq.pipeline.errors import BadOption, PipelineError
from queenmq.pipeline.jobs import archive as archiving
from queenmq.pipeline.jobs import audit
from queenmq.pipeline.jobs.archive import Settings, archive, plan_round, publish, run_round, write_slice
from queenmq.pipeline.lake import Lake, sweep
from queenmq.pipeline.lake_proof import marked
from queenmq.pipeline.planning import Range, Slice
from queenmq.pipeline.runs import Run
from queenmq.storage.statements import statement

RETAIN = "SELECT deleted FROM queen.retain((SELECT id FROM queen.queues WHERE name = 'orders'), NULL, 1000)"


def run(spark: Any, db: Db, lake: Path, **changes: Any) -> dict[str, Any]:
    settings = Settings(url=db.url, queue="orders", lake=str(lake), **changes)
    with Run(db.url, "archive", "orders", "local", {}) as recorded:
        return archive(spark, settings, recorded).summary


def test_positions_are_found_without_statistics_of_the_queue(db: Db) -> None:
    """Those of a queue that was made just now: PostgreSQL has only looked at another one, and takes it for empty."""
    count = 2000
    db.sql("ALTER TABLE queen.partitions SET (autovacuum_enabled = off)")
    db.sql("ALTER TABLE queen.archive_positions SET (autovacuum_enabled = off)")
    for queue in ("before", "orders"):
        db.make(queue)
        db.sql(
            "INSERT INTO queen.partitions (queue_id, name) SELECT q.id, n::text FROM queen.queues q, "
            "generate_series(1, %s) n WHERE q.name = %s",
            count,
            queue,
        )
        db.sql(
            "INSERT INTO queen.archive_positions (lake, partition_id, position) SELECT q.name, p.id, 1 "
            "FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = %s",
            queue,
        )
        if queue == "before":
            db.sql("ANALYZE queen.partitions, queen.archive_positions")
    queue_id = db.one("SELECT id FROM queen.queues WHERE name = 'orders'")
    with connection(db.url) as opened:
        found = rows(opened, "archive_positions", "orders", queue_id)
        assert len(found) == count
        assert {position for _, position in found} == {1}
        assert rows(opened, "archive_positions", "before", queue_id) == []
        explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement('archive_positions')}"
        [([plan],)] = opened.execute(explained, ("orders", queue_id)).fetchall()
    assert looked_at(plan["Plan"]) < 10 * count


def looked_at(plan: dict[str, Any]) -> float:
    """The rows that all steps of a plan have given or thrown away."""
    thrown = sum(value for name, value in plan.items() if name.startswith("Rows Removed by"))
    here = (plan["Actual Rows"] + thrown) * plan["Actual Loops"]
    return here + sum(looked_at(part) for part in plan.get("Plans", []))


def keys(spark: Any, db: Db, lake: Path) -> list[tuple[str, int]]:
    found = archived(spark, db.url, "orders", str(lake)).select("partition", "offset").collect()
    return sorted((row["partition"], row["offset"]) for row in found)


def findings(spark: Any, db: Db, lake: Path) -> list[str]:
    with Run(db.url, "audit", "orders", "local", {}) as recorded:
        return audit.audit(spark, audit.Settings(db.url, "orders", str(lake)), recorded).summary["findings"]


def stored(db: Db) -> list[tuple[str, int]]:
    return sorted(
        (name, offset) for name, partition in db.partitions("orders", 'm."offset"').items() for offset in partition
    )


def test_incrementally_and_once(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 5, 100)
    assert run(spark, db, tmp_path)["messages"] == 500
    assert keys(spark, db, tmp_path) == stored(db)
    assert run(spark, db, tmp_path)["messages"] == 0
    db.fill("orders", 5, 10)
    db.fill("orders", 1, 10, first=5)
    assert run(spark, db, tmp_path)["messages"] == 60
    assert keys(spark, db, tmp_path) == stored(db)
    one = archived(spark, db.url, "orders", str(tmp_path)).where("partition = 'p3' AND offset = 7").first()
    source = db.sql(
        "SELECT m.id::text, m.transaction_id, convert_from(m.payload, 'UTF8') FROM queen.messages m "
        "JOIN queen.partitions p ON p.id = m.partition_id WHERE p.name = 'p3' AND m.\"offset\" = 7"
    )
    assert [(one["messageId"], one["transactionId"], one["value"])] == source
    rows = db.sql("SELECT state, rows FROM queen.pipeline_runs ORDER BY started_at")
    assert rows == [("finished", 500), ("finished", 0), ("finished", 60)]


def test_files_lie_by_queue_and_day_and_are_bounded(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 2, 4000, padding=2000)
    db.sql("UPDATE queen.messages SET created_at = '2026-01-01T12:00Z' WHERE \"offset\" <= 2000")
    run(spark, db, tmp_path, file_bytes=2_000_000)
    days = {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet")}
    today = db.one("SELECT max(created_at)::date::text FROM queen.messages")
    assert days == {"queue=orders/date=2026-01-01", f"queue=orders/date={today}"}
    assert len(list(tmp_path.rglob("*.parquet"))) >= 4
    assert keys(spark, db, tmp_path) == stored(db)


def test_rounds_are_published_one_by_one(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 3, 100)
    run(spark, db, tmp_path, round_offsets=130)
    assert keys(spark, db, tmp_path) == stored(db)
    assert db.one("SELECT count(DISTINCT published_at) FROM queen.archive_files") == 3


def test_messages_deleted_by_hand_do_not_stop_it(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 2, 10)
    for one in ("1", "4", "5", "10"):
        db.delete_message("p0", one)
    assert run(spark, db, tmp_path)["messages"] == 16
    assert keys(spark, db, tmp_path) == stored(db)
    db.fill("orders", 1, 3)
    for one in ("11", "12", "13"):
        db.delete_message("p0", one)
    assert run(spark, db, tmp_path)["messages"] == 0
    db.fill("orders", 1, 3)
    db.delete_message("p1", "3")
    assert run(spark, db, tmp_path)["messages"] == 3
    assert findings(spark, db, tmp_path) == []
    db.sql("SELECT queen.trim(id, 6) FROM queen.partitions")
    assert findings(spark, db, tmp_path) == [], "what is known of gaps does not go with the messages"
    db.sql("DELETE FROM queen.messages WHERE transaction_id = '15'")
    assert findings(spark, db, tmp_path) == [
        "offsets: p0: 15 is missing",
        "archive: p0: 5 messages are stored and 6 archived of the same offsets",
    ]


def test_messages_that_are_lost_stop_it_until_they_are_given_up(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 2, 10)
    db.delete_message("p1", "2")
    db.sql("DELETE FROM queen.messages WHERE transaction_id IN ('7', '8')")
    with pytest.raises(Exception, match=r"4 messages .* offsets 7 to 8.*queen pipeline accept-gaps --queue orders"):
        run(spark, db, tmp_path)
    accepted = db.sql("SELECT * FROM queen.accept_gaps('orders', NULL) ORDER BY 1")
    assert accepted == [("p0", 7, 8), ("p1", 7, 8)]
    assert db.sql("SELECT * FROM queen.accept_gaps('orders', NULL)") == []
    assert db.sql("SELECT holes FROM queen.partition_lookup ORDER BY 1") == [(2,), (3,)]
    assert run(spark, db, tmp_path)["messages"] == 15
    assert findings(spark, db, tmp_path) == []


def test_schemas_may_change(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 1, 2)
    run(spark, db, tmp_path)
    db.fill("orders", 1, 2)
    run(spark, db, tmp_path, schema="n BIGINT")
    found = archived(spark, db.url, "orders", str(tmp_path)).orderBy("offset").select("data.n").collect()
    assert [row["n"] for row in found] == [None, None, 3, 4]


def test_types_may_become_wider(spark: Any, db: Db, tmp_path: Path) -> None:
    """Everything that reads the lake reads both."""
    for schema in ("n INT, p INT", "n DOUBLE", "n BIGINT, pad STRING"):
        db.fill("orders", 1, 2)
        run(spark, db, tmp_path, schema=schema)
    found = archived(spark, db.url, "orders", str(tmp_path)).orderBy("offset").select("data.n", "data.p", "data.pad")
    assert found.schema["n"].dataType.simpleString() == "double"
    assert [tuple(row) for row in found.collect()] == [
        (1.0, 0, None),
        (2.0, 0, None),
        (3.0, None, None),
        (4.0, None, None),
        (5.0, None, ""),
        (6.0, None, ""),
    ]
    assert findings(spark, db, tmp_path) == []


def test_a_type_that_does_not_fit_is_refused_before_anything_is_written(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 1, 2)
    run(spark, db, tmp_path, schema="n INT")
    db.fill("orders", 1, 2)
    with pytest.raises(BadOption, match=r"the field n is int there and struct<a:int> here. Nothing was archived"):
        run(spark, db, tmp_path, schema="n STRUCT<a: INT>")
    assert len(keys(spark, db, tmp_path)) == 2
    run(spark, db, tmp_path, schema="n DOUBLE")
    assert keys(spark, db, tmp_path) == stored(db)


def test_files_of_a_run_that_died_do_not_count_and_are_swept(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 2, 50)
    settings = Settings(url=db.url, queue="orders", lake=str(tmp_path))
    lake = Lake(str(tmp_path))
    with connection(db.url) as opened:
        queue_id = db.one("SELECT id::text FROM queen.queues")
        until = dict(
            db.sql(
                "SELECT p.number, l.last_offset FROM queen.partitions p JOIN queen.partition_lookup l "
                "ON l.partition_id = p.id"
            )
        )
        plan = plan_round(opened, lake, queue_id, until, 1000)
        with marked(lake, "orders", "dead"):
            assert sum(row["rows"] for row in run_round(spark, settings, "dead", 0, plan)) == 100
        assert run(spark, db, tmp_path)["messages"] == 100
        assert keys(spark, db, tmp_path) == stored(db)
        assert sweep(opened, lake, "orders") == 0, "it may still be written"
        for path in tmp_path.rglob("*.parquet"):
            os.utime(path, (0, 0))
        assert sweep(opened, lake, "orders", after=timedelta(hours=1)) >= 1
    assert keys(spark, db, tmp_path) == stored(db)
    assert not list(tmp_path.rglob("dead*"))


def test_two_runs_cannot_publish_the_same(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 2, 50)
    settings = Settings(url=db.url, queue="orders", lake=str(tmp_path))
    lake = Lake(str(tmp_path))
    with connection(db.url) as opened:
        queue_id = db.one("SELECT id::text FROM queen.queues")
        until = dict(db.sql("SELECT p.number, 50 FROM queen.partitions p"))
        plan = plan_round(opened, lake, queue_id, until, 1000)
        with marked(lake, "orders", "slow"):
            written = run_round(spark, settings, "slow", 0, plan)
        run(spark, db, tmp_path)
        with pytest.raises(PipelineError, match="another archive run"):
            publish(opened, lake, "orders", "00000000-0000-0000-0000-000000000000", plan, written)
        with pytest.raises(PipelineError, match="do not hold what was planned"):
            publish(opened, lake, "orders", "00000000-0000-0000-0000-000000000000", plan, written[1:])
    assert keys(spark, db, tmp_path) == stored(db)


class TestProofOfTheLake:
    """Nothing is published that the driver cannot read, as it was written."""

    @pytest.fixture
    def settings(self, db: Db, tmp_path: Path) -> Settings:
        db.fill("orders", 2, 50)
        return Settings(url=db.url, queue="orders", lake=str(tmp_path))

    def spoilt(self, spark: Any, db: Db, settings: Settings, spoil: Callable[[Path], Any], words: str) -> None:
        """Tasks write, the files are spoilt, and the driver is to publish them."""
        lake = Lake(settings.lake)
        with connection(db.url) as opened:
            queue_id = db.one("SELECT id::text FROM queen.queues")
            until = dict(db.sql("SELECT p.number, 50 FROM queen.partitions p"))
            plan = plan_round(opened, lake, queue_id, until, 1000)
            with marked(lake, "orders", "spoilt"):
                written = run_round(spark, settings, "spoilt", 0, plan)
            spoil(next(iter(Path(settings.lake).rglob("*.parquet"))))
            with pytest.raises(PipelineError, match=words):
                publish(opened, lake, "orders", "00000000-0000-0000-0000-000000000000", plan, written)
        assert db.one("SELECT count(*) FROM queen.archive_files") == 0
        assert db.one("SELECT count(*) FROM queen.archive_positions") == 0

    def test_a_file_that_the_driver_does_not_find(self, spark: Any, db: Db, settings: Settings) -> None:
        self.spoilt(spark, db, settings, Path.unlink, "does not find the file .* that all machines of the cluster")

    def test_a_file_of_another_size(self, spark: Any, db: Db, settings: Settings) -> None:
        self.spoilt(spark, db, settings, lambda path: path.write_bytes(b"PAR1"), "is not what a task has written")

    def test_a_file_with_other_content(self, spark: Any, db: Db, settings: Settings) -> None:
        self.spoilt(spark, db, settings, lambda path: path.write_bytes(path.read_bytes()[::-1]), "is not what a task")

    def test_a_task_that_sees_another_lake_writes_nothing(self, db: Db, settings: Settings, tmp_path: Path) -> None:
        task = Slice([Range("00000000-0000-0000-0000-000000000000", "p0", 1, 50)])
        with pytest.raises(PipelineError, match="is not the one on the driver's machine"):
            list(write_slice(settings, "elsewhere", 0, task))
        assert list(tmp_path.iterdir()) == []

    def test_a_relative_folder_is_that_of_the_driver(
        self, spark: Any, db: Db, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        given: list[Settings] = []

        def watched(spark: Any, settings: Settings, *rest: Any) -> list[Any]:
            given.append(settings)
            return run_round(spark, settings, *rest)

        monkeypatch.setattr(archiving, "run_round", watched)
        run(spark, db, Path("lake"))
        assert [one.lake for one in given] == [str(tmp_path / "lake")]
        assert keys(spark, db, tmp_path / "lake") == stored(db)
        assert not list(tmp_path.rglob("_run-*")), "the mark is removed"

    def test_a_lake_that_cannot_be_written_to(self, spark: Any, db: Db, settings: Settings, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(PipelineError, match=r"the lake .*file/lake cannot be written to"):
            run(spark, db, tmp_path / "file" / "lake")
        assert db.one("SELECT count(*) FROM queen.archive_lakes") == 0, "retention must not wait for it"


def test_what_retention_was_faster_with_is_counted(spark: Any, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 1, 10)
    db.sql("SELECT queen.trim(id, 4) FROM queen.partitions WHERE name = 'p0'")
    summary = run(spark, db, tmp_path)
    assert (summary["messages"], summary["deleted before they were archived"]) == (6, 4)


class TestArchiveBeforeDelete:
    @pytest.fixture(autouse=True)
    def filled(self, db: Db) -> None:
        db.fill("orders", 2, 10)
        db.make("orders", archive_before_delete=True, retention_enabled=True, retention_s=10)
        self.age(db)

    def age(self, db: Db) -> None:
        db.sql("UPDATE queen.messages SET created_at = created_at - interval '1 hour'")
        db.sql("UPDATE queen.partition_lookup SET last_message_at = last_message_at - interval '1 hour'")

    def test_retention_deletes_only_what_is_archived(self, spark: Any, db: Db, tmp_path: Path) -> None:
        assert db.one(RETAIN) == 0
        run(spark, db, tmp_path)
        db.fill("orders", 2, 5)
        self.age(db)
        assert db.one(RETAIN) == 20
        assert db.count("orders") == 10
        assert db.one(RETAIN) == 0
        run(spark, db, tmp_path)
        assert db.one(RETAIN) == 10
        assert len(keys(spark, db, tmp_path)) == 30

    def test_every_lake_of_the_queue_is_waited_for(self, spark: Any, db: Db, tmp_path: Path) -> None:
        run(spark, db, tmp_path / "a")
        db.sql("INSERT INTO queen.archive_lakes (lake, queue_id) SELECT 'elsewhere', id FROM queen.queues")
        assert db.one(RETAIN) == 0
        db.sql("DELETE FROM queen.archive_lakes WHERE lake = 'elsewhere'")
        assert db.one(RETAIN) == 20

    def test_eviction_waits_as_well(self, spark: Any, db: Db, tmp_path: Path) -> None:
        db.make("orders", max_wait_time_s=10)
        evict = RETAIN.replace("retain", "evict").replace("NULL", "NULL, NULL")
        assert db.one(evict) == 0
        run(spark, db, tmp_path)
        assert db.one(evict) == 20


def test_a_lake_that_cannot_be(spark: Any, db: Db) -> None:
    db.fill("orders", 1, 1)
    with pytest.raises(BadOption, match="cannot be opened"):
        Lake("nosuchscheme://x")
    with pytest.raises(BadOption, match="no published file"):
        archived(spark, db.url, "orders", "/nonexistent")
