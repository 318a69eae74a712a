"""window: queue to queue aggregations, exactly once, with a policy for late messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.db import Db
from queenmq.pipeline import read, windowed
from queenmq.pipeline.errors import explained
from queenmq.pipeline.jobs.window import Settings, window
from queenmq.pipeline.runs import Run
from queenmq.pipeline.window_spec import make

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC = {
    "source": "orders",
    "target": "stats",
    "schema": "at TIMESTAMP, customer STRING, amount DOUBLE",
    "time": "data.at",
    "lateness": "30 seconds",
    "slack": "0 seconds",
    "by": ["data.customer"],
    "window": {"tumbling": "1 minute"},
    "aggregates": {
        "orders": "count",
        "revenue": "sum(data.amount)",
        "least": "min(data.amount)",
        "most": "max(data.amount)",
        "mean": "avg(data.amount)",
        "median": "percentile(data.amount, 0.5)",
        "amounts": "distinct(data.amount)",
    },
}


def push(db: Db, *events: tuple[int, str, float], delay: int = 0) -> None:
    """Events at so many seconds after noon, that arrive `delay` seconds later."""
    db.make("orders")
    db.sql("SELECT queen.ensure_partitions(ARRAY['orders'], ARRAY['Default'])")
    for second, customer, amount in events:
        at = NOON + timedelta(seconds=second)
        body = json.dumps({"at": at.isoformat(), "customer": customer, "amount": amount})
        db.sql(
            "INSERT INTO queen.messages (partition_id, created_at, payload) SELECT p.id, %s, %s "
            "FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'orders'",
            at + timedelta(seconds=delay),
            body.encode(),
        )


def run(spark: Any, db: Db, folder: Path, **changes: Any) -> dict[str, Any]:
    settings = Settings(url=db.url, spec=make(SPEC | changes), checkpoint=str(folder), available_now=True)
    with Run(db.url, "window", "orders", "local", {}) as recorded:
        return window(spark, settings, recorded).summary


def results(db: Db) -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for partition in db.partitions("stats").values():
        for one in partition:
            key = (one["window"]["start"][11:19], one["customer"])
            assert key not in found, "a final result came twice"
            found[key] = one
    return found


def test_tumbling_windows_come_out_once_when_they_are_over(spark: Any, db: Db, tmp_path: Path) -> None:
    push(db, (5, "a", 1), (15, "a", 3), (20, "b", 5), (55, "a", 3), (65, "a", 10), (70, "a", 1), (100, "b", 7))
    run(spark, db, tmp_path)
    assert {start for start, _ in results(db)} == {"12:00:00"}, "the second window is not over yet"
    first = results(db)[("12:00:00", "a")]
    assert first == {
        "window": {"start": "2026-01-01T12:00:00.000Z", "end": "2026-01-01T12:01:00.000Z"},
        "customer": "a",
        "orders": 3,
        "revenue": 7.0,
        "least": 1.0,
        "most": 3.0,
        "mean": 7 / 3,
        "median": 3.0,
        "amounts": 2,
    }
    push(db, (200, "a", 1))
    run(spark, db, tmp_path)
    found = {key: (one["orders"], one["revenue"]) for key, one in results(db).items()}
    assert found == {
        ("12:00:00", "a"): (3, 7.0),
        ("12:00:00", "b"): (1, 5.0),
        ("12:01:00", "a"): (2, 11.0),
        ("12:01:00", "b"): (1, 7.0),
    }
    assert set(db.partitions("stats")) == {"a", "b"}
    run(spark, db, tmp_path / "another")
    assert len(results(db)) == 4, "a lost checkpoint does not double results"


def test_late_messages_go_to_the_side_queue(spark: Any, db: Db, tmp_path: Path) -> None:
    push(db, (5, "a", 1))
    push(db, (10, "a", 100), delay=31)
    push(db, (200, "a", 1))
    run(spark, db, tmp_path, late="orders-late")
    assert results(db)[("12:00:00", "a")]["orders"] == 1
    assert [one["amount"] for one in db.partitions("orders-late")["Default"]] == [100]


def push_without_time(db: Db, at: str = "yesterday") -> None:
    push(db, (10, "a", 1))
    db.sql(
        'UPDATE queen.messages SET payload = convert_to(format(\'{"at": "%%s", "customer": "a", '
        '"amount": 100}\', %s::text), \'UTF8\') WHERE "offset" = (SELECT max("offset") FROM queen.messages)',
        at,
    )


def test_a_time_that_cannot_be_read_stops_the_job(spark: Any, db: Db, tmp_path: Path) -> None:
    push(db, (5, "a", 1))
    push_without_time(db)
    push(db, (200, "a", 1))
    with pytest.raises(Exception) as raised:
        run(spark, db, tmp_path)
    told = explained(raised.value).message
    assert "partition 'Default', offset 2: data.at has no time" in told
    assert "badTime" in told
    assert results(db) == {}


def test_a_field_that_is_not_of_its_type_stops_the_job(spark: Any, db: Db, tmp_path: Path) -> None:
    """A text where a number should be would be left out of the sum."""
    push(db, (5, "a", 1))
    db.sql("UPDATE queen.messages SET payload = replace(convert_from(payload, 'UTF8'), '1}', '\"12.50\"}')::bytea")
    with pytest.raises(Exception) as raised:
        run(spark, db, tmp_path)
    assert "offset 1: amount should be double and is '12.50'" in explained(raised.value).message


def test_a_time_that_cannot_be_read_is_the_arrival_if_that_is_said(spark: Any, db: Db, tmp_path: Path) -> None:
    push(db, (5, "a", 1))
    push_without_time(db)
    push(db, (200, "a", 1))
    summary = run(spark, db, tmp_path, badTime="arrival")
    assert summary["without a time"] == 1
    assert results(db)[("12:00:00", "a")]["orders"] == 2


def test_messages_without_a_time_go_to_a_queue_and_late_ones_are_counted(spark: Any, db: Db, tmp_path: Path) -> None:
    push(db, (5, "a", 1))
    push_without_time(db)
    push(db, (15, "a", 7), delay=40)
    push(db, (200, "a", 1))
    summary = run(spark, db, tmp_path, badTime={"queue": "orders-undated"})
    assert (summary["without a time"], summary["late"]) == (1, 1)
    assert results(db)[("12:00:00", "a")]["orders"] == 1
    assert [one["amount"] for one in db.partitions("orders-undated")["Default"]] == [100]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({"sliding": "1 minute", "every": "30 seconds"}, {"11:59:30": 2, "12:00:00": 3, "12:00:30": 1}),
        ({"session": "20 seconds"}, {"12:00:05": 2, "12:00:50": 1}),
    ],
)
def test_sliding_and_session_windows(
    spark: Any, db: Db, tmp_path: Path, shape: dict[str, str], expected: dict[str, int]
) -> None:
    push(db, (5, "a", 1), (15, "a", 3), (50, "a", 3), (300, "a", 3))
    run(spark, db, tmp_path, window=shape)
    assert {start: one["orders"] for (start, _), one in results(db).items()} == expected


def test_updates_by_arrival(spark: Any, db: Db, tmp_path: Path) -> None:
    push(db, (5, "a", 1), (15, "a", 3))
    run(spark, db, tmp_path, emit="updates", time="arrival")
    push(db, (20, "a", 5))
    run(spark, db, tmp_path, emit="updates", time="arrival")
    assert [one["orders"] for one in db.partitions("stats")["a"]] == [2, 3]
    [(sink, batches)] = db.sql("SELECT sink, count(*) FROM queen.pipeline_commits GROUP BY sink")
    assert sink.startswith("batches updates "), "they are forgotten like those of a stream"
    assert batches >= 2


def test_the_last_batch_of_updates_that_the_version_before_has_written(spark: Any, db: Db, tmp_path: Path) -> None:
    """It has named each batch, and died before Spark noted that it was done."""
    push(db, (5, "a", 1), (15, "a", 3))
    run(spark, db, tmp_path, emit="updates", time="arrival")
    db.sql("UPDATE queen.pipeline_commits SET sink = replace(sink, 'batches ', 'batch ') || ' 0'")
    for file in ("0", ".0.crc"):
        (tmp_path / "results" / "commits" / file).unlink(missing_ok=True)
    run(spark, db, tmp_path, emit="updates", time="arrival")
    push(db, (20, "a", 5))
    run(spark, db, tmp_path, emit="updates", time="arrival")
    assert [one["orders"] for one in db.partitions("stats")["a"]] == [2, 3]


def test_over_a_batch_as_a_library(spark: Any, db: Db) -> None:
    push(db, (5, "a", 1), (15, "a", 3), (65, "b", 3))
    messages = read(spark, db.url, "orders", valueSchema=SPEC["schema"])
    found = [json.loads(row["value"]) for row in windowed(messages, SPEC).collect()]
    assert sorted((one["customer"], one["orders"]) for one in found) == [("a", 2), ("b", 1)]
