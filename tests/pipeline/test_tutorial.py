"""The tutorial: every cell runs, one after the other, as in a notebook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.db import Db

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "pipeline.py"


def test_every_cell_runs(spark: Any, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", db.url)
    cells = re.split(r"^# %%.*$", TUTORIAL.read_text(), flags=re.MULTILINE)
    code = [cell for cell in cells if any(line and not line.startswith("#") for line in cell.splitlines())]
    assert len(code) >= 6
    names: dict[str, Any] = {}
    for number, cell in enumerate(code):
        exec(compile(cell, f"cell {number}", "exec"), names)
    assert set(db.partitions("tutorial-stats")) == {str(n) for n in range(7)}
