"""Several servers on one database: how soon a push on one wakes a long poll on another, and what the caches save."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from queen_bench.broker import Want
from queen_bench.drain import last_look
from queen_bench.errors import BenchError
from queen_bench.layout import Layout
from queen_bench.meter import Meter
from queen_bench.options import Options
from queen_bench.result import Extra, Result
from queen_bench.scenarios.course import LEASES
from queen_bench.scenarios.wakeup import WAIT_MS, Rounds
from queen_bench.server import companion
from queen_bench.subject import HttpSubject, Subject

SERVERS: Final = 3
MEET_S: Final = 20.0
PUSHES: Final = 2000
PUSHERS: Final = 16
HELD: Final = 20  # partitions that one server's consumer holds while another is asked for them
POLLS: Final = 50  # for each of them
STATS: Final = "/internal/api/shared-state/stats"


@asynccontextmanager
async def cluster(subject: Subject, **variables: str) -> AsyncIterator[list[HttpSubject]]:
    """Servers that know each other, on the database of the subject."""
    if not isinstance(subject, HttpSubject) or subject.folder is None:
        raise BenchError("servers can be added only to a server that the benchmark has started")
    ports = _free_udp_ports(SERVERS)
    secret = secrets.token_hex(32)
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(
                companion(
                    subject.folder,
                    f"server-{number}",
                    QUEEN_SERVER_ID=f"server-{number}",
                    QUEEN_UDP_PORT=str(ports[number]),
                    QUEEN_UDP_PEERS=",".join(f"127.0.0.1:{port}" for port in ports if port != ports[number]),
                    QUEEN_SYNC_SECRET=secret,
                    **variables,
                )
            )
            for number in range(SERVERS)
        ]
        async with asyncio.timeout(MEET_S):
            for server in servers:
                while (await statistics(server))["server_health"]["servers_alive"] < SERVERS - 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        yield servers


def _free_udp_ports(count: int) -> list[int]:
    bound = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    try:
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in bound]
    finally:
        for each in bound:
            each.close()


async def statistics(server: HttpSubject) -> dict[str, Any]:
    connection = await server.connect()
    try:
        _, answer = await connection.get(STATS)
    finally:
        connection.close()
    figures: dict[str, Any] = msgspec.json.decode(answer)
    return figures


@dataclass(frozen=True)
class ClusterWakeup:
    name: str
    peers: bool = False

    @property
    def about(self) -> str:
        return f"{SERVERS} servers: a push on one wakes an idle long poll on another, --rounds times"

    async def run(self, subject: Subject, options: Options) -> Result:
        async with cluster(subject) as servers:
            layout = Layout(1, options.payload)
            pushing, popping = (server.broker(layout, 1) for server in servers[:2])
            rounds = Rounds(await pushing.producer(0), await popping.consumer(0, Want(1, wait_ms=WAIT_MS)))
            await rounds.round(Meter(subject.watch))
            meter = Meter(subject.watch)
            before = await statistics(servers[0])
            meter.start()
            for _ in range(options.rounds):
                await rounds.round(meter)
            meter.stop()
            after = await statistics(servers[0])
            result = meter.result("wake-up")
            result.rate = result.server_cpu_s = result.postgres_cpu_s = result.generator_cpu_s = None
            result.ack_mode = LEASES
            result.extra = _notifications(before, after)
            await last_look(popping, rounds.audit)
            result.problems = rounds.audit.finish()
            return result


def _notifications(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Extra]:
    def grown(name: str) -> int:
        return int(after["consumer_presence"][name]) - int(before["consumer_presence"][name])

    told = grown("notifications_targeted") + grown("notifications_broadcast")
    saved = grown("notifications_saved")
    return {"notified": told, "not_notified": saved, "notifications_saved_share": saved / max(told + saved, 1)}


@dataclass(frozen=True)
class ClusterCalls:
    name: str
    peers: bool = False

    @property
    def about(self) -> str:
        return f"{SERVERS} servers: database calls of pushes and of pops of leased partitions, without and with caches"

    async def run(self, subject: Subject, options: Options) -> Result:
        extra: dict[str, Extra] = {}
        for caches in ("off", "on"):
            async with cluster(subject, QUEEN_CACHE_ENABLED=str(caches == "on").lower()) as servers:
                extra[f"push_calls_{caches}"] = await self._push(servers, options)
                calls, accuracy = await self._pop(servers, options)
                extra[f"pop_calls_{caches}"] = calls
                extra[f"hint_accuracy_{caches}"] = accuracy
        for verb in ("push", "pop"):
            off, on = (float(extra[f"{verb}_calls_{caches}"] or 0) for caches in ("off", "on"))
            extra[f"{verb}_calls_saved"] = 1 - on / off
        return Result(extra=extra)

    async def _push(self, servers: list[HttpSubject], options: Options) -> float:
        """Database calls for each push request, one request at a time on each connection."""
        broker = servers[0].broker(Layout(options.partitions, options.payload), PUSHERS)
        producers = [await broker.producer(number) for number in range(PUSHERS)]

        async def push(number: int, first: int, count: int) -> None:
            for sequence in range(first, first + count):
                await producers[number].push((number + sequence * PUSHERS) % options.partitions, sequence, 1)

        each = PUSHES // PUSHERS
        await asyncio.gather(*(push(number, 0, each) for number in range(PUSHERS)))
        before = await statistics(servers[0])
        await asyncio.gather(*(push(number, each, each) for number in range(PUSHERS)))
        after = await statistics(servers[0])
        for producer in producers:
            await producer.close()
        batches = after["sidecar"]["operations"]["push"]["calls"] - before["sidecar"]["operations"]["push"]["calls"]
        calls = int(after["database_calls"]) - int(before["database_calls"])
        return calls / int(batches)

    async def _pop(self, servers: list[HttpSubject], options: Options) -> tuple[float, float | None]:
        """Database calls for each pop of a partition whose lease another server's client holds."""
        layout = Layout(HELD, options.payload)
        producer = await servers[0].broker(layout, 1).producer(0)
        holding, asking = servers[1].broker(layout, HELD), servers[2].broker(layout, HELD)
        for number in range(HELD):
            await producer.push(number, 0, 2)
        holders = [await holding.consumer(n, Want(1, partition=f"p{n}", wait_ms=0)) for n in range(HELD)]
        askers = [await asking.consumer(n, Want(1, partition=f"p{n}", wait_ms=0)) for n in range(HELD)]
        for holder in holders:
            await holder.pop()
        await asyncio.sleep(0.2)  # for the hints to arrive; there is nothing to wait for
        before = await statistics(servers[2])
        for _ in range(POLLS):
            for asker in askers:
                if await asker.pop():
                    raise BenchError("a partition was delivered twice although its lease is live")
        after = await statistics(servers[2])
        for holder in holders:
            await holder.ack()
        for consumer in (*holders, *askers):
            await consumer.close()
        calls = float(after["database_calls"] - before["database_calls"]) / (POLLS * HELD)
        return calls, after["lease_hints"]["accuracy"]
