"""`queen admin reencrypt` says that nothing is left only when that is so, whatever moves meanwhile."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, cast
from uuid import uuid4

import asyncpg
import pytest
from server_settings import changed, settings_with
from unit.test_encryption import unbound

from integration.queen import Queen, another_server, data, decide_pushes, until
from queenmq.broker.load_manager import Choice
from queenmq.cli.reencryption import FIRST, MOST_PASSES, Progress, Reencryption
from queenmq.config import Settings
from queenmq.core.encryption import PayloadKeys, Place, fingerprint
from queenmq.server import Server
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

OLD, NEW = bytes(range(32)), bytes(range(100, 132))
NEVER_MS = 3_600_000


@pytest.fixture
def settings() -> Settings:
    """Queued pushes are run when a test says so."""
    return settings_with(server={"encryption_key": OLD}, operations={"interval_ms": NEVER_MS})


@pytest.fixture
async def secret(queen: Queen) -> Queen:
    await queen.configure(
        "secret", encryptionEnabled=True, setAsideFailedPushes=True, deadLetterQueue=True, retryLimit=0
    )
    return queen


class Interrupted:
    """The database, which does something else before each of the statements that examine messages. The first one of a
    pass is step 1."""

    def __init__(self, database: Database, meanwhile: Callable[[int], Awaitable[object]]) -> None:
        self._database = database
        self._meanwhile = meanwhile
        self._steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def fetchrow(self, query: str, *arguments: Any) -> Any:
        if query == statement("messages_to_reencrypt"):
            self._steps = 1 if arguments[0] == FIRST else self._steps + 1
            await self._meanwhile(self._steps)
        return await self._database.fetchrow(query, *arguments)


async def nothing(_step: int) -> None: ...


async def reencrypt(server: Server, meanwhile: Callable[[int], Awaitable[object]] = nothing) -> Progress:
    progress = Progress()
    database = cast("Database", Interrupted(server.database, meanwhile))
    await Reencryption(database, PayloadKeys([NEW, OLD]), 1, progress).run(lambda _: None)
    return progress


async def keys(sql: asyncpg.Connection) -> list[str]:
    """The keys of all messages."""
    rows = await sql.fetch('SELECT payload FROM queen.messages WHERE is_encrypted ORDER BY partition_id, "offset"')
    return [json.loads(row["payload"]).get("key") for row in rows]


async def queue_push(
    server: Server, queen: Queen, monkeypatch: pytest.MonkeyPatch, payload: str, partition: str = "p"
) -> str:
    """The id of the operation."""
    decide_pushes(server, monkeypatch, Choice.QUEUE)
    body = {"items": [{"queue": "secret", "partition": partition, "transactionId": payload, "payload": payload}]}
    answer = await queen.http.post("/api/v1/push", json=body)
    decide_pushes(server, monkeypatch, Choice.EXECUTE)
    assert answer.status_code == 202, answer.text
    operation: str = answer.json()[0]["operationId"]
    return operation


@pytest.mark.parametrize("status", ["pending", "failed"])
async def test_a_push_that_is_to_be_stored_or_was_set_aside(
    server: Server,
    secret: Queen,
    sql: asyncpg.Connection,
    settings: Settings,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
) -> None:
    operation = await queue_push(server, secret, monkeypatch, "kept")
    await sql.execute("UPDATE queen.operation_queue SET status = $1, finished_at = clock_timestamp()", status)
    done = await reencrypt(server)
    assert (done.complete, done.pushes_replaced, done.replaced) == (True, 1, 0)
    async with another_server(changed(settings, server={"encryption_key": NEW}), database_url) as only_new:
        if status == "failed":
            answer = await only_new.http.post(f"/api/v1/operations/{operation}/retry")
            assert answer.json()["status"] == "pending"
        while not (found := await only_new.pop("secret", "p")):
            await server.broker.operation_runner.run_pushes(10, 10)
        assert data(found) == ["kept"]
    assert await keys(sql) == [fingerprint(NEW)]


async def test_a_push_of_a_lost_key_is_named(
    server: Server, secret: Queen, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = await queue_push(server, secret, monkeypatch, "lost")
    place = Place("secret", "p", "lost")
    lost = PayloadKeys([bytes(32)]).encrypt(b'"lost"', place)
    await sql.execute("UPDATE queen.operation_queue SET payloads = ARRAY[$1::bytea]", lost)
    done = await reencrypt(server)
    assert (done.complete, done.unreadable, done.waiting_pushes) == (False, 1, 1)
    assert operation in done.named[0]


async def first_partition(queen: Queen, sql: asyncpg.Connection) -> str:
    """The partition that a walk comes to first, and leaves with its third step. It has one message, as the others."""
    for partition in "abcdef":
        await queen.push("secret", "stays", partition=partition)
    name: str = await sql.fetchval("SELECT name FROM queen.partitions WHERE name <> 'Default' ORDER BY id LIMIT 1")
    return name


async def test_a_push_that_is_stored_behind_the_walk(
    server: Server, secret: Queen, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server has claimed it, with the payload of before, when the walk begins; its partition is examined, and then it
    is stored there."""
    first = await first_partition(secret, sql)
    await queue_push(server, secret, monkeypatch, "claimed", first)
    claim = str(uuid4())
    claimed = list(await server.database.fetch(statement("claim_operations"), "w", claim, 1, 1, 10**6, 1))

    async def store(step: int) -> None:
        if step == 3 and claimed:
            await server.broker.operation_runner.pushes._store(claim, [claimed.pop()], 1000)

    done = await reencrypt(server, store)
    assert await keys(sql) == [fingerprint(NEW)] * 7
    assert (done.complete, done.replaced, done.pushes_replaced, done.waiting_pushes) == (True, 7, 0, 0)


