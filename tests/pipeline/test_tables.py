"""archive into tables of Delta Lake and Iceberg: every message once, whatever dies, and readable by anybody."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from pipeline.db import Db
from queenmq.cli.main import main
from queenmq.pipeline import archived
from queenmq.pipeline.errors import BadOption, PipelineError
from queenmq.pipeline.jobs import archive as archiving
from queenmq.pipeline.jobs import audit, replay
from queenmq.pipeline.jobs.archive import Settings, archive
from queenmq.pipeline.lake import Lake
from queenmq.pipeline.lake_table import TableChanged, format_of, open_table
from queenmq.pipeline.runs import Run

LONG = bool(os.environ.get("QUEEN_LONG"))
MESSAGES = 60_000 if LONG else 2_000
ROUND = 2_000 if LONG else 200
KILLS = 10 if LONG else 1
KEYS = ["partition", "offset", "messageId", "value"]
Rows = list[tuple[str, int, str, str]]

formats = pytest.mark.parametrize("kind", ["delta", "iceberg"])


def run(spark: Any, db: Db, lake: Path, kind: str | None, **changes: Any) -> dict[str, Any]:
    settings = Settings(url=db.url, queue="orders", lake=str(lake), format=kind, **changes)
    with Run(db.url, "archive", "orders", "local", {}) as recorded:
        return archive(spark, settings, recorded).summary


def findings(spark: Any, db: Db, lake: Path) -> list[str]:
    with Run(db.url, "audit", "orders", "local", {}) as recorded:
        return audit.audit(spark, audit.Settings(db.url, "orders", str(lake)), recorded).summary["findings"]


def foreign(lake: Path, kind: str) -> tuple[Any, list[str]]:
    """What the format's own library reads, without our database, and the files of which it is made."""
    folder = lake / "queue=orders"
    if kind == "delta":
        table = DeltaTable(str(folder))
        return table.to_pyarrow_table(), [uri.removeprefix("file://") for uri in table.file_uris()]
    hint = (folder / "metadata" / "version-hint.text").read_text()
    found = StaticTable.from_metadata(f"{folder}/metadata/{hint}.metadata.json")
    files = [task.file.file_path.removeprefix("file://") for task in found.scan().plan_files()]
    return found.scan().to_arrow(), files


def rows_of(table: Any) -> Rows:
    return sorted(zip(*(table.column(name).to_pylist() for name in KEYS), strict=True))


def stored(db: Db, offsets: str = "true") -> Rows:
    found = db.sql(
        "SELECT p.name, m.\"offset\", m.id::text, convert_from(m.payload, 'UTF8') FROM queen.messages m "
        f"JOIN queen.partitions p ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id "
        f"WHERE q.name = 'orders' AND {offsets}"
    )
    return sorted(found)


def checksum(rows: Rows) -> str:
    return hashlib.sha256("\n".join(f"{a} {b} {c} {d}" for a, b, c, d in rows).encode()).hexdigest()


def assert_equal(db: Db, lake: Path, kind: str) -> None:
    """By id and checksum: the queue, the format's own reader, and DuckDB."""
    wanted = stored(db)
    table, files = foreign(lake, kind)
    assert checksum(rows_of(table)) == checksum(wanted)
    with duckdb.connect() as opened:
        read = opened.read_parquet(files, hive_partitioning=False)
        found = read.project('"partition", "offset", "messageId", "value"').fetchall()
    assert checksum(sorted(found)) == checksum(wanted)


@formats
def test_incrementally_and_once(spark: Any, db: Db, tmp_path: Path, kind: str) -> None:
    db.fill("orders", 3, 50)
    db.sql("UPDATE queen.messages SET created_at = created_at - interval '2 days' WHERE \"offset\" <= 20")
    assert run(spark, db, tmp_path, kind, round_offsets=70)["messages"] == 150
    assert run(spark, db, tmp_path, None)["messages"] == 0
    db.fill("orders", 4, 10)
    db.delete_message("p1", "55")
    assert run(spark, db, tmp_path, None)["messages"] == 39
    assert_equal(db, tmp_path, kind)
    assert len({path.parent.name for path in tmp_path.rglob("*.parquet") if "date=" in str(path.parent)}) == 2
    assert findings(spark, db, tmp_path) == []
    assert archived(spark, db.url, "orders", str(tmp_path)).count() == 189
    with Run(db.url, "replay", "orders", "local", {}) as recorded:
        settings = replay.Settings(url=db.url, queue="orders", lake=str(tmp_path), into="again")
        assert replay.replay(spark, settings, recorded).summary["messages written"] == 189
    assert db.partitions("again") == db.partitions("orders")


