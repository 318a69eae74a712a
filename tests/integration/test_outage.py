"""Without the database, or with pushes switched off: accepted pushes are on disk, and come in once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
from ports import free_udp_port
from server_settings import changed, settings_with

from integration.proxy import Proxy, relayed
from integration.queen import Queen, data, until
from integration.ways import WAYS, Ledger
from queenmq.config import Settings
from queenmq.core.message import Message
from queenmq.errors import DatabaseUnavailable, Overloaded
from queenmq.ids import uuid7_text
from queenmq.journal.files import JournalBounds, JournalFailed
from queenmq.journal.push_journal import PushJournal
from queenmq.journal.push_records import RecordCodec
from queenmq.journal.quarantine import give_up, retry, set_aside_in
from queenmq.server import Server
from queenmq.storage import migrations
from queenmq.storage.failures import AnswerLost
from queenmq.storage.statements import statement

KEY = bytes(range(32))

Json = dict[str, Any]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_with(
        journal={"folder": tmp_path / "journal", "replay_interval_ms": 10},
        server={"encryption_key": KEY},
        # A database that refuses connections is noticed at once. Only one that is silent takes time.
        database={"ping_ms": 50, "connection_timeout_ms": 30_000},
    )


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with relayed(database_url) as running:
        yield running


@pytest.fixture
async def server(proxy: Proxy, settings: Settings) -> AsyncIterator[Server]:
    running = Server(settings, proxy.url)
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
def queen(http: httpx.AsyncClient) -> Queen:
    """Patient, because a ping that an outage has hit may end after it: until the next one the database is away."""
    return Queen(http, patience_s=30)


def item(number: int, partition: str = "p", queue: str = "q", **fields: Any) -> Json:
    return {"queue": queue, "partition": partition, "transactionId": str(number), "payload": number} | fields


async def push(http: httpx.AsyncClient, *items: Json) -> httpx.Response:
    return await http.post("/api/v1/push", json={"items": items})


async def buffered(http: httpx.AsyncClient, *items: Json) -> list[Json]:
    """Push, and expect that all of it is in the journal."""
    answer = await push(http, *items)
    assert answer.status_code == 202, answer.text
    results = answer.json()
    assert [result["status"] for result in results] == ["buffered"] * len(items)
    return results


async def maintain(http: httpx.AsyncClient, on: bool) -> Json:
    answer = await http.post("/api/v1/system/maintenance", json={"enabled": on})
    assert answer.status_code == 200
    return answer.json()


async def state(http: httpx.AsyncClient) -> Json:
    return (await http.get("/api/v1/system/maintenance")).json()


async def drained(server: Server) -> None:
    journal = server.broker.journal
    assert journal is not None
    await until(lambda: not journal.pending)  # type: ignore[attr-defined]


# Maintenance


async def test_maintenance_keeps_pushes_in_the_journal_and_lets_them_in_afterwards(
    server: Server, http: httpx.AsyncClient, queen: Queen
) -> None:
    await queen.push_items(item(1))
    assert "journal" in (await maintain(http, True))["message"]
    [two, three] = await buffered(http, item(2), item(3))
    assert two["reason"] == "maintenance"
    assert (two["queue"], two["partition"], two["transactionId"]) == ("q", "p", "2")
    assert two["operationId"] == three["operationId"]
    for verb in ("cancel", "retry"):
        refusal = await http.post(f"/api/v1/operations/{two['operationId']}/{verb}")
        assert (refusal.status_code, "in the journal" in refusal.json()["error"]) == (409, True)
    await buffered(http, item(3), item(4))
    assert data(await queen.drain("q", "p")) == [1]
    shown = await state(http)
    assert (shown["maintenanceMode"], shown["bufferedMessages"], shown["bufferHealthy"]) == (True, 4, True)
    assert shown["bufferStats"]["pendingCount"] == 4
    await maintain(http, False)
    await drained(server)
    assert data(await queen.drain("q", "p")) == [2, 3, 4]
    assert (await state(http))["bufferedMessages"] == 0


async def test_a_journalled_push_is_stored_also_over_the_size_limit(
    server: Server, http: httpx.AsyncClient, queen: Queen
) -> None:
    await queen.configure("q", maxSize=5)
    await push(http, item(0))
    await maintain(http, True)
    results = [result for number in range(1, 11) for result in await buffered(http, item(number))]
    await maintain(http, False)
    await drained(server)
    [full] = (await push(http, item(11, "elsewhere"))).json()
    assert full["status"] == "failed"
    assert data(await queen.drain("q", "p")) == list(range(11))
    for result in results:
        shown = (await http.get(f"/api/v1/operations/{result['operationId']}")).json()
        assert [one["status"] for one in shown["result"]] == ["queued"]


async def test_what_the_journal_holds_takes_up_room(server: Server, http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.configure("q", maxSize=3)
    await queen.configure("other", maxSize=3)
    await maintain(http, True)
    await buffered(http, item(1), item(2), item(3, queue="other"))
    messages = [Message(queue, "elsewhere", b"1", str(uuid4()), str(uuid4())) for queue in ("q", "q", "other", "other")]
    [outcomes] = await server.broker._pusher._call("auto", [messages], "1000")
    assert [outcome.status for outcome in outcomes] == ["queued", "failed", "queued", "queued"]
    await maintain(http, False)
    await drained(server)
    assert data(await queen.drain("q", "p")) == [1, 2]


async def test_a_push_waits_behind_the_journalled_ones_of_its_partition(
    server: Server, http: httpx.AsyncClient, queen: Queen
) -> None:
    await maintain(http, True)
    for number in range(200):
        await buffered(http, item(number))
    await maintain(http, False)
    answer = await push(http, item(200))
    assert answer.status_code == 201
    assert data(await queen.drain("q", "p")) == list(range(201))


async def test_a_transaction_waits_behind_them_too(server: Server, http: httpx.AsyncClient, queen: Queen) -> None:
    await maintain(http, True)
    refused = await http.post("/api/v1/transaction", json={"operations": [{"type": "push", "items": [item(9)]}]})
    assert (refused.status_code, refused.json()["code"]) == (503, "maintenance")
    for number in range(50):
        await buffered(http, item(number))
    await maintain(http, False)
    assert (await queen.transact({"type": "push", "items": [item(50)]}))["success"]
    assert data(await queen.drain("q", "p")) == list(range(51))


async def test_the_journal_survives_a_restart(
    server: Server, http: httpx.AsyncClient, queen: Queen, settings: Settings, proxy: Proxy
) -> None:
    await maintain(http, True)
    for number in range(5):
        await buffered(http, item(number))
    await server.stop()
    again = Server(changed(settings, journal={"replay_batch_size": 2}), proxy.url)
    await again.start()
    try:
        host, port = again.address
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as other:
            assert (await state(other))["bufferedMessages"] == 5
            await maintain(other, False)
            await drained(again)
            assert data(await Queen(other).drain("q", "p")) == list(range(5))
    finally:
        await again.stop()


# Outage


async def test_pushes_go_to_the_journal_while_the_database_refuses(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy
) -> None:
    await queen.push_items(item(0))
    await proxy.close()
    for number in range(1, 6):
        [result] = await buffered(http, item(number))
        assert result["reason"] == "database_unavailable"
    await until(lambda: not server.database.is_open)
    pop = await http.get("/api/v1/pop/queue/q")
    assert pop.status_code == 503
    assert "connection" in pop.json()["error"]
    assert "ECONNREFUSED" in pop.json()["error"]
    assert (await http.get("/health")).status_code == 503
    await proxy.open()
    await drained(server)
    assert data(await queen.drain("q", "p")) == list(range(6))
    assert (await http.get("/health")).status_code == 200


async def test_a_database_that_hangs_is_given_up_and_found_again(settings: Settings, proxy: Proxy) -> None:
    limits = {"outage_after_ms": 2000, "connection_timeout_ms": 2000}
    async with serving(changed(settings, database=limits), proxy) as (server, http):
        queen = Queen(http, patience_s=30)
        await queen.push_items(item(0))
        proxy.pause()
        async with asyncio.timeout(30):
            [result] = await buffered(http, item(1))
            await buffered(http, item(2))
        assert result["reason"] == "database_unavailable"
        proxy.resume()
        await drained(server)
        assert (await push(http, item(3))).status_code == 201
        assert data(await queen.drain("q", "p")) == [0, 1, 2, 3]


async def test_connections_that_are_cut_again_and_again_lose_and_double_nothing(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy
) -> None:
    async def produce(partition: str) -> None:
        for number in range(40):
            answer = await push(http, item(number, partition))
            assert answer.status_code in (201, 202), answer.text

    async def cut() -> None:
        while True:
            await asyncio.sleep(0.03)
            proxy.cut()

    cutting = asyncio.create_task(cut())
    await asyncio.gather(*[produce(f"p{number}") for number in range(4)])
    cutting.cancel()
    await drained(server)
    for number in range(4):
        assert data(await queen.drain("q", f"p{number}")) == list(range(40))


@pytest.mark.parametrize("way", WAYS)
async def test_consumers_lose_nothing_while_connections_are_cut_again_and_again(
    server: Server, http: httpx.AsyncClient, queen: Queen, proxy: Proxy, sql: asyncpg.Connection, way: str
) -> None:
    expected = {f"p{partition}": list(range(40)) for partition in range(3)}
    await queen.configure("q", leaseTime=1)
    await queen.push_items(*(item(number, partition) for partition, numbers in expected.items() for number in numbers))
    # While something is under way: the finish of the batch that came last, for example.
    ledger = Ledger(expected, every=15, harm=proxy.cut)
    async with asyncio.timeout(60):
        await asyncio.gather(*(WAYS[way](server, http, ledger) for _ in range(2)))
    await until(lambda: server.database.is_open)
    await ledger.check(queen, sql)
    assert ledger.harmed > 3


async def test_an_exhausted_pool_loses_nothing(
    server: Server, http: httpx.AsyncClient, queen: Queen, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_alive = server.database.is_alive
    judged: list[bool] = []

    async def judge(within_s: float) -> bool:
        judged.append(await is_alive(within_s))
        return judged[-1]

    async with AsyncExitStack() as taken:
        for _ in range(settings.database.pool_size):
            await taken.enter_async_context(server.database.connection())
        pushing = asyncio.create_task(push(http, item(1)))
        await until(lambda: server.database.waiting > 0)
        monkeypatch.setattr(server.database, "is_alive", judge)
        await until(lambda: len(judged) > 10)
        assert all(judged), "a busy pool is no outage"
        assert server.database.is_open
        assert not pushing.done()
    assert (await pushing).status_code == 201
    assert data(await queen.drain("q", "p")) == [1]


@pytest.mark.parametrize("coordinated", [False, True])
async def test_the_server_starts_without_its_database(settings: Settings, database_url: str, coordinated: bool) -> None:
    if coordinated:
        peers = (("127.0.0.1", free_udp_port()),)
        settings = changed(
            settings, coordinator={"enabled": True}, cluster={"udp_port": 0, "peers": peers, "secret": KEY}
        )
    async with relayed(database_url) as proxy:
        await proxy.close()
        server = Server(settings, proxy.url)
        await server.start()
        try:
            host, port = server.address
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as http:
                await buffered(http, item(1), item(2))
                for method, path in (
                    ("GET", "/api/v1/pop/queue/q?wait=true&timeout=100"),
                    ("GET", "/api/v1/dlq"),
                    ("POST", "/api/v1/configure"),
                    ("GET", "/api/v1/system/shared-state"),
                    ("GET", "/api/v1/cluster/balance"),
                ):
                    answer = await http.request(method, path, json={"queue": "q"} if method == "POST" else None)
                    assert answer.status_code == 503, (path, answer.text)
                    assert "ECONNREFUSED" in answer.json()["error"]
                assert (await http.get("/metrics/prometheus")).status_code == 200
                await proxy.open()
                await drained(server)
                await until(lambda: server.database.is_open)
                assert data(await Queen(http, patience_s=30).drain("q", "p")) == [1, 2]
        finally:
            await server.stop()


async def test_a_start_whose_connection_is_lost_on_the_way_waits_for_the_database(
    settings: Settings, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = migrations._state

    async def lose(connection: Any) -> migrations.SchemaState:
        monkeypatch.setattr(migrations, "_state", look)
        proxy.cut()
        return await look(connection)

    monkeypatch.setattr(migrations, "_state", lose)
    async with serving(settings, proxy) as (server, http):
        await buffered(http, item(1))
        await drained(server)
        assert data(await Queen(http, patience_s=30).drain("q", "p")) == [1]


async def test_a_full_journal_answers_429_and_keeps_nothing(settings: Settings, database_url: str) -> None:
    async with relayed(database_url) as proxy:
        await proxy.close()
        server = Server(changed(settings, journal={"max_records": 2}), proxy.url)
        await server.start()
        try:
            host, port = server.address
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as http:
                await buffered(http, item(1))
                await buffered(http, item(2))
                refused = await push(http, item(3))
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) >= 1
                await proxy.open()
                await drained(server)
                assert data(await Queen(http, patience_s=30).drain("q", "p")) == [1, 2]
        finally:
            await server.stop()


async def test_the_journal_never_has_a_payload_in_clear_when_there_is_a_key(
    server: Server, http: httpx.AsyncClient, queen: Queen, settings: Settings
) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    await maintain(http, True)
    await buffered(http, item(1, queue="secret", payload="do not tell"))
    assert settings.journal.folder is not None
    files = list(settings.journal.folder.rglob("*.journal"))
    assert files
    assert not [file for file in files if b"do not tell" in file.read_bytes()]
    await maintain(http, False)
    await drained(server)
    assert data(await queen.drain("secret", "p")) == ["do not tell"]


async def test_a_record_that_the_database_refuses_is_set_aside_and_the_rest_goes_on(
    server: Server, http: httpx.AsyncClient, queen: Queen, monkeypatch: pytest.MonkeyPatch
) -> None:
    await maintain(http, True)
    await buffered(http, item(1))
    refused = await buffered(http, item(2, traceId="00000000-0000-4000-8000-000000000000"))
    await buffered(http, item(3))
    pusher = server.broker._pusher
    store = pusher.store_accepted

    async def choosy(requests: Any, lock_timeout: str) -> Any:
        for request in requests:
            for message in request:
                if message.trace_id is not None:
                    message.trace_id = "no uuid"
        return await store(requests, lock_timeout)

    monkeypatch.setattr(pusher, "store_accepted", choosy)
    await maintain(http, False)
    await drained(server)
    assert data(await queen.drain("q", "p")) == [1, 3]
    shown = await state(http)
    assert shown["bufferStats"]["failedFiles"]["count"] == 1
    assert shown["bufferStats"]["failedFiles"]["totalBytes"] > 0
    path = f"/api/v1/operations/{refused[0]['operationId']}"
    operation = (await http.get(path)).json()
    told = tuple(operation[name] for name in ("status", "queue", "partition", "items"))
    assert told == ("failed", "q", "p", 1)
    assert operation["errorMessage"].startswith("the database refuses its content: ")
    assert operation["processedAt"] is not None
    for verb in ("retry", "cancel"):
        answer = await http.post(f"{path}/{verb}")
        assert (answer.status_code, "queen journal retry" in answer.json()["error"]) == (409, True)
    assert (await http.get(f"/api/v1/operations/{uuid4()}")).status_code == 404


FAILING = """
    CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF {condition} THEN
            RAISE SQLSTATE '{sqlstate}' USING MESSAGE = 'made to fail';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER fail BEFORE INSERT ON queen.messages FOR EACH ROW EXECUTE FUNCTION public.fail();
