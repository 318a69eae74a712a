"""What a batch is made of: the offsets around it, and nothing else that Spark writes down."""

from __future__ import annotations

import json
from pathlib import Path

from queenmq.pipeline.checkpoint import made_of


def batch(folder: Path, number: int, *offsets: object, at: int = 1) -> None:
    (folder / "offsets").mkdir(exist_ok=True)
    lines = ["v1", json.dumps({"batchTimestampMs": at}), *(json.dumps(one) for one in offsets)]
    (folder / "offsets" / str(number)).write_text("\n".join(lines))


def test_the_same_ranges_are_the_same(tmp_path: Path) -> None:
    batch(tmp_path, 0, {"queue": "q", "offsets": {"1": 5}, "dropped": 1})
    batch(tmp_path, 1, {"queue": "q", "offsets": {"1": 9}, "newest": [[1, 9, "a", 3]]})
    before = made_of(str(tmp_path), 1)
    batch(tmp_path, 0, {"queue": "q", "offsets": {"1": 5}, "dropped": 2}, at=4)
    batch(tmp_path, 1, {"queue": "q", "offsets": {"1": 9}}, at=7)
    assert made_of(f"file:{tmp_path}", 1) == made_of(f"file://{tmp_path}/", 1) == before
    assert before is not None


def test_another_start_or_end_is_another_batch(tmp_path: Path) -> None:
    batch(tmp_path, 0, {"queue": "q", "offsets": {"1": 5}}, {"kafka": 1})
    batch(tmp_path, 1, {"queue": "q", "offsets": {"1": 9}}, {"kafka": 2})
    first, second = made_of(str(tmp_path), 0), made_of(str(tmp_path), 1)
    batch(tmp_path, 1, {"queue": "q", "offsets": {"1": 9}}, {"kafka": 3})
    third = made_of(str(tmp_path), 1)
    batch(tmp_path, 0, {"queue": "q", "offsets": {"1": 4}}, {"kafka": 1})
    assert len({first, second, third, made_of(str(tmp_path), 1), made_of(str(tmp_path), 0)}) == 5


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert made_of(None, 3) is None
    assert made_of(str(tmp_path), 3) is None
    assert made_of("dbfs:/checkpoints/orders", 3) is None
