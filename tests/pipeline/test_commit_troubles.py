"""What gets in the way of a commit: locks of others, epochs that others have left, other drivers of the same stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg
import pyarrow as pa
import pytest

from pipeline.db import Db
from pipeline.supervision import until
from pipeline.test_promotion import EXPECTED, PARTITIONS, ROWS, begin, frame, options, staged, written
from queenmq.clock import ManualClock
from queenmq.config import DatabaseSettings
from queenmq.pipeline import promotion
from queenmq.pipeline.errors import OtherContent, PartitionsBusy, StagedRowsMissing, WriteIncomplete
from queenmq.pipeline.options import WriteOptions
from queenmq.pipeline.promotion import promote
from queenmq.pipeline.sink import BatchWriter, StreamWriter, stage
from queenmq.services.promotions import Promotions
from queenmq.storage.database import Database

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
            until(lambda: db.one(WAITING) == 1, lambda: f"{done}")
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
    monkeypatch.setattr(promotion, "BUSY_PAUSE_S", 0)
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


def hold(db: Db) -> None:
    """Pushes to all partitions are in the operation queue and stay there."""
    db.sql(
        "INSERT INTO queen.operation_queue (id, kind, queue_name, partition_id) "
        "SELECT gen_random_uuid(), 'push', 'orders', p.id FROM queen.partitions p "
        "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'orders'"
    )


def test_what_others_left_and_cannot_be_moved_fails_no_write(
    db: Db, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who repeats a write that failed after its commit has it twice. The next epoch that was left is moved."""
    db.fill("orders", PARTITIONS, 0)
    begin(db, staged(db, frame()), 1)
    third = WriteOptions(url=db.url, queue="third")
    left = stage(third, "t", 1, iter([frame(12)]))
    db.sql("SELECT queen.promote('t', 1, %s, 12, 5)", [left.attempt])
    hold(db)
    db.sql("UPDATE queen.pipeline_commits SET committed_at = now() - interval '2 minutes'")
    db.sql("UPDATE queen.pipeline_commits SET committed_at = now() - interval '3 minutes' WHERE sink = 's'")
    monkeypatch.setattr(promotion, "time", None)  # they are not waited for
    other = WriteOptions(url=db.url, queue="other", commit_rows=2)
    assert promote(other, "batch x", 0, [stage(other, "batch x", 0, iter([frame(3)]))]) == (3, 0)
    assert (db.count("other"), db.count("third")) == (3, 12)
    assert "epoch 1 of sink 's', which its driver has left, is not finished: partitions to write to" in caplog.text


