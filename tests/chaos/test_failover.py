"""The writer changes under load: kill -9 and promotion, an orderly switchover, a relay that flips without closing.

Two servers on a primary with a synchronous standby, one that knows both hosts and one behind a relay. The audit by id
is that of the mixed chaos.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import httpx
import pytest
from cluster.processes import SECRET as SYNC_SECRET
from cluster.processes import ServeProcess
from integration.proxy import Proxy, relayed
from integration.queen import until
from ports import free_port, free_udp_port
from server_settings import settings_with

from chaos.mixed_control import follow
from chaos.mixed_finish import consume_connected, finish_and_take
from chaos.mixed_load import GROUPS, Load
from chaos.test_mixed import CONSUMERS, PRODUCERS, THE_KEY, audit, configure, settled
from queenmq.faults.postgres import CAUGHT_UP, Pair, pair
from queenmq.ids import uuid7_text
from queenmq.server import Server

LONG = os.environ.get("QUEEN_LONG") == "1"
ROUNDS = int(os.environ.get("QUEEN_CHAOS_ROUNDS", "10" if LONG else "1"))
MESSAGES = 200 if LONG else 60
# On a machine that does nothing else it is about a second; CI may be busy with other tests.
BACK_WITHIN_S = 5.0 if LONG else 20.0
MOST_S = 60.0
STORED = "SELECT count(*) FROM queen.messages"


@contextlib.asynccontextmanager
async def relayed_aside(url: str) -> AsyncIterator[Proxy]:
    """A relay on a loop of its own, so that the load does not slow it down."""
    ready: asyncio.Future[tuple[Proxy, asyncio.Event]] = asyncio.get_running_loop().create_future()
    here = asyncio.get_running_loop()

    async def relay() -> None:
        end = asyncio.Event()
        async with relayed(url) as running:
            here.call_soon_threadsafe(ready.set_result, (running, end))
            there.append(asyncio.get_running_loop())
            await end.wait()

    there: list[asyncio.AbstractEventLoop] = []
    thread = asyncio.create_task(asyncio.to_thread(asyncio.run, relay()))
    running, end = await ready
    try:
        yield running
    finally:
        there[0].call_soon_threadsafe(end.set)
        await thread


@contextlib.asynccontextmanager
async def servers(folder: Path, both: Pair, relay: Proxy) -> AsyncIterator[list[ServeProcess]]:
    ports = [free_udp_port(), free_udp_port()]
    running = [
        ServeProcess(
            folder,
            name,
            *("--workers", str(workers), "--log-level", "info"),
            PORT=str(free_port()),
            DATABASE_URL=url,
            DB_POOL_SIZE="10",
            FILE_BUFFER_DIR=str(folder / f"journal-{name}"),
            QUEEN_ENCRYPTION_KEY=THE_KEY,
            QUEEN_UDP_PORT=str(ports[number]),
            QUEEN_UDP_PEERS=f"127.0.0.1:{ports[1 - number]}",
            QUEEN_SYNC_SECRET=SYNC_SECRET,
            QUEEN_SHUTDOWN_GRACE_S="2",
        )
        for number, (name, workers, url) in enumerate((("hosts", 2, both.url), ("relay", 1, relay.url)))
    ]
    try:
        for server in running:
            await server.start()
        yield running
    finally:
        for server in running:
            await asyncio.to_thread(server.make_sure_it_is_gone)


# Ways in which the writer changes


async def killed(both: Pair, relay: Proxy) -> None:
    both.primary.kill()
    await both.promote()
    relay.lead_to(both.primary.url)


async def switched_over(both: Pair, relay: Proxy) -> None:
    await both.primary.stop()
    await both.promote()
    relay.lead_to(both.primary.url)


async def flipped(both: Pair, relay: Proxy) -> None:
    """The former primary lives on, answers, and refuses to write; no socket is closed."""
    await both.primary.set("default_transaction_read_only", "on")
    await both.primary.until(CAUGHT_UP)
    await both.promote()
    await both.primary.set("default_transaction_read_only", "off")
    relay.lead_to(both.primary.url)


async def back(url: str) -> float:
    """How long it takes until a push is stored directly and a pop is answered."""
    started = time.monotonic()
    async with asyncio.timeout(MOST_S), httpx.AsyncClient(base_url=url, timeout=10) as client:
        stored = popped = False
        while not (stored and popped):
            with contextlib.suppress(httpx.HTTPError):
                if not stored:
                    # Each time another partition: in one that has journalled pushes, later ones wait for them.
                    item = {"queue": "probe", "partition": uuid7_text(), "payload": 1}
                    stored = (await client.post("/api/v1/push", json={"items": [item]})).status_code == 201
                answer = await client.get("/api/v1/pop/queue/probe", params={"autoAck": "true"})
                popped = answer.status_code in (200, 204)
            await asyncio.sleep(0.05)
    return time.monotonic() - started


async def forget_probes(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        assert (await client.delete("/api/v1/resources/queues/probe")).status_code == 200


async def more(load: Load, answers: int) -> None:
    """Until so many more messages are accepted."""
    goal = sum(map(len, load.ledger.accepted.values())) + answers
    async with asyncio.timeout(MOST_S):
        while sum(map(len, load.ledger.accepted.values())) < goal:
            await asyncio.sleep(0.02)


@pytest.mark.timeout(7200 if LONG else 600)
async def test_nothing_is_lost_doubled_or_reordered_when_the_writer_changes(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    took: dict[str, list[float]] = {}
    async with (
        pair(tmp_path, fsync=False) as both,
        relayed_aside(both.primary.url) as relay,
        servers(tmp_path, both, relay) as ours,
    ):
        load = Load([server.url for server in ours], seed)
        subject: Any = SimpleNamespace(servers=ours, injected=Counter())
        await configure(ours[0].url)
        async with asyncio.TaskGroup() as consumers:
            for number in range(CONSUMERS):
                for group in GROUPS:
                    consumers.create_task(load.consume(number, group))
            for group in GROUPS:
                consumers.create_task(finish_and_take(load, 0, group))
                consumers.create_task(consume_connected(load, 0, group))
            consumers.create_task(load.move(0))
            consumers.create_task(follow(load))
            try:
                async with asyncio.TaskGroup() as producers:
                    for number in range(PRODUCERS):
                        producers.create_task(load.produce(number, PRODUCERS))
                    try:
                        for turn, change in enumerate((killed, switched_over, flipped) * ROUNDS):
                            if turn:
                                await both.attach()
                            await more(load, MESSAGES)
                            await change(both, relay)
                            found = await asyncio.gather(*(back(server.url) for server in ours))
                            took.setdefault(change.__name__, []).extend(found)
                            print(f"{change.__name__}: back after", *(f"{one:.1f} s" for one in found), flush=True)  # noqa: T201
                            subject.injected[change.__name__] += 1
                            await more(load, MESSAGES)
                    finally:
                        load.calm, load.pushing = True, False
                await forget_probes(ours[0].url)
                sql = await asyncpg.connect(both.primary.url)
                try:
                    await settled(subject, sql, load)
                    load.consuming = False
                    await audit(subject, sql, load)
                finally:
                    await sql.close()
            finally:
                load.consuming = False
        for name, seconds in took.items():
            shown = " ".join(f"{one:.1f}" for one in seconds)
            print(f"{name}: service back after {shown} s, at most {max(seconds):.1f} s")  # noqa: T201
        for server in ours:
            assert await asyncio.to_thread(server.stop) == 0, server.log[-2000:]
            assert "Traceback" not in server.log, server.log
    assert max(max(seconds) for seconds in took.values()) < BACK_WITHIN_S, took


async def test_a_server_goes_on_after_a_failover_that_has_lost_what_it_knows(tmp_path: Path) -> None:
    """To an asynchronous standby that lacks queues, partitions and messages that the server remembers."""
    settings = settings_with(journal={"folder": tmp_path / "journal", "replay_interval_ms": 10})
    async with pair(tmp_path, synchronous=False, fsync=False) as both:
        server = Server(settings, both.url)
        await server.start()
        host, port = server.address
        try:
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:

                async def push(*numbers: int) -> None:
                    places = (("q", "old"), ("q", "new"), ("r", "new"))
                    items = [
                        {"queue": queue, "partition": partition, "transactionId": str(number), "payload": number}
                        for number in numbers
                        for queue, partition in places[: 1 if number == 1 else None]
                    ]
                    answer = await client.post("/api/v1/push", json={"items": items})
                    assert answer.status_code in (201, 202), answer.text

                await push(1)
                await both.primary.until(CAUGHT_UP)
                await both.standby.set("primary_conninfo", "")
                await both.primary.until("SELECT count(*) = 0 FROM pg_stat_replication")
                await push(2)
                both.primary.kill()
                await both.promote()
                await push(2, 3)
                journal: Any = server.broker.journal
                await until(lambda: server.database.is_open and not journal.pending)
                await push(4)
                stored = "SELECT array_agg(transaction_id) FROM queen.messages"
                found: Any = await both.primary.fetchval(stored)
                assert Counter(found) == {"1": 1, "2": 3, "3": 3, "4": 3}
                assert await both.primary.fetchval("SELECT count(*) FROM queen.stale_lookup()") == 0
        finally:
            await server.stop()


WAITING = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%queen.{verb}_%'"


async def test_what_no_standby_has_is_not_delivered(tmp_path: Path) -> None:
    """A primary that crashed while a commit waited for its standby shows it when it is up again."""
    settings = settings_with(journal={"folder": tmp_path / "journal"}, database={"outage_after_ms": 600_000})
    async with pair(tmp_path, fsync=False) as both:
        server = Server(settings, both.url)
        await server.start()
        host, port = server.address
        try:
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=MOST_S) as client:

                async def push(number: int) -> int:
                    item = {"queue": "q", "partition": "p", "transactionId": str(number), "payload": number}
                    return (await client.post("/api/v1/push", json={"items": [item]})).status_code

                async def pop(**params: str) -> list[int]:
                    params |= {"consumerGroup": "g", "subscriptionMode": "all"}
                    answer = await client.get("/api/v1/pop/queue/q", params=params)
                    return (
                        [message["data"] for message in answer.json()["messages"]] if answer.status_code == 200 else []
                    )

                assert await push(1) == 201
                assert await pop(autoAck="true") == [1]
                both.standby.kill()
                second = asyncio.create_task(push(2))
                await both.primary.until(WAITING.format(verb="push"))
                both.primary.kill()
                assert await second != 201
                await both.primary.start()
                await until(lambda: server.database.is_open)
                assert await both.primary.fetchval(STORED) == 2
                popped = asyncio.create_task(pop())
                await both.primary.until(WAITING.format(verb="pop"))
                assert not popped.done()
                await both.attach()
                assert await popped == [2]
                await killed_alone(both)
                await until(lambda: server.database.is_open)
                assert await both.primary.fetchval(STORED) == 2
        finally:
            await server.stop()


async def killed_alone(both: Pair) -> None:
    both.primary.kill()
    await both.promote()


async def test_a_former_primary_that_comes_back_is_not_written_to(tmp_path: Path) -> None:
    settings = settings_with(
        journal={"folder": tmp_path / "journal", "replay_interval_ms": 10}, database={"outage_after_ms": 3000}
    )
    async with pair(tmp_path, fsync=False) as both, relayed(both.primary.url) as relay:
        server = Server(settings, relay.url)
        await server.start()
        host, port = server.address
        try:
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:

                async def push(number: int) -> int:
                    item = {"queue": "q", "partition": "p", "transactionId": str(number), "payload": number}
                    return (await client.post("/api/v1/push", json={"items": [item]})).status_code

                assert await push(1) == 201
                former = both.primary
                await killed(both, relay)
                await until(lambda: server.database.is_open)
                assert await push(2) in (201, 202)
                # It comes back as it was, takes writes, and the relay leads to it.
                await former.start()
                await former.set("synchronous_standby_names", "")
                relay.lead_to(former.url)
                relay.cut()
                await until(lambda: not server.database.is_open)
                assert await push(3) == 202
                # A server that knows both prefers the newer one, also if it has just started.
                other = Server(settings_with(), both.url)
                await other.start()
                assert await other.database.fetchval(STORED) == await both.primary.fetchval(STORED)
                await other.stop()
                relay.lead_to(both.primary.url)
                await until(lambda: server.database.is_open)
                journal: Any = server.broker.journal
                await until(lambda: not journal.pending)
                assert await push(4) == 201
                stored = 'SELECT array_agg(transaction_id ORDER BY "offset") FROM queen.messages'
                assert await both.primary.fetchval(stored) == ["1", "2", "3", "4"]
                assert await former.fetchval(stored) == ["1"]
        finally:
            await server.stop()