"""
MENDED = "DROP TRIGGER fail ON queen.messages; DROP FUNCTION public.fail()"


@pytest.mark.parametrize("sqlstate", ["53200", "XX000", "42501", "58030", "P0001"])
async def test_an_error_that_is_not_the_contents_fault_is_waited_out(
    server: Server, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection, sqlstate: str
) -> None:
    await maintain(http, True)
    for number in range(50):
        await buffered(http, item(number, f"p{number % 5}"))
    await sql.execute(FAILING.format(sqlstate=sqlstate, condition="true"))
    await maintain(http, False)
    await until(lambda: server.database.errors > 3)
    assert (await state(http))["bufferStats"]["failedFiles"]["count"] == 0
    assert (await state(http))["bufferedMessages"] == 50
    await sql.execute(MENDED)
    await drained(server)
    for number in range(5):
        assert data(await queen.drain("q", f"p{number}")) == list(range(number, 50, 5))


async def test_a_push_that_cannot_be_stored_keeps_only_its_partition_waiting_until_it_is_given_up(
    server: Server, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection, settings: Settings
) -> None:
    """Nobody has listed its error (an index row that is too long, say), so it may be anybody's fault."""
    await maintain(http, True)
    for number in range(30):
        results = await buffered(http, item(number, f"p{number % 3}"))
        if number == 4:
            guilty = results[0]["operationId"]
    await sql.execute(FAILING.format(sqlstate="54000", condition="NEW.transaction_id = '4'"))
    try:
        await maintain(http, False)
        journal = server.broker.journal
        await until(lambda: journal.figures().operations == journal.figures().stuck == 9)
        assert data(await queen.drain("q", "p0")) == list(range(0, 30, 3))
        assert data(await queen.drain("q", "p1")) == [1]
        [behind] = await buffered(http, item(31, "p1"))
        assert behind["reason"] == "maintaining_order"
        assert (await push(http, item(30, "p0"))).status_code == 201
        shown = (await http.get("/api/v1/operations/stats")).json()["journal"]
        assert (shown["quarantined"], shown["replayFailing"]) == (0, True)
        assert (await http.get(f"/api/v1/operations/{guilty}")).json()["status"] == "pending"
        give_up(settings.journal.folder, guilty)
        await drained(server)
    finally:
        await sql.execute(MENDED)
    assert data(await queen.drain("q", "p1")) == [*range(7, 30, 3), 31]
    [kept] = set_aside_in(settings.journal.folder, RecordCodec([KEY]))
    assert kept.content.operation_id == guilty
    retry(kept)
    await until(lambda: server.broker.journal.replayed == 31)
    assert data(await queen.drain("q", "p1")) == [4]


