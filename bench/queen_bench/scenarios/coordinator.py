"""What passing requests on costs: the same pushes without a coordinator, with one but served where they arrive, and
passed on to another server. And what it costs to decide, for each kind of request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from queen_bench.broker import Want
from queen_bench.decision import decision_costs
from queen_bench.errors import BenchError
from queen_bench.layout import Layout
from queen_bench.load import Pushing
from queen_bench.options import Options
from queen_bench.result import Extra, Result
from queen_bench.scenarios.cluster import cluster
from queen_bench.scenarios.course import Course, for_seconds
from queen_bench.subject import HttpSubject, Subject

BALANCE: Final = "/api/v1/cluster/balance"
QUIET: Final = "quiet"  # a partition that nobody writes to: who waits for it stays parked
KNOWN_S: Final = 10.0
PARTITIONS: Final = 100
CONNECTIONS: Final = 16
WAYS: Final = {"off": None, "local": 0, "forwarded": 1}  # at which server the consumer waits


@dataclass(frozen=True)
class Coordinated:
    name: str
    peers: bool = False

    @property
    def about(self) -> str:
        return "3 servers: pushes without coordinator, served where they arrive, and passed on to another server"

    async def run(self, subject: Subject, options: Options) -> Result:
        result = Result()
        extra: dict[str, Extra] = {}
        for way, waits_at in WAYS.items():
            measured = await self._measure(subject, options, waits_at)
            latency = measured.main_latency()
            extra |= {
                f"{way}_per_s": measured.rate,
                f"{way}_p50_ms": latency.p50_ms,
                f"{way}_p99_ms": latency.p99_ms,
                f"{way}_server_cpu_s": measured.server_cpu_s,
                f"{way}_passed_on": measured.extra["passed_on"],
            }
            measured.problems += result.problems
            result = measured
        costs = await decision_costs()
        result.extra = extra | {f"decision_{kind}_us": cost for kind, cost in costs.items()}
        return result

    async def _measure(self, subject: Subject, options: Options, waits_at: int | None) -> Result:
        on = str(waits_at is not None).lower()
        variables = {"QUEEN_COORDINATOR_ENABLED": on, "QUEEN_COORDINATOR_FORWARD_THRESHOLD": "1"}
        async with cluster(subject, **variables) as servers:
            course = Course(servers[0], options, partitions=PARTITIONS, producers=CONNECTIONS)
            pushing = Pushing(1, spread=False)
            await course.load.touch()
            async with _consumer(servers, waits_at, course.layout):
                if waits_at:
                    await _until_passed_on(course, servers[0], pushing)
                before = await _passed_on(servers[0])
                meter = course.meter()
                meter.start()
                await course.load.push(meter, for_seconds(options.seconds), pushing)
                meter.stop()
                passed_on = await _passed_on(servers[0]) - before
            result = meter.result("push")
            result.extra = {"passed_on": passed_on}
            return await course.close(result)


@asynccontextmanager
async def _consumer(servers: list[HttpSubject], at: int | None, layout: Layout) -> AsyncIterator[None]:
    """A long poll that waits for the queue at a server and never gets anything."""
    if at is None:
        yield
        return
    consumer = await servers[at].broker(layout, 1).consumer(0, Want(1, partition=QUIET, wait_ms=300_000))
    poll = asyncio.create_task(consumer.pop())
    try:
        yield
    finally:
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
        await consumer.close()


async def _until_passed_on(course: Course, server: HttpSubject, pushing: Pushing) -> None:
    """The other servers learn of the consumer in a moment."""
    try:
        async with asyncio.timeout(KNOWN_S):
            while not await _passed_on(server):
                await course.load.push(course.meter(), for_seconds(0.2), pushing)
    except TimeoutError:
        raise BenchError("no push was passed on to the server with the consumer") from None


async def _passed_on(server: HttpSubject) -> int:
    connection = await server.connect()
    try:
        _, answer = await connection.get(BALANCE)
    finally:
        connection.close()
    return int(msgspec.json.decode(answer)["forwarded"])
