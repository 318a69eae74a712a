"""Rows that a stranger's open transaction holds: who needs one of them waits by itself, and everybody else goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from server_settings import settings_with

from integration.consuming import consuming
from integration.queen import Json, Message, Queen, data, decide_pushes, expire_leases
from queenmq.broker.load_manager import Choice
from queenmq.config import Settings
from queenmq.core.message import Message as PushedMessage
from queenmq.core.push_call import Outcome
from queenmq.ids import uuid7_text
from queenmq.server import Server
from queenmq.storage.statements import statement

STRANGER = "nightly import"
INSERT = """
    INSERT INTO queen.messages (partition_id, transaction_id, payload)
    SELECT p.id, 'stranger', 'null' FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id
    WHERE q.name = $1 AND p.name = ANY ($2::text[])
"""
HOLD_POSITIONS = """
    SELECT 1 FROM queen.partition_consumers c JOIN queen.queues q ON q.id = c.queue_id WHERE q.name = $1 FOR UPDATE OF c
"""
HOLD_QUEUE = "SELECT 1 FROM queen.queues WHERE name = $1 FOR KEY SHARE"
MAKE_PARTITION = "INSERT INTO queen.partitions (queue_id, name) SELECT id, $2 FROM queen.queues WHERE name = $1"
STORED = """
    SELECT coalesce(array_agg(m.transaction_id ORDER BY m."offset"), '{}') FROM queen.messages m
    JOIN queen.partitions p ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id
    WHERE q.name = $1 AND p.name = $2
"""
ROW = """
    SELECT c.ctid::text, c.ready_at FROM queen.partition_consumers c JOIN queen.queues q ON q.id = c.queue_id
    WHERE q.name = $1
"""


@pytest.fixture
def settings() -> Settings:
    """Nobody gives up here, however slow the machine is."""
    return settings_with(database={"lock_timeout_ms": 60_000})


@pytest.fixture
async def stranger(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A session that is none of the server's."""
    connection = await asyncpg.connect(database_url, server_settings={"application_name": STRANGER})
    yield connection
    await connection.close()


@asynccontextmanager
async def held(stranger: asyncpg.Connection, statement: str, *arguments: object) -> AsyncIterator[None]:
    """What the statement locks is locked until the end of the block, or of the transaction."""
    await stranger.execute("BEGIN")
    await stranger.fetch(statement, *arguments)
    try:
        yield
    finally:
        await stranger.execute("ROLLBACK")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def push(http: httpx.AsyncClient, queue: str, name: str, *partitions: str) -> httpx.Response:
    items = [
        {"queue": queue, "partition": partition, "payload": 1, "transactionId": name}
        for partition in partitions or ("Default",)
    ]
    return await http.post("/api/v1/push", json={"items": items})


async def statuses(answers: list[asyncio.Task[httpx.Response]]) -> set[int]:
    return {answer.status_code for answer in await asyncio.gather(*answers)}


# Pushes


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_others_go_on_and_the_order_of_those_who_wait_is_kept(
    queen: Queen, http: httpx.AsyncClient, server: Server, stranger: asyncpg.Connection, end: str
) -> None:
    others = [f"other-{number}" for number in range(20)]
    for queue in ("locked", *others):
        await queen.push(queue, "first")
    names = [f"w{number}" for number in range(30)]
    async with held(stranger, INSERT, "locked", ["Default"]):
        waiting = []
        for name in names[:20]:
            waiting.append(asyncio.create_task(push(http, "locked", name)))
            await asyncio.sleep(0)
            await until(lambda: server.broker.locks.waiting + server.broker.lanes["push"].outstanding >= len(waiting))
        for turn in range(3):
            answers = [asyncio.create_task(push(http, queue, f"{turn}")) for queue in others]
            assert await statuses(answers) == {201}
        await until(lambda: server.broker.locks.waiting == len(waiting))
        assert server.broker.lanes["push"].outstanding == 0
        assert server.database.in_use < 5, "who waits holds no connection"
        for name in names[20:]:
            waiting.append(asyncio.create_task(push(http, "locked", name)))
            await until(lambda: server.broker.locks.waiting == len(waiting))
        assert not any(task.done() for task in waiting)
        await stranger.execute(end)
        assert await statuses(waiting) == {201}
    stored = await stranger.fetchval(STORED, "locked", "Default")
    assert stored == ["first", *(["stranger"] if end == "COMMIT" else []), *names]
    assert server.broker.locks.waiting == 0


