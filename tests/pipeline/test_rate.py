"""`rowsPerSecond`: evenly, in small commits as in large ones, and without being taken for dead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.db import Db
from pipeline.test_promotion import frame, written
from queenmq.clock import SYSTEM
from queenmq.pipeline import promotion
from queenmq.pipeline.options import WriteOptions, parse_write
from queenmq.pipeline.promotion import promote
from queenmq.pipeline.sink import stage


class Slept:
    """Time passes only in the database: how long each pause was, what was in the queue by then, and what others would
    have taken for that of a dead driver.
    """

    def __init__(self, db: Db) -> None:
        self._db = db
        self.pauses: list[float] = []
        self.rows: list[int] = []
        self.taken_for_dead: list[Any] = []

    def sleep(self, seconds: float) -> None:
        self._db.sql(
            "UPDATE queen.pipeline_commits SET committed_at = committed_at - make_interval(secs => %s)", seconds
        )
        self.taken_for_dead += promotion.ask(self._db.url, "pipeline_unfinished")
        self.pauses.append(seconds)
        self.rows.append(self._db.count("orders"))


@pytest.fixture
def slept(db: Db, monkeypatch: pytest.MonkeyPatch) -> Slept:
    found = Slept(db)
    monkeypatch.setattr(promotion, "time", SimpleNamespace(sleep=found.sleep))
    monkeypatch.setattr(promotion, "SYSTEM", SimpleNamespace(monotonic=lambda: 0.0, wall=SYSTEM.wall))
    return found


def target(db: Db, rate: str) -> WriteOptions:
    return parse_write({"url": db.url, "queue": "orders", "rowsPerSecond": rate})


def put(db: Db, rate: str, rows: int, epoch: int = 1) -> None:
    options = target(db, rate)
    batch = frame(rows, partition=["p0"] * rows)
    assert promote(options, "s", epoch, [stage(options, "s", epoch, iter([batch]))]) == (rows, 0)


def test_rows_come_evenly(db: Db, slept: Slept) -> None:
    put(db, "5", 12)
    assert (slept.rows, slept.pauses) == ([5, 10, 12], [1.0, 1.0, 0.4])
    assert written(db) == {"p0": list(range(12))}


def test_small_batches_are_not_faster(db: Db, slept: Slept) -> None:
    for epoch in (1, 2):
        put(db, "5", 3, epoch)
    assert slept.pauses == [0.6, 0.6]


def test_what_was_there_is_not_waited_for(db: Db, slept: Slept) -> None:
    """A write that comes again has nothing to move."""
    put(db, "5", 12)
    slept.pauses.clear()
    put(db, "5", 12)
    assert slept.pauses == []


def test_a_slow_driver_is_not_taken_for_dead(db: Db, slept: Slept) -> None:
    put(db, "0.01", 3)
    assert slept.taken_for_dead == []
    assert sum(slept.pauses) == pytest.approx(300)
    assert slept.rows[-1] == 3
