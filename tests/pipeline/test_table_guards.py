"""Tables of the lake that are not as the database believes: nothing is deleted or taken for granted. Without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import DataScan, FileScanTask

from pipeline.db import Db
from queenmq.cli.main import main
from queenmq.pipeline import archived, iceberg
from queenmq.pipeline.connection import connection, rows
from queenmq.pipeline.errors import BadOption, PipelineError
from queenmq.pipeline.jobs import archive as archiving
from queenmq.pipeline.jobs import compact as compacting
from queenmq.pipeline.jobs.replay import Settings as ReplaySettings
from queenmq.pipeline.jobs.replay import replay
from queenmq.pipeline.lake import Lake
from queenmq.pipeline.lake_table import PartlyDeleted, TableChanged, check_whole, open_table, reconcile
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


@formats
def test_a_lake_that_was_emptied_is_refused(db: Db, archive: Archive, tmp_path: Path, kind: str) -> None:
    """Else the positions would stay, and retention would delete what no lake has."""
    db.fill("orders", 1, 3)
    archive(kind)
    tmp_path.joinpath("queue=orders").rename(tmp_path / "aside")
    for wanted in (kind, None):
        with pytest.raises(PipelineError, match=r"has nothing of queue 'orders'.*1 files were published"):
            archive(wanted)
    assert not tmp_path.joinpath("queue=orders").exists()
    assert db.one("SELECT count(*) FROM queen.archive_files") == 1
    tmp_path.joinpath("aside").rename(tmp_path / "queue=orders")
    assert archive()["messages"] == 0


def test_an_older_copy_of_a_table_is_refused(db: Db, archive: Archive, tmp_path: Path) -> None:
    table, copy = tmp_path / "queue=orders", tmp_path / "copy"
    db.fill("orders", 1, 3)
    archive("delta")
    shutil.copytree(table, copy)
    db.fill("orders", 1, 3)
    archive()
    table.rename(tmp_path / "newer")
    copy.rename(table)
    with pytest.raises(PipelineError, match="lacks 3 messages of files that were published"):
        archive()
    with pytest.raises(PipelineError, match="lacks 3 messages of files that were published"):
        compact(db, tmp_path)
    assert db.one("SELECT count(*) FROM queen.archive_files") == 2


@formats
def test_messages_of_partitions_that_the_database_has_lost(db: Db, archive: Archive, tmp_path: Path, kind: str) -> None:
    db.fill("orders", 2, 3)
    archive(kind)
    db.sql("DELETE FROM queen.archive_files")
    db.sql("DELETE FROM queen.archive_positions")
    db.sql("DELETE FROM queen.partitions WHERE name = 'p1'")
    db.sql("DELETE FROM queen.dropped_partitions")
    with pytest.raises(PipelineError, match=r"has 3 messages that the database has lost \(p1"):
        archive()


@formats
def test_partitions_that_were_dropped_are_compacted(db: Db, archive: Archive, tmp_path: Path, kind: str) -> None:
    for _ in range(2):
        db.fill("orders", 2, 3)
        archive(kind)
    db.sql("DELETE FROM queen.partitions WHERE name = 'p1'")
    db.sql("DELETE FROM queen.dropped_partitions")  # it is forgotten after a while
    assert compact(db, tmp_path)["files after"] == 1
    assert archive()["messages"] == 0


def test_what_is_missing_before_the_first_new_message(db: Db, archive: Archive, tmp_path: Path) -> None:
    for _ in range(2):
        db.fill("orders", 1, 3)
        archive("delta")
    db.sql("DELETE FROM queen.archive_files")
    db.sql("DELETE FROM queen.archive_positions")
    DeltaTable(str(tmp_path / "queue=orders")).delete('"offset" <= 3')
    with pytest.raises(PipelineError, match=r"lacks messages before others .*offsets 1, 2, 3"):
        archive()


@formats
def test_expiry_is_known_even_if_the_run_dies(
    db: Db, archive: Archive, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.fill("orders", 2, 5)
    db.sql("UPDATE queen.messages SET created_at = created_at - interval '8 days'")
    db.delete_message("p0", "2")
    archive(kind)
    db.fill("orders", 1, 5)
    archive(kind)

    class Dying(Exception):
        pass

    seen: list[int] = []

    def second_dies(*given: Any) -> int:
        seen.append(1)
        if len(seen) == 2:
            raise Dying
        return reconcile(*given)

    with monkeypatch.context() as patch:
        patch.setattr(compacting, "reconcile", second_dies)
        with pytest.raises(Dying):
            compact(db, tmp_path, keep_days=3)
    noted = "SELECT p.name, g.first_offset, g.last_offset FROM queen.archive_gaps g JOIN queen.partitions p " \
            "ON p.id = g.partition_id ORDER BY 1, 2"  # fmt: skip
    assert db.sql(noted) == [("p0", 2, 2)], "only what has really expired is noted"
    assert archive()["messages"] == 0
    assert db.sql(noted) == [("p0", 1, 5), ("p0", 2, 2), ("p1", 1, 5)]
    lake = Lake(str(tmp_path))
    [(p0, p1)] = db.sql("SELECT min(id::text) FILTER (WHERE name = 'p0'), min(id::text) FILTER (WHERE name = 'p1') "
                        "FROM queen.partitions")  # fmt: skip
    with connection(db.url) as opened:
        found = {str(key): count for key, count in rows(opened, "archive_gaps", lake.name, [p0, p1], [1, 3], [9, 9])}
    assert found == {p0: 5, p1: 3}, "each offset once"


def test_the_newest_metadata_is_named_after_a_kill(db: Db, archive: Archive, tmp_path: Path) -> None:
    db.fill("orders", 1, 3)
    archive("iceberg")
    hint = tmp_path / "queue=orders" / "metadata" / "version-hint.text"
    right = hint.read_text()
    hint.write_text("00000-older")
    archive()
    assert hint.read_text() == right


def test_messages_that_others_have_deleted_beside_the_files(
    db: Db, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files still have them: compaction would bring them back, and so would who reads the files as they are."""
    for _ in range(3):
        db.fill("orders", 1, 3)
        archive("iceberg")
    plan = DataScan.plan_files
    marked = sorted(str(path) for path in data_files(tmp_path))[0]

    def with_deletes(scan: DataScan) -> list[FileScanTask]:
        return [
            FileScanTask(task.file, {task.file} if task.file.file_path.endswith(marked) else set())
            for task in plan(scan)
        ]

    lake = Lake(str(tmp_path))
    check_whole(lake, db.url, "orders")
    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    with pytest.raises(PartlyDeleted, match="Let the tool that did it rewrite them"):
        check_whole(lake, db.url, "orders")
    with pytest.raises(PartlyDeleted), Run(db.url, "replay", "orders", "here", {}) as recorded:
        replay(None, ReplaySettings(url=db.url, queue="orders", lake=str(tmp_path)), recorded)
    with pytest.raises(PartlyDeleted):
        archived(None, db.url, "orders", str(tmp_path))
    assert compact(db, tmp_path)["files after"] == 2
    with open_table(lake, db.url, "orders") as table:
        assert table is not None
        assert marked in {f"{lake.root}/{path}" for path in table.files()}


