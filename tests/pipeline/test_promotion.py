"""The commit of a large epoch: in steps between which others push, each row once and in order, whoever does them."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID
from zlib import crc32

import psycopg
import pyarrow as pa
import pytest

from pipeline.db import Db
from pipeline.supervision import until
from queenmq.config import DatabaseSettings
from queenmq.pipeline import promotion, sink
from queenmq.pipeline.chunks import BUCKETS, CHUNK
from queenmq.pipeline.errors import OtherContent, PipelineError
from queenmq.pipeline.options import WriteOptions
from queenmq.pipeline.promotion import promote
from queenmq.pipeline.sink import stage
from queenmq.pipeline.staging import CHECKSUM_MASK
from queenmq.services.promotions import Promotions
from queenmq.storage.database import Database

ROWS = 95
PARTITIONS = 7


def options(db: Db, most: int = 10) -> WriteOptions:
    return WriteOptions(url=db.url, queue="orders", commit_rows=most)


def frame(count: int = ROWS, **columns: list[Any]) -> pa.RecordBatch:
    body = {
        "value": [json.dumps({"n": n}) for n in range(count)],
        "partition": [f"p{n % PARTITIONS}" for n in range(count)],
    }
    return pa.RecordBatch.from_pydict(body | columns)


def staged(db: Db, batch: pa.RecordBatch, sink_name: str = "s", epoch: int = 1) -> list[Any]:
    """Three tasks, in the order of the data frame."""
    third = batch.num_rows // 3 + 1
    found = [stage(options(db), sink_name, epoch, iter([batch.slice(at, third)])) for at in (0, third, 2 * third)]
    for task, one in enumerate(found):
        # Without Spark every task is the first one.
        db.sql("UPDATE queen.pipeline_chunks SET place = place + %s WHERE attempt = %s", task << 40, one.attempt)
    return found


def written(db: Db) -> dict[str, list[int]]:
    return {name: [one["n"] for one in found] for name, found in db.partitions("orders").items()}


EXPECTED = {f"p{p}": list(range(p, ROWS, PARTITIONS)) for p in range(PARTITIONS)}


def begin(db: Db, messages: list[Any], steps: int) -> int:
    """A driver decides on the epoch, does some steps, and dies. Returns how many rows it has moved."""
    rows, checksum = sum(m.rows for m in messages), sum(m.checksum for m in messages) & CHECKSUM_MASK
    given = ("s", 1, [m.attempt for m in messages], rows, None, checksum, True, 10)
    assert promotion._promoted(db.url, given)[-1] is True
    for _ in range(steps):
        promotion.ask(db.url, "pipeline_promote_step", "s", 1, 10)
    moved = db.count("orders")
    assert steps < moved <= steps * 10
    return moved


def test_others_push_between_two_steps(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same partitions, without waiting."""
    monkeypatch.setattr(promotion, "MOVERS", 1)
    db.fill("orders", PARTITIONS, 0)
    step = promotion._step
    pushed: list[int] = []

    def push(*given: Any) -> bool:
        if db.count("orders") > len(pushed):
            pushed.append(-len(pushed) - 1)
            db.sql("SET lock_timeout = '10ms'")
            db.sql(
                "INSERT INTO queen.messages (partition_id, payload) SELECT p.id, %s FROM queen.partitions p "
                "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'orders' AND p.name = 'p0'",
                json.dumps({"n": pushed[-1]}).encode(),
            )
        return step(*given)

    monkeypatch.setattr(promotion, "_step", push)
    assert promote(options(db), "s", 1, staged(db, frame())) == (ROWS, 0)
    assert len(pushed) >= 9
    found = written(db)
    assert sorted(n for n in found["p0"] if n < 0) == sorted(pushed)
    assert found | {"p0": [n for n in found["p0"] if n >= 0]} == EXPECTED
    db.assert_healthy("orders")
    assert db.one("SELECT count(*) FROM queen.pipeline_chunks") == 0


def test_what_a_dead_driver_left_is_moved_by_the_next(db: Db) -> None:
    begin(db, staged(db, frame()), 4)
    assert promote(options(db), "s", 1, staged(db, frame())) == (ROWS, 0)
    assert written(db) == EXPECTED
    assert promote(options(db), "s", 1, staged(db, frame())) == (ROWS, 0)
    assert written(db) == EXPECTED
    db.assert_healthy("orders")
    assert db.one("SELECT count(*) FROM queen.pipeline_chunks") == 0


