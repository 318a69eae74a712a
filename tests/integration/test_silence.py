"""Connections that stop answering without a word: nobody waits for them for long, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

import asyncpg
import httpx
import pytest
from server_settings import settings_with

from integration.consuming import consuming
from integration.proxy import Proxy, relayed
from integration.queen import Queen, ack_op, data, until
from integration.ways import WAYS, Ledger
from queenmq.config import DatabaseSettings, Settings
from queenmq.server import Server
from queenmq.storage.database import Database
from queenmq.storage.failures import AnswerLost, RowLocked, TryAgain
from queenmq.storage.statements import statement

LONG = os.environ.get("QUEEN_LONG") == "1"
PRODUCERS = 12
# Far more than a server needs to notice (less than 1 s with these settings), far less than the silence lasts.
PATIENCE_S = 20.0

Answer = TypeVar("Answer")


@pytest.fixture
def settings() -> Settings:
    return settings_with(
        database={
            "silence_ms": 300,
            "outage_after_ms": 3000,
            "connection_timeout_ms": 2000,
            "pool_size": PRODUCERS,
            "vacuum_interval_ms": 0,
        },
        statistics={"interval_ms": 0},
    )


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with relayed(database_url) as running:
        yield running


@pytest.fixture
async def server(proxy: Proxy, settings: Settings) -> AsyncIterator[Server]:
    running = Server(settings, proxy.url)
    await running.start()
    await until(lambda: running.database.is_listening)
    yield running
    await running.stop()


def item(number: int, partition: str = "p") -> dict[str, Any]:
    return {"queue": "q", "partition": partition, "transactionId": str(number), "payload": number}


async def fill_pool(server: Server) -> None:
    """Open as many connections as there may be."""
    async with AsyncExitStack() as taken:
        for _ in range(server.database._settings.pool_size):
            await taken.enter_async_context(server.database.connection())


async def soon(answer: Awaitable[Answer]) -> Answer:
    async with asyncio.timeout(PATIENCE_S):
        return await answer


@pytest.fixture(params=[True, False], ids=["nothing arrives", "only the answer is lost"])
def swallow_requests(request: pytest.FixtureRequest) -> bool:
    """Whether a statement on a silent connection gets to the database at all."""
    return request.param


async def test_producers_do_not_wait_for_connections_that_are_silent(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy, swallow_requests: bool
) -> None:
    await queen.push_items(*[item(0, f"p{n}") for n in range(PRODUCERS)])
    await fill_pool(server)
    assert proxy.silence(swallow_requests=swallow_requests) >= PRODUCERS

    async def produce(partition: str) -> None:
        for number in range(1, 4):
            answer = await soon(http.post("/api/v1/push", json={"items": [item(number, partition)]}))
            assert answer.status_code == 201, answer.text
            assert [result["status"] for result in answer.json()] == ["queued"]

    await asyncio.gather(*[produce(f"p{n}") for n in range(PRODUCERS)])
    assert (await http.get("/health")).status_code == 200
    for number in range(PRODUCERS):
        assert data(await queen.drain("q", f"p{number}")) == [0, 1, 2, 3]
    assert server.database.connections_cut["silent"] > 0
    assert "queen_db_connections_cut_total" in (await http.get("/metrics/prometheus")).text


async def test_a_pop_whose_answer_got_lost_holds_nothing(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy, swallow_requests: bool
) -> None:
    await queen.push_items(*[item(n, f"p{n}") for n in range(3)])
    await queen.pop("q")  # subscribes the group
    proxy.silence(swallow_requests=swallow_requests)
    answer = await soon(http.get("/api/v1/pop/queue/q", params={"batch": 10}))
    assert answer.status_code == 200, answer.text
    [first] = answer.json()["messages"]
    assert await queen.ack(first) is not None
    rest = [await queen.pop("q"), await queen.pop("q")]
    assert sorted(data([first, *rest[0]])) in ([0, 1], [1, 2], [0, 2])
    assert not rest[1], "a partition is held by the lease whose answer got lost, or was delivered twice"


async def test_an_ack_whose_answer_got_lost_was_applied_and_says_so(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy, swallow_requests: bool
) -> None:
    await queen.push_items(item(1), item(2))
    [message] = await queen.pop("q")
    proxy.silence(swallow_requests=swallow_requests)
    body = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")} | {"status": "completed"}
    answer = await soon(http.post("/api/v1/ack", json=body))
    assert [result["success"] for result in answer.json()] == [True], answer.text
    assert data(await queen.pop("q")) == [2]


async def test_a_finish_whose_answer_got_lost_is_applied_once_and_never_called_refused(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy, swallow_requests: bool
) -> None:
    """Nothing shows later that a lease was finished, so it may be unknown: then that is said."""
    await queen.push_items(item(1), item(2))
    popped = await queen.pop_answer("q")
    proxy.silence(swallow_requests=swallow_requests)
    answer = await soon(http.post(f"/api/v1/lease/{popped['leaseId']}/finish"))
    assert answer.status_code in (200, 503), answer.text
    assert data(await queen.pop("q")) == [2]


async def test_a_take_whose_answer_got_lost_finishes_and_holds_nothing_else(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy, swallow_requests: bool
) -> None:
    await queen.push_items(item(1), item(2))
    popped = await queen.pop_answer("q")
    proxy.silence(swallow_requests=swallow_requests)
    body = {"take": {"queue": "q", "batch": 10}}
    answer = await soon(http.post(f"/api/v1/lease/{popped['leaseId']}/finish", json=body))
    assert answer.status_code == 200, answer.text
    taken = answer.json()
    assert taken["success"] or taken["code"] == "outcome_unknown", taken
    assert data(taken["taken"]["messages"]) == [2]
    assert (await queen.finish(taken["taken"]["leaseId"]))["messages"] == 1
    assert await queen.pop("q") == []


async def test_a_finish_on_a_consumer_connection_whose_answer_got_lost(
    server: Server, queen: Queen, proxy: Proxy, swallow_requests: bool
) -> None:
    """It is done once, or stays with the client, and the next message comes once."""
    await queen.push_items(item(1), item(2))
    async with consuming(server, "q") as connection:
        batch = await connection.next_batch()
        proxy.silence(swallow_requests=swallow_requests)
        result = await soon(connection.finish(batch))
        assert result["success"] or result["code"] == "outcome_unknown", result
        if not result["success"]:
            assert (await soon(connection.finish(batch))).get("code") in (None, "lease_not_found")
        second = await soon(connection.next_batch())
        assert data(second["messages"]) == [2]
        assert (await soon(connection.finish(second)))["success"]
    assert await queen.pop("q") == []


@pytest.mark.parametrize("obstacle", [RowLocked, TryAgain])
async def test_an_ack_whose_answer_got_lost_says_so_also_if_the_next_try_finds_others_in_its_way(
    server: Server, queen: Queen, monkeypatch: pytest.MonkeyPatch, obstacle: type[TryAgain]
) -> None:
    """The try whose answer got lost may itself still hold the row, while it commits."""
    await queen.push_items(item(1))
    [message] = await queen.pop("q")
    fetch, outcomes = server.database.fetch, iter([AnswerLost(), obstacle("in the way")])

    async def lossy(text: str, *arguments: object, repeatable: bool = False) -> list[asyncpg.Record]:
        if text != statement("ack"):
            return await fetch(text, *arguments, repeatable=repeatable)
        error = next(outcomes, None)
        rows = [] if isinstance(error, TryAgain) else await fetch(text, *arguments)
        if error is not None:
            raise error
        return rows

    monkeypatch.setattr(server.database, "fetch", lossy)
    acked = await queen.ack(message)
    assert acked["success"], acked
    assert next(outcomes, None) is None
    assert await queen.pop("q") == []


async def test_a_transaction_whose_answer_got_lost_is_committed_once(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy, swallow_requests: bool
) -> None:
    await queen.push_items(item(1), item(2))
    [message] = await queen.pop("q")
    proxy.silence(swallow_requests=swallow_requests)
    answer = await soon(
        http.post(
            "/api/v1/transaction",
            json={
                "operations": [ack_op(message), {"type": "push", "items": [item(3, "other")]}],
                "requiredLeases": [message["leaseId"]],
            },
        )
    )
    assert (answer.status_code, answer.json()["success"]) == (200, True), answer.text
    assert data(await queen.pop("q", "p")) == [2]
    assert data(await queen.drain("q", "other")) == [3]


@pytest.mark.parametrize("committed", [True, False])
async def test_a_transaction_whose_answer_got_lost_is_not_said_to_have_changed_nothing(
    server: Server, http: httpx.AsyncClient, queen: Queen, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """Also if the next try waits for a locked row in vain."""
    unmerged = server.broker._transactor._unmerged
    refusals = iter([AnswerLost(), RowLocked("waited for a row. Nothing was changed")])

    async def once(messages: object, rows: object, call: Callable[[str], Awaitable[object]]) -> object:
        error = next(refusals)
        if committed and isinstance(error, AnswerLost):
            await call("1s")
        raise error

    monkeypatch.setattr(unmerged, "_once", once)
    body = {"operations": [{"type": "push", "items": [item(1)]}]}
    answer = await http.post("/api/v1/transaction", json=body)
    if committed:
        assert (answer.status_code, answer.json()["success"]) == (200, True), answer.text
    else:
        assert answer.status_code == 503, answer.text
        assert "Nothing was changed" not in answer.text


async def test_a_transaction_that_only_acknowledges_is_asked_about_too(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy, swallow_requests: bool
) -> None:
    await queen.push_items(item(1))
    [message] = await queen.pop("q")
    proxy.silence(swallow_requests=swallow_requests)
    body = {"operations": [ack_op(message)], "requiredLeases": [message["leaseId"]]}
    answer = await soon(http.post("/api/v1/transaction", json=body))
    assert (answer.status_code, answer.json()["success"]) == (200, True), answer.text
    assert await queen.pop("q") == []


async def test_a_stream_cycle_whose_answer_got_lost_pushes_once(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy, swallow_requests: bool
) -> None:
    await queen.push_items(item(1))
    query = {"name": "sums", "source_queue": "q", "sink_queue": "sums", "config_hash": "1"}
    registered = (await http.post("/streams/v1/queries", json=query)).json()
    [message] = await queen.pop("q")
    cycle = {
        "query_id": registered["query_id"],
        "partition_id": message["partitionId"],
        "state_ops": [{"type": "upsert", "key": "k", "value": 1}],
        "push_items": [{"queue": "sums", "partition": "p", "payload": "sum"}],
        "ack": {"transactionId": message["transactionId"], "leaseId": message["leaseId"], "status": "completed"},
    }
    proxy.silence(swallow_requests=swallow_requests)
    answer = await soon(http.post("/streams/v1/cycle", json=cycle))
    assert (answer.status_code, answer.json()["success"]) == (200, True), answer.text
    assert answer.json()["push_results"][0]["status"] == "queued"
    assert data(await queen.drain("sums", "p")) == ["sum"]
    assert await queen.pop("q") == []


async def test_renewals_reports_and_health_are_asked_again(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy
) -> None:
    await queen.push_items(item(1))
    [message] = await queen.pop("q")
    await fill_pool(server)
    proxy.silence()
    renewed, listed, health = await asyncio.gather(
        soon(http.post(f"/api/v1/lease/{message['leaseId']}/extend", json={"seconds": 60})),
        soon(http.get("/api/v1/resources/queues")),
        soon(http.get("/health")),
    )
    assert renewed.json()["lease_expires_at"], renewed.text
    assert (listed.status_code, health.status_code) == (200, 200)
    assert health.json()["database"] == "connected"


async def test_what_a_silent_connection_had_locked_is_free_again(
    server: Server, sql: asyncpg.Connection, queen: Queen, proxy: Proxy
) -> None:
    """A backend that waits for a client that is gone would keep its locks for hours."""
    await queen.push_items(item(1))
    lock = "SELECT 1 FROM queen.partition_lookup FOR UPDATE"
    entered = asyncio.Event()

    async def hold() -> None:
        async with server.database.connection() as connection, connection.transaction():
            await connection.execute(lock)
            proxy.silence()
            entered.set()
            await connection.execute("SELECT 1")

    with pytest.raises(AnswerLost):
        await asyncio.wait_for(hold(), PATIENCE_S)
    assert entered.is_set()
    async with sql.transaction():
        await sql.execute("SET LOCAL lock_timeout = '10s'")
        await sql.execute(lock)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'queen' AND datname = current_database()"

    async def ended() -> bool:
        return await sql.fetchval(sessions) <= server.database.pool_size

    await until(ended)


async def test_a_statement_that_takes_long_is_left_alone(server: Server) -> None:
    """A slow but living database: every look finds it at work."""
    assert await server.database.fetchval("SELECT pg_sleep(1.5) IS NOT NULL")
    assert sum(server.database.connections_cut.values()) == 0


async def test_a_large_answer_that_comes_slowly_is_left_alone(server: Server, proxy: Proxy) -> None:
    """The database waits for us to take it, but bytes move."""
    proxy.slow_down(bytes_a_chunk=65536, pause_s=0.02)
    answer = await server.database.fetchval("SELECT repeat('x', 6000000)")
    assert len(answer) == 6_000_000
    assert sum(server.database.connections_cut.values()) == 0


async def test_the_statement_timeout_is_the_last_bound(database_url: str, settings: Settings) -> None:
    """Behind a pooler nobody can be asked about the backend; and the server may be stuck before its own timeout."""
    async with relayed(database_url) as proxy:
        database = Database(replace(settings.database, silence_ms=60_000, statement_timeout_ms=100), proxy.url)
        await database.open()
        try:
            proxy.silence()
            with pytest.raises(AnswerLost):
                await asyncio.wait_for(database.fetchval("SELECT 1"), PATIENCE_S)
            assert database.connections_cut["overdue"] == 1
            assert await database.fetchval("SELECT 1") == 1
        finally:
            await database.close()


async def test_a_cancelled_statement_on_a_silent_connection_lets_go(server: Server, proxy: Proxy) -> None:
    pool = server.database._pool
    assert pool is not None
    proxy.silence()
    waiting = asyncio.create_task(server.database.fetchval("SELECT 1"))
    await until(lambda: server.database.in_use == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert await asyncio.wait_for(server.database.fetchval("SELECT 1", repeatable=True), PATIENCE_S) == 1


async def test_a_server_stops_while_its_connections_are_silent(
    server: Server, http: httpx.AsyncClient, proxy: Proxy
) -> None:
    proxy.silence()
    pushing = asyncio.create_task(http.post("/api/v1/push", json={"items": [item(1)]}))
    await until(lambda: server.database.in_use > 0)
    await asyncio.wait_for(server.stop(), PATIENCE_S)
    await asyncio.gather(pushing, return_exceptions=True)


@pytest.mark.parametrize("way", WAYS)
async def test_consumers_lose_nothing_while_connections_go_silent(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy, sql: asyncpg.Connection, way: str
) -> None:
    each, every = (40, 20) if LONG else (8, 10)
    expected = {f"p{partition}": list(range(each)) for partition in range(3)}
    await queen.configure("q", leaseTime=3)
    await queen.push_items(*(item(number, partition) for partition, numbers in expected.items() for number in numbers))
    ledger = Ledger(expected, every=every, harm=lambda: proxy.silence(swallow_requests=random.random() < 0.5))
    async with asyncio.timeout(120):
        await asyncio.gather(*(WAYS[way](server, http, ledger) for _ in range(2)))
    assert ledger.harmed >= 2
    await until(lambda: server.database.is_open)
    await ledger.check(queen, sql)


@pytest.mark.skipif(not LONG, reason="QUEEN_LONG=1; test_consumers_lose_nothing_while_connections_go_silent is shorter")
async def test_connections_that_go_silent_again_and_again_lose_and_double_nothing(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy
) -> None:
    partitions, count = [f"p{number}" for number in range(6)], 60
    seed = int(os.environ.get("QUEEN_SILENCE_SEED", random.randrange(2**32)))
    sys.stdout.write(f"QUEEN_SILENCE_SEED={seed}\n")
    chance = random.Random(seed)
    received: dict[str, list[Any]] = {partition: [] for partition in partitions}

    async def post(path: str, body: Any) -> tuple[httpx.Response, bool]:
        """The answer, and whether it took more than one request: three silent connections in a row are a 503."""
        for attempt in itertools.count():
            answer = await soon(http.post(path, json=body))
            if answer.status_code != 503:
                return answer, attempt > 0
        raise AssertionError("unreachable")

    async def produce(partition: str) -> None:
        for number in range(count):
            answer, _ = await post("/api/v1/push", {"items": [item(number, partition)]})
            assert answer.status_code == 201, answer.text

    async def consume() -> None:
        while sum(map(len, received.values())) < count * len(partitions):
            answer = await soon(http.get("/api/v1/pop/queue/q", params={"batch": 5, "wait": True, "timeout": 500}))
            for message in answer.json()["messages"] if answer.status_code == 200 else ():
                body = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
                acked, repeated = await post("/api/v1/ack", body | {"status": "completed"})
                assert acked.json()[0]["success"] or repeated, acked.text
                received[message["partition"]].append(message["data"])

    async def disturb() -> None:
        while True:
            await asyncio.sleep(chance.uniform(0.2, 2.5))
            proxy.silence(swallow_requests=chance.random() < 0.5)

    disturbing = asyncio.create_task(disturb())
    await asyncio.gather(*[produce(partition) for partition in partitions], *[consume() for _ in range(3)])
    disturbing.cancel()
    assert received == {partition: list(range(count)) for partition in partitions}


async def test_a_connection_that_goes_from_hand_to_hand_is_in_use(database_url: str) -> None:
    """What is taken for idle is cut when others are found silent."""
    database = Database(DatabaseSettings(pool_size=1), database_url)
    await database.open()
    marks: list[bool] = []

    async def borrow() -> None:
        async with database.connection() as connection:
            await connection.fetchval("SELECT 1")
            marks.append(connection.itself().in_use)  # type: ignore[attr-defined]

    try:
        await asyncio.gather(*[borrow() for _ in range(5)])
        assert marks == [True] * 5
        assert database._silence is not None
        assert [one.in_use for one in database._silence._connections] == [False]
    finally:
        await database.close()
