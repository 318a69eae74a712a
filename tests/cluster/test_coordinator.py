"""The coordinator between real processes, one of which is killed or hangs in the middle of the work."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
import pytest
from integration.queen import until
from ports import free_udp_port

from cluster.processes import SECRET, Remote, ServeProcess

PATIENCE_S = 60
TIMEOUT_MS = 500
LANES = 4
LEASE_S = 4
BUSY = 160


class Front:
    """The first of two servers, which everybody speaks to, and the other one, which serves what it can."""

    def __init__(self, remote: Remote, other: ServeProcess) -> None:
        self.remote = remote
        self.http = remote.http
        self.other = other

    async def seen(self) -> dict[str, Any]:
        """What the front knows of the other server."""
        balance = (await self.http.get("/api/v1/cluster/balance")).json()
        return next((each for each in balance["servers"] if each["server_id"] == "b"), {})

    async def circuit(self) -> str:
        return (await self.seen()).get("circuit", "unknown")

    async def until_circuit(self, *states: str) -> None:
        async def reached() -> bool:
            return await self.circuit() in states

        await until(reached, PATIENCE_S)

    async def until_healthy(self) -> None:
        async def healthy() -> bool:
            return bool((await self.seen()).get("healthy"))

        await until(healthy, PATIENCE_S)


@pytest.fixture
async def front(database_url: str, tmp_path: Path) -> AsyncIterator[Front]:
    """Two processes that have met. Only failures tell the front of the other's: silence counts as death much later."""
    ports = {name: free_udp_port() for name in "ab"}
    servers = {
        name: ServeProcess(
            tmp_path,
            name,
            DATABASE_URL=database_url,
            DB_POOL_SIZE="4",
            QUEEN_UDP_PORT=str(ports[name]),
            QUEEN_UDP_PEERS=f"127.0.0.1:{ports['b' if name == 'a' else 'a']}",
            QUEEN_SYNC_SECRET=SECRET,
            QUEEN_SYNC_HEARTBEAT_MS="100",
            QUEEN_SYNC_DEAD_THRESHOLD_MS="120000",
            QUEEN_COORDINATOR_ENABLED="true",
            QUEEN_COORDINATOR_TIMEOUT_MS=str(TIMEOUT_MS),
            QUEEN_COORDINATOR_CIRCUIT_RETRY_MS="300",
        )
        for name in "ab"
    }
    async with AsyncExitStack() as stack:
        for server in servers.values():
            stack.callback(server.make_sure_it_is_gone)
            server.launch()
        for server in servers.values():
            await asyncio.to_thread(server.until_up)
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=servers["a"].url, timeout=PATIENCE_S, limits=httpx.Limits(max_connections=200))
        )
        found = Front(Remote(http), servers["b"])
        await found.until_healthy()
        yield found


class Work:
    """Producers and consumers at the front. A message is done when its ack was accepted."""

    def __init__(self, front: Front) -> None:
        self._http = front.http
        self._sent = Counter[int]()
        self.done = Counter[str]()
        self.served: Counter[tuple[str, str, bool]] = Counter()  # verb, server, whether the first choice has failed
        self.stopped = False

    @property
    def sent(self) -> set[str]:
        return {f"{lane}:{number}" for lane, count in self._sent.items() for number in range(1, count + 1)}

    def _note(self, verb: str, answer: httpx.Response) -> None:
        self.served[verb, answer.headers["x-served-by"], "x-fallback" in answer.headers] += 1

    async def produce(self, lane: int) -> None:
        """One after the other, half of them without a transaction id of their own."""
        while not self.stopped:
            self._sent[lane] += 1
            text = f"{lane}:{self._sent[lane]}"
            item = {"queue": "q", "partition": f"p{lane}", "payload": text}
            if self._sent[lane] % 2:
                item["transactionId"] = text
            answer = await self._http.post("/api/v1/push", json={"items": [item]})
            # A process that hung finds itself overloaded when it goes on, and may defer a push and those behind it.
            assert answer.status_code in (201, 202), answer.text
            assert answer.json()[0]["status"] == "queued", answer.text
            self._note("push", answer)

    async def consume(self) -> None:
        params = {"consumerGroup": "g", "wait": "true", "timeout": "1000", "batch": "20"}
        while not (self.stopped and self.done.keys() >= self.sent):
            answer = await self._http.get("/api/v1/pop/queue/q", params=params)
            assert answer.status_code in (200, 204), answer.text
            self._note("pop", answer)
            if answer.status_code == 200:
                await self._finish(answer.json()["messages"])

    async def _finish(self, messages: list[dict[str, Any]]) -> None:
        acks = [{name: m[name] for name in ("transactionId", "partitionId", "leaseId")} for m in messages]
        answer = await self._http.post("/api/v1/ack/batch", json={"acknowledgments": acks, "consumerGroup": "g"})
        assert answer.status_code == 200, answer.text
        self.done.update(m["data"] for m, result in zip(messages, answer.json(), strict=True) if result["success"])

    async def until(self, verb: str, server: str, count: int, *, fell_back: bool = False) -> None:
        """Until so many more requests were served there."""
        key = (verb, server, fell_back)
        goal = self.served[key] + count
        await until(lambda: self.served[key] >= goal, PATIENCE_S)