def test_what_a_dead_driver_left_is_moved_by_any_other_write(db: Db) -> None:
    """A write without a name never comes again."""
    moved = begin(db, staged(db, frame()), 4)
    other = WriteOptions(url=db.url, queue="other", commit_rows=2)
    promote(other, "t", 1, [stage(other, "t", 1, iter([frame(3)]))])
    assert db.count("orders") == moved, "it may still be moved"
    db.sql("UPDATE queen.pipeline_commits SET committed_at = now() - interval '2 minutes'")
    promote(other, "t", 2, [stage(other, "t", 2, iter([frame(3)]))])
    assert written(db) == EXPECTED
    db.assert_healthy("orders")


def test_what_a_dead_driver_left_is_moved_by_a_server(db: Db) -> None:
    async def turn() -> None:
        database = Database(DatabaseSettings(), db.url)
        await database.open()
        try:
            await Promotions(database).work()
        finally:
            await database.close()

    moved = begin(db, staged(db, frame()), 4)
    asyncio.run(turn())
    assert db.count("orders") == moved, "its driver may still be there"
    db.sql("UPDATE queen.pipeline_commits SET committed_at = now() - interval '11 minutes'")
    asyncio.run(turn())
    assert written(db) == EXPECTED
    assert promote(options(db), "s", 1, staged(db, frame())) == (ROWS, 0)
    assert written(db) == EXPECTED
    db.assert_healthy("orders")
    assert db.one("SELECT count(*) FROM queen.pipeline_chunks") == 0


def test_an_epoch_with_other_rows_is_refused_and_the_first_is_finished(db: Db) -> None:
    begin(db, staged(db, frame()), 4)
    with pytest.raises(OtherContent, match="95 rows then, 96 now"):
        promote(options(db), "s", 1, staged(db, frame(96)))
    assert written(db) == EXPECTED


def test_duplicates_are_left_out_wherever_they_are(db: Db) -> None:
    db.make("orders")
    keys: list[str | None] = [f"k{n}" for n in range(ROWS)]
    keys[7], keys[70], keys[14] = "k0", "k0", None
    first = WriteOptions(url=db.url, queue="orders")
    promote(first, "t", 1, [stage(first, "t", 1, iter([frame(3, transactionId=["a", "k1", "b"])]))])
    assert promote(options(db), "s", 1, staged(db, frame(transactionId=keys))) == (ROWS - 3, 3)
    found = written(db)
    assert found["p0"] == [0] + [n for n in EXPECTED["p0"] if n not in (7, 70)]
    assert found["p1"] == EXPECTED["p1"], "its first came with the write before"
    assert db.sql("SELECT rows, duplicates, promotion FROM queen.pipeline_commits WHERE sink = 's'") == [
        (ROWS - 3, 3, None)
    ]
    db.assert_healthy("orders")


def test_a_bucket_that_has_to_wait_does_not_hold_up_the_others(db: Db) -> None:
    db.fill("orders", PARTITIONS, 1)
    buckets = {f"p{n}": crc32(f"orders\0p{n}".encode()) % BUCKETS for n in range(PARTITIONS)}
    free = {name for name, bucket in buckets.items() if bucket != buckets["p0"]}
    assert 0 < len(free) < PARTITIONS
    wanted = sum(len(EXPECTED[name]) for name in free) + PARTITIONS
    with psycopg.connect(db.url) as holder:
        holder.execute(
            "SELECT 1 FROM queen.partition_lookup l JOIN queen.partitions p ON p.id = l.partition_id "
            "WHERE p.name = 'p0' FOR NO KEY UPDATE OF l"
        )
        with ThreadPoolExecutor(1) as driver:
            done = driver.submit(promote, options(db), "s", 1, staged(db, frame()))
            try:
                until(lambda: db.count("orders") == wanted, lambda: f"{db.count('orders')} of {wanted}", 30)
            finally:
                holder.rollback()
            assert done.result() == (ROWS, 0)
    assert {name: rows[1:] for name, rows in written(db).items()} == EXPECTED
    db.assert_healthy("orders")


def test_two_that_move_the_same_epoch_move_each_row_once(db: Db) -> None:
    messages = staged(db, frame())
    begin(db, messages, 1)
    with ThreadPoolExecutor(3) as drivers:
        for each in [drivers.submit(promote, options(db), "s", 1, messages) for _ in range(3)]:
            assert each.result() == (ROWS, 0)
    assert written(db) == EXPECTED
    db.assert_healthy("orders")


def test_a_chunk_that_is_gone_is_missed(db: Db) -> None:
    with pytest.raises(psycopg.Error, match="staged rows were there and are gone") as raised:
        db.sql("SELECT queen.move_chunk(1, 1)")
    assert raised.value.sqlstate == "QN003"


