"""Every statement that the code names exists, and every SQL file has a caller in the product, not only in tests."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from queenmq.storage.statements import FunctionSet, function_set, sql_files, sql_texts, statement, versioned
from unit.sources import ROOT, SOURCES, modules

SOURCE = SOURCES / "queenmq"
TESTS = ROOT / "tests"

# Calls that take the name of a statement, and at which place: `statement`, those of a report, `rows` of the pipeline.
NAMED_AT = {"statement": (0,), "rows": (0, 1), "row": (0,), "one": (0,)}
NAME = re.compile(r"[a-z0-9_]+")
QUERIES = sql_files("queries")
FUNCTIONS = sql_texts("functions")
COMMENT = re.compile(r"--.*")
APPLICATIONS_CALL = "-- Public: applications call it.\n"
CREATED = re.compile(r"CREATE OR REPLACE FUNCTION queen\.(\w+)")


def texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for one in nodes:
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def named(call: ast.Call) -> Iterator[str]:
    """The names of statements that a call is given as literals: either branch of a condition counts."""
    function = call.func
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    for place in NAMED_AT.get(called, ()):
        if place < len(call.args):
            argument = call.args[place]
            choices = (argument.body, argument.orelse) if isinstance(argument, ast.IfExp) else (argument,)
            for one in choices:
                if isinstance(one, ast.Constant) and isinstance(one.value, str) and NAME.fullmatch(one.value):
                    yield one.value


@pytest.mark.parametrize("root", [SOURCE, TESTS], ids=["src", "tests"])
def test_every_statement_that_is_named_exists(root: Path) -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path, nodes in modules(root)
        for node in nodes
        if isinstance(node, ast.Call)
        for name in named(node)
        if name not in QUERIES
    ]
    assert not missing


def test_every_query_has_a_caller() -> None:
    used = {text for _, nodes in modules(SOURCE) if any(map(is_sender, nodes)) for text in texts(nodes)}
    assert not QUERIES.keys() - used


def is_sender(node: ast.AST) -> bool:
    """Whether a module with this node names statements."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
            return name in NAMED_AT
    return False


def test_every_function_has_a_caller() -> None:
    bodies = [COMMENT.sub("", text) for text in FUNCTIONS.values()]
    bodies += [COMMENT.sub("", file.read_text("utf-8")) for file in QUERIES.values()]
    bodies += [text for _, nodes in modules(SOURCE) for text in texts(nodes)]
    everything = "\n".join(bodies)
    unused = []
    for text in FUNCTIONS.values():
        for name in CREATED.findall(text):
            mentioned = len(re.findall(rf"queen\.{name}\b", everything))
            without_trigger = re.split(r"^CREATE .*TRIGGER", COMMENT.sub("", text), flags=re.MULTILINE)[0]
            recursive = len(re.findall(rf"queen\.{name}\b", without_trigger))
            if mentioned <= recursive and APPLICATIONS_CALL not in text:
                unused.append(name)
    assert not unused


def test_a_file_has_one_function_and_its_name() -> None:
    """The function of a trigger has the trigger's name, with `on_` before it."""
    for name, text in FUNCTIONS.items():
        assert CREATED.findall(text) in ([name], [f"on_{name}"]), name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_does_and_what_it_locks(name: str) -> None:
    header = FUNCTIONS[name].partition("CREATE OR REPLACE FUNCTION")[0]
    assert header.startswith("-- ")
    locks = re.search(r"FOR (NO KEY )?UPDATE|FOR (KEY )?SHARE|advisory", COMMENT.sub("", FUNCTIONS[name]))
    assert locks is None or re.search(r"[Ll]ock", header), header


def test_a_statement_that_is_not_there_is_an_error() -> None:
    name = "no_such_statement"
    with pytest.raises(KeyError):
        statement(name)