async def test_a_push_over_several_partitions_waits_whole(
    queen: Queen, http: httpx.AsyncClient, server: Server, stranger: asyncpg.Connection
) -> None:
    for partition in ("locked", "free"):
        await queen.push("q", "first", partition=partition)
    async with held(stranger, INSERT, "q", ["locked"]):
        both = asyncio.create_task(push(http, "q", "both", "locked", "free"))
        await until(lambda: server.broker.locks.waiting == 1)
        assert (await push(http, "q", "single", "free")).status_code == 201
        assert await stranger.fetchval(STORED, "q", "free") == ["first", "single"]
        await stranger.execute("ROLLBACK")
        assert (await both).status_code == 201
    assert await stranger.fetchval(STORED, "q", "free") == ["first", "single", "both"]
    assert await stranger.fetchval(STORED, "q", "locked") == ["first", "both"]


async def test_many_locked_partitions(queen: Queen, server: Server, stranger: asyncpg.Connection) -> None:
    partitions = [f"p{number}" for number in range(500)]
    broker, locks, database = server.broker, server.broker.locks, server.database
    await broker.push([_message("q", partition, "first") for partition in partitions])
    async with held(stranger, INSERT, "q", partitions):
        pushes = [broker.push([_message("q", partition, "second")]) for partition in partitions]
        waiting = [asyncio.create_task(each) for each in pushes]
        await until(lambda: locks.waiting == len(partitions))
        before = database.calls
        await queen.push("other", "first")
        assert database.in_use < 5, "one statement probes all of them"
        assert database.calls - before < len(partitions)
        await stranger.execute("COMMIT")
        assert {outcome.status for outcomes in await asyncio.gather(*waiting) for outcome in outcomes} == {"queued"}
    assert await stranger.fetchval(STORED, "q", "p7") == ["first", "stranger", "second"]


def _message(queue: str, partition: str, name: str) -> PushedMessage:
    return PushedMessage(queue, partition, b"1", uuid7_text(), name)


async def test_a_partition_that_a_stranger_is_making_is_waited_for(
    queen: Queen, http: httpx.AsyncClient, server: Server, stranger: asyncpg.Connection
) -> None:
    """It cannot be seen, so no probe finds it."""
    await queen.push("q", "first")
    async with held(stranger, MAKE_PARTITION, "q", "new"):
        waiting = [asyncio.create_task(push(http, "q", "one", "new"))]
        await until(lambda: server.broker.locks.waiting == 1 or ("head", "q", "new") in server.broker.locks.known)
        waiting.append(asyncio.create_task(push(http, "q", "two", "new")))
        others = [asyncio.create_task(push(http, "q", f"other-{number}", f"p{number}")) for number in range(10)]
        assert await statuses(others) == {201}
        assert not any(task.done() for task in waiting)
        await stranger.execute("COMMIT")
        assert await statuses(waiting) == {201}
    assert await stranger.fetchval(STORED, "q", "new") == ["one", "two"]


async def test_a_size_limit_is_counted_behind_a_locked_queue(
    queen: Queen, http: httpx.AsyncClient, server: Server, stranger: asyncpg.Connection
) -> None:
    await queen.configure("limited", maxSize=100)
    async with held(stranger, "SELECT 1 FROM queen.queues WHERE name = $1 FOR UPDATE", "limited"):
        waiting = asyncio.create_task(push(http, "limited", "one"))
        await until(lambda: server.broker.locks.waiting == 1)
        await queen.push("other", "first")
        await stranger.execute("ROLLBACK")
        assert (await waiting).status_code == 201


async def test_a_group_that_a_message_would_wake_is_waited_for(
    queen: Queen, http: httpx.AsyncClient, server: Server, stranger: asyncpg.Connection
) -> None:
    """Not the head is held, but the row of a group that sleeps."""
    await queen.ack(await _popped(queen, "q"))
    async with held(stranger, HOLD_POSITIONS, "q"):
        waiting = [asyncio.create_task(push(http, "q", f"w{number}")) for number in range(3)]
        await until(lambda: server.broker.locks.waiting == 3)
        await queen.push("other", "first")
        state = server.broker.locks.known["head", "q", "Default"]
        await until(lambda due=state.due: state.due > due)  # type: ignore[misc]
        assert server.broker.locks.waiting == 3, "a probe has found it, and nobody went on in vain"
        await stranger.execute("ROLLBACK")
        assert await statuses(waiting) == {201}
    assert len(await queen.pop("q", consumerGroup="g", batch=10)) == 3


