"""The SQL files of this package: `sql/queries` and `sql/functions`, in folders by subject.

A file holds one statement, or one function with its trigger, and is known by its name alone: no two files of `queries`
have the same name, and no two of `functions`. The folders are only for the reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable


@cache
def statement(name: str) -> str:
    """The text of `<name>.sql` in one of the folders of `sql/queries`."""
    return sql_files("queries")[name].read_text("utf-8")


@cache
def sql_files(folder: str) -> dict[str, Traversable]:
    """The SQL files of a folder of `sql`, by name without suffix, in the order of the names."""
    found: dict[str, Traversable] = {}
    for file in _below(files("queenmq.storage") / "sql" / folder):
        if found.setdefault(file.name.removesuffix(".sql"), file) is not file:
            raise AssertionError(f"{file.name} is twice in sql/{folder}")
    return dict(sorted(found.items()))


def _below(folder: Traversable) -> Iterator[Traversable]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _below(entry)
        elif entry.name.endswith(".sql"):
            yield entry