def test_migrations_are_numbered_without_gaps_and_repetitions() -> None:
    numbers = [int(name.partition("_")[0]) for name in sql_files("migrations")]
    assert numbers == list(range(1, len(numbers) + 1)), "give a new migration the next number, also after a rebase"


def test_what_the_pipeline_calls_is_public() -> None:
    """Its jobs may be of another version than the servers."""
    called = {
        name
        for file in QUERIES.values()
        if Path(str(file)).parent.name == "pipeline"
        for name in re.findall(r"queen\.(\w+)\(", COMMENT.sub("", file.read_text("utf-8")))
    }
    assert called
    assert called <= function_set().public


def test_functions_are_called_only_in_sql_files() -> None:
    """There the names of this version's functions are filled in."""
    calls = re.compile(rf"queen\.({'|'.join(function_set().own)})\(")
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path, nodes in modules(SOURCE)
        for text in texts(nodes)
        if re.search(r"\b(SELECT|FROM|CALL)\b", text) and calls.search(text)
    ]
    assert not found


class TestFunctionSets:
    MADE = "CREATE OR REPLACE FUNCTION queen."
    FILES: ClassVar = {
        "add": f"-- Adds.\n{MADE}add(p_a int, OUT b int) AS $$ SELECT add.p_a + 1 $$;",
        "twice": f"-- Public: users call it.\n{MADE}twice(p_a int) AS $$ SELECT queen.add($1) $$;",
        "rows_insert": f"-- Counts.\n{MADE}on_rows_insert() RETURNS trigger AS $$ queen.add(1) $$;\n\n"
        "CREATE OR REPLACE TRIGGER rows_insert AFTER INSERT ON queen.rows\n"
        "    EXECUTE FUNCTION queen.on_rows_insert();",
    }

    def test_functions_get_the_name_of_their_set_and_public_ones_keep_theirs(self) -> None:
        made = FunctionSet(self.FILES)
        assert made.public == {"twice", "on_rows_insert"}
        assert made.named("SELECT queen.add(1), queen.twice(2), queen.adder(3)") == (
            f"SELECT queen.add_{made.name}(1), queen.twice(2), queen.adder(3)"
        )
        assert f"FUNCTION queen.add_{made.name}(p_a int, OUT b int) AS $$ SELECT add_{made.name}.p_a" in made.own_text
        assert f"queen.on_rows_insert() RETURNS trigger AS $$ queen.add_{made.name}(1)" in made.public_text
        assert "TRIGGER rows_insert" not in made.public_text
        assert made.triggers["rows"]["rows_insert"].endswith("EXECUTE FUNCTION queen.on_rows_insert();")

    def test_another_text_is_another_set(self) -> None:
        other = FunctionSet(self.FILES | {"add": self.FILES["add"].replace("+ 1", "+ 2")})
        assert other.name != FunctionSet(self.FILES).name
        assert other.public_text != FunctionSet(self.FILES).public_text

    def test_no_name_is_filled_in_twice(self) -> None:
        assert versioned(statement("pop")) == statement("pop")


def test_a_package_that_is_replaced_does_not_change_what_a_server_runs(tmp_path: Path) -> None:
    """Functions and statements are of one version, also those that are used for the first time after that."""
    program = """
import sys
from pathlib import Path
from queenmq.storage import statements

statements.files = lambda _: Path(sys.argv[1])
made = statements.function_set().name
statements.statement("first")
for name in ("queries/a/second", "functions/a/work"):
    file = Path(sys.argv[1]) / "sql" / f"{name}.sql"
    file.write_text(file.read_text().replace("1", "2"))
print(statements.statement("second") == f"SELECT queen.work_{made}(1)")
"""
    for name, text in {
        "queries/a/first": "SELECT 1",
        "queries/a/second": "SELECT queen.work(1)",
        "functions/a/work": "CREATE OR REPLACE FUNCTION queen.work(integer) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    }.items():
        file = tmp_path / "sql" / f"{name}.sql"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("True", "")