async def test_a_locked_partition_keeps_only_its_own_pushes_waiting(
    database_url: str, settings: Settings, proxy: Proxy, sql: asyncpg.Connection
) -> None:
    async with serving(changed(settings, database={"lock_timeout_ms": 100}), proxy) as (server, http):
        await Queen(http).push_items(item(0, "locked"))
        await maintain(http, True)
        for number in range(1, 21):
            await buffered(http, item(number, "locked" if number % 2 else "free"))
        async with sql.transaction():
            await sql.execute("SELECT FROM queen.partition_lookup FOR UPDATE")
            await maintain(http, False)
            await until(lambda: server.broker.journal.figures().operations == 10)
            assert data(await Queen(http, patience_s=30).drain("q", "free")) == list(range(2, 21, 2))
        await drained(server)
        assert data(await Queen(http, patience_s=30).drain("q", "locked")) == [0, *range(1, 21, 2)]


async def test_a_partition_that_many_want_does_not_keep_its_journalled_pushes_waiting_for_ever(
    database_url: str, server: Server, http: httpx.AsyncClient, queen: Queen
) -> None:
    """No transaction holds it for long, but it is never free: as if commits were slow, and other servers pushed."""
    await queen.push_items(item(0))
    await maintain(http, True)
    await buffered(http, item(1))
    stored = asyncio.Event()
    holds = asyncio.Event()

    async def rival() -> None:
        connection = await asyncpg.connect(database_url)
        while not stored.is_set():
            async with connection.transaction():
                await connection.execute("SELECT FROM queen.partition_lookup FOR UPDATE")
                holds.set()
                await connection.execute("SELECT pg_sleep(0.1)")
        await connection.close()

    rivals = [asyncio.create_task(rival()) for _ in range(3)]
    try:
        await holds.wait()
        await maintain(http, False)
        await drained(server)
    finally:
        stored.set()
        await asyncio.gather(*rivals)
    assert data(await queen.drain("q", "p")) == [0, 1]


