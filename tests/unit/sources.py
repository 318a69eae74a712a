"""The Python files below a folder with the nodes of their syntax trees; those of the product are parsed only once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"

Module = tuple[Path, tuple[ast.AST, ...]]


def modules(folder: Path) -> Iterator[Module]:
    """Each file with its nodes, in the order of `ast.walk`."""
    if folder.is_relative_to(SOURCES):
        yield from (module for module in _of_the_product() if module[0].is_relative_to(folder))
    else:
        yield from _parsed(folder)


@cache
def _of_the_product() -> list[Module]:
    return list(_parsed(SOURCES))


def _parsed(folder: Path) -> Iterator[Module]:
    for path in sorted(folder.rglob("*.py")):
        yield path, tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
