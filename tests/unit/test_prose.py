"""`.ci/prose` finds refused words in what a person reads of the code, and only there."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def prose() -> Any:
    loader = SourceFileLoader("prose", str(ROOT / ".ci" / "prose"))
    spec = spec_from_loader("prose", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("src/queenmq/a.py", '"""One.\n\nWhoever asks is told."""\n', [3, 3]),
        ("src/queenmq/a.py", "x = 1  # it looks again\n", [1]),
        ("src/queenmq/a.py", 'raise ValueError(f"{told} is passed on to {x}")\n', [1]),
        ("src/queenmq/a.py", 'def told(look):\n    """Looks `told` up."""\n    return "told"\n', [2]),
        ("src/queenmq/a.py", '"""It is looked up, and `told` is a name."""\ntold = look = 1\n', []),
        ("src/queenmq/broker/a.py", "# the lane of pushes\n", []),
        ("src/queenmq/pipeline/a.py", "# the lane of a row\n", [1]),
        ("src/queenmq/storage/sql/a.sql", "-- Reckoned anew.\nSELECT told AS lane\n", [1]),
        ("tests/a.py", "# whoever reads tests\n", []),
    ],
)
def test_refused_words(prose: Any, tmp_path: Path, name: str, text: str, lines: list[int]) -> None:
    file = tmp_path / Path(name).name
    file.write_text(text)
    complaints = list(prose.refused_words(file, name))
    assert [int(each.split(":")[1]) for each in complaints] == lines
