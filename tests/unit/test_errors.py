"""The trees in the docstrings of the two modules of errors are what is in the code."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import queenmq
from queenmq import errors as server
from queenmq.client import errors as client
from unit.sources import modules

SOURCES = Path(queenmq.__file__).parent
# Of the client, of the pipeline and of commands: they have trees of their own, or catch theirs in their main.
APART = ("queenmq.client", "queenmq.pipeline", "queenmq.cli")
LINE = re.compile(r"(?P<rules>[│├└─ ]*)(?P<name>[A-Z]\w+) +(?:(?P<status>[0-9x]{3}) +)?(?P<code>[a-z_]+) +\S.*")


class Drawn(NamedTuple):
    parent: str | None
    status: str | None
    code: str


def lines_of_the_tree(docstring: str | None) -> list[str]:
    return ("QueenError " + (docstring or "").partition("\nQueenError ")[2]).splitlines()


def drawn(docstring: str | None) -> dict[str, Drawn]:
    """The errors in the tree, by name."""
    tree: dict[str, Drawn] = {}
    path: list[str] = []
    for line in lines_of_the_tree(docstring):
        found = LINE.fullmatch(line)
        if found is None:
            continue
        depth = len(found["rules"]) // 4
        del path[depth:]
        tree[found["name"]] = Drawn(path[-1] if path else None, found["status"], found["code"])
        path.append(found["name"])
    return tree


def below(root: type[Exception]) -> Iterator[type[Exception]]:
    yield root
    for kind in root.__subclasses__():
        yield from below(kind)


def named(kinds: Iterator[type[Exception]]) -> dict[str, type[Exception]]:
    return {kind.__name__: kind for kind in kinds}


def server_errors() -> dict[str, type[Exception]]:
    for module in pkgutil.walk_packages(queenmq.__path__, "queenmq."):
        if not module.name.startswith(APART) and not module.name.endswith((".__main__", ".otel")):
            importlib.import_module(module.name)
    return named(kind for kind in below(server.QueenError) if not kind.__module__.startswith((*APART, "tests")))


def parent(kind: type[Exception]) -> str | None:
    return None if kind.__bases__[0] is Exception else kind.__bases__[0].__name__


def test_the_tree_of_the_server_is_complete_and_right() -> None:
    found = {
        name: Drawn(parent(kind), str(kind.status) if issubclass(kind, server.HttpError) else None, kind.code)  # type: ignore[attr-defined]
        for name, kind in server_errors().items()
    }
    assert drawn(server.__doc__) == found


def test_the_tree_marks_what_is_defined_elsewhere() -> None:
    tree = "\n".join(lines_of_the_tree(server.__doc__))
    marked = set(re.findall(r"(\w+) +(?:[0-9]{3} +)?[a-z_]+ +\* ", tree))
    assert marked == {name for name, kind in server_errors().items() if kind.__module__ != server.__name__}


def test_the_tree_of_the_client_is_complete_and_right() -> None:
    tree, kinds = drawn(client.__doc__), named(below(client.QueenError))
    assert {name: one.parent for name, one in tree.items()} == {name: parent(kind) for name, kind in kinds.items()}
    codes = {name: getattr(kind, "default_code", kind.code) for name, kind in kinds.items()}  # type: ignore[attr-defined]
    assert {name: one.code for name, one in tree.items()} == codes
    assert {kind.__module__ for kind in kinds.values()} == {client.__name__}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 408, 409, 413, 414, 429, 431, 500, 502, 503])
def test_the_tree_of_the_client_says_what_an_answer_becomes(status: int) -> None:
    tree, kind = drawn(client.__doc__), type(client.refusal(status, {}, None)).__name__
    expected = {one.status: name for name, one in tree.items() if one.status is not None}
    assert kind == expected.get(str(status), "ServerFailed" if status == 408 else expected[f"{status // 100}xx"])


@pytest.mark.parametrize("module", [server, client])
def test_what_has_no_kinds_below_it_is_raised_somewhere(module: object) -> None:
    kinds = server_errors() if module is server else named(below(client.QueenError))
    leaves = {name for name, kind in kinds.items() if not kind.__subclasses__()}
    assert leaves <= made()


def made() -> set[str]:
    """Names that are called, raised, or kept in a table of what to raise."""
    found: set[str] = set()
    for _, nodes in modules(SOURCES):
        for node in nodes:
            if isinstance(node, ast.Call):
                found.add(ast.unparse(node.func).rpartition(".")[2])
            elif isinstance(node, ast.Raise) and node.exc is not None:
                found |= {part.id for part in ast.walk(node.exc) if isinstance(part, ast.Name)}
            elif isinstance(node, ast.Dict):
                found |= {ast.unparse(value) for value in node.values}
    return found


def test_nobody_raises_an_exception_without_a_kind() -> None:
    for path, nodes in modules(SOURCES):
        for node in nodes:
            if isinstance(node, ast.Raise) and node.exc is not None:
                raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                assert ast.unparse(raised) not in ("Exception", "BaseException"), f"{path}:{node.lineno}"


def test_the_client_raises_only_errors_of_its_own_at_its_users() -> None:
    """Builtins say that the caller's code is wrong in its types, or a defect of ours."""
    for path in (SOURCES / "client").rglob("*.py"):
        assert "raise ValueError" not in path.read_text(encoding="utf-8"), path