async def test_who_waited_for_a_row_and_finds_the_operation_queue_full_is_refused_as_anybody(
    queen: Queen, http: httpx.AsyncClient, server: Server, stranger: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queen.push("q", "first")
    async with held(stranger, INSERT, "q", ["Default"]):
        waiting = [asyncio.create_task(push(http, "q", "w0"))]
        await until(lambda: server.broker.locks.waiting == 1)
        waiting.append(asyncio.create_task(push(http, "q", "w1")))
        await until(lambda: server.broker.locks.waiting == 2)

        async def full(requests: list[list[PushedMessage]], _lock_timeout: str) -> list[list[Outcome]]:
            return [[Outcome("rejected", message.id, "") for message in request] for request in requests]

        monkeypatch.setattr(server.broker.lanes["push"], "_run", full)
        await stranger.execute("ROLLBACK")
        assert await statuses(waiting) == {429}


async def test_a_row_that_many_want_is_shared(
    queen: Queen, http: httpx.AsyncClient, server: Server, database_url: str
) -> None:
    """No transaction holds it for long, but it is never free: probes alone would never get it."""
    await queen.push("q", "first")
    served = asyncio.Event()

    async def rival() -> None:
        connection = await asyncpg.connect(database_url)
        while not served.is_set():
            async with connection.transaction():
                await connection.execute("SELECT 1 FROM queen.partition_lookup FOR NO KEY UPDATE")
                await asyncio.sleep(0.04)
        await connection.close()

    rivals = [asyncio.create_task(rival()) for _ in range(4)]
    try:
        pushes = [asyncio.create_task(push(http, "q", f"w{number}")) for number in range(5)]
        assert await statuses(pushes) == {201}
    finally:
        served.set()
        await asyncio.gather(*rivals)


async def test_a_locked_table_is_waited_for_as_ever(
    queen: Queen, http: httpx.AsyncClient, stranger: asyncpg.Connection
) -> None:
    await queen.push("q", "first")
    async with held(stranger, "LOCK TABLE queen.messages IN SHARE MODE"):
        waiting = [asyncio.create_task(push(http, f"q{number}", "one")) for number in range(5)]
        async with asyncio.timeout(20):
            while not await stranger.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'relation'"):
                await asyncio.sleep(0.01)
        await stranger.execute("ROLLBACK")
        assert await statuses(waiting) == {201}


# Everything else that locks rows


async def _popped(queen: Queen, queue: str) -> Message:
    await queen.push(queue, "first")
    [message] = await queen.pop(queue, consumerGroup="g")
    return message


async def _ack(queen: Queen, message: Message) -> None:
    assert (await queen.ack(message))["success"] is True


async def _renew(queen: Queen, message: Message) -> None:
    await queen.extend(message["leaseId"], 120)


async def _transact(queen: Queen, message: Message) -> None:
    acked = {
        "type": "ack",
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "consumerGroup": "g",
    }
    pushed: Json = {"type": "push", "items": [{"queue": "sink", "payload": 1}]}
    assert (await queen.transact(acked, pushed, leases=[message["leaseId"]]))["success"] is True


async def _cycle(queen: Queen, message: Message) -> None:
    registered = await queen.http.post(
        "/streams/v1/queries", json={"name": "s", "source_queue": "q", "config_hash": "h"}
    )
    ack = {"transactionId": message["transactionId"], "leaseId": message["leaseId"], "status": "completed", "count": 1}
    body = {
        "query_id": registered.json()["query_id"],
        "partition_id": message["partitionId"],
        "consumer_group": "g",
        "ack": ack,
    }
    answer = await queen.http.post("/streams/v1/cycle", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["success"] is True, answer.text


async def _finish(queen: Queen, message: Message) -> None:
    assert (await queen.finish(message["leaseId"]))["messages"] == 1


async def _take(queen: Queen, message: Message) -> None:
    taken = await queen.take(message["leaseId"], "empty", consumerGroup="g")
    assert taken["success"] is True, taken["error"]


@pytest.mark.parametrize("verb", [_ack, _finish, _take, _renew, _transact, _cycle])
async def test_a_locked_position_holds_up_only_who_needs_it(
    queen: Queen,
    server: Server,
    stranger: asyncpg.Connection,
    verb: Callable[[Queen, Message], Awaitable[None]],
) -> None:
    others = [await _popped(queen, f"other-{number}") for number in range(10)]
    # More than there are places for transactions.
    locked = [await _popped(queen, f"locked-{number}") for number in range(6)]
    every = HOLD_POSITIONS.replace("= $1", "LIKE $1")
    async with held(stranger, every, "locked-%"):
        waiting = [asyncio.create_task(verb(queen, message)) for message in locked]
        await until(lambda: server.broker.locks.waiting == len(locked))
        await asyncio.gather(*(verb(queen, message) for message in others))
        assert server.database.in_use < len(locked), "who waits holds no connection"
        assert not any(task.done() for task in waiting)
        await stranger.execute("ROLLBACK")
        await asyncio.gather(*waiting)
    assert server.broker.locks.waiting == 0


async def test_a_locked_position_holds_up_only_its_own_batch_on_a_consumer_connection(
    queen: Queen, server: Server, stranger: asyncpg.Connection
) -> None:
    for partition in ("locked", "other"):
        await queen.push("q", 1, 2, partition=partition)
    async with consuming(server, "q", inFlight=2) as connection:
        both = [await connection.next_batch(), await connection.next_batch()]
        batches = {batch["partition"]: batch for batch in both}
        lease = batches["locked"]["leaseId"]
        hold = "SELECT 1 FROM queen.partition_consumers WHERE lease_id = $1 FOR UPDATE"
        async with held(stranger, hold, lease):
            await connection.send(finish=[{"leaseId": lease}])
            await until(lambda: server.broker.locks.waiting == 1)
            assert (await connection.finish(batches["other"]))["success"]
            second = await connection.next_batch()
            assert (second["partition"], data(second["messages"])) == ("other", [2])
            await stranger.execute("ROLLBACK")
            third = await connection.next_batch()
        assert [one["success"] for one in connection.finished if one["leaseId"] == lease] == [True]
        assert (third["partition"], data(third["messages"])) == ("locked", [2])


async def test_a_transaction_waits_for_the_head_that_it_pushes_to(
    queen: Queen, server: Server, stranger: asyncpg.Connection
) -> None:
    await queen.push("locked", "first")

    def pushing(queue: str) -> Json:
        return {"type": "push", "items": [{"queue": queue, "payload": 1}]}

    async with held(stranger, INSERT, "locked", ["Default"]):
        waiting = [asyncio.create_task(queen.transact(pushing("locked"))) for _ in range(6)]
        await until(lambda: server.broker.locks.waiting == 6)
        assert (await queen.transact(pushing("other")))["success"] is True
        await stranger.execute("COMMIT")
        assert all(answer["success"] for answer in await asyncio.gather(*waiting))


async def test_a_new_group_that_has_to_wait_holds_no_connection(
    queen: Queen, http: httpx.AsyncClient, server: Server, stranger: asyncpg.Connection
) -> None:
    for queue in ("locked", "other"):
        await queen.push(queue, "first")
    groups = [f"g{number}" for number in range(server.broker.settings.database.pool_size + 5)]
    async with held(stranger, HOLD_QUEUE, "locked"):
        waiting = [asyncio.create_task(queen.pop("locked", consumerGroup=group)) for group in groups]
        await until(lambda: server.broker.locks.waiting == len(groups))
        assert len(await queen.pop("other", consumerGroup="h")) == 1
        await stranger.execute("ROLLBACK")
        assert [len(messages) for messages in await asyncio.gather(*waiting)] == [1] * len(groups)


async def test_a_lease_that_cannot_be_given_back_now_is_given_back_later(
    queen: Queen, server: Server, stranger: asyncpg.Connection
) -> None:
    message = await _popped(queen, "q")
    async with held(stranger, HOLD_POSITIONS, "q"):
        server.broker.give_back((message["leaseId"], "q"))
        await until(lambda: server.broker.locks.waiting == 1)
        await stranger.execute("ROLLBACK")
        assert len(await queen.wait("q", consumerGroup="g")) == 1


# Bounds


class TestBounded:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(database={"lock_timeout_ms": 300}, limits={"max_lock_waiters": 3})

    async def test_the_answer_says_who_holds_what(
        self, queen: Queen, http: httpx.AsyncClient, stranger: asyncpg.Connection
    ) -> None:
        await queen.push("locked", "first")
        async with held(stranger, INSERT, "locked", ["Default"]):
            answer = await push(http, "locked", "late")
        assert (answer.status_code, answer.json()["code"]) == (503, "row_locked")
        told = answer.json()["error"]
        for part in ("'Default'", "'locked'", STRANGER, f"pid {stranger.get_server_pid()}", "idle in transaction"):
            assert part in told
        assert "INSERT" not in told
        assert await stranger.fetchval(STORED, "locked", "Default") == ["first"]
        assert (await push(http, "locked", "late")).status_code == 201

    @pytest.mark.parametrize("verb", [_ack, _finish, _take, _renew, _transact, _cycle])
    async def test_so_does_every_other_answer(
        self,
        queen: Queen,
        stranger: asyncpg.Connection,
        verb: Callable[[Queen, Message], Awaitable[None]],
    ) -> None:
        message = await _popped(queen, "q")
        async with held(stranger, HOLD_POSITIONS, "q"):
            with pytest.raises(AssertionError, match=rf"{STRANGER}.*pid {stranger.get_server_pid()}"):
                await verb(queen, message)
        await verb(queen, message)

    async def test_tenants_are_not_told_of_sessions(
        self, queen: Queen, http: httpx.AsyncClient, server: Server, stranger: asyncpg.Connection
    ) -> None:
        server.broker.locks._names_holders = False  # as where tokens are demanded
        await queen.push("locked", "first")
        async with held(stranger, INSERT, "locked", ["Default"]):
            answer = await push(http, "locked", "late")
        assert (answer.status_code, answer.json()["code"]) == (503, "row_locked")
        assert "held by another transaction, which the log of the server names" in answer.text
        for part in (STRANGER, "pid", "idle in transaction"):
            assert part not in answer.text

    async def test_a_prepared_transaction_is_named(
        self, queen: Queen, http: httpx.AsyncClient, stranger: asyncpg.Connection
    ) -> None:
        if not int(await stranger.fetchval("SHOW max_prepared_transactions")):
            pytest.skip("this PostgreSQL prepares no transactions")
        await queen.push("locked", "first")
        await stranger.execute("SET queen.announce = off; BEGIN")
        await stranger.execute(INSERT, "locked", ["Default"])
        await stranger.execute("PREPARE TRANSACTION 'left behind'")
        answer = await push(http, "locked", "late")
        await stranger.execute("ROLLBACK PREPARED 'left behind'")
        assert answer.status_code == 503
        assert "prepared transaction 'left behind'" in answer.json()["error"]

    async def test_only_so_many_wait(
        self, queen: Queen, http: httpx.AsyncClient, server: Server, stranger: asyncpg.Connection
    ) -> None:
        await queen.push("locked", "first")
        async with held(stranger, INSERT, "locked", ["Default"]):
            answers = await asyncio.gather(*(push(http, "locked", f"w{number}") for number in range(5)))
        assert sorted(answer.status_code for answer in answers) == [429, 429, 503, 503, 503]
        [refused, *_] = [answer for answer in answers if answer.status_code == 429]
        assert "rows that other transactions hold" in refused.json()["error"]
        assert server.broker.locks.waiting == 0


async def test_who_goes_away_does_not_wait_any_longer(
    queen: Queen, server: Server, stranger: asyncpg.Connection
) -> None:
    await queen.push("locked", "first")
    async with held(stranger, INSERT, "locked", ["Default"]):
        waiting = asyncio.create_task(server.broker.push([_message("locked", "Default", "gone")]))
        await until(lambda: server.broker.locks.waiting == 1)
        waiting.cancel()
        await until(lambda: server.broker.locks.waiting == 0)
    await queen.push("locked", "next")
    assert await stranger.fetchval(STORED, "locked", "Default") == ["first", "next"]


async def test_a_server_that_stops_refuses_who_waits(
    queen: Queen, http: httpx.AsyncClient, server: Server, stranger: asyncpg.Connection
) -> None:
    await queen.push("locked", "first")
    async with held(stranger, INSERT, "locked", ["Default"]):
        waiting = [asyncio.create_task(push(http, "locked", f"w{number}")) for number in range(3)]
        await until(lambda: server.broker.locks.waiting == 3)
        await server.stop()
        answers = await asyncio.gather(*waiting)
        assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(503, "server_stopping")}
    assert await stranger.fetchval(STORED, "locked", "Default") == ["first"]


async def test_a_refusal_says_what_is_full(
    http: httpx.AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_pushes(server, monkeypatch, Choice.REJECT)
    told = (await push(http, "q", "one")).json()["error"]
    assert "wait too long" in told
    assert "full" not in told
    decide_pushes(server, monkeypatch, Choice.REJECT, "operation_queue_full")
    assert "the operation queue is full" in (await push(http, "q", "two")).json()["error"]


# Pops


@pytest.mark.parametrize("partition", [None, "Default"])
async def test_long_polls_write_nothing_while_the_head_is_held(
    queen: Queen, server: Server, stranger: asyncpg.Connection, sql: asyncpg.Connection, partition: str | None
) -> None:
    message = await _popped(queen, "q")
    async with held(stranger, INSERT, "q", ["Default"]):
        await queen.ack(message)
        [row] = await sql.fetch(ROW, "q")
        assert row["ready_at"] is not None, "it could not be put to sleep"
        lane = server.broker.lanes["pop"]
        poll = asyncio.create_task(queen.wait("q", partition, consumerGroup="g"))
        for _ in range(3):
            server.broker.long_polls.wake("q", ["Default"])
            await until(lambda looks=lane.calls: lane.calls > looks)  # type: ignore[misc]
        await until(lambda: server.broker.long_polls.registry.statistics()["groups_backed_off"] == 1)
        assert await sql.fetch(ROW, "q") == [row], "no look has written the row"
        await stranger.execute("COMMIT")
        assert [found["transactionId"] for found in await poll] == ["stranger"]


async def test_pops_pass_over_partitions_whose_head_is_held(queen: Queen, stranger: asyncpg.Connection) -> None:
    """There may be many, and they have waited longer than the one with a message."""
    partitions = [f"p{number}" for number in range(50)]
    await queen.push_items(*({"queue": "q", "partition": name, "payload": 1} for name in partitions))
    messages: list[Message] = []
    while popped := await queen.pop("q", consumerGroup="g", batch=1000, partitions=100):
        messages += popped
    assert len(messages) == 50
    async with held(stranger, INSERT, "q", partitions):
        await queen.ack_batch(messages)
        assert await queen.pop("q", consumerGroup="g") == []
        await queen.push("q", "new", partition="other")
        assert [found["transactionId"] for found in await queen.pop("q", consumerGroup="g")] == ["new"]
        await stranger.execute("ROLLBACK")
    assert await queen.pop("q", consumerGroup="g") == []
    asleep: Any = await stranger.fetchval(
        "SELECT count(*) FROM queen.partition_consumers WHERE ready_at IS NULL AND consumer_group = 'g'"
    )
    assert asleep == 50, "the look behind it has put them to sleep"


async def test_a_pop_that_cannot_write_a_dead_letter_holds_up_nobody(
    queen: Queen, stranger: asyncpg.Connection, sql: asyncpg.Connection
) -> None:
    await queen.configure("q", retryLimit=0, dlqAfterMaxRetries=True)
    await queen.push("q", "one", "two", "three")
    for name in ("one", "two"):
        assert [found["transactionId"] for found in await queen.pop("q", consumerGroup="g")] == [name]
        await expire_leases(sql)
    await queen.push("other", "first")
    async with held(stranger, "SELECT 1 FROM queen.dead_letter_accounts FOR UPDATE"):
        nothing, found = await asyncio.gather(queen.pop("q", consumerGroup="g"), queen.pop("other", consumerGroup="g"))
        assert (nothing, len(found)) == ([], 1)
        poll = asyncio.create_task(queen.wait("q", consumerGroup="g"))
        await asyncio.sleep(0)
        await stranger.execute("ROLLBACK")
        assert [found["transactionId"] for found in await poll] == ["three"]


# Work in the background


async def test_eviction_passes_over_a_group_that_somebody_holds(
    queen: Queen, server: Server, stranger: asyncpg.Connection, sql: asyncpg.Connection
) -> None:
    await queen.configure("q", maxWaitTimeSeconds=1)
    for partition in ("locked", "free"):
        await queen.push("q", "old", "newest", partition=partition)
        [message] = await queen.pop("q", partition, consumerGroup="g")
        await queen.ack(message)
    await sql.execute("UPDATE queen.messages SET created_at = created_at - interval '1 hour'")
    queue = await sql.fetchval("SELECT id FROM queen.queues WHERE name = 'q'")
    hold = HOLD_POSITIONS.replace("FOR UPDATE", "AND c.partition_id = $2 FOR UPDATE")
    locked = await sql.fetchval("SELECT id FROM queen.partitions WHERE name = 'locked'")
    async with held(stranger, hold, "q", locked):
        evicted = await server.database.fetchrow(statement("evict"), queue, None, None, 1000)
        assert (evicted["deleted"], evicted["next"]) == (3, None), "all but what the group that is held has not read"
        await stranger.execute("SELECT 1 FROM queen.queues FOR UPDATE")
        evicted = await server.database.fetchrow(statement("evict"), queue, None, None, 1000)
        assert (evicted["deleted"], evicted["next"]) == (0, None), "a queue that is held is passed over"
    evicted = await server.database.fetchrow(statement("evict"), queue, None, None, 1000)
    assert evicted["deleted"] == 1


class TestOperations:
    @pytest.fixture
    def settings(self) -> Settings:
        """The queue is run by the test."""
        return settings_with(operations={"interval_ms": 3_600_000})

    async def test_the_operations_of_other_partitions_are_run(
        self,
        queen: Queen,
        http: httpx.AsyncClient,
        server: Server,
        stranger: asyncpg.Connection,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        await queen.push("q", "first", partition="locked")
        await queen.push("q", "first", partition="free")
        decide_pushes(server, monkeypatch, Choice.QUEUE)
        for partition in ("locked", "free"):
            assert (await push(http, "q", "queued", partition)).status_code == 202
        async with held(stranger, INSERT, "q", ["locked"]):
            assert await server.broker.operation_runner.run_pushes(10, 10) == 1
            assert await stranger.fetchval(STORED, "q", "free") == ["first", "queued"]
            assert await server.broker.operation_runner.run_pushes(10, 10) == 0
        assert await server.broker.operation_runner.run_pushes(10, 10) == 1
        assert await stranger.fetchval(STORED, "q", "locked") == ["first", "queued"]


class TestJournal:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return settings_with(journal={"folder": tmp_path, "replay_interval_ms": 10})

    async def test_the_journalled_pushes_to_other_partitions_are_replayed(
        self, queen: Queen, http: httpx.AsyncClient, server: Server, stranger: asyncpg.Connection
    ) -> None:
        for partition in ("locked", "free"):
            await queen.push("q", "first", partition=partition)
        await http.post("/api/v1/system/maintenance", json={"enabled": True})
        for name in ("one", "two"):
            for partitions in (("locked",), ("free", "locked"), ("free",)):
                answer = await push(http, "q", f"{name} {len(partitions)}", *partitions)
                assert answer.status_code == 202, answer.text
        await push(http, "q", "alone", "free too")
        async with held(stranger, INSERT, "q", ["locked"]):
            await http.post("/api/v1/system/maintenance", json={"enabled": False})
            async with asyncio.timeout(20):
                while await stranger.fetchval(STORED, "q", "free too") != ["alone"]:
                    await asyncio.sleep(0.01)
            buffer = server.broker.journal
            assert buffer is not None
            # Those of the locked partition, and those that come behind one of them.
            await until(lambda: buffer.pending == 6)  # type: ignore[attr-defined]
            await stranger.execute("ROLLBACK")
            await until(lambda: buffer.pending == 0)  # type: ignore[attr-defined]
        assert await stranger.fetchval(STORED, "q", "locked") == ["first", "one 1", "one 2", "two 1", "two 2"]
        assert await stranger.fetchval(STORED, "q", "free") == ["first", "one 2", "one 1", "two 2", "two 1"]
