"""backfill: files and tables into a queue, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.db import Db
from queenmq.pipeline.errors import BadOption
from queenmq.pipeline.jobs.backfill import Settings, backfill
from queenmq.pipeline.runs import Run


def run(spark: Any, db: Db, path: Path, **changes: Any) -> dict[str, Any]:
    settings = Settings(
        url=db.url,
        queue="orders",
        format="csv",
        path=str(path),
        options={"header": "true", "inferSchema": "true"},
        **changes,
    )
    with Run(db.url, "backfill", "orders", "local", {}) as recorded:
        return backfill(spark, settings, recorded).summary


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = [f"{n},c{n % 3},{n * 1.5}" for n in reversed(range(30))]
    path = tmp_path / "orders.csv"
    path.write_text("\n".join(["order,customer,amount", *lines]) + "\n")
    return path


def test_rows_become_objects_in_their_partition_and_order(spark: Any, db: Db, file: Path) -> None:
    assert run(spark, db, file, partition="customer", order=("order",))["messages written"] == 30
    partitions = db.partitions("orders")
    assert {name: [one["order"] for one in partition] for name, partition in partitions.items()} == {
        f"c{n}": list(range(n, 30, 3)) for n in range(3)
    }
    assert partitions["c1"][0] == {"order": 1, "customer": "c1", "amount": 1.5}
    db.assert_healthy("orders")


def test_the_same_backfill_is_done_once(spark: Any, db: Db, file: Path) -> None:
    told = [run(spark, db, file, name="first load") for _ in range(2)]
    assert [(one["messages written"], one["already there"]) for one in told] == [(30, 0), (0, 30)]
    assert db.count("orders") == 30


def test_ids_make_it_once_as_well(spark: Any, db: Db, file: Path) -> None:
    run(spark, db, file, transaction="order", where="order < 10")
    assert run(spark, db, file, transaction="order")["already there"] == 10
    assert db.count("orders") == 30


def test_wrong_words_are_told(spark: Any, db: Db, file: Path) -> None:
    with pytest.raises(BadOption, match="no column 'colour'"):
        run(spark, db, file, partition="colour")
    with pytest.raises(BadOption, match="cannot be read"):
        run(spark, db, file.with_name("nothing.csv"))
