"""Tables of the lake that are not as the database believes: nothing is deleted or taken for granted. Without Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.db import Db
from queenmq.pipeline import iceberg
from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.jobs import archive as archiving
from queenmq.pipeline.jobs import compact as compacting
from queenmq.pipeline.lake import Lake
from queenmq.pipeline.lake_table import TableChanged, open_table
from queenmq.pipeline.planning import slices
from queenmq.pipeline.runs import Run

formats = pytest.mark.parametrize("kind", ["delta", "iceberg"])
Archive = Callable[..., dict[str, Any]]


@pytest.fixture
def archive(db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """The job, whose tasks run one after the other in this process."""
    columns = [one.split()[0] for one in archiving.WORK.split(", ")]

    def round_here(_: Any, settings: Any, run_id: str, number: int, plan: Any) -> list[Any]:
        work = slices(plan.ranges, 1)
        return [
            dict(zip(columns, row, strict=True))
            for task in work
            for row in archiving.write_slice(settings, run_id, number, task)
        ]

    monkeypatch.setattr(archiving, "run_round", round_here)

    def archived(kind: str | None = None, lake: Path = tmp_path) -> dict[str, Any]:
        settings = archiving.Settings(url=db.url, queue="orders", lake=str(lake), format=kind)
        with Run(db.url, "archive", "orders", "here", {}) as recorded:
            return archiving.archive(None, settings, recorded).summary

    return archived


def compact(db: Db, lake: Path, **changes: Any) -> dict[str, Any]:
    with Run(db.url, "compact", "orders", "here", {}) as recorded:
        settings = compacting.Settings(url=db.url, queue="orders", lake=str(lake), **changes)
        return compacting.compact(settings, recorded).summary


def data_files(lake: Path) -> set[Path]:
    return set(lake.rglob("date=*/*.parquet"))


def test_only_files_of_expired_snapshots_are_deleted(
    db: Db, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        db.fill("orders", 1, 3)
        archive("iceberg")
    small = data_files(tmp_path)
    stranger = next(iter(small)).with_name("stranger.parquet")
    stranger.write_bytes(next(iter(small)).read_bytes())
    compact(db, tmp_path)
    assert data_files(tmp_path) > small, "readers of the last version go on"
    monkeypatch.setattr(iceberg, "KEPT", timedelta(seconds=-1))
    compact(db, tmp_path)
    left = data_files(tmp_path)
    assert stranger in left, "no snapshot ever had it"
    assert len(left) == 2
    assert not left & small


def test_a_version_that_was_the_newest_until_now_is_kept(
    db: Db, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old it is: a reader may have opened it a moment ago."""
    for _ in range(2):
        db.fill("orders", 1, 3)
        archive("iceberg")
    small = data_files(tmp_path)
    ago = datetime.now(UTC)
    monkeypatch.setattr(iceberg, "KEPT", timedelta(0))
    monkeypatch.setattr(iceberg, "utc_now", lambda: ago)
    compact(db, tmp_path)
    assert data_files(tmp_path) > small


def test_compact_opens_a_table_and_makes_none(db: Db, archive: Archive, tmp_path: Path) -> None:
    db.fill("orders", 1, 3)
    archive("iceberg", tmp_path / "a")
    db.sql("DELETE FROM queen_iceberg.iceberg_tables")
    before = data_files(tmp_path)
    with pytest.raises(PipelineError, match="catalog in this database does not know"):
        compact(db, tmp_path / "a")
    with pytest.raises(PipelineError, match="catalog in this database does not know"):
        archive("iceberg", tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(PipelineError, match="catalog in this database does not know"):
        compact(db, tmp_path / "b")
    assert db.one("SELECT count(*) FROM queen_iceberg.iceberg_tables") == 0
    assert {path.name for path in data_files(tmp_path)} == {path.name for path in before}


def test_names_of_the_catalog_that_others_have(db: Db, archive: Archive, tmp_path: Path) -> None:
    db.fill("orders", 1, 3)
    for name in ("a", "b"):
        archive("iceberg", tmp_path / name)
    db.sql("UPDATE queen_iceberg.iceberg_tables SET metadata_location = (SELECT metadata_location FROM "
           "queen_iceberg.iceberg_tables WHERE table_name = 'orders')")  # fmt: skip
    with pytest.raises(PipelineError, match="catalog"), open_table(Lake(str(tmp_path / "b")), db.url, "orders"):
        pass


@formats
def test_who_comes_second_is_told_so(db: Db, archive: Archive, tmp_path: Path, kind: str) -> None:
    for _ in range(2):
        db.fill("orders", 1, 3)
        archive(kind)
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    lake = Lake(str(tmp_path))
    with open_table(lake, db.url, "orders") as slow, open_table(lake, db.url, "orders") as fast:
        assert slow is not None
        assert fast is not None
        fast.expire(tomorrow)
        with pytest.raises(TableChanged, match="run it again"):
            slow.compact(1 << 20)
