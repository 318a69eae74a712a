"""Bounds on the shape of the code: the length of a module, what a constructor takes by position, who reads the time.

The lists name what is over a bound and waits to be divided. They only get shorter: what is within it is not listed.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator
from itertools import takewhile

import pytest

from unit.sources import SOURCES, modules

MOST_LINES = 400
MOST_BY_POSITION = 6
MOST_IN_ALL = 10

LONG_MODULES: set[str] = set()
# Made by a program from what is within the bounds; nobody reads them from top to bottom.
GENERATED = {"queenmq/client/answers.py"}
LONG_CONSTRUCTORS: set[str] = set()
# `queenmq.clock` is what reads the time for everybody else.
READERS_OF_TIME = {"queenmq/clock.py"}


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path, nodes in modules(SOURCES):
        module = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                yield f"{module}.{node.name}", node


def is_over(node: ast.ClassDef) -> bool:
    """Whether its constructor takes too much. That of a dataclass may take any number of values by name."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            by_position = len(part.args.posonlyargs) + len(part.args.args) - 1
            return by_position > MOST_BY_POSITION or by_position + len(part.args.kwonlyargs) > MOST_IN_ALL
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if not any(text.startswith("dataclass") and "kw_only=True" not in text for text in decorators):
        return False
    fields = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
    positional = takewhile(lambda field: field != "_: KW_ONLY", fields)
    return sum("ClassVar" not in field and "kw_only=True" not in field for field in positional) > MOST_BY_POSITION


def reads_time(nodes: Iterable[ast.AST]) -> list[str]:
    """What of a module reads the time of the process, or takes a moment of the event loop's own clock."""
    found = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found.append(ast.unparse(node))
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        if (
            (owner == "time" and node.attr not in {"sleep", "struct_time"})
            or (owner.split(".")[-1] in {"datetime", "date"} and node.attr in {"now", "utcnow", "today"})
            or node.attr in {"timeout_at", "call_at"}
        ) or (node.attr == "time" and ("loop" in owner or "clock" in owner)):
            found.append(ast.unparse(node))
    return found


def test_time_is_read_in_one_place() -> None:
    found = {path.relative_to(SOURCES).as_posix(): reads_time(nodes) for path, nodes in modules(SOURCES)}
    found = {path: reads for path, reads in found.items() if reads}
    assert found.keys() == READERS_OF_TIME, found


@pytest.mark.parametrize(
    "source",
    [
        "time.monotonic()",
        "now = time.time",
        "time.perf_counter_ns()",
        "time.process_time()",
        "from time import monotonic",
        "datetime.now(UTC)",
        "datetime.datetime.utcnow()",
        "date.today()",
        "asyncio.get_running_loop().time()",
        "self._loop.time()",
        "loop.call_at(when, go)",
        "asyncio.timeout_at(when)",
    ],
)
def test_what_counts_as_reading_the_time(source: str) -> None:
    assert reads_time(ast.walk(ast.parse(source)))


@pytest.mark.parametrize(
    "source", ["time.sleep(1)", "asyncio.sleep(1)", "spec.time.lower()", "self._clock.monotonic()"]
)
def test_what_does_not_count_as_reading_the_time(source: str) -> None:
    assert not reads_time(ast.walk(ast.parse(source)))


def test_modules_are_not_long() -> None:
    found = {
        path.relative_to(SOURCES).as_posix()
        for path, _ in modules(SOURCES)
        if len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES
    }
    assert found == LONG_MODULES | GENERATED


def test_constructors_take_little_by_position() -> None:
    found = {name for name, node in classes() if is_over(node)}
    assert found == LONG_CONSTRUCTORS


def test_every_package_has_a_contract_on_its_imports() -> None:
    contracts = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    bound = {module for one in contracts if one["type"] == "forbidden" for module in one["source_modules"]}
    packages = {f"queenmq.{path.parent.name}" for path in (SOURCES / "queenmq").glob("*/__init__.py")}
    assert packages | {"queenmq.server", "queenmq.testing"} <= bound


@pytest.mark.parametrize(
    ("source", "over"),
    [
        ("class A:\n def __init__(self, a, b, c, d, e, f): ...", False),
        ("class A:\n def __init__(self, a, b, c, d, e, f, g): ...", True),
        ("class A:\n def __init__(self, *, a, b, c, d, e, f, g, h, i, j): ...", False),
        ("class A:\n def __init__(self, *, a, b, c, d, e, f, g, h, i, j, k): ...", True),
        ("@dataclass(frozen=True)\nclass A:\n a: int\n b: int\n c: int\n d: int\n e: int\n f: int\n g: int", True),
        ("@dataclass\nclass A:\n a: int\n b: int\n c: int\n d: int\n e: int\n f: int\n g: ClassVar[int]", False),
        ("@dataclass\nclass A:\n a: int\n b: int\n c: int\n d: int\n e: int\n f: int\n _: KW_ONLY\n g: int", False),
        ("@dataclass\nclass A:\n a: int\n b: int\n c: int\n d: int\n e: int\n f: int\n g: int\n _: KW_ONLY", True),
        ("@dataclass(kw_only=True)\nclass A:\n a: int\n b: int\n c: int\n d: int\n e: int\n f: int\n g: int", False),
    ],
)
def test_the_bound_on_constructors(source: str, over: bool) -> None:
    [node] = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    assert is_over(node) is over
