"""What is remembered of commits, and for how long: a write that comes again must find itself, and nothing may grow for
ever."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from pipeline.db import Db
from pipeline.test_promotion import frame, written
from queenmq.ids import uuid7_text
from queenmq.pipeline.errors import OtherContent
from queenmq.pipeline.options import WriteOptions
from queenmq.pipeline.sink import BatchWriter

KEPT = "SELECT sink, epoch FROM queen.pipeline_commits ORDER BY sink, epoch"


def write(db: Db, rows: int = 2, **named: Any) -> str:
    """Returns the sink."""
    writer = BatchWriter(WriteOptions(url=db.url, queue="orders", **named))
    writer.commit([writer.write(iter([frame(rows, partition=["p0"] * rows)]))])
    return writer._sink


def test_numbered_writes_are_remembered_as_batches_of_a_stream(db: Db) -> None:
    """Each once, and the newest 10,000."""
    for number in (0, 1, 1, 2, 1):
        write(db, write_id="updates q", batch_id=number, made_of=f"of {number}")
    assert written(db) == {"p0": [0, 1] * 3}
    assert db.sql(KEPT) == [("batches updates q", number) for number in range(3)]
    write(db, write_id="updates q", batch_id=10_002)
    assert db.sql(KEPT) == [("batches updates q", 2), ("batches updates q", 10_002)]


def test_a_numbered_write_with_other_messages_is_refused(db: Db) -> None:
    write(db, write_id="x", batch_id=0)
    with pytest.raises(OtherContent, match=r"batch 0 of this .* \(2 rows then, 3 now\).* another writeId than 'x'"):
        write(db, 3, write_id="x", batch_id=0)
    write(db, write_id="x", batch_id=1, made_of="a")
    with pytest.raises(OtherContent, match="the last batch of this stream that is known here is 1, and now comes 7"):
        write(db, write_id="x", batch_id=7, made_of="b")
    assert written(db) == {"p0": [0, 1, 0, 1]}


def test_a_write_without_a_name_is_forgotten_a_day_later(db: Db) -> None:
    """It never comes again. One whose rows are not all in the queues is not, however old it is."""
    new, named = write(db), write(db, write_id=uuid7_text())
    day = int(timedelta(days=1).total_seconds() * 1000)

    def earlier(name: str, ms: int, **columns: Any) -> str:
        """Another commit, of so long before."""
        digits = name.removeprefix("unnamed ").replace("-", "")
        text = f"{int(digits[:12], 16) - ms:012x}"
        sink = f"unnamed {text[:8]}-{text[8:]}-{name[-22:]}"
        given = {"sink": sink, "epoch": 0, "promotion": None} | columns
        db.sql(
            "INSERT INTO queen.pipeline_commits (sink, epoch, promotion, committed_at) VALUES (%s, %s, %s, %s)",
            *given.values(),
            datetime(2020, 1, 1),
        )
        return sink

    old = earlier(new, day + 1000)
    hours, unfinished = earlier(new, day - 60_000), earlier(new, 2 * day, promotion=1)
    assert len(old) == len(new)
    last = write(db)
    assert {sink for sink, _ in db.sql(KEPT)} == {new, named, hours, unfinished, last}


def test_few_commits_are_looked_at_to_forget_some(db: Db) -> None:
    """The sweep comes with each commit of each stream."""
    db.sql(
        "INSERT INTO queen.pipeline_commits (sink, epoch) "
        "SELECT 'stream ' || n %% 7, n FROM generate_series(1, 20000) n"
    )
    db.sql("ANALYZE queen.pipeline_commits")
    plan = "\n".join(
        line
        for (line,) in db.sql(
            "EXPLAIN DELETE FROM queen.pipeline_commits WHERE sink > 'unnamed ' AND sink < 'unnamed 01991111-2222' "
            "AND promotion IS NULL"
        )
    )
    assert "pipeline_commits_pkey" in plan
    assert "Seq Scan" not in plan
