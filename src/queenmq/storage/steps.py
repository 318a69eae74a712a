"""The steps of an upgrade: the numbered files of `sql/migrations`, and what each statement in them touches.

A migration expands or contracts. One that expands leaves everything in place that servers of the version before use:
new tables, columns with a default, indexes. One that contracts takes away what only they used; its file has the line
`-- Phase: contract.`. On a new database all run in the order of their numbers.

While servers run, each statement is a transaction of its own. A statement below the line `-- In batches.` is repeated
until it changes no row. CREATE INDEX CONCURRENTLY runs without a transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from queenmq.storage.statements import sql_files

Phase = Literal["expand", "contract"]

_TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$|;", re.DOTALL)
_COMMENT = re.compile(r"--[^\n]*")
_TABLE = re.compile(
    r"^(?:ALTER TABLE|UPDATE|DELETE FROM|INSERT INTO|DROP TABLE|COMMENT ON (?:TABLE|COLUMN)|TRUNCATE"
    r"|CREATE (?:UNIQUE )?INDEX (?:CONCURRENTLY )?\w+ ON)\s+(?:IF EXISTS |ONLY )?queen\.(\w+)",
    re.IGNORECASE,
)
_LOCKS = {
    r"ALTER TABLE \S+ SET \(": "SHARE UPDATE EXCLUSIVE",
    r"ALTER TABLE|DROP |TRUNCATE": "ACCESS EXCLUSIVE",
    r"CREATE (UNIQUE )?INDEX CONCURRENTLY": "SHARE UPDATE EXCLUSIVE",
    r"CREATE (UNIQUE )?INDEX": "SHARE",
    r"COMMENT": "SHARE UPDATE EXCLUSIVE",
    r"UPDATE|DELETE|INSERT": "ROW EXCLUSIVE",
}


@dataclass(frozen=True)
class Step:
    """One statement of a migration."""

    text: str

    @cached_property
    def plain(self) -> str:
        """The statement without its comments, in one line."""
        return " ".join(_COMMENT.sub(" ", self.text).split())

    @property
    def is_batch(self) -> bool:
        return re.search(r"^-- In batches\.", self.text, re.MULTILINE) is not None

    @property
    def is_concurrent(self) -> bool:
        return re.match(r"CREATE (UNIQUE )?INDEX CONCURRENTLY ", self.plain) is not None

    @property
    def table(self) -> str | None:
        """The table of the schema queen that it changes; None for a new one."""
        found = _TABLE.match(self.plain)
        return None if found is None else found[1]

    @property
    def lock(self) -> str | None:
        """The lock that it takes on that table."""
        if self.table is None:
            return None
        return next((lock for start, lock in _LOCKS.items() if re.match(start, self.plain)), None)


@dataclass(frozen=True)
class Migration:
    version: int
    name: str
    sql: str

    @property
    def phase(self) -> Phase:
        return "contract" if re.search(r"^-- Phase: contract\.", self.sql, re.MULTILINE) else "expand"

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return tuple(Step(text) for text in _split(self.sql))

    @property
    def sql_at_once(self) -> str:
        """For a transaction in which nobody else is there."""
        return re.sub(r"\bINDEX CONCURRENTLY\b", "INDEX", self.sql)


def _split(sql: str) -> Iterator[str]:
    begin = 0
    for token in _TOKEN.finditer(sql):
        if token[0] == ";":
            yield sql[begin : token.start()].strip()
            begin = token.end()
    rest = sql[begin:].strip()
    if _COMMENT.sub("", rest).strip():
        yield rest


@cache
def migrations() -> tuple[Migration, ...]:
    found = []
    for numbered, file in sql_files("migrations").items():
        number, _, name = numbered.partition("_")
        found.append(Migration(int(number), name, file.read_text("utf-8")))
    return tuple(found)
