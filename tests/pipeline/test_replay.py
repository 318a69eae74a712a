"""replay: from the lake back into a queue, in order, with ids, once."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pipeline.db import Db
from queenmq.pipeline.errors import BadOption
from queenmq.pipeline.jobs import archive as archiving
from queenmq.pipeline.jobs import replay as replaying
from queenmq.pipeline.jobs.replay import Settings, replay
from queenmq.pipeline.runs import Run

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def lake(spark: Any, db: Db, tmp_path: Path) -> str:
    """Three partitions with ten messages each, a minute apart."""
    db.fill("orders", 3, 10)
    db.sql("""UPDATE queen.messages SET created_at = '2026-01-01Z'::timestamptz + "offset" * interval '1 minute'""")
    with Run(db.url, "archive", "orders", "local", {}) as recorded:
        archiving.archive(spark, archiving.Settings(url=db.url, queue="orders", lake=str(tmp_path)), recorded)
    return str(tmp_path)


def run(spark: Any, db: Db, lake: str, **changes: Any) -> dict[str, Any]:
    settings = Settings(url=db.url, queue="orders", lake=lake, into="again", **changes)
    with Run(db.url, "replay", "orders", "local", {}) as recorded:
        return replay(spark, settings, recorded).summary


def test_everything_comes_back_in_order_with_its_ids(spark: Any, db: Db, lake: str) -> None:
    assert run(spark, db, lake)["messages written"] == 30
    db.assert_copied("orders", "again")
    for what in ("m.transaction_id", "m.id::text"):
        assert db.partitions("again", what) == db.partitions("orders", what)


def test_the_same_replay_is_done_once_even_after_retention(spark: Any, db: Db, lake: str) -> None:
    run(spark, db, lake)
    again = db.one("SELECT id FROM queen.queues WHERE name = 'again'")
    db.sql("SELECT queen.trim(id, 10) FROM queen.partitions WHERE queue_id = %s", again)
    second = run(spark, db, lake)
    assert (second["messages written"], second["already there"]) == (0, 30)
    assert db.sql("SELECT rows FROM queen.pipeline_runs WHERE job = 'replay' ORDER BY started_at") == [(30,), (0,)]
    assert db.count("again") == 0
    run(spark, db, lake, name="once more")
    assert db.count("again") == 30


def test_what_is_still_stored_is_not_written_again(spark: Any, db: Db, lake: str) -> None:
    settings = Settings(url=db.url, queue="orders", lake=lake)
    with Run(db.url, "replay", "orders", "local", {}) as recorded:
        summary = replay(spark, settings, recorded).summary
    assert (summary["messages written"], summary["already there"]) == (0, 30)


def test_filtered_by_time_partition_and_predicate(spark: Any, db: Db, lake: str) -> None:
    since, until = JANUARY.replace(minute=3), JANUARY.replace(minute=6)
    run(
        spark, db, lake, since=since, until=until, partitions=("p0", "p1"), where="get_json_object(value, '$.n') <> '4'"
    )
    assert {name: [m["n"] for m in partition] for name, partition in db.partitions("again").items()} == {
        "p0": [3, 5],
        "p1": [3, 5],
    }


def test_throttled(spark: Any, db: Db, lake: str) -> None:
    begun = time.monotonic()
    summary = run(spark, db, lake, rate=15.0)
    assert time.monotonic() - begun >= 30 / 15
    assert summary["messages written"] == 30
    db.assert_copied("orders", "again")


def test_messages_of_one_moment_are_throttled_as_well(spark: Any, db: Db, lake: str) -> None:
    """In commits of what may come in a second, each with a time of its own."""
    db.sql("UPDATE queen.messages SET created_at = '2026-01-01Z'")
    shutil.rmtree(lake)
    db.sql("TRUNCATE queen.archive_files, queen.archive_positions")
    with Run(db.url, "archive", "orders", "local", {}) as recorded:
        archiving.archive(spark, archiving.Settings(url=db.url, queue="orders", lake=lake), recorded)
    assert run(spark, db, lake, rate=10.0)["messages written"] == 30
    commits = db.sql(
        "SELECT count(*), min(m.created_at) FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id "
        "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'again' GROUP BY m.created_at ORDER BY 2"
    )
    assert [count for count, _ in commits] == [10, 10, 10]
    assert all(later - at >= timedelta(seconds=0.5) for (_, at), (_, later) in pairwise(commits))
    db.assert_copied("orders", "again")


@pytest.mark.parametrize(
    ("before", "done", "rate", "size"),
    [
        (10, 2, None, 200_000),  # two of three steps, with 12 messages each, because those of a moment stay together
        (10, 3, 100.0, 5),  # complete: 12, 12 and 6 messages
        (200_000, 0, 100.0, 10),
    ],
)
def test_another_rate_goes_on_with_the_same_replay(
    spark: Any,
    db: Db,
    lake: str,
    monkeypatch: pytest.MonkeyPatch,
    before: int,
    done: int,
    rate: float | None,
    size: int,
) -> None:
    steps = 0

    def dying(*step: Any) -> tuple[int, int]:
        nonlocal steps
        if steps == done:
            raise InterruptedError
        steps += 1
        return written(*step)

    written = replaying.write_step
    with monkeypatch.context() as patch, suppress(InterruptedError):
        patch.setattr(replaying, "write_step", dying)
        patch.setattr(replaying, "STEP_ROWS", before)
        run(spark, db, lake)
    db.sql("DELETE FROM queen.pipeline_commits WHERE sink LIKE '%% end'")  # which the version before did not write
    there = db.count("again")
    assert there == min(30, done * 12)
    monkeypatch.setattr(replaying, "STEP_ROWS", size)
    for new in (30 - there, 0):
        summary = run(spark, db, lake, rate=rate)
        assert (summary["messages written"], summary["already there"]) == (new, 30 - new)
        db.assert_copied("orders", "again")


@pytest.mark.parametrize("complete", [True, False])
def test_a_name_is_for_the_same_messages_only(
    spark: Any, db: Db, lake: str, monkeypatch: pytest.MonkeyPatch, complete: bool
) -> None:
    """Also if those that were written before are still the first ones."""
    given = {"name": "monday", "until": JANUARY.replace(minute=6)}
    assert run(spark, db, lake, **given)["messages written"] == 15
    if not complete:
        db.sql("DELETE FROM queen.pipeline_commits WHERE sink LIKE '%% end'")
        given["since"] = JANUARY.replace(minute=3)  # and now the first ones are missing
    with pytest.raises(Exception, match=r"monday.* before with other messages"):
        run(spark, db, lake, **given | {"until": JANUARY.replace(minute=8), "rate": 100.0})
    assert db.count("again") == 15


def test_wrong_words_are_told_before_anything_is_written(spark: Any, db: Db, lake: str) -> None:
    with pytest.raises(BadOption, match="predicate is wrong"):
        run(spark, db, lake, where="colour = 'red'")
    with pytest.raises(BadOption, match="no published file"):
        run(spark, db, lake + "/elsewhere")
    assert db.one("SELECT count(*) FROM queen.queues WHERE name = 'again'") == 0
