"""`kill -9` of servers and clients that have consumer connections: nothing is lost, overtaken or held up."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from chaos.harness import Queen
from queenmq.client import Message
from queenmq.client import Queen as Client

ROUNDS = int(os.environ.get("QUEEN_CHAOS_ROUNDS", "2"))
PARTITIONS, EACH = 6, 60
PATIENCE_S = 120
# Longer than any test: what is held by a lease that nobody gives back does not come in time.
LONG_LEASE_S, SHORT_LEASE_S = 3600, 2
CONSUMER = """
import asyncio, sys
from queenmq.client import Queen

async def handle(message):
    print(message.transaction_id, flush=True)
    await asyncio.sleep(0.01)

async def main():
    async with Queen(sys.argv[1]) as queen:
        await queen.queue("chaos").concurrency(4).prefetch(4).connection(True).consume(handle)

asyncio.run(main())
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Queen]:
    (tmp_path / "data").mkdir()
    running = Queen(tmp_path / "data")
    await running.start()
    yield running
    await running.stop()


async def fill(url: str, lease_s: int) -> None:
    async with Client(url) as client:
        await client.queue("chaos").config(lease_time=lease_s).create()
        for partition in range(PARTITIONS):
            numbers = [[partition, number] for number in range(EACH)]
            await client.queue("chaos").partition(str(partition)).push(numbers)


class Seen:
    """What the handlers of this process got, by partition."""

    def __init__(self) -> None:
        self.numbers: dict[int, list[int]] = defaultdict(list)
        self.all = asyncio.Event()
        self.more = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        partition, number = message.data
        await asyncio.sleep(0.005)
        self.numbers[partition].append(number)
        self.more.set()
        if sum(len(set(numbers)) for numbers in self.numbers.values()) == PARTITIONS * EACH:
            self.all.set()

    async def some(self, count: int) -> None:
        """Wait for so many more."""
        for _ in range(count):
            self.more.clear()
            await self.more.wait()

    def check(self) -> None:
        """Every number came, and none before an earlier one. Those in hand at a kill may have come again."""
        for partition in range(PARTITIONS):
            assert list(dict.fromkeys(self.numbers[partition])) == list(range(EACH))


async def nothing_is_left(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/api/v1/pop/queue/chaos?batch=10&partitions=10")).status_code == 204


async def test_the_server_is_killed(server: Queen) -> None:
    await fill(server.url, SHORT_LEASE_S)
    seen = Seen()
    async with asyncio.timeout(PATIENCE_S), Client(server.url, retry_delay_millis=50) as client:
        running = asyncio.ensure_future(
            client.queue("chaos").concurrency(4).prefetch(2).renew_lease(True, 500).consume(seen, signal=seen.all)
        )
        for _ in range(ROUNDS):
            await seen.some(40)
            await server.kill()
            await server.start()
        await running
    seen.check()
    await nothing_is_left(server.url)


async def test_the_client_is_killed(server: Queen) -> None:
    await fill(server.url, LONG_LEASE_S)
    handled: list[str] = []
    for _ in range(ROUNDS):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CONSUMER, server.url, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        handled += [(await process.stdout.readline()).decode().strip() for _ in range(40)]
        process.kill()
        await process.wait()
        handled += (await process.stdout.read()).decode().split()
    seen = Seen()
    async with asyncio.timeout(PATIENCE_S), Client(server.url) as client:
        # What the killed ones have acknowledged does not come again; all that they had in hand does.
        await client.queue("chaos").concurrency(4).idle_millis(3000).consume(seen)
    total = PARTITIONS * EACH
    numbers = {partition: seen.numbers[partition] for partition in range(PARTITIONS)}
    assert all(found == list(range(found[0], EACH)) for found in numbers.values() if found)
    got_here = sum(map(len, numbers.values()))
    assert total - len(set(handled)) <= got_here < total, "what was handled by nobody comes"
    await nothing_is_left(server.url)