def single_rows(db: Db, table: str, number: str) -> None:
    """As the version before has staged them."""
    for n in range(ROWS):
        db.sql(
            f"INSERT INTO queen.{table} ({number}, place, queue, partition, message_id, transaction_id, is_encrypted, "
            "payload) VALUES (7, %s, 'orders', %s, gen_random_uuid()::text, %s, false, %s)",
            n + 1,
            f"p{n % PARTITIONS}",
            None if n % 2 else f"k{n}",
            json.dumps({"n": n}).encode(),
        )


@pytest.mark.parametrize("most", [10, None])
def test_rows_that_the_version_before_has_staged(db: Db, most: int | None) -> None:
    single_rows(db, "pipeline_staged", "attempt")
    assert db.sql("SELECT * FROM queen.promote('s', 1, ARRAY[7::bigint], %s, %s)", ROWS, most) == [(True, ROWS, 0)]
    while db.one("SELECT queen.promote_step('s', 1, 10)"):
        pass
    assert written(db) == EXPECTED
    db.assert_healthy("orders")
    assert db.one("SELECT count(*) FROM queen.pipeline_staged") == 0


def test_an_epoch_that_the_version_before_was_moving(db: Db) -> None:
    """It has moved all of p0, and its driver goes on."""
    single_rows(db, "pipeline_promoting", "promotion")
    db.sql(
        "UPDATE queen.pipeline_promoting r SET place = n.place FROM ("
        "SELECT o.place AS was, row_number() OVER (ORDER BY o.partition <> 'p0', o.place) + 1000 AS place "
        "FROM queen.pipeline_promoting o) n WHERE r.place = n.was"
    )
    db.sql("UPDATE queen.pipeline_promoting SET place = place - 1000")
    moved = len(EXPECTED["p0"])
    db.sql(
        "INSERT INTO queen.pipeline_commits (sink, epoch, rows, promotion, promoted) VALUES ('s', 1, %s, 7, %s)",
        ROWS,
        moved,
    )
    left = {name: rows for name, rows in EXPECTED.items() if name != "p0"}
    while db.one("SELECT queen.promote_step('s', 1, 10)"):
        assert db.one("SELECT count(*) FROM queen.pipeline_promoting") == 0
    assert written(db) == left
    assert db.one("SELECT promotion FROM queen.pipeline_commits") is None
    db.assert_healthy("orders")


def test_the_rest_of_an_epoch_survives_a_crash(db: Db) -> None:
    assert db.one("SELECT relpersistence FROM pg_class WHERE relname = 'pipeline_chunks'") == "p"


def test_a_queue_with_a_size_takes_all_or_nothing(db: Db) -> None:
    db.make("orders", max_size=ROWS - 1)
    with pytest.raises(PipelineError, match=r"full \(maxSize\), nothing was written"):
        promote(options(db), "s", 1, staged(db, frame()))
    assert db.count("orders") == 0
    db.make("orders", max_size=ROWS)
    assert promote(options(db), "s", 1, staged(db, frame())) == (ROWS, 0)
    assert written(db) == EXPECTED


def test_a_queue_that_demands_encryption_refuses_before_anything_is_written(db: Db) -> None:
    messages = staged(db, frame())
    db.make("orders", encryption_enabled=True)
    with pytest.raises(PipelineError, match="demand encrypted payloads"):
        promote(options(db), "s", 1, messages)
    decided = db.one("SELECT count(*) FROM queen.pipeline_chunks WHERE promotion IS NOT NULL")
    assert (db.count("orders"), decided) == (0, 0)


def test_a_database_without_the_tables_of_this_version_is_named(db: Db) -> None:
    db.sql("ALTER TABLE queen.pipeline_chunks RENAME TO chunks_of_tomorrow")
    with pytest.raises(PipelineError, match="start a server of this version"):
        stage(options(db), "s", 1, iter([frame()]))


def test_few_rows_are_staged_as_many_are(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few by psycopg, many by ADBC."""
    given = frame(
        6,
        messageId=[str(UUID(int=n)) for n in range(6)],
        transactionId=["a", None, "b", "c", "d", None],
        encrypted=[True, False, False, None, False, True],
        headers=[[{"key": "k", "value": "ä"}], None, None, None, None, None],
    )
    columns = ", ".join(name for name in CHUNK if name != "attempt")

    def found(few: int) -> list[Any]:
        monkeypatch.setattr(sink, "FEW_ROWS", few)
        attempt = stage(options(db), "s", 1, iter([given])).attempt
        return db.sql(f"SELECT {columns} FROM queen.pipeline_chunks WHERE attempt = %s ORDER BY place", attempt)

    few = found(2000)
    assert sum(row[2] for row in few) == 6
    assert found(0) == few
