"""The named statements under `sql/queries`, one a file, read once."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def statement(name: str) -> str:
    """The text of `sql/queries/<name>.sql`."""
    return (files("queenmq.storage") / "sql" / "queries" / f"{name}.sql").read_text("utf-8")