async def test_what_a_server_just_stores_is_waited_for(
    server: Server, secret: Queen, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue_push(server, secret, monkeypatch, "claimed")
    await server.database.fetch(statement("claim_operations"), "w", str(uuid4()), 1, 1, 10**6, 1)
    done = await reencrypt(server)
    assert (done.complete, done.waiting_pushes) == (False, 1)


@pytest.mark.parametrize("way", ["one", "all", "stays"])
async def test_a_dead_letter_that_is_redriven_behind_the_walk(
    server: Server, secret: Queen, sql: asyncpg.Connection, way: str
) -> None:
    """It is a message when the dead letters are examined, a dead letter when the messages of its partition are, and a
    message of that partition again afterwards, if it does not stay. The message itself has been removed meanwhile."""
    first = await first_partition(secret, sql)
    await secret.push("secret", "moves", partition=first)
    message = (await secret.pop("secret", first, batch=2))[1]
    assert (await reencrypt(server)).replaced == 7
    before = PayloadKeys([OLD]).encrypt(b'"moves"', Place("secret", first, "moves"))
    await sql.execute("UPDATE queen.messages SET payload = $1 WHERE transaction_id = 'moves'", before)
    left = [1] if way == "stays" else [3, 1]

    async def move(step: int) -> None:
        if [step] != left[-1:]:
            return
        left.pop()
        if step == 1:
            await secret.ack(message, "dlq")
            await sql.execute("DELETE FROM queen.messages WHERE transaction_id = 'moves'")
        elif way == "all":
            answer = await secret.http.post("/api/v1/dlq/redrive", json={"queue": "secret"})
            assert answer.status_code in (200, 202), answer.text
            await until(lambda: is_stored(sql))
        else:
            ids = f"{message['partitionId']}/{message['transactionId']}"
            answer = await secret.http.post(f"/api/v1/messages/{ids}/retry")
            assert answer.status_code == 200, answer.text

    done = await reencrypt(server, move)
    letters = int(way == "stays")
    assert await keys(sql) == [fingerprint(NEW)] * (7 - letters)
    assert (left, done.complete, done.replaced, done.letters_replaced) == ([], True, 1 - letters, letters)


async def is_stored(sql: asyncpg.Connection) -> bool:
    return bool(await sql.fetchval("SELECT true FROM queen.messages WHERE transaction_id = 'moves'"))


async def test_what_never_stands_still_is_not_waited_for_for_ever(
    server: Server, secret: Queen, sql: asyncpg.Connection
) -> None:
    async def another(step: int) -> None:
        if step == 1:
            await secret.push("secret", f"of the old key {uuid4()}")

    done = await reencrypt(server, another)
    assert not done.complete
    assert done.replaced >= MOST_PASSES


@pytest.mark.parametrize("table", ["chunks", "promoting", "staged"])
async def test_rows_that_a_pipeline_has_staged(
    server: Server, secret: Queen, sql: asyncpg.Connection, table: str
) -> None:
    place = Place("secret", "p", "t")
    old, new = (PayloadKeys([key]).encrypt(b"1", place) for key in (OLD, NEW))
    if table == "chunks":
        await sql.execute(
            "INSERT INTO queen.pipeline_chunks "
            "(attempt, place, bucket, rows, queues, partitions, counts, clear, message_ids, encrypted, payloads) "
            "VALUES (1, 1, 0, 3, '{secret}', '{p}', '{3}', '{t}', '{a,b,c}', '{t,t,f}', $1::bytea[]), "
            "(1, 2, 0, 1, '{secret}', '{p}', '{1}', '{t}', '{d}', NULL, $2::bytea[])",
            [old, new, b"2"],
            [b"3"],
        )
    else:
        number = "promotion" if table == "promoting" else "attempt"
        await sql.executemany(
            f"INSERT INTO queen.pipeline_{table} ({number}, place, queue, partition, message_id, is_encrypted, payload)"
            " VALUES (1, $1, 'secret', 'p', 'm', $2, $3)",
            [(1, True, old), (2, True, new), (3, False, b"2")],
        )
    done = await reencrypt(server)
    assert (done.complete, done.waiting_rows) == (False, 1)
    await sql.execute(f"DELETE FROM queen.pipeline_{table}")
    done = await reencrypt(server)
    assert (done.complete, done.waiting_rows) == (True, 0)


async def test_unbound_payloads_in_every_place(
    server: Server, secret: Queen, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await secret.push("secret", "dead", "stored", partition="p")
    [message] = await secret.pop("secret", "p")
    await secret.ack(message, "dlq")
    await queue_push(server, secret, monkeypatch, "queued")
    before = unbound(OLD, b'"from before"')
    await sql.execute("UPDATE queen.messages SET payload = $1", before)
    await sql.execute("UPDATE queen.dead_letter_queue SET payload = $1", before)
    await sql.execute("UPDATE queen.operation_queue SET payloads = ARRAY[$1::bytea]", before)
    done = await reencrypt(server)
    assert (done.complete, done.replaced, done.letters_replaced, done.pushes_replaced) == (True, 2, 1, 1)
    again = await reencrypt(server)
    assert (again.complete, again.replaced + again.letters_replaced + again.pushes_replaced) == (True, 0)
    letter = await sql.fetchval("SELECT payload FROM queen.dead_letter_queue")
    assert PayloadKeys([NEW]).decrypt(letter, Place("secret", "p", "dead")) == b'"from before"'


async def test_deleted_queues_hold_nothing_up(server: Server, secret: Queen, sql: asyncpg.Connection) -> None:
    await secret.push("secret", "dead", "stored", partition="p")
    [message] = await secret.pop("secret", "p")
    await secret.ack(message, "dlq")
    await sql.execute("UPDATE queen.queues SET name = NULL")
    assert (await reencrypt(server)).complete
