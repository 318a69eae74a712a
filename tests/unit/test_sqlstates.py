"""Whose fault an error of the database is: only listed codes are the content's."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import asyncpg
import pytest

from queenmq.errors import DatabaseUnavailable, HttpError, InternalError
from queenmq.storage import sqlstates
from queenmq.storage.failures import EncryptionRequired, TransactionRefused, translate
from queenmq.storage.sqlstates import Cause, cause_of, described, is_about_the_statement, is_content_fault, sqlstate_of
from unit.sources import modules

NOT_THE_CONTENT = [
    "08006",
    "21000",
    "22012",
    "23503",
    "23505",
    "25006",
    "25P02",
    "28P01",
    "40001",
    "40P01",
    "42501",
    "42883",
    "42P01",
    "42703",
    "53000",
    "53100",
    "53200",
    "53300",
    "54000",
    "54001",
    "55000",
    "55P03",
    "57000",
    "57014",
    "57P01",
    "57P02",
    "57P03",
    "58000",
    "58030",
    "F0000",
    "P0001",
    "QN001",
    "XX000",
    "XX001",
    "XX002",
    "ZZZZZ",
]


@pytest.mark.parametrize("sqlstate", NOT_THE_CONTENT)
def test_an_error_that_is_not_listed_is_never_the_contents_fault(sqlstate: str) -> None:
    error = asyncpg.PostgresError("x")
    error.sqlstate = sqlstate
    assert not is_content_fault(error)


@pytest.mark.parametrize("error", [InternalError(), ValueError("x"), OSError(5, "x"), asyncpg.InterfaceError("x")])
def test_an_error_that_is_none_of_postgresqls_is_never_the_contents_fault(error: Exception) -> None:
    assert sqlstate_of(error) is None
    assert not is_content_fault(error)


def test_the_cause_counts_also_behind_an_error_of_ours() -> None:
    ours = InternalError()
    ours.__cause__ = asyncpg.CharacterNotInRepertoireError("x")
    assert is_content_fault(ours)
    ours.__cause__ = asyncpg.OutOfMemoryError("x")
    assert not is_content_fault(ours)
    assert cause_of(sqlstate_of(ours)) is Cause.DATABASE


def test_of_all_errors_that_the_driver_knows_only_those_about_values_are_the_contents_fault() -> None:
    known = {
        cls.sqlstate
        for _, cls in inspect.getmembers(asyncpg.exceptions, inspect.isclass)
        if issubclass(cls, asyncpg.PostgresError) and isinstance(cls.sqlstate, str)
    }
    blamed = {sqlstate for sqlstate in known if cause_of(sqlstate) is Cause.CONTENT}
    assert {sqlstate[:2] for sqlstate in blamed} == {"22", "23"}


@pytest.mark.parametrize("sqlstate", ["XX000", "P0001", "42501", "42P01", "0A000", "ZZZZZ"])
def test_an_error_that_is_not_listed_is_answered_with_unavailable(
    sqlstate: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An answer says how durable it is, and there are four: what failed for no known reason is not a fifth."""
    answer = translate(asyncpg.PostgresError.new({"C": sqlstate, "M": "what happened", "D": "the secret row"}))
    assert isinstance(answer, InternalError)  # so that the others of a merged call are not refused with it
    assert (answer.status, answer.code) == (503, "statement_failed")
    assert "what happened" not in answer.message
    assert (sqlstate in caplog.text, "secret" in caplog.text) == (True, False)


@pytest.mark.parametrize(("sqlstate", "kind"), [("QN001", TransactionRefused), ("QN002", EncryptionRequired)])
def test_what_our_functions_refuse_is_no_defect(
    sqlstate: str, kind: type[HttpError], caplog: pytest.LogCaptureFixture
) -> None:
    answer = translate(asyncpg.PostgresError.new({"C": sqlstate, "M": "what happened"}))
    assert isinstance(answer, kind)
    assert not isinstance(answer, InternalError)
    # Where nobody acts on it, it is answered as what nobody has foreseen.
    assert (answer.status, answer.body()) == (500, {"error": "what happened", "code": "internal_error"})
    assert not caplog.text


@pytest.mark.parametrize("sqlstate", ["08006", "53300", "57P01", "57P02", "57P03", "57P05"])
def test_a_lost_connection_is_known_by_its_sqlstate(sqlstate: str) -> None:
    assert cause_of(sqlstate) is Cause.CONNECTION
    assert isinstance(translate(asyncpg.PostgresError.new({"C": sqlstate, "M": "x"})), DatabaseUnavailable)


SOURCE = Path(sqlstates.__file__).parents[1]
OURS = re.compile(r"\bQN\d{3}\b")


def test_our_functions_raise_what_is_listed() -> None:
    raised = {state for file in SOURCE.rglob("functions/**/*.sql") for state in OURS.findall(file.read_text("utf-8"))}
    assert raised == set(OURS.findall(Path(sqlstates.__file__).read_text("utf-8")))


def test_no_other_module_chooses_by_sqlstate() -> None:
    """Neither by a literal nor by an exception class of a driver that stands for one."""
    known = {
        name: cls.sqlstate  # type: ignore[attr-defined]
        for name, cls in inspect.getmembers(asyncpg.exceptions, inspect.isclass)
        if isinstance(getattr(cls, "sqlstate", None), str)
    }
    literals = set(known.values()) - {"20000"}  # which is a number elsewhere
    found = []
    for path, nodes in modules(SOURCE):
        if path == Path(sqlstates.__file__):
            continue
        for node in nodes:
            match node:
                case ast.Constant(value=str(text)) if text in literals or OURS.fullmatch(text):
                    found.append((path.name, node.lineno, text))
                case ast.Attribute(attr=name, value=ast.Name(id="asyncpg")) if name in known:
                    found.append((path.name, node.lineno, name))
                case ast.Attribute(attr="errors", value=ast.Name(id="psycopg")):
                    found.append((path.name, node.lineno, "psycopg.errors"))
    assert not found


def error(sqlstate: str) -> InternalError:
    """Ours, raised from one of PostgreSQL's."""
    ours = InternalError()
    ours.__cause__ = asyncpg.PostgresError.new({"C": sqlstate, "M": "what happened", "D": "the secret row"})
    return ours


def test_a_lost_connection_is_not_about_the_statement() -> None:
    assert is_about_the_statement(error("57014"))
    assert not is_about_the_statement(error("57P01"))
    assert not is_about_the_statement(error("08006"))
    assert not is_about_the_statement(ConnectionResetError())


def test_the_sentence_has_no_details() -> None:
    assert described(error("23514")) == "what happened (SQLSTATE 23514)"
    assert described(InternalError("no idea")) == "no idea"
