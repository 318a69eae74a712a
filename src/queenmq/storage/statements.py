"""The SQL files of this package: `sql/queries` and `sql/functions`, in folders by subject.

A file holds one statement, or one function with its trigger, and is known by its name alone: no two files of `queries`
have the same name, and no two of `functions`. The folders are only for the reader.

Servers of two versions may run on one database, so each calls functions of its own: what the files call `queen.push`
is `queen.push_1f0c23ab` in the database, after the digest of all functions. `versioned` fills in the names, once for
each text. Only what others call has the same name in every version: the functions of triggers, which a table has once,
and those with a line `-- Public:` in their header, which users and the data pipeline call.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

_FUNCTION = re.compile(r"^CREATE OR REPLACE FUNCTION queen\.(\w+)\(", re.MULTILINE)
_TRIGGER = re.compile(
    r"^CREATE (?:OR REPLACE|CONSTRAINT) TRIGGER (\w+)\s.*?\sON queen\.(\w+)\s.*?;$", re.MULTILINE | re.DOTALL
)
_PUBLIC = re.compile(r"^-- Public: |\) RETURNS trigger ", re.MULTILINE)


@cache
def statement(name: str) -> str:
    """The text of `<name>.sql` in one of the folders of `sql/queries`, with the names of this version's functions."""
    return versioned(sql_texts("queries")[name])


def versioned(text: str) -> str:
    """The same SQL with the names that the functions of this version have in the database."""
    return function_set().named(text)


@cache
def function_set() -> FunctionSet:
    """The functions of this version."""
    return FunctionSet(sql_texts("functions"))


@dataclass(frozen=True)
class FunctionSet:
    """The functions of one version, from the texts of their files by name."""

    files: Mapping[str, str]

    @cached_property
    def name(self) -> str:
        """What the names of the functions end with."""
        return hashlib.sha256("\n".join(self.files.values()).encode()).hexdigest()[:8]

    @cached_property
    def public(self) -> frozenset[str]:
        """The functions that have the same name in every version."""
        return frozenset(
            name for text in self.files.values() if _PUBLIC.search(text) for name in _FUNCTION.findall(text)
        )

    @cached_property
    def own(self) -> frozenset[str]:
        """The functions that have a name of their own in every version, as the files call them."""
        return frozenset(name for text in self.files.values() for name in _FUNCTION.findall(text)) - self.public

    @cached_property
    def _calls(self) -> re.Pattern[str]:
        return re.compile(rf"\bqueen\.({'|'.join(sorted(self.own))})(?=\()")

    def named(self, text: str) -> str:
        return self._calls.sub(rf"queen.\1_{self.name}", text)

    @cached_property
    def own_text(self) -> str:
        """What makes them. Bodies are not checked when a function is made, so any order will do: it is by name."""
        return "\n".join(self._made(text) for text in self.files.values() if not _PUBLIC.search(text))

    def _made(self, text: str) -> str:
        # In its own body a function's name stands before its parameters, where they could be columns.
        [name] = _FUNCTION.findall(text)
        return re.sub(rf"(?<![\w.]){name}\.(?=\w)", rf"{name}_{self.name}.", self.named(text))

    @cached_property
    def public_text(self) -> str:
        """What makes the public ones, without their triggers."""
        return self.named("\n".join(_TRIGGER.sub("", text) for text in self.files.values() if _PUBLIC.search(text)))

    @cached_property
    def triggers(self) -> dict[str, dict[str, str]]:
        """The statements that make triggers, by table and name."""
        found: dict[str, dict[str, str]] = {}
        for text in self.files.values():
            for match in _TRIGGER.finditer(text):
                found.setdefault(match[2], {})[match[1]] = match[0]
        return found


@cache
def sql_texts(folder: str) -> Mapping[str, str]:
    """The texts of the SQL files of a folder, by name. All are read at once: a running server whose package is replaced
    goes on with the statements that fit its functions."""
    return {name: file.read_text("utf-8") for name, file in sql_files(folder).items()}


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