@pytest.mark.parametrize(
    ("name", "write_id", "then"),
    [
        ("batch x", None, "do not repeat it, or all of its rows are written twice"),
        ("batch x", "x", "the same write under its writeId moves them, too, and writes nothing twice"),
        ("stream x", None, "the stream goes on with them when it is started again"),
    ],
)
def test_an_error_after_the_decision_says_so(
    db: Db, monkeypatch: pytest.MonkeyPatch, name: str, write_id: str | None, then: str
) -> None:
    monkeypatch.setattr(promotion, "BUSY_TRIES", 1)
    monkeypatch.setattr(promotion, "MOVERS", 1)
    db.fill("orders", PARTITIONS, 0)
    step, moved = promotion._step, []

    def held(*given: object) -> bool:
        if len(moved) == 2:
            hold(db)
        moved.append(db.count("orders"))
        return step(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(promotion, "_step", held)
    target = WriteOptions(url=db.url, queue="orders", commit_rows=10, write_id=write_id)
    with pytest.raises(PartitionsBusy) as raised:
        promote(target, name, 0, staged(db, frame(), name, 0))
    there = db.count("orders")
    assert 0 < there < ROWS
    told = raised.value.message
    assert f"is decided, and {there} of its {ROWS} rows are in the queues; " in told
    assert f"{then} (partitions to write to have pushes in the operation queue" in told
    db.sql("DELETE FROM queen.operation_queue")
    assert promote(target, name, 0, staged(db, frame(), name, 0)) == (ROWS, 0)
    assert written(db) == EXPECTED


def test_a_commit_whose_sweep_fails_is_done(db: Db, caplog: pytest.LogCaptureFixture) -> None:
    messages = staged(db, frame())
    db.sql("CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'injected'; END $$")
    db.sql(
        "CREATE TRIGGER refuse BEFORE DELETE ON queen.pipeline_attempts "
        "FOR EACH STATEMENT EXECUTE FUNCTION public.refuse()"
    )
    assert promote(options(db, ROWS), "s", 1, messages) == (ROWS, 0)
    assert "staged is removed later: PostgreSQL refused: injected" in caplog.text


@pytest.mark.parametrize(("name", "epoch"), [("stream q", 5), ("batch x", 0)])
def test_an_abort_leaves_what_another_driver_has_staged(db: Db, name: str, epoch: int) -> None:
    """Of the same batch of a stream, or under the same writeId; what it has staged itself is gone."""
    target = WriteOptions(url=db.url, queue="orders", write_id=None if epoch else "x")
    mine, others = (stage(target, name, epoch, iter([frame(6)])) for _ in range(2))
    for messages in ([mine, None], [None]):
        if epoch:
            StreamWriter(target).abort(messages, epoch)
        else:
            BatchWriter(target).abort(messages)
    left = {attempt for (attempt,) in db.sql("SELECT attempt FROM queen.pipeline_chunks")}
    assert left == {others.attempt}
    assert promote(target, name, epoch, [others]) == (6, 0)


def test_an_abort_of_a_write_without_a_name_leaves_nothing(db: Db) -> None:
    """Failed attempts give no message, and nobody else writes under its sink."""
    writer = BatchWriter(options(db))
    writer.write(iter([frame(6)]))
    writer.abort([None])
    assert db.one("SELECT count(*) FROM queen.pipeline_chunks") == 0


def test_an_abort_leaves_what_is_decided(db: Db) -> None:
    messages = staged(db, frame(), "stream q", 1)
    db.sql("SELECT queen.promote('stream q', 1, %s, %s, 10)", [one.attempt for one in messages], ROWS)
    StreamWriter(options(db)).abort(messages, 1)
    assert promote(options(db), "stream q", 1, []) == (ROWS, 0)
    assert written(db) == EXPECTED


def test_a_commit_that_is_refused_leaves_what_another_driver_has_staged(db: Db) -> None:
    promote(options(db), "stream q", 1, [stage(options(db), "stream q", 1, iter([frame(6)]))], made_of="a")
    late, next_one = (stage(options(db), "stream q", epoch, iter([frame(6)])) for epoch in (9, 2))
    with pytest.raises(OtherContent):
        promote(options(db), "stream q", 9, [late], made_of="b")
    assert promote(options(db), "stream q", 2, [next_one], made_of="c") == (6, 0)


def test_two_attempts_with_the_same_place_are_both_moved(db: Db) -> None:
    db.sql("SET statement_timeout = '60s'")
    both = [stage(options(db), "s", 1, iter([frame(3, partition=["p0"] * 3)])) for _ in range(2)]
    db.sql("SELECT queen.promote('s', 1, %s, 6, 3)", [one.attempt for one in both])
    assert [db.one("SELECT queen.promote_step('s', 1, 3)") for _ in range(3)] == [True, True, False]
    assert written(db) == {"p0": [0, 1, 2, 0, 1, 2]}
    db.assert_healthy("orders")


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (
            "DELETE FROM queen.pipeline_chunks",
            "of the 95 rows of epoch 1 of sink s, .* were moved and the others are gone",
        ),
        (
            "UPDATE queen.pipeline_commits SET buckets = array_fill(1::bigint << 50, ARRAY[64])",
            "come before those that",
        ),
    ],
)
def test_an_epoch_that_cannot_be_finished_is_not_finished_in_silence(db: Db, harm: str, why: str) -> None:
    """Nor tried for ever within one call."""
    begin(db, staged(db, frame()), 2)
    db.sql(harm)
    for _ in range(2):
        with pytest.raises(WriteIncomplete, match=why):
            promote(options(db), "s", 1, staged(db, frame()))
    db.sql(
        "UPDATE queen.pipeline_commits SET rows = promoted - duplicates, promotion = NULL "
        "WHERE sink = 's' AND epoch = 1"
    )
    assert promote(options(db), "s", 1, [])[0] == db.count("orders")


