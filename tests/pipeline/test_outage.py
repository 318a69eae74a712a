"""PostgreSQL is restarted, or crashes, under a stream: it waits and goes on, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.db import Db
from queenmq.config import DatabaseSettings
from queenmq.faults.postgres import Postgres
from queenmq.pipeline import promotion, read_stream, write_stream
from queenmq.pipeline.connection import connect
from queenmq.pipeline.errors import DatabaseAway, PipelineError
from queenmq.pipeline.jobs.window import Settings, window
from queenmq.pipeline.options import ReadOptions, WriteOptions
from queenmq.pipeline.planning import Range, Slice
from queenmq.pipeline.promotion import promote
from queenmq.pipeline.reading import read_slice
from queenmq.pipeline.runs import Run
from queenmq.pipeline.sink import stage
from queenmq.pipeline.stream import StreamReader
from queenmq.pipeline.window_spec import make
from queenmq.storage.database import Database
from queenmq.storage.migrations import migrate

PATIENCE_S = 120


class Restarted:
    """A PostgreSQL with the schema that can be restarted from any thread."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self.server = Postgres(folder, "alone", fsync=False)
        self._runner.run(self._create())
        self.url = self.server.url

    async def _create(self) -> None:
        await self.server.create()
        await self.server.start()
        await self.server.execute("CREATE DATABASE queen", database="postgres")
        database = Database(DatabaseSettings(), self.server.url)
        await database.open()
        await migrate(database)
        await database.close()

    def stop(self) -> None:
        self._runner.run(self.server.stop())

    def start(self) -> None:
        self._runner.run(self.server.start())

    def restart(self) -> None:
        self.stop()
        self.start()

    def crash(self) -> None:
        self.server.kill()
        self.start()

    def close(self) -> None:
        self.stop()
        self._runner.close()

    def ask(self, work: Callable[[Db], Any]) -> Any:
        with psycopg.connect(self.url, autocommit=True, options="-c timezone=UTC") as connected:
            return work(Db(self.url, connected))

    def until(self, query: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.ask(lambda db: db.one(query)):
            assert time.monotonic() < deadline, query
            time.sleep(0.05)


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Restarted]:
    made = Restarted(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["restart", "crash"])
def test_a_window_job_goes_on(spark: Any, postgres: Restarted, tmp_path: Path, way: str) -> None:
    """Three times, at whatever the queries are doing."""
    spec = make(
        {
            "source": "orders",
            "target": "stats",
            "window": {"tumbling": "1 day"},
            "aggregates": {"orders": "count"},
            "emit": "updates",
        }
    )
    settings = Settings(url=postgres.url, spec=spec, checkpoint=str(tmp_path / "c"), seconds=PATIENCE_S)
    postgres.ask(lambda db: db.fill("orders", 2, 10))
    failed: list[BaseException] = []

    def job() -> None:
        try:
            with Run(postgres.url, "window", "orders", "local", {}) as run:
                window(spark, settings, run)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=job)
    thread.start()
    newest = (
        "SELECT coalesce((SELECT sum((convert_from(payload, 'UTF8')::json ->> 'orders')::int) FROM (SELECT DISTINCT ON "
        "(partition_id, convert_from(payload, 'UTF8')::json -> 'window' ->> 'start') payload FROM queen.messages m "
        "JOIN queen.partitions p ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id "
        "WHERE q.name = 'stats' ORDER BY partition_id, convert_from(payload, 'UTF8')::json -> 'window' ->> 'start', "
        '"offset" DESC) n), 0) = '
    )
    try:
        postgres.until(f"{newest} 20")
        for times in range(1, 4):
            getattr(postgres, way)()
            postgres.ask(lambda db: db.fill("orders", 2, 10))
            postgres.until(f"{newest} {20 + 20 * times}")
        assert failed == []
    finally:
        for query in spark.streams.active:
            query.stop()
        thread.join(PATIENCE_S)


@pytest.mark.timeout(300)
def test_a_stream_of_a_program_goes_on(spark: Any, postgres: Restarted, tmp_path: Path) -> None:
    """Without the job around it."""
    postgres.ask(lambda db: db.fill("orders", 3, 20))
    found = read_stream(spark, postgres.url, "orders", startingOffsets="earliest", maxOffsetsPerTrigger=10)
    query = write_stream(found.select("value", "partition"), postgres.url, "copy", str(tmp_path / "c")).start()
    try:
        postgres.until("SELECT count(*) > 1 FROM queen.pipeline_commits")
        postgres.restart()
        postgres.ask(lambda db: db.fill("orders", 3, 5))
        postgres.until(
            "SELECT count(*) = 75 FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id "
            "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'copy'"
        )
        assert query.exception() is None
    finally:
        query.stop()
    postgres.ask(lambda db: db.assert_copied("orders", "copy"))