@formats
def test_a_driver_that_dies_between_the_two_commits(
    spark: Any, db: Db, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has the round, the database has not: the next run takes it over and archives nothing twice."""
    db.fill("orders", 3, 50)
    db.delete_message("p1", "20")

    @contextmanager
    def dying(*given: Any) -> Iterator[Any]:
        with open_table(*given) as table:
            commit = table.commit

            def committed(*of_round: Any) -> None:
                commit(*of_round)
                raise KeyboardInterrupt

            table.commit = committed
            yield table

    with monkeypatch.context() as patch:
        patch.setattr(archiving, "open_table", dying)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                run(spark, db, tmp_path, kind, round_offsets=70)
    assert db.one("SELECT count(DISTINCT run_id) FROM queen.archive_files") == 1, "the second took over from the first"
    assert any("only the table has this file" in one for one in findings(spark, db, tmp_path))
    assert run(spark, db, tmp_path, None)["messages"] == 11
    assert_equal(db, tmp_path, kind)
    assert findings(spark, db, tmp_path) == []


@formats
def test_a_driver_that_was_taken_for_dead_cannot_commit(spark: Any, db: Db, tmp_path: Path, kind: str) -> None:
    db.fill("orders", 1, 10)
    with open_table(Lake(str(tmp_path)), db.url, "orders", kind) as slow:
        run(spark, db, tmp_path, kind)
        [path] = db.sql("SELECT path, rows, bytes FROM queen.archive_files")
        with pytest.raises(TableChanged, match="was faster"):
            slow.commit([dict(zip(("path", "rows", "bytes"), path, strict=True))], {})
    assert_equal(db, tmp_path, kind)


@formats
def test_schemas_may_grow(spark: Any, db: Db, tmp_path: Path, kind: str) -> None:
    wide = "n BIGINT, p SMALLINT, s STRUCT<a: INT, b: ARRAY<STRING>>, m MAP<STRING, DECIMAL(5, 2)>"
    for schema in (None, "n BIGINT", wide, "p SMALLINT", None):
        db.fill("orders", 1, 2)
        run(spark, db, tmp_path, kind, schema=schema)
    table, _ = foreign(tmp_path, kind)
    found = sorted(zip(table.column("offset").to_pylist(), table.column("data").to_pylist(), strict=True))
    assert [data and (data["n"], data["p"]) for _, data in found] == [
        *(None, None),
        *((3, None), (4, None)),
        *((n, 0) for n in range(5, 11)),
    ]
    db.fill("orders", 1, 2)
    with pytest.raises(BadOption, match=r"the schema does not fit the table: .*n"):
        run(spark, db, tmp_path, kind, schema="n STRING")
    with pytest.raises(BadOption, match=r"the schema does not fit the table: .*n"):
        run(spark, db, tmp_path, kind, schema="n DOUBLE")
    with pytest.raises(BadOption, match="no VARIANT"):
        run(spark, db, tmp_path, kind, schema="v ARRAY<VARIANT>")
    assert run(spark, db, tmp_path, None, schema="n INT")["messages"] == 2
    assert_equal(db, tmp_path, kind)
    assert findings(spark, db, tmp_path) == []


@formats
def test_one_format_a_queue(spark: Any, db: Db, tmp_path: Path, kind: str) -> None:
    db.fill("orders", 1, 2)
    run(spark, db, tmp_path / "table", kind)
    run(spark, db, tmp_path / "plain", None)
    assert [format_of(Lake(str(tmp_path / name)), "orders") for name in ("table", "plain")] == [kind, "parquet"]
    with pytest.raises(BadOption, match=f"has queue 'orders' as {kind}"):
        run(spark, db, tmp_path / "table", "parquet")
    with pytest.raises(BadOption, match="as plain Parquet"):
        run(spark, db, tmp_path / "plain", kind)
    run(spark, db, tmp_path / "other", kind)
    assert_equal(db, tmp_path / "other", kind)


@formats
def test_a_database_that_went_back(spark: Any, db: Db, tmp_path: Path, kind: str) -> None:
    """What the table has and the database has lost is not overwritten with other messages in silence."""
    db.fill("orders", 2, 10)
    run(spark, db, tmp_path, kind)
    db.sql("DELETE FROM queen.archive_files")
    db.sql("DELETE FROM queen.archive_positions")
    assert run(spark, db, tmp_path, None)["messages"] == 0, "nothing is lost: what the table has is taken over"
    assert_equal(db, tmp_path, kind)
    db.sql("DELETE FROM queen.archive_files")
    db.sql("DELETE FROM queen.archive_positions")
    db.sql('UPDATE queen.messages SET id = gen_random_uuid() WHERE "offset" > 8')
    with pytest.raises(PipelineError, match="has 4 messages that the database has lost"):
        run(spark, db, tmp_path, None)


def test_what_others_do_with_the_table_is_taken_over(spark: Any, db: Db, tmp_path: Path) -> None:
    """Somebody compacts the table with another tool, and somebody deletes from it."""
    for _ in range(3):
        db.fill("orders", 2, 10)
        run(spark, db, tmp_path, "delta")
    table = DeltaTable(str(tmp_path / "queue=orders"))
    table.optimize.compact()
    assert len(table.file_uris()) == 1
    db.fill("orders", 2, 5)
    assert run(spark, db, tmp_path, None)["messages"] == 10
    assert_equal(db, tmp_path, "delta")
    assert findings(spark, db, tmp_path) == []
    DeltaTable(str(tmp_path / "queue=orders")).delete('"offset" <= 5')
    assert any("messages are stored" in one or "not this file" in one for one in findings(spark, db, tmp_path))
    with pytest.raises(PipelineError, match="lacks 10 messages of files that were published"):
        run(spark, db, tmp_path, None)


@formats
def test_compaction_and_expiry(spark: Any, db: Db, tmp_path: Path, kind: str) -> None:
    for schema in (None, "n INT", "n INT, p INT"):
        db.fill("orders", 2, 10)
        run(spark, db, tmp_path, kind, schema=schema)
    command = ["pipeline", "compact", "--queue", "orders", "--lake", str(tmp_path), "--url", db.url, "--json"]
    assert main(command) == 0
    _, files = foreign(tmp_path, kind)
    assert len(files) == 1
    assert_equal(db, tmp_path, kind)
    assert findings(spark, db, tmp_path) == []
    # Messages of last week, in a partition of their own and in one that goes on.
    db.sql("UPDATE queen.messages SET created_at = created_at - interval '8 days'")
    other = tmp_path / "other"
    run(spark, db, other, kind)
    db.fill("orders", 1, 5)
    run(spark, db, other, kind)
    assert main([*command, "--lake", str(other), "--keep-days", "3"]) == 0
    table, _ = foreign(other, kind)
    assert checksum(rows_of(table)) == checksum(stored(db, 'm."offset" > 30'))
    assert findings(spark, db, other) == []
    assert run(spark, db, other, None)["messages"] == 0


def test_a_replay_is_the_same_after_compaction(spark: Any, db: Db, tmp_path: Path) -> None:
    def replayed() -> dict[str, Any]:
        with Run(db.url, "replay", "orders", "local", {}) as recorded:
            settings = replay.Settings(url=db.url, queue="orders", lake=str(tmp_path), into="again")
            return replay.replay(spark, settings, recorded).summary

    for _ in range(2):
        db.fill("orders", 2, 5)
        run(spark, db, tmp_path, "delta")
    first = replayed()
    db.sql("SELECT queen.trim(p.id, 10) FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id "
           "WHERE q.name = 'again'")  # fmt: skip
    assert main(["pipeline", "compact", "--queue", "orders", "--lake", str(tmp_path), "--url", db.url]) == 0
    second = replayed()
    assert (first["messages written"], second["messages written"], second["name"]) == (20, 0, first["name"])


def test_only_tables_are_compacted(spark: Any, db: Db, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db.fill("orders", 1, 2)
    run(spark, db, tmp_path, None)
    assert main(["pipeline", "compact", "--queue", "orders", "--lake", str(tmp_path), "--url", db.url]) == 1
    assert "has no table of queue 'orders'" in capsys.readouterr().err


@pytest.mark.timeout(7200 if LONG else 600)
def test_kills_lose_nothing_and_double_nothing(db: Db, tmp_path: Path) -> None:
    """The driver with its JVM and workers is killed while it archives; `QUEEN_LONG=1` kills it ten times a table."""
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    db.fill("orders", 20, MESSAGES // 20, padding=50)
    arguments = [sys.executable, str(Path(__file__).with_name("archive_tables.py")), db.url, str(tmp_path), str(ROUND)]
    killed = {"delta": 0, "iceberg": 0}
    deadline = time.monotonic() + (7000 if LONG else 540)
    done = False
    while not done:
        with (tmp_path / "log").open("ab") as log:
            driver = subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)
        try:
            before = archived_rows(db)
            after = chance.uniform(0, 1)
            while driver.poll() is None:
                assert time.monotonic() < deadline, f"seed {seed}, {killed}: {(tmp_path / 'log').read_text()[-2000:]}"
                now = archived_rows(db)
                kind = next((name for name in killed if now[name] > before[name] and now[name] < MESSAGES), None)
                if kind is not None and killed[kind] < KILLS:
                    time.sleep(after)  # somewhere in a round
                    killed[kind] += 1
                    break
                time.sleep(0.02)
            else:
                done = driver.returncode == 0
                assert done, f"seed {seed}: {(tmp_path / 'log').read_text()[-2000:]}"
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
    assert killed == {"delta": KILLS, "iceberg": KILLS}, f"seed {seed}"
    for kind in killed:
        assert_equal(db, tmp_path / kind, kind)


def archived_rows(db: Db) -> dict[str, int]:
    found = dict(db.sql("SELECT right(lake, 5), sum(rows)::bigint FROM queen.archive_files GROUP BY lake"))
    return {"delta": found.get("delta", 0), "iceberg": found.get("eberg", 0)}