@asynccontextmanager
async def working(front: Front, sql: asyncpg.Connection) -> AsyncIterator[Work]:
    """Work that goes through the other server; in the end each message was stored once and finished once."""
    await front.remote.queen.configure("q", leaseTime=LEASE_S)
    async with busy(front):
        work = Work(front)
        async with asyncio.timeout(PATIENCE_S * 2), asyncio.TaskGroup() as tasks:
            for _ in range(LANES):
                tasks.create_task(work.consume())
            for lane in range(LANES):
                tasks.create_task(work.produce(lane))
            await work.until("push", "b", 10)
            await work.until("pop", "b", 10)
            yield work
            work.stopped = True
    stored = Counter(json.loads(row["payload"]) for row in await sql.fetch("SELECT payload FROM queen.messages"))
    assert stored == dict.fromkeys(work.sent, 1)
    assert work.done == stored


@asynccontextmanager
async def busy(front: Front) -> AsyncIterator[None]:
    """Long polls that are never passed on keep the front so busy that the consumers go to the other server."""
    polls = [
        asyncio.create_task(front.remote.queen.pop("quiet", wait=True, timeout=300_000, autoAck=True))
        for _ in range(BUSY)
    ]

    async def told() -> bool:
        balance = (await front.http.get("/api/v1/cluster/balance")).json()
        return any(each["local"] and each["parked_polls"] > BUSY - 1 for each in balance["servers"])

    try:
        await until(told, PATIENCE_S)
        yield
    finally:
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)


async def test_the_serving_process_is_killed_in_the_middle(front: Front, sql: asyncpg.Connection) -> None:
    async with working(front, sql) as work:
        front.other.kill()
        await work.until("push", "a", 20)
        await work.until("pop", "a", 20)
        await front.until_circuit("open", "half_open")
        await front.other.start()
        await work.until("pop", "b", 10)
        await work.until("push", "b", 10)
        await front.until_circuit("closed")
    assert sum(count for (_, _, fell_back), count in work.served.items() if fell_back) > 0


async def test_the_serving_process_hangs_in_the_middle_and_goes_on(front: Front, sql: asyncpg.Connection) -> None:
    async with working(front, sql) as work:
        front.other.freeze()
        await front.until_circuit("open")
        await work.until("push", "a", 20)
        await work.until("pop", "a", 20)
        assert await front.circuit() in ("open", "half_open")
        front.other.thaw()
        await work.until("pop", "b", 10)
        await work.until("push", "b", 10)
        await front.until_circuit("closed")
    assert sum(count for (_, _, fell_back), count in work.served.items() if fell_back) > 0


async def test_a_lease_that_a_hanging_process_has_taken_is_given_back_when_it_goes_on(
    front: Front, sql: asyncpg.Connection
) -> None:
    queen = front.remote.queen
    await queen.configure("q")
    async with busy(front):
        subscribing = await front.http.get("/api/v1/pop/queue/q")
        assert (subscribing.status_code, subscribing.headers["x-served-by"]) == (204, "b")
        await queen.push("q", "only")
        async with sql.transaction():
            await sql.execute("LOCK TABLE queen.messages")
            poll = asyncio.create_task(queen.wait("q", timeout=PATIENCE_S * 1000))
            await until(lambda: _pop_is_blocked(sql), PATIENCE_S)
            front.other.freeze()
        await until(lambda: _is_leased(sql), PATIENCE_S)
        poll.cancel()
        await until(lambda: _was_told_that_nobody_waits(front.other), PATIENCE_S)
        assert await _is_leased(sql)
        front.other.thaw()
        [message] = await queen.wait("q", timeout=PATIENCE_S * 1000)
        assert (message["data"], message["retryCount"]) == ("only", 0)


def _was_told_that_nobody_waits(server: ServeProcess) -> bool:
    """It need not have noticed."""
    return any(each.status == psutil.CONN_CLOSE_WAIT for each in psutil.Process(server.pid).net_connections("tcp"))


async def _pop_is_blocked(sql: asyncpg.Connection) -> bool:
    await sql.execute("SELECT pg_stat_clear_snapshot()")
    return await sql.fetchval(
        "SELECT count(*) = 1 FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%queen.pop_%'"
    )


async def _is_leased(sql: asyncpg.Connection) -> bool:
    return await sql.fetchval("SELECT count(*) = 1 FROM queen.partition_consumers WHERE lease_id IS NOT NULL")
