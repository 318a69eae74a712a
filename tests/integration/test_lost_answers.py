"""A database that goes away in the middle of a commit: nobody is told that nothing was kept."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from integration.queen import Queen
from queenmq.broker.ack import Acker
from queenmq.errors import DatabaseUnavailable, Overloaded
from queenmq.server import Server
from queenmq.storage.database import Database
from queenmq.storage.failures import AnswerLost
from queenmq.storage.statements import statement

Patch = pytest.MonkeyPatch
LATER = [DatabaseUnavailable("it is away"), Overloaded("too much", retry_after_s=1)]


def lose(patch: Patch, owner: Any, name: str, later: Exception) -> None:
    """The first call does its work and its answer is lost; what follows fails otherwise."""
    work, errors = getattr(owner, name), iter([AnswerLost()])

    async def lossy(*arguments: Any) -> Any:
        for error in errors:
            await work(*arguments)
            raise error
        raise later

    patch.setattr(owner, name, lossy)


@pytest.mark.parametrize("later", LATER, ids=lambda error: error.code)
async def test_a_transaction(queen: Queen, server: Server, monkeypatch: Patch, later: Exception) -> None:
    push = {"type": "push", "items": [{"queue": "q", "payload": 1, "transactionId": "t"}]}
    with monkeypatch.context() as patch:
        lose(patch, server.broker._transactor._unmerged, "_once", later)
        answer = await queen.http.post("/api/v1/transaction", json={"operations": [push]})
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert [message["transactionId"] for message in await queen.pop("q")] == ["t"]


async def test_an_ack(queen: Queen, monkeypatch: Patch) -> None:
    await queen.push("q", 1, 2)
    [message] = await queen.pop("q")
    item = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")} | {"status": "completed"}
    with monkeypatch.context() as patch:
        lose(patch, Acker, "_apply", DatabaseUnavailable("it is away"))
        answer = await queen.http.post("/api/v1/ack", json=item)
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert [message["data"] for message in await queen.pop("q")] == [2]


async def test_an_ack_of_which_nobody_can_learn_any_more(queen: Queen, server: Server, monkeypatch: Patch) -> None:
    """The repetition answers that the lease is over, and the database goes before it says what was finished."""
    await queen.push("q", 1, 2)
    [message] = await queen.pop("q")
    item = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")} | {"status": "completed"}
    apply, errors, fetch = Acker._apply, iter([AnswerLost()]), server.database.fetch

    async def lossy(*arguments: Any) -> Any:
        acked = await apply(*arguments)
        for error in errors:
            raise error
        return acked

    async def away(sql: str, *arguments: Any, **options: Any) -> Any:
        if sql == statement("acks_finished"):
            raise DatabaseUnavailable("it is away")
        return await fetch(sql, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Acker, "_apply", lossy)
        patch.setattr(server.database, "fetch", away)
        answer = await queen.http.post("/api/v1/ack", json=item)
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert [message["data"] for message in await queen.pop("q")] == [2]


async def test_a_statement_that_is_repeated(server: Server, monkeypatch: Patch) -> None:
    watched, borrow = Database._watched, server.database._borrow
    borrowed = 0

    async def cut(*arguments: Any) -> Any:
        await watched(*arguments)
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    async def once() -> Any:
        nonlocal borrowed
        borrowed += 1
        if borrowed > 1:
            raise ConnectionRefusedError
        return await borrow()

    monkeypatch.setattr(Database, "_watched", staticmethod(cut))
    monkeypatch.setattr(server.database, "_borrow", once)
    with pytest.raises(AnswerLost):
        await server.database.fetchval("SELECT 1", repeatable=True)
    # Of one that was never begun it is certain.
    with pytest.raises(DatabaseUnavailable) as refused:
        await server.database.fetchval("SELECT 1", repeatable=True)
    assert type(refused.value) is DatabaseUnavailable
