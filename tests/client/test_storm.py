"""Producers and consumers through a line that breaks all the time: everything once, and in order."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

import asyncpg
import pytest
from integration.queen import another_server, stored

from client.faults import REFUSED, Answer, Cut, Lose, Proxy
from queenmq.client import Message, Queen
from queenmq.config import Settings
from queenmq.server import Server

LANES, PUSHES = 4, 25
BUSY = Answer(429, {"error": "busy", "code": "overloaded"}, (("Retry-After", "0.01"),))


def break_often(proxy: Proxy, dice: random.Random) -> None:
    """One request in three goes wrong, in any of the ways."""
    faults = [Cut(), Lose(0), Lose(30), REFUSED, BUSY, Answer(502, b"<html>"), Answer(201, b"{half")]
    proxy.script.extend(dice.choice(faults) if dice.random() < 0.33 else None for _ in range(600))


@pytest.mark.parametrize("time", [1, 2])
async def test_everything_once_and_in_order(proxy: Proxy, queen: Queen, sql: asyncpg.Connection, time: int) -> None:
    await queen.queue("q").config(lease_time=1, retry_delay=1).create()
    break_often(proxy, random.Random(random.getrandbits(32)))
    client = Queen(proxy.url, retry_attempts=30, retry_delay_millis=1, max_retry_delay=5)
    first_seen: dict[str, list[Any]] = defaultdict(list)
    done = asyncio.Event()

    async def produce(lane: str) -> None:
        for n in range(PUSHES):
            assert (await client.queue("q").partition(lane).push([2 * n, 2 * n + 1])).stored

    async def handle(messages: list[Message]) -> None:
        # A lost ack brings messages again, but never before those that were not seen yet.
        for message in messages:
            if message.data not in first_seen[message.partition]:
                first_seen[message.partition].append(message.data)
        if sum(map(len, first_seen.values())) == LANES * PUSHES * 2:
            done.set()

    lanes = [f"lane-{n}" for n in range(LANES)]
    async with client, asyncio.timeout(60):
        consumer = client.queue("q").concurrency(3).batch(7).timeout_millis(500).consume(handle, signal=done)
        await asyncio.gather(consumer, *map(produce, lanes))
    assert dict(first_seen) == {lane: list(range(2 * PUSHES)) for lane in lanes}
    assert await stored(sql, "q") == LANES * PUSHES * 2


async def test_a_real_server_goes_and_comes_back(
    server: Server, url: str, queen: Queen, settings: Settings, database_url: str, sql: asyncpg.Connection
) -> None:
    """Pushes of one lane go on, in order, while the server that takes them is stopped."""
    async with another_server(settings, database_url) as second:
        urls = [url, str(second.http.base_url)]
        async with Queen(urls, retry_delay_millis=10) as client:
            for n in range(60):
                if n == 20:
                    stopping = asyncio.ensure_future(server.stop())
                assert (await client.queue("q").push(n)).stored
            await stopping
            messages = await client.queue("q").batch(100).pop()
            assert [message.data for message in messages] == list(range(60))
            assert all(result.success for result in await client.ack(messages))
    assert await stored(sql, "q") == 60
