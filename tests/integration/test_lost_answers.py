"""A database that goes away in the middle of a commit: nobody is told that nothing was kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import pytest
from server_settings import settings_with

from integration.consuming import consuming
from integration.queen import Queen, expire_leases
from queenmq.broker.ack import Acker
from queenmq.broker.pop import Popper
from queenmq.config import Settings
from queenmq.errors import DatabaseUnavailable, Overloaded, QueenError, StatementFailed
from queenmq.server import Server
from queenmq.storage.database import Database
from queenmq.storage.failures import AnswerLost, RowLocked, TryAgain
from queenmq.storage.statements import statement

Patch = pytest.MonkeyPatch
LATER = [DatabaseUnavailable("it is away"), Overloaded("too much", retry_after_s=1), StatementFailed()]
HOLD = {
    "position": "SELECT 1 FROM queen.partition_consumers FOR UPDATE",
    "leased": "SELECT 1 FROM queen.partition_consumers WHERE lease_id IS NOT NULL FOR UPDATE",
    "head": "SELECT 1 FROM queen.partition_lookup FOR UPDATE",
}


@pytest.fixture
def settings() -> Settings:
    """Who waits for a locked row gives up soon."""
    return settings_with(database={"lock_timeout_ms": 300})


def lose(patch: Patch, owner: Any, name: str, later: Exception) -> None:
    """The first call does its work and its answer is lost; what follows fails otherwise."""
    work, errors = getattr(owner, name), iter([AnswerLost()])

    async def lossy(*arguments: Any) -> Any:
        for error in errors:
            await work(*arguments)
            raise error
        raise later

    patch.setattr(owner, name, lossy)


def lose_answer_of(patch: Patch, name: str) -> Iterator[bool]:
    """The connection is lost after the first call of this statement was committed. The iterator is empty then."""
    watched, left = Database._watched, iter([True])

    async def lossy(connection: Any, method: Any, text: str, arguments: Any) -> Any:
        answer = await watched(connection, method, text, arguments)
        if text == statement(name) and next(left, False):
            raise connection_lost()
        return answer

    patch.setattr(Database, "_watched", staticmethod(lossy))
    return left


def connection_lost() -> Exception:
    return asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")


def of_ack(message: Any, status: str = "completed") -> dict[str, Any]:
    return {name: message[name] for name in ("transactionId", "partitionId", "leaseId")} | {"status": status}


@pytest.mark.parametrize("later", LATER, ids=lambda error: error.code)
async def test_a_transaction(queen: Queen, server: Server, monkeypatch: Patch, later: Exception) -> None:
    push = {"type": "push", "items": [{"queue": "q", "payload": 1, "transactionId": "t"}]}
    with monkeypatch.context() as patch:
        lose(patch, server.broker._transactor._unmerged, "_once", later)
        answer = await queen.http.post("/api/v1/transaction", json={"operations": [push]})
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert [message["transactionId"] for message in await queen.pop("q")] == ["t"]


@pytest.mark.parametrize("status", ["failed", "dlq"])
@pytest.mark.parametrize("is_fenced", [True, False])
async def test_a_transaction_that_has_handed_a_message_back(
    queen: Queen, monkeypatch: Patch, status: str, is_fenced: bool
) -> None:
    await queen.push("q", 1, 2)
    first, second = await queen.pop("q", batch=2)
    acks = [{"type": "ack"} | of_ack(first), {"type": "ack"} | of_ack(second, status)]
    with monkeypatch.context() as patch:
        left = lose_answer_of(patch, "transact")
        body = {"operations": acks} | ({"requiredLeases": [first["leaseId"]]} if is_fenced else {})
        answer = await queen.http.post("/api/v1/transaction", json=body)
    assert next(left, None) is None
    assert answer.json().get("success") is True, answer.text


async def test_a_finish_whose_pop_fails_afterwards(queen: Queen, monkeypatch: Patch) -> None:
    """That nothing can be taken does not mean that nothing was finished."""
    await queen.push("q", 1)
    [message] = await queen.pop("q")

    async def away(*_: object) -> Any:
        raise DatabaseUnavailable

    with monkeypatch.context() as patch:
        left = lose_answer_of(patch, "take")
        patch.setattr(Popper, "pop", away)
        take = {"queue": "q", "wait": True, "timeout": 1000}
        answer = await queen.http.post(f"/api/v1/lease/{message['leaseId']}/finish", json={"take": take})
    assert next(left, None) is None
    assert answer.json()["code"] == "outcome_unknown", answer.text
    assert await queen.pop("q") == []


async def test_an_ack(queen: Queen, monkeypatch: Patch) -> None:
    await queen.push("q", 1, 2)
    [message] = await queen.pop("q")
    with monkeypatch.context() as patch:
        lose(patch, Acker, "_apply", DatabaseUnavailable("it is away"))
        answer = await queen.http.post("/api/v1/ack", json=of_ack(message))
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert [message["data"] for message in await queen.pop("q")] == [2]


async def test_what_the_driver_says_of_a_connection_that_was_cut(queen: Queen, monkeypatch: Patch) -> None:
    """Whatever it is: if it comes when the connection is gone, the statement may have been done."""
    watched, left = Database._watched, iter([True])

    async def cut(connection: Any, method: Any, text: str, arguments: Any) -> Any:
        answer = await watched(connection, method, text, arguments)
        if text == statement("push_or_queue") and next(left, False):
            connection.terminate()
            raise AttributeError("'NoneType' object has no attribute 'bind_execute'")
        return answer

    monkeypatch.setattr(Database, "_watched", staticmethod(cut))
    answer = await queen.http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": 1}]})
    assert next(left, None) is None
    assert answer.status_code == 201, answer.text
    assert [message["data"] for message in await queen.pop("q", batch=2)] == [1]


@pytest.fixture
async def stranger(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


class TestThenItsRowIsLocked:
    """A stranger gets the row when the connection of a call is lost, before or after its commit, and keeps it."""

    @pytest.fixture(params=[True, False], ids=["committed", "not committed"])
    def is_committed(self, request: pytest.FixtureRequest) -> bool:
        return request.param

    @pytest.fixture
    def lose_answers_of(
        self, stranger: asyncpg.Connection, monkeypatch: Patch, is_committed: bool
    ) -> Callable[[str, str], asyncpg.transaction.Transaction]:
        def lose_answers_of(name: str, row: str) -> asyncpg.transaction.Transaction:
            watched, left, holding = Database._watched, iter([True]), stranger.transaction()

            async def lossy(connection: Any, method: Any, text: str, arguments: Any) -> Any:
                is_lost = text == statement(name) and next(left, False)
                if is_committed or not is_lost:
                    answer = await watched(connection, method, text, arguments)
                if is_lost:
                    await holding.start()
                    await stranger.execute(HOLD[row])
                    raise connection_lost()
                return answer

            monkeypatch.setattr(Database, "_watched", staticmethod(lossy))
            return holding

        return lose_answers_of

    async def test_an_ack(self, queen: Queen, lose_answers_of: Any, is_committed: bool) -> None:
        await queen.push("q", 1, 2)
        [message] = await queen.pop("q")
        holding = lose_answers_of("ack", "position")
        answer = await queen.http.post("/api/v1/ack", json=of_ack(message))
        assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown"), answer.text
        await holding.rollback()
        assert (await queen.ack(message))["success"] is not is_committed
        assert [message["data"] for message in await queen.pop("q")] == [2]

    @pytest.mark.parametrize("take", [None, {"queue": "others"}], ids=["finish", "take"])
    async def test_a_finish(self, queen: Queen, lose_answers_of: Any, take: Any, is_committed: bool) -> None:
        await queen.push("q", 1, 2)
        lease = (await queen.pop_answer("q"))["leaseId"]
        holding = lose_answers_of("finish" if take is None else "take", "position")
        body = {} if take is None else {"take": take}
        answer = await queen.http.post(f"/api/v1/lease/{lease}/finish", json=body)
        assert (answer.status_code, answer.json()["code"]) == (200 if take else 503, "outcome_unknown"), answer.text
        await holding.rollback()
        await queen.finish(lease, 404 if is_committed else 200)
        assert [message["data"] for message in await queen.pop("q")] == [2]

    async def test_a_finish_on_a_consumer_connection(
        self, queen: Queen, server: Server, sql: asyncpg.Connection, lose_answers_of: Any, is_committed: bool
    ) -> None:
        await queen.push("q", 1, 2)
        async with consuming(server, "q") as connection:
            batch = await connection.next_batch()
            holding = lose_answers_of("take", "position")
            result = await connection.finish(batch)
            assert (result["success"], result["code"]) == (False, "outcome_unknown")
            await holding.rollback()
            assert (await connection.finish(batch))["success"] is not is_committed
        await expire_leases(sql)
        # What the connection held is given back just now.
        assert [message["data"] for message in await queen.wait("q")] == [2]

    async def test_what_a_lost_claim_holds_is_not_finished_with_what_the_next_one_gets(
        self, queen: Queen, sql: asyncpg.Connection, lose_answers_of: Any
    ) -> None:
        """Nobody was told of the first message, and it cannot be given back: its lease must be another one."""
        await queen.push("first", 1)
        for partition in ("a", "b"):
            await queen.push("q", partition, partition=partition)
        await queen.finish((await queen.pop_answer("q"))["leaseId"], status="retry")  # the group is known now
        lease = (await queen.pop_answer("first"))["leaseId"]
        holding = lose_answers_of("take", "leased")
        taken = await queen.take(lease, "q")
        await holding.rollback()
        got = [message["data"] for message in taken["taken"]["messages"]]
        await queen.finish(taken["taken"]["leaseId"])
        await expire_leases(sql)
        while messages := await queen.pop("q", batch=9):
            got += [message["data"] for message in messages]
            await queen.finish(messages[0]["leaseId"])
        assert sorted(got) == ["a", "b"]

    @pytest.mark.parametrize("expect", [False, True], ids=["push", "conditional"])
    async def test_a_push(self, queen: Queen, lose_answers_of: Any, expect: bool, is_committed: bool) -> None:
        await queen.push("q", 1)
        holding = lose_answers_of("push_expected" if expect else "push_or_queue", "head")
        body: dict[str, Any] = {"items": [{"queue": "q", "payload": 2, "transactionId": "t"}]}
        if expect:
            body["expect"] = [{"queue": "q", "partition": "Default", "lastOffset": 1}]
        answer = await queen.http.post("/api/v1/push", json=body)
        assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown"), answer.text
        await holding.rollback()
        again = await queen.http.post("/api/v1/push", json=body)
        assert [one["status"] for one in again.json()] == ["duplicate" if is_committed else "queued"]


async def test_an_ack_of_which_nobody_can_learn_any_more(queen: Queen, server: Server, monkeypatch: Patch) -> None:
    """The repetition answers that the lease is over, and the database goes before it says what was finished."""
    await queen.push("q", 1, 2)
    [message] = await queen.pop("q")
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
        answer = await queen.http.post("/api/v1/ack", json=of_ack(message))
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert [message["data"] for message in await queen.pop("q")] == [2]


@pytest.mark.parametrize("status", ["failed", "dlq"])
@pytest.mark.parametrize("was_applied", [True, False])
async def test_an_ack_that_hands_a_message_back(
    queen: Queen, sql: asyncpg.Connection, monkeypatch: Patch, status: str, was_applied: bool
) -> None:
    """It ends its lease, so that the repetition is refused: the answer is that of the try that was applied."""
    await queen.push("q", 1)
    [message] = await queen.pop("q")
    apply, errors = Acker._apply, iter([AnswerLost()])

    async def lossy(*arguments: Any) -> Any:
        for error in errors:
            if was_applied:
                await apply(*arguments)
            else:
                await sql.execute("UPDATE queen.partition_consumers SET lease_expires_at = now()")
            raise error
        return await apply(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Acker, "_apply", lossy)
        answer = await queen.http.post("/api/v1/ack", json=of_ack(message, status))
    [result] = answer.json() if isinstance(answer.json(), list) else [answer.json()]
    assert result["success"] is was_applied
    failures = await sql.fetchval("SELECT count(*) FROM queen.attempts WHERE outcome = 'failed'")
    assert failures == (was_applied and status == "failed")


@pytest.mark.parametrize("others_finish", [1, 2])
async def test_an_ack_of_what_others_have_finished_meanwhile(
    queen: Queen, sql: asyncpg.Connection, monkeypatch: Patch, others_finish: int
) -> None:
    """Its lease has expired, and another consumer has the messages: nobody is told that this ack was taken."""
    await queen.push("q", 1, 2)
    late = await queen.pop("q", batch=2)
    apply, errors = Acker._apply, iter([AnswerLost()])

    async def lossy(*arguments: Any) -> Any:
        for error in errors:
            await sql.execute("UPDATE queen.partition_consumers SET lease_expires_at = now(), ready_at = now()")
            taken = await queen.pop("q", batch=2)
            await queen.ack_batch(taken[:others_finish])
            raise error
        return await apply(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Acker, "_apply", lossy)
        answer = await queen.http.post("/api/v1/ack/batch", json={"acknowledgments": [of_ack(one) for one in late]})
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")


async def test_a_statement_that_is_repeated(server: Server, monkeypatch: Patch) -> None:
    watched, borrow = Database._watched, server.database._borrow
    borrowed = 0

    async def cut(*arguments: Any) -> Any:
        await watched(*arguments)
        raise connection_lost()

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


@pytest.mark.parametrize("later", [*LATER, TryAgain("in the way"), RowLocked("in the way")], ids=lambda e: e.code)
async def test_a_statement_whose_repetition_fails(server: Server, monkeypatch: Patch, later: QueenError) -> None:
    """What others do in its way, the caller may try again; nobody may be told that nothing was changed."""
    watched, attempts = Database._watched, iter([asyncpg.ConnectionDoesNotExistError("it is cut"), later])

    async def fail(*arguments: Any) -> Any:
        await watched(*arguments)
        raise next(attempts)

    monkeypatch.setattr(Database, "_watched", staticmethod(fail))
    with pytest.raises(QueenError) as failed:
        await server.database.fetchval("SELECT 1", repeatable=True)
    assert failed.value.is_unknown
    assert isinstance(failed.value, type(later) if isinstance(later, TryAgain) else AnswerLost)


CHANGES: dict[str, tuple[str, str, Any, str]] = {
    "configure": ("POST", "configure", {"queue": "q", "options": {"leaseTime": 7}}, "queue_configs"),
    "policy": ("POST", "policies", {"queue": "q", "limits": {"leases": 1}}, "queue_configs"),
    "conflation": ("POST", "consumer-groups/g/queues/q/conflation", {"enabled": True}, "find_conflation"),
    "filter": ("POST", "consumer-groups/g/queues/q/filter", {"filter": "headers.a = 'b'"}, "find_filter"),
    "resume": ("POST", "resume", {"queue": "q"}, "queue_configs"),
    "quota": ("POST", "quotas", {"namespace": "q", "maxMessages": 5}, "quotas_used"),
    "schema": ("POST", "schemas/q", {"schema": {"type": "integer"}}, "checked_schemas"),
    "delete a message": ("DELETE", "messages/{partition}/t", None, "partition_names"),
    "seek": ("POST", "consumer-groups/g/queues/q/partitions/Default/seek", {"toEnd": True}, "position"),
}


@pytest.mark.parametrize("kind", CHANGES)
async def test_what_fails_after_a_change(queen: Queen, monkeypatch: Patch, kind: str) -> None:
    """The change is kept, so nobody is told that nothing was."""
    method, path, body, fails = CHANGES[kind]
    await queen.push("q", {"payload": 1, "transactionId": "t"})
    [message] = await queen.pop("q", consumerGroup="g")
    run = Database._run

    async def away(self: Database, way: Any, text: str, *rest: Any) -> Any:
        if text == statement(fails):
            raise DatabaseUnavailable("it is away")
        return await run(self, way, text, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "_run", away)
        path = path.format(partition=message["partitionId"])
        answer = await queen.http.request(method, f"/api/v1/{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")


@pytest.mark.parametrize("kind", ["kv", "locks"])
async def test_what_fails_after_a_part(queen: Queen, monkeypatch: Patch, kind: str) -> None:
    """Of a request that is several statements, the first is done and the last fails."""
    key = {"op": "put", "ns": "n", "key": "k", "value": 1, "ttlSeconds": 60}
    lock = {"op": "acquire", "ttlSeconds": 60}
    body, fails, done = {
        "kv": ({"operations": [key, {"op": "get", "ns": "n", "key": "k"}]}, "find_keys", 0),
        "locks": ({"operations": [lock | {"name": "a"}, lock | {"name": "b"}]}, "change_lock", 1),
    }[kind]
    run, calls = Database._run, iter([False] * done)

    async def away(self: Database, way: Any, text: str, *rest: Any) -> Any:
        if text == statement(fails) and next(calls, True):
            raise DatabaseUnavailable("it is away")
        return await run(self, way, text, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "_run", away)
        answer = await queen.http.post(f"/api/v1/{kind}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")


async def test_a_push_that_fails_after_its_timers(queen: Queen, server: Server, monkeypatch: Patch) -> None:
    async def refused(*_: object) -> Any:
        raise Overloaded("too much", retry_after_s=1)

    items = [{"queue": "q", "payload": 1, "delay": 60}, {"queue": "q", "payload": 2}]
    with monkeypatch.context() as patch:
        patch.setattr(server.broker, "push", refused)
        answer = await queen.http.post("/api/v1/push", json={"items": items})
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
