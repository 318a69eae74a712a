"""The pipeline beside a real server: what is pushed over HTTP is read, what is written is popped, retention waits for
the archive, and the audit finds nothing while all sorts of things go on.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pyarrow
from integration.queen import Queen, data, parked
from integration.test_accounts import Life

from queenmq.config import Settings
from queenmq.pipeline import read_stream, write_stream
from queenmq.pipeline.jobs import archive as archiving
from queenmq.pipeline.jobs import audit as auditing
from queenmq.pipeline.options import WriteOptions
from queenmq.pipeline.promotion import promote
from queenmq.pipeline.runs import Run
from queenmq.pipeline.sink import stage
from queenmq.server import Server
from queenmq.services.retention import Retention


def copy(spark: Any, url: str, checkpoint: Path) -> None:
    """A stream that shouts."""
    found = read_stream(spark, url, "orders", startingOffsets="earliest")
    rows = found.selectExpr("upper(value) AS value", "partition", "transactionId")
    write_stream(rows, url, "loud", str(checkpoint)).trigger(availableNow=True).start().awaitTermination(100)


def archive(spark: Any, url: str, lake: Path) -> None:
    with Run(url, "archive", "orders", "local", {}) as recorded:
        archiving.archive(spark, archiving.Settings(url=url, queue="orders", lake=str(lake)), recorded)


async def test_from_push_to_pop(spark: Any, http: httpx.AsyncClient, database_url: str, tmp_path: Path) -> None:
    queen = Queen(http)
    for number in range(20):
        await queen.push("orders", f"order {number}", partition=f"p{number % 3}")
    await queen.pop("loud", consumerGroup="listener")
    waiting = asyncio.create_task(queen.wait("loud", consumerGroup="listener", batch=100))
    await asyncio.to_thread(copy, spark, database_url, tmp_path)
    heard = await waiting
    await queen.ack_batch(heard)
    heard += await queen.drain("loud", consumerGroup="listener")
    assert len(heard) == 20
    for partition in range(3):
        told = [message["data"] for message in heard if message["partition"] == f"p{partition}"]
        assert told == [f"ORDER {number}" for number in range(partition, 20, 3)]
    assert {message["transactionId"] for message in heard} == {f"order {number}" for number in range(20)}


def put(url: str, value: str) -> None:
    """One row through the sink, as its task and its driver do it."""
    rows = pyarrow.table({"value": [value]}).to_batches()
    options = WriteOptions(url=url, queue="loud")
    promote(options, "s", 1, [stage(options, "s", 1, iter(rows))])


async def test_a_parked_long_poll_gets_what_the_sink_wrote(
    http: httpx.AsyncClient, server: Server, database_url: str
) -> None:
    """No server is told of the write: the safety net of the long polls finds it."""
    queen = Queen(http)
    await queen.push("loud", "first")
    await queen.drain("loud", consumerGroup="listener")
    waiting = asyncio.create_task(queen.wait("loud", consumerGroup="listener", timeout=25_000))
    await parked(server)
    await asyncio.to_thread(put, database_url, '"second"')
    assert data(await waiting) == ["second"]
    assert await server.database.fetch("SELECT * FROM queen.stale_lookup()") == []


async def test_retention_waits_for_the_archive(
    spark: Any, http: httpx.AsyncClient, server: Server, settings: Settings, database_url: str, tmp_path: Path
) -> None:
    queen = Queen(http)
    await queen.configure("orders", retentionEnabled=True, retentionSeconds=1, archiveBeforeDelete=True)
    await queen.push("orders", 1, 2, 3)
    sql = await asyncpg.connect(database_url)
    try:
        await sql.execute("UPDATE queen.messages SET created_at = created_at - interval '1 hour'")
        await sql.execute("UPDATE queen.partition_lookup SET last_message_at = last_message_at - interval '1 hour'")
        retention = Retention(server.broker.operation_runner, settings.retention)
        await retention.work()
        assert await sql.fetchval("SELECT count(*) FROM queen.messages") == 3
        await asyncio.to_thread(archive, spark, database_url, tmp_path)
        await retention.work()
        assert await sql.fetchval("SELECT count(*) FROM queen.messages") == 0
    finally:
        await sql.close()


def audit(spark: Any, url: str) -> list[str]:
    with Run(url, "audit", "orders", "local", {}) as recorded:
        return auditing.audit(spark, auditing.Settings(url=url, queue="orders"), recorded).summary["findings"]


async def test_the_audit_finds_nothing_while_consumers_work(
    spark: Any, http: httpx.AsyncClient, server: Server, database_url: str
) -> None:
    seed = random.randrange(10**6)
    queen = Queen(http)
    await queen.configure("orders", retryLimit=1, retryDelay=0, ttl=60, deadLetterQueue=True)
    sql = await asyncpg.connect(database_url)
    try:
        life = Life(queen, sql, server, random.Random(seed))
        for _ in range(30):
            await life.step()
        looking = asyncio.create_task(asyncio.to_thread(audit, spark, database_url))
        while not looking.done():
            await life.step()
        assert await looking == [], f"seed {seed}: {life.told}"
    finally:
        await sql.close()