@asynccontextmanager
async def serving(settings: Settings, proxy: Proxy) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    running = Server(settings, proxy.url)
    await running.start()
    try:
        host, port = running.address
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as http:
            yield running, http
    finally:
        await running.stop()


@pytest.mark.parametrize("key", [None, KEY[::-1]])
async def test_a_start_without_the_right_key_waits_for_it(
    server: Server,
    http: httpx.AsyncClient,
    queen: Queen,
    settings: Settings,
    proxy: Proxy,
    key: bytes | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await maintain(http, True)
    for number in range(20):
        await buffered(http, item(number))
    await server.stop()
    async with serving(changed(settings, server={"encryption_key": key}), proxy) as (_, other):
        await maintain(other, False)
        assert "20 accepted pushes (20 messages) wait for the key" in caplog.text
        assert (await push(other, item(100, "another"))).status_code == 201
        [behind] = await buffered(other, item(20))
        assert behind["reason"] == "maintaining_order"
        shown = (await other.get("/api/v1/operations/stats")).json()["journal"]
        assert (shown["waitingForKey"], shown["operations"], shown["quarantined"]) == (20, 21, 0)
        assert (await state(other))["bufferedMessages"] == 21
        assert "queen_journal_waiting_for_key 20" in (await other.get("/metrics/prometheus")).text
        assert (await other.get("/health")).json()["journal"]["waiting_for_key"] == 20
        assert data(await Queen(other).drain("q", "p")) == []
    # With the key, what was accepted behind them under another one waits in its turn.
    async with serving(settings, proxy) as (right, other):
        left = int(key is not None)
        await until(lambda: right.broker.journal.figures().operations == left)
        assert data(await Queen(other).drain("q", "p")) == list(range(21 - left))
        assert right.broker.journal.figures().waiting_for_key == left


async def test_full_journals_that_two_processes_have_left_are_stored_by_one(settings: Settings, proxy: Proxy) -> None:
    settings = changed(settings, journal={"max_records": 30})
    bounds = JournalBounds(settings.journal.max_bytes, 30, settings.journal.records_per_file)
    left = [PushJournal(settings.journal.folder, bounds, [KEY]) for _ in range(2)]
    for journal in left:
        await journal.open()
    for number in range(60):
        message = Message("q", "p", b"%d" % number, uuid7_text(), str(number))
        await left[number % 2].put([message])
    for journal in left:
        await journal.close()
    await proxy.close()
    async with serving(settings, proxy) as (server, http):
        assert server.broker.journal.figures().messages == 60
        assert (await http.get("/health")).json()["journal"]["messages"] == 60
        assert (await push(http, item(60))).status_code == 429
        await proxy.open()
        await drained(server)
        assert data(await Queen(http, patience_s=30).drain("q", "p")) == list(range(60))


async def test_what_the_journal_accepted_is_stored_whatever_the_queue_may_hold(
    server: Server, http: httpx.AsyncClient, queen: Queen
) -> None:
    await queen.configure("q", maxSize=5)
    await maintain(http, True)
    for number in range(10):
        await buffered(http, item(number))
    await maintain(http, False)
    await drained(server)
    assert data(await queen.drain("q", "p")) == list(range(10))


@pytest.mark.parametrize("refusal", [JournalFailed("its disk is full"), Overloaded("it is full")], ids=lambda e: e.code)
async def test_a_push_that_the_journal_does_not_take(
    server: Server, http: httpx.AsyncClient, queen: Queen, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    """The database may have it: its answer got lost before it went away."""
    fetchrow, journal, errors = server.database.fetchrow, server.broker.journal, iter([AnswerLost()])

    async def lossy(*arguments: Any, **options: Any) -> Any:
        if arguments[0] != statement("push_or_queue"):
            return await fetchrow(*arguments, **options)
        for error in errors:
            await fetchrow(*arguments, **options)
            raise error
        raise DatabaseUnavailable

    async def full(*_: Any) -> None:
        raise refusal

    with monkeypatch.context() as patch:
        patch.setattr(server.database, "fetchrow", lossy)
        patch.setattr(journal, "put", full)
        answer = await push(http, item(1))
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert [message["data"] for message in await queen.pop("q", "p")] == [1]