def test_a_delta_table_without_deletion_vectors_is_whole(db: Db, archive: Archive, tmp_path: Path) -> None:
    db.fill("orders", 1, 3)
    archive("delta")
    check_whole(Lake(str(tmp_path)), db.url, "orders")
    monkey = SimpleNamespace(read_all=lambda: pa.table({"filepath": ["a"]}))
    with open_table(Lake(str(tmp_path)), db.url, "orders") as table:
        table._table = SimpleNamespace(deletion_vectors=lambda: monkey)  # type: ignore[union-attr]
        with pytest.raises(PartlyDeleted):
            table.check_whole()  # type: ignore[union-attr]
        with pytest.raises(PartlyDeleted):
            table.compact(1 << 20)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "address",
    [
        "s3://KEY:hunter@bucket/folder",
        "s3a://KEY:hun/ter@bucket/folder",
        "s3://KEY:hun/ter",
        "gs://hunter@bucket/folder",
        "s3://bucket/folder?region=hunter",
        "file:///folder?hunter",
        "abfss://lake:hunter@account.dfs.core.windows.net/folder",
        "abfss://lake@account:hunter@dfs.core.windows.net/folder",
    ],
)
def test_addresses_with_more_than_a_place(address: str) -> None:
    with pytest.raises(BadOption, match="the address of the lake") as raised:
        Lake(address)
    assert "hun" not in str(raised.value)


def test_a_container_of_azure_is_a_place() -> None:
    one, other = (Lake(f"abfss://lake@{account}.dfs.core.windows.net/folder/") for account in ("first", "second"))
    assert one.name == "abfs:first.dfs.core.windows.net/lake/folder"
    assert one.name != other.name
    assert one.uri("x") == "abfss://lake@first.dfs.core.windows.net/folder/x"


def test_an_address_with_a_key_is_not_recorded(db: Db, capsys: pytest.CaptureFixture[str]) -> None:
    for job in ("archive", "compact", "audit", "replay"):
        assert main(["pipeline", job, "--queue", "orders", "--lake", "s3://KEY:hunter@bucket", "--url", db.url]) == 1
        assert "the address of the lake (s3://…) has a user or a key" in capsys.readouterr().err
    assert db.one("SELECT count(*) FROM queen.pipeline_runs") == 0
