"""The statements of reports and the types of their rows; and that a report is about one moment."""

from __future__ import annotations

import pkgutil
import re
import types
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import asyncpg
import pytest

import queenmq.reports
from integration.queen import Queen
from queenmq.errors import DatabaseUnavailable
from queenmq.reports import dead_letters, explain, groups, messages, partitions, queues, traces
from queenmq.reports.dead_letters import DeadLetterFilter
from queenmq.reports.explanation import Question, ServerState
from queenmq.reports.messages import MessageFilter
from queenmq.reports.reading import Query, Reader, Reports
from queenmq.server import Server
from queenmq.storage.database import LOST_ANSWERS
from queenmq.storage.failures import AnswerLost
from queenmq.storage.statements import statement

# What the driver makes of a type of PostgreSQL.
PYTHON = {
    "bool": bool,
    "bytea": bytes,
    "float8": float,
    "int4": int,
    "int8": int,
    "jsonb": str,
    "name": str,
    "oid": int,
    "text": str,
    "text[]": list[str],
    "timestamptz": datetime,
    "uuid": UUID,
}


def all_queries() -> Iterator[tuple[str, Query[Any]]]:
    for module in pkgutil.iter_modules(queenmq.reports.__path__):
        for name, value in vars(import_module(f"queenmq.reports.{module.name}")).items():
            if isinstance(value, Query):
                yield f"{module.name}.{name}", value


def plain(annotation: Any) -> Any:
    """The type of a field without None; a choice of texts is a text."""
    if get_origin(annotation) in (Union, types.UnionType):
        [annotation] = [one for one in get_args(annotation) if one is not type(None)]
    return str if get_origin(annotation) is Literal else annotation


async def test_every_field_of_a_row_is_a_column_of_its_type(sql: asyncpg.Connection) -> None:
    queries = dict(all_queries())
    assert len(queries) > 40
    for where, query in queries.items():
        attributes = (await sql.prepare(statement(query.name))).get_attributes()
        columns = {one.name: PYTHON.get(one.type.name, one.type.name) for one in attributes}
        fields = {name: plain(hint) for name, hint in get_type_hints(query.row).items()}
        assert fields == {name: columns.get(name, "no such column") for name in fields}, where


def test_a_column_that_is_missing_is_an_error() -> None:
    query = Query("now", queues.ListedQueue)
    with pytest.raises(KeyError):
        query.typed({"now": None})  # type: ignore[arg-type]


Report = Callable[[Reports], Awaitable[Any]]

SEVERAL_STATEMENTS: dict[str, Report] = {
    "explain": lambda reports: explain.explain(reports, Question("orders"), ServerState()),
    "queue": lambda reports: queues.detail(reports, "orders", 10, 0),
    "heads": lambda reports: partitions.heads(
        reports, "orders", search=None, partition=None, limit=10, offset=0, most_groups=10, max_bytes=10**6
    ),
    "messages": lambda reports: messages.page(
        reports, MessageFilter(status="pending"), 10, 0, with_payloads=True, max_bytes=10**6
    ),
    "dead letters": lambda reports: dead_letters.page(reports, DeadLetterFilter(), 10, 0, max_bytes=10**6),
    "seek effect": lambda reports: groups.seek_effect(reports, "g", "orders", "eu", datetime.now(UTC), 10),
    "traces": lambda reports: traces.by_name(reports, "refund", 10, 0, max_bytes=10**6),
}


@pytest.mark.parametrize("name", SEVERAL_STATEMENTS)
async def test_all_statements_of_a_report_see_one_moment(
    name: str, queen: Queen, server: Server, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is committed between them: the second statement must not see what the first one did not."""
    await queen.push("orders", 1, 2, 3, partition="eu")
    [first] = await queen.pop("orders", consumerGroup="g")
    await queen.trace(first, {}, traceNames=["refund"])
    await queen.ack(first, "dlq", consumerGroup="g")
    await queen.pop("orders", consumerGroup="g")
    report, reports = SEVERAL_STATEMENTS[name], Reports(server.database)
    before = await report(reports)
    fetched: list[str] = []

    def then_delete(fetch: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def fetch_and_delete(reader: Reader, query: Query[Any], *arguments: object) -> Any:
            rows = await fetch(reader, query, *arguments)
            fetched.append(query.name)
            await sql.execute("DELETE FROM queen.queues; DELETE FROM queen.consumer_groups")
            return rows

        return fetch_and_delete

    with monkeypatch.context() as patched:
        patched.setattr(Reader, "rows", then_delete(Reader.rows))
        patched.setattr(Reader, "row", then_delete(Reader.row))
        during = await report(reports)
    assert len(fetched) > 1
    assert timeless(during) == timeless(before)


def timeless(result: Any) -> str:
    """A result as text, without the times at which it was read."""
    return re.sub(r"\b(now=datetime\.datetime\([^)]*\)|time_lag_s=[\d.e-]+)", "", repr(result))


async def test_a_snapshot_is_read_again_if_its_answer_is_lost(server: Server) -> None:
    reports, reads = Reports(server.database), 0

    async def read(_: Reader) -> int:
        nonlocal reads
        reads += 1
        if reads <= LOST_ANSWERS:
            raise AnswerLost
        return reads

    assert await reports.snapshot(read) == LOST_ANSWERS + 1

    async def always_lost(_: Reader) -> None:
        raise AnswerLost

    with pytest.raises(AnswerLost):
        await reports.snapshot(always_lost)


async def test_a_report_cannot_write(server: Server) -> None:
    async def write(reader: Reader) -> object:
        return await reader.rows(Query("forget_samples", queues.ListedQueue), 1)

    with pytest.raises(DatabaseUnavailable, match="read-only"):
        await Reports(server.database).snapshot(write)
