"""Long polls: what wakes them, when they end, and that a client who goes away leaves no lease behind."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable

import asyncpg
import pytest
from server_settings import changed, settings_with

from integration.queen import Message, Queen, another_server, blocked, data, leases, parked, push_op, until
from queenmq.broker.wake_ups import WRITTEN_ELSEWHERE
from queenmq.config import Settings
from queenmq.server import Server


@pytest.fixture
def settings() -> Settings:
    """With a re-check so slow that only a wake-up explains an early answer."""
    return settings_with(pop={"wait_initial_interval_ms": 60_000, "wait_max_interval_ms": 60_000})


class TestWokenByAnEvent:
    async def test_a_push(self, queen: Queen, server: Server) -> None:
        await queen.configure("orders")
        poll = await waiting(queen.wait("orders"), server)
        await queen.push("orders", "m")
        assert data(await soon(poll)) == ["m"]

    async def test_a_push_that_makes_the_queue(self, queen: Queen, server: Server) -> None:
        poll = await waiting(queen.wait("orders"), server)
        await queen.push("orders", "m")
        assert data(await soon(poll)) == ["m"]

    async def test_a_push_to_the_awaited_partition(self, queen: Queen, server: Server) -> None:
        poll = await waiting(queen.wait("orders", "p"), server)
        await queen.push("orders", "other", partition="other")
        await queen.push("orders", "m", partition="p")
        assert data(await soon(poll)) == ["m"]

    async def test_a_push_to_a_queue_of_the_namespace(self, queen: Queen, server: Server) -> None:
        poll = await waiting(queen.pop_matching(namespace="sales", wait=True, timeout=10_000), server)
        await queen.push("stock.x", "other")
        await queen.push("sales.x", "m")
        assert data(await soon(poll)) == ["m"]

    async def test_a_transaction_that_pushes(self, queen: Queen, server: Server) -> None:
        poll = await waiting(queen.wait("orders"), server)
        assert (await queen.transact(push_op("orders", "m")))["success"]
        assert data(await soon(poll)) == ["m"]

    async def test_an_ack_that_frees_the_partition(self, queen: Queen, server: Server) -> None:
        await queen.push("orders", 1, 2)
        [first] = await queen.pop("orders")
        poll = await waiting(queen.wait("orders"), server)
        await queen.ack(first)
        assert data(await soon(poll)) == [2]

    async def test_an_ack_that_gives_the_batch_back(self, queen: Queen, server: Server) -> None:
        await queen.push("orders", 1)
        [first] = await queen.pop("orders")
        poll = await waiting(queen.wait("orders"), server)
        await queen.ack(first, "retry")
        assert data(await soon(poll)) == [1]

    async def test_a_seek(self, queen: Queen, server: Server) -> None:
        await queen.push("orders", "m")
        await queen.drain("orders", consumerGroup="g")
        poll = await waiting(queen.wait("orders", consumerGroup="g"), server)
        await queen.seek("g", "orders", timestamp="1970-01-01T00:00:00Z")
        assert data(await soon(poll)) == ["m"]

    async def test_a_configuration_that_ends_the_delay(self, queen: Queen, server: Server) -> None:
        await queen.configure("orders", delayedProcessing=3600)
        await queen.push("orders", "m")
        poll = await waiting(queen.wait("orders"), server)
        await queen.configure("orders")
        assert data(await soon(poll)) == ["m"]

    async def test_one_push_wakes_as_many_polls_as_it_has_partitions_for(self, queen: Queen, server: Server) -> None:
        polls = [asyncio.create_task(queen.wait("orders")) for _ in range(20)]
        await parked(server, 20)
        await queen.push_items(*({"queue": "orders", "partition": f"p{n}", "payload": n} for n in range(20)))
        answers = await asyncio.gather(*(soon(poll) for poll in polls))
        assert sorted(message["data"] for [message] in answers) == list(range(20))

    async def test_a_push_to_another_queue_wakes_nobody(self, queen: Queen, server: Server) -> None:
        poll = await waiting(queen.pop("orders", wait=True, timeout=300), server)
        await queen.push("other", "m")
        assert await poll == []


class TestToldByTheDatabase:
    """What no server has written is announced with NOTIFY."""

    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return changed(settings, database={"ping_ms": 20})

    @pytest.fixture(autouse=True)
    async def listening(self, server: Server) -> None:
        await until(lambda: server.database.is_listening)

    @pytest.mark.parametrize("partition", [None, "Default"])
    async def test_a_row_inserted_by_psql(
        self, queen: Queen, server: Server, sql: asyncpg.Connection, partition: str | None
    ) -> None:
        partition_id = (await queen.configure("orders"))["partitionId"]
        poll = await waiting(queen.wait("orders", partition), server)
        await sql.execute("INSERT INTO queen.messages (partition_id, payload) VALUES ($1, '1')", partition_id)
        assert data(await soon(poll)) == [1]

    async def test_but_not_of_a_session_that_wants_to_be_quiet(
        self, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        partition_id = (await queen.configure("orders"))["partitionId"]
        heard: asyncio.Queue[object] = asyncio.Queue()
        insert = "INSERT INTO queen.messages (partition_id, payload) VALUES ($1, '1')"
        await sql.add_listener(WRITTEN_ELSEWHERE, lambda *notice: heard.put_nowait(notice[-1]))
        await sql.execute("SET queen.announce = off")
        await sql.execute(insert, partition_id)
        await sql.execute("SET queen.announce = on")
        await sql.execute(insert, partition_id)
        assert await asyncio.wait_for(heard.get(), 30) == "orders"
        assert heard.empty()

    async def test_after_the_connection_was_made_anew(
        self, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        partition_id = (await queen.configure("orders"))["partitionId"]
        poll = await waiting(queen.wait("orders"), server)
        listener = server.database._listener  # through a pooler, a connection of its own
        lost = listener._on
        assert lost is not None
        await sql.execute("SELECT pg_terminate_backend($1)", lost.get_server_pid())
        await until(lambda: listener._on is not lost and server.database.is_listening)
        await sql.execute("INSERT INTO queen.messages (partition_id, payload) VALUES ($1, '1')", partition_id)
        assert data(await soon(poll)) == [1]


class TestEnds:
    async def test_at_its_timeout(self, queen: Queen) -> None:
        started = time.monotonic()
        assert await queen.pop("orders", wait=True, timeout=300) == []
        assert time.monotonic() - started >= 0.3

    async def test_at_once_without_wait(self, queen: Queen) -> None:
        async with asyncio.timeout(20):
            assert await queen.pop("orders", timeout=25_000) == []
            assert await queen.pop("orders", wait=False, timeout=25_000) == []
            assert await queen.pop("orders", wait=True, timeout=0) == []

    async def test_at_once_when_something_is_there(self, queen: Queen) -> None:
        await queen.push("orders", "m")
        assert data(await soon(asyncio.create_task(queen.wait("orders")))) == ["m"]

    async def test_when_the_server_stops(self, queen: Queen, server: Server) -> None:
        poll = await waiting(queen.wait("orders"), server)
        stopping = asyncio.create_task(server.front.stop(2))
        assert await soon(poll) == []
        await stopping


class TestBounded:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(limits={"max_waiters": 2})

    async def test_one_poll_too_many_is_told_to_come_back(self, queen: Queen, server: Server) -> None:
        polls = [asyncio.create_task(queen.wait("orders")) for _ in range(2)]
        await parked(server, 2)
        refusal = await queen.http.get("/api/v1/pop/queue/orders?wait=true&timeout=10000")
        assert refusal.status_code == 429
        assert int(refusal.headers["retry-after"]) >= 1
        # What published consumers look for: they end at any other error.
        assert {"connection", "(ECONNREFUSED)"} <= set(refusal.json()["error"].split())
        await queen.push_items(*({"queue": "orders", "partition": f"p{n}"} for n in range(2)))
        assert [len(messages) for messages in await asyncio.gather(*polls)] == [1, 1]


class TestFoundByLookingAgain:
    """What nobody tells the server of: re-checks find it."""

    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with()

    async def test_a_lease_that_expires(self, queen: Queen) -> None:
        await queen.configure("orders", leaseTime=1)
        await queen.push("orders", "m")
        [first] = await queen.pop("orders")
        [again] = await queen.wait("orders")
        assert again["id"] == first["id"]
        assert again["leaseId"] != first["leaseId"]

    @pytest.mark.parametrize("partition", [None, "p"])
    async def test_a_push_on_another_server(
        self, queen: Queen, settings: Settings, database_url: str, partition: str | None
    ) -> None:
        poll = asyncio.create_task(queen.wait("orders", partition))
        async with another_server(settings, database_url) as other:
            await other.push("orders", "m", partition="p")
        assert data(await poll) == ["m"]


class TestAClientThatGoesAway:
    """Its lease would hold the message back for five minutes."""

    ROUNDS = 25

    @pytest.mark.parametrize("form", ["/queue/orders?", "/queue/orders/partition/Default?", "?namespace=sales&"])
    async def test_while_it_waits(self, queen: Queen, server: Server, sql: asyncpg.Connection, form: str) -> None:
        await queen.configure("orders", "sales")
        for n in range(self.ROUNDS):
            _, writer = await ask(server, form)
            await parked(server)
            writer.close()
            await queen.push("orders", n)
            assert data(await soon(queen.wait("orders", autoAck=True))) == [n]
        assert await leases(sql) == 0

    async def test_at_any_moment_around_the_push(self, queen: Queen, server: Server, sql: asyncpg.Connection) -> None:
        """Clients say goodbye and read on, so they know whether the answer had left before. If not, nobody has it."""
        await queen.configure("orders")
        moments = random.Random(random.getrandbits(32))
        for n in range(self.ROUNDS):
            async with asyncio.TaskGroup() as group:
                clients = [group.create_task(leave_after(server, moments.uniform(0, 0.03))) for _ in range(4)]
                await asyncio.sleep(moments.uniform(0, 0.03))
                group.create_task(queen.push("orders", n))
            answered = [message for client in clients for message in client.result()]
            popped = answered or await soon(queen.wait("orders"))
            assert data(popped) == [n]
            assert (await queen.ack(popped[0]))["success"]
        assert await leases(sql) == 0

    @pytest.mark.parametrize("wait", [True, False])
    async def test_while_its_claim_is_under_way(
        self, queen: Queen, server: Server, sql: asyncpg.Connection, wait: bool
    ) -> None:
        await queen.push("orders", "m")
        async with sql.transaction():
            await sql.execute("LOCK TABLE queen.partition_consumers")
            _, writer = await ask(server, wait=wait)
            await blocked(sql)
            writer.close()
            await until(lambda: len(server.front.connections) == 1)
        assert data(await soon(queen.wait("orders"))) == ["m"]

    async def test_before_its_request_was_read(self, queen: Queen, server: Server, sql: asyncpg.Connection) -> None:
        await queen.push("orders", "m")
        for _ in range(self.ROUNDS):
            _, writer = await ask(server)
            writer.transport.abort()
        await until(lambda: len(server.front.connections) == 1)
        assert data(await soon(queen.wait("orders"))) == ["m"]


async def waiting(call: Awaitable[list[Message]], server: Server) -> asyncio.Task[list[Message]]:
    """The call as a task, once its long poll is held by the server and has looked for the first time."""
    poll = asyncio.ensure_future(call)
    await parked(server)
    assert not poll.done()
    return poll


async def soon(answer: Awaitable[list[Message]]) -> list[Message]:
    """The answer, which must not take as long as the next re-check."""
    return await asyncio.wait_for(answer, 20)


async def ask(
    server: Server, form: str = "/queue/orders?", wait: bool = True
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection over which a pop has been asked for."""
    reader, writer = await asyncio.open_connection(*server.address)
    flag = "true" if wait else "false"
    writer.write(f"GET /api/v1/pop{form}wait={flag}&timeout=30000 HTTP/1.1\r\nHost: q\r\n\r\n".encode())
    await writer.drain()
    return reader, writer


async def leave_after(server: Server, seconds: float) -> list[Message]:
    """Pop, stop talking after a while, and return what the server had answered by then."""
    reader, writer = await ask(server)
    await asyncio.sleep(seconds)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return json.loads(body)["messages"] if head.startswith(b"HTTP/1.1 200") else []


async def test_a_queue_may_have_its_own_intervals_between_probes(queen: Queen, server: Server) -> None:
    await queen.configure("slow", popWaitBaseIntervalMs=7000, popWaitMaxIntervalMs=9000, popWaitBackoffThreshold=1)
    polls = [asyncio.create_task(queen.wait(name)) for name in ("slow", "usual")]
    await parked(server, 2)

    def interval(queue: str) -> float:
        [group] = [group for group in server.broker.long_polls.registry.groups() if group.key.queue == queue]
        return group.backoff.interval_s

    assert interval("slow") in (7.0, 9.0)
    assert interval("usual") == 60
    # A change holds for those that wait, because configure wakes them.
    await queen.configure("slow", popWaitBaseIntervalMs=100, popWaitMaxIntervalMs=200)
    await until(lambda: interval("slow") <= 0.2)
    await queen.push("slow", 1)
    await queen.push("usual", 1)
    await asyncio.gather(*polls)