def test_a_task_reads_on_over_another_connection(postgres: Restarted) -> None:
    """Packed, and one by one (large messages), each message once, with one that was deleted by hand."""

    def filled(db: Db) -> dict[str, str]:
        db.fill("small", 1, 30_000, padding=200)
        db.fill("large", 1, 400, padding=20_000)
        db.sql(
            "SELECT queen.delete_message(p.id, '300') FROM queen.partitions p JOIN queen.queues q "
            "ON q.id = p.queue_id WHERE q.name = 'large'"
        )
        return dict(
            db.sql("SELECT q.name, p.id::text FROM queen.queues q JOIN queen.partitions p ON p.queue_id = q.id")
        )

    ids = postgres.ask(filled)
    for queue, last in (("small", 30_000), ("large", 400)):
        gaps: list[Range] = []
        task = Slice([Range(ids[queue], "p0", 1, last)])
        found: list[int] = []
        restarts = 0
        for batch in read_slice(ReadOptions(url=postgres.url, queue=queue), ["offset", "value"], task, gaps):
            found += batch.column("offset").to_pylist()
            if restarts < 3:
                restarts += 1
                postgres.restart()
        assert restarts == 3
        gone = [300] if queue == "large" else []
        assert found == [offset for offset in range(1, last + 1) if offset not in gone]
        assert [(part.first, part.last) for part in gaps] == [(offset, offset) for offset in gone]


def test_a_task_stages_on_and_a_commit_is_found_to_be_done(postgres: Restarted) -> None:
    import pyarrow as pa

    def batches() -> Iterator[Any]:
        for number in range(4):
            yield pa.RecordBatch.from_pydict({"value": [str(number * 10 + n) for n in range(10)]})
            postgres.restart()

    options = WriteOptions(url=postgres.url, queue="target")
    message = stage(options, "batch outage", 0, batches())
    assert message.rows == 40
    assert promote(options, "batch outage", 0, [message]) == (40, 0)
    postgres.restart()
    assert promote(options, "batch outage", 0, [message]) == (40, 0)
    assert postgres.ask(lambda db: db.partitions("target")) == {"Default": list(range(40))}


def test_a_crash_between_two_steps_of_a_commit_loses_nothing(
    postgres: Restarted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided is moved, by whoever is left."""
    import pyarrow as pa

    steps: list[int] = []
    step = promotion._step
    third, crashed = threading.Event(), threading.Event()

    def waiting(*given: Any) -> bool:
        steps.append(len(steps))
        if len(steps) == 3:
            third.set()
            assert crashed.wait(PATIENCE_S)
        return step(*given)

    monkeypatch.setattr(promotion, "_step", waiting)
    monkeypatch.setattr(promotion, "MOVERS", 1)  # another one would connect while everything is killed
    options = WriteOptions(url=postgres.url, queue="target", commit_rows=10)
    rows = pa.RecordBatch.from_pydict({"value": [str(n) for n in range(95)]})
    message = stage(options, "batch steps", 0, iter([rows]))
    with ThreadPoolExecutor(1) as driver:
        promoted = driver.submit(promote, options, "batch steps", 0, [message])
        assert third.wait(PATIENCE_S)
        postgres.crash()  # here, because PostgreSQL ends with the thread that has started it
        crashed.set()
        assert promoted.result(PATIENCE_S) == (95, 0)
    assert len(steps) >= 11
    assert postgres.ask(lambda db: db.partitions("target")) == {"Default": list(range(95))}


def test_what_never_was_there_is_reported_at_once(postgres: Restarted) -> None:
    url = postgres.url
    postgres.stop()
    with pytest.raises(DatabaseAway, match="cannot connect"):
        StreamReader(ReadOptions(url=url, queue="orders"), ["value"]).initialOffset()
    postgres.start()
    with pytest.raises(PipelineError, match="does not exist") as raised:
        connect(url.rpartition("/")[0] + "/nothing")
    assert not isinstance(raised.value, DatabaseAway)
