"""Three times the capacity: what is accepted arrives once and in order, memory is bounded, and it is over soon after.

The database is made slow, ten milliseconds more for each call, so that a test can be three times as fast.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from chaos.harness import Queen, drain, replayed
from queen_bench.connection import Connection

LONG = os.environ.get("QUEEN_LONG") == "1"
OVERLOAD_S = 60.0 if LONG else 5.0
LANES = 40
SLOW = {
    "QUEEN_PUSH_MAX_BATCH_SIZE": "4",
    "QUEEN_PUSH_MAX_CONCURRENT": "1",
    "QUEEN_PUSH_QUEUE_DEPTH": "500",
    "QUEEN_PUSH_STANDING_WAIT_MS": "20",
    "QUEEN_PUSH_STANDING_AFTER_MS": "30",
}
SLOW_CALLS = """
    CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END';
    CREATE TRIGGER slow BEFORE INSERT ON queen.messages FOR EACH STATEMENT EXECUTE FUNCTION public.slow();
"""
BACK_WITHIN_S = 10.0
MOST_GROWTH_MB = 100


class Flood:
    """Lanes that push one message after the other, each at its own pace, whatever the answers."""

    def __init__(self, url: str) -> None:
        self.http = httpx.AsyncClient(base_url=url, timeout=30)
        self.port = int(url.rpartition(":")[2])
        self.connections: dict[str, Connection] = {}
        self.accepted: dict[str, list[int]] = defaultdict(list)
        self.numbers: Counter[str] = Counter()
        self.latencies: dict[int, list[float]] = defaultdict(list)

    async def push(self, lane: str) -> int:
        if lane not in self.connections:
            self.connections[lane] = await Connection.open("127.0.0.1", self.port)
        self.numbers[lane] += 1
        number = self.numbers[lane]
        item = {"queue": "chaos", "partition": lane, "transactionId": f"{lane}:{number}", "payload": number}
        began = time.monotonic()
        status, answer = await self.connections[lane].post(b"/api/v1/push", json.dumps({"items": [item]}).encode())
        self.latencies[status].append(time.monotonic() - began)
        assert status in (201, 202, 429), answer
        if status != 429:
            self.accepted[lane].append(number)
        return status

    async def run(self, seconds: float, lanes: int, pause_s: float) -> float:
        """Push from so many lanes, each so often; answers a second."""
        end = time.monotonic() + seconds
        before = sum(map(len, self.latencies.values()))

        async def lane(name: str) -> None:
            due = time.monotonic()
            while time.monotonic() < end:
                await self.push(name)
                due = max(due + pause_s, time.monotonic())
                await asyncio.sleep(due - time.monotonic())

        await asyncio.gather(*[lane(f"lane-{number}") for number in range(lanes)])
        return (sum(map(len, self.latencies.values())) - before) / seconds


def p99_ms(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)] * 1000


def resident_mb(queen: Queen) -> float:
    assert queen.process is not None
    pages = int(Path(f"/proc/{queen.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2


async def stats(flood: Flood) -> dict[str, Any]:
    return (await flood.http.get("/api/v1/operations/stats")).json()


@pytest.mark.timeout(600)
async def test_three_times_the_capacity(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    queen = Queen(tmp_path / "data", **SLOW)
    await queen.start()
    flood = Flood(queen.url)
    sql = await asyncpg.connect(queen.database_url())
    await sql.execute(SLOW_CALLS)
    await sql.close()
    try:
        await flood.run(1.0, lanes=4, pause_s=0.0)
        flood.latencies.clear()
        capacity = await flood.run(2.0, lanes=4, pause_s=0.0)
        normal = p99_ms(flood.latencies[201])
        before_mb = resident_mb(queen)
        flood.latencies.clear()
        offered = await flood.run(OVERLOAD_S, lanes=LANES, pause_s=LANES / (3 * capacity))
        admitted = flood.latencies[201] + flood.latencies[202]
        grown_mb = resident_mb(queen) - before_mb
        health = (await stats(flood))["systemHealth"]
        started = time.monotonic()
        await replayed(flood.http)
        async with asyncio.timeout(BACK_WITHIN_S):
            for lane in range(LANES):
                while (await flood.push(f"lane-{lane}")) != 201:
                    await asyncio.sleep(0.05)
        back_s = time.monotonic() - started
        codes = {code: (len(values), round(p99_ms(values))) for code, values in flood.latencies.items()}
        print(  # noqa: T201
            f"capacity {capacity:.0f}/s p99 {normal:.0f} ms; offered {offered:.0f}/s: {codes}, admitted p99 "
            f"{p99_ms(admitted):.0f} ms, grown {grown_mb:.0f} MB, back after {back_s:.1f} s, {health}"
        )
        delivered = await drain(queen.url)
        for name, numbers in flood.accepted.items():
            assert delivered[name] == numbers, f"{name}: lost, doubled or out of order"
        assert grown_mb < MOST_GROWTH_MB
        assert 202 in codes, "nothing was queued: the load was no overload"
    finally:
        await flood.http.aclose()
        for connection in flood.connections.values():
            connection.close()
        await queen.stop()