@pytest.mark.parametrize("most", [10, ROWS])
def test_what_goes_while_it_is_decided_on_is_missed(db: Db, most: int) -> None:
    """A driver that has waited too long for the answer withdraws, and the statement still runs."""
    messages = staged(db, frame())
    with psycopg.connect(db.url) as away, ThreadPoolExecutor(1) as driver:
        away.execute("DELETE FROM queen.pipeline_chunks WHERE attempt = %s", (messages[1].attempt,))
        done = driver.submit(promote, options(db, most), "s", 1, messages)
        try:
            until(lambda: db.one(WAITING) == 1, lambda: f"{done}")
        finally:
            away.commit()
        with pytest.raises(StagedRowsMissing, match="Nothing was stored; start it again"):
            done.result()
    assert (db.count("orders"), db.one("SELECT count(*) FROM queen.pipeline_commits")) == (0, 0)


def turns(db: Db, *before: Callable[[ManualClock], object]) -> None:
    """Of the service of a server, and what happens before each."""
    clock = ManualClock()

    async def work() -> None:
        database = Database(DatabaseSettings(), db.url)
        await database.open()
        try:
            service = Promotions(database, clock)
            for happens in before:
                happens(clock)
                await service.work()
        finally:
            await database.close()

    asyncio.run(work())


def test_a_server_goes_on_after_an_epoch_that_cannot_be_finished(db: Db, caplog: pytest.LogCaptureFixture) -> None:
    """Which it says once."""
    begin(db, staged(db, frame()), 2)
    db.sql("DELETE FROM queen.pipeline_chunks")
    third = WriteOptions(url=db.url, queue="third")
    db.sql("SELECT queen.promote('t', 1, %s, 12, 5)", [stage(third, "t", 1, iter([frame(12)])).attempt])
    db.sql("UPDATE queen.pipeline_commits SET committed_at = now() - interval '11 minutes'")
    db.sql("UPDATE queen.pipeline_commits SET committed_at = now() - interval '12 minutes' WHERE sink = 's'")
    turns(db, lambda _: None, lambda _: None)
    assert db.count("third") == 12
    assert caplog.text.count("cannot finish epoch 1 of sink 's', which its driver had left: of the 95 rows of") == 1


def test_a_server_removes_what_a_dead_write_has_staged(db: Db) -> None:
    """A day later, for nobody else writes to its sink; it looks once an hour. What is decided stays."""
    begin(db, staged(db, frame()), 1)
    decided = db.one("SELECT count(*) FROM queen.pipeline_chunks")
    left: list[int] = []

    def note() -> None:
        left.append(db.one("SELECT count(*) FROM queen.pipeline_chunks") - decided)

    def stage_before(hours: int, pause_s: float, clock: ManualClock) -> None:
        attempt = stage(options(db), "batch dead", 0, iter([frame(2, partition=["p0", "p0"])])).attempt
        for table in ("chunks", "attempts"):
            earlier = "attempt - ((%s * 3600000)::bigint << 22)"
            db.sql(f"UPDATE queen.pipeline_{table} SET attempt = {earlier} WHERE attempt = %s", hours, attempt)
        note()
        clock.advance(pause_s)

    turns(
        db,
        partial(stage_before, 25, 0),
        partial(stage_before, 23, 60),
        partial(stage_before, 25, 60),
        partial(stage_before, 26, 3600),
    )
    note()
    assert left == [1, 1, 2, 3, 1], "swept at the first and the last turn"
    assert db.sql("SELECT count(*) FROM queen.pipeline_attempts WHERE sink = 'batch dead'") == [(1,)]
