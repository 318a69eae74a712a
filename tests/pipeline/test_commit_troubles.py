"""What gets in the way of a commit: locks of others, epochs that others have left, other drivers of the same stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pyarrow as pa
import pytest

from pipeline.db import Db
from pipeline.supervision import until
from pipeline.test_promotion import EXPECTED, ROWS, frame, options, staged, written
from queenmq.pipeline import sink
from queenmq.pipeline.options import WriteOptions
from queenmq.pipeline.sink import promote, stage

WAITING = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = 'queen pipeline' AND wait_event_type = 'Lock'"
)


@pytest.mark.parametrize("table", ["partition_consumers", "partition_ages"])
def test_locks_are_taken_in_the_order_of_the_partitions(db: Db, table: str) -> None:
    """As a seek takes them, though the chunks come in another order: the one that waits holds nothing further on."""
    db.fill("orders", 2, 0)
    db.sql("SELECT queen.subscribe('orders', NULL, 'g', 'new', NULL)")
    low, high = [name for (name,) in db.sql("SELECT name FROM queen.partitions ORDER BY id")]
    target, messages = WriteOptions(url=db.url, queue="orders"), []
    for task, name in enumerate((high, low)):
        batch = pa.RecordBatch.from_pydict({"value": ["1"], "partition": [name]})
        messages.append(stage(target, "s", 1, iter([batch])))
        db.sql(
            "UPDATE queen.pipeline_chunks SET place = place + %s WHERE attempt = %s", task << 40, messages[-1].attempt
        )
    lock = (
        f"SELECT 1 FROM queen.{table} c JOIN queen.partitions p ON p.id = c.partition_id "
        "WHERE p.name = %s FOR NO KEY UPDATE OF c NOWAIT"
    )
    with psycopg.connect(db.url) as seek, ThreadPoolExecutor(1) as driver:
        seek.execute(lock, (low,))
        done = driver.submit(promote, target, "s", 1, messages)
        try:
            until(lambda: db.one(WAITING) == 1, lambda: f"{done}", 30)
            seek.execute(lock, (high,))
        finally:
            seek.rollback()
        assert done.result() == (2, 0)
    db.assert_healthy("orders")


@pytest.mark.parametrize("most", [10, ROWS])
@pytest.mark.parametrize("state", ["40P01", "40001"])
def test_a_commit_that_others_were_in_the_way_of_is_tried_again(
    db: Db, monkeypatch: pytest.MonkeyPatch, most: int, state: str
) -> None:
    """The whole of a small one, each step of a large one."""
    monkeypatch.setattr(sink, "BUSY_PAUSE_S", 0)
    db.sql("CREATE SEQUENCE public.tries")
    db.sql(
        "CREATE FUNCTION public.victim() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF nextval('public.tries') <= 2 THEN RAISE SQLSTATE '{state}'; END IF; RETURN NULL; END $$"
    )
    db.sql("CREATE TRIGGER victim BEFORE INSERT ON queen.messages FOR EACH STATEMENT EXECUTE FUNCTION public.victim()")
    assert promote(options(db, most), "s", 1, staged(db, frame())) == (ROWS, 0)
    assert db.one("SELECT last_value FROM public.tries") > 3
    assert written(db) == EXPECTED
    db.assert_healthy("orders")
