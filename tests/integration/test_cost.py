"""What runs at intervals costs what it does, not what is there: pages touched with few and with many partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
from many_partitions import buffers, fill
from versioned_sql import VersionedSession

from queenmq.storage.statements import statement

FEW, MANY = 1_000, 8_000
RUN = """SELECT * FROM queen.run_retention('{"limit": 1000, "idleDays": 30}', $1)"""
OFF = (
    "retention_enabled = false, retention_s = 0, completed_retention_s = 0, max_wait_time_s = 0, ttl_s = NULL, "
    "archive_before_delete = false"
)
DAY = "86400"


@pytest.fixture(scope="module")
def filled(postgres: Any) -> Iterator[list[str]]:
    """Databases with few and with many partitions, of which the group `reader` has read everything."""
    with asyncio.Runner() as runner:
        urls = [runner.run(postgres.create()) for _ in (FEW, MANY)]
        for url, partitions in zip(urls, (FEW, MANY), strict=True):
            runner.run(_fill(url, partitions))
        yield urls
        for url in urls:
            runner.run(postgres.drop(url))


async def _fill(url: str, partitions: int) -> None:
    sql = await asyncpg.connect(url, connection_class=VersionedSession)
    for table in ("messages", "partition_ages", "partition_lookup", "partition_consumers", "queues"):
        await sql.execute(f"ALTER TABLE queen.{table} SET (autovacuum_enabled = off)")
    await fill(sql, "q", partitions, groups=["reader"], age="1 hour")
    await sql.close()


@pytest.fixture
async def sizes(filled: list[str]) -> AsyncIterator[list[asyncpg.Connection]]:
    """A session on each of them."""
    sessions = [await asyncpg.connect(url, connection_class=VersionedSession) for url in filled]
    for sql in sessions:
        await sql.execute("VACUUM")  # what other tests have rolled back
    yield sessions
    for sql in sessions:
        await sql.close()


async def _configure(sql: asyncpg.Connection, options: str) -> None:
    await sql.execute(f"UPDATE queen.queues SET {OFF}")
    if options:
        await sql.execute(f"UPDATE queen.queues SET {options}")


async def _of_a_step(sql: asyncpg.Connection, query: str, *arguments: object) -> int:
    """The second time, when a session has read what it keeps of the catalogs; nothing is changed."""
    touched = 0
    for _ in range(2):
        transaction = sql.transaction()
        await transaction.start()
        touched = await buffers(sql, query, *arguments)
        await transaction.rollback()
    return touched


@pytest.mark.parametrize(
    "options",
    [
        pytest.param("", id="idle partitions"),
        pytest.param(f"retention_enabled = true, retention_s = {DAY}", id="retention"),
        pytest.param(f"retention_enabled = true, completed_retention_s = {DAY}", id="completed retention"),
        pytest.param(f"ttl_s = {DAY}", id="ttl"),
        pytest.param(f"retention_enabled = true, retention_s = {DAY}, archive_before_delete = true", id="archive"),
    ],
)
async def test_a_run_of_retention_with_nothing_to_delete(sizes: list[Any], options: str) -> None:
    costs = []
    for sql in sizes:
        await _configure(sql, options)
        step = await sql.fetchrow(RUN, None)
        assert (step["done"], step["finished"]) == (0, True)
        costs.append(await _of_a_step(sql, RUN, None))
    assert costs[1] <= costs[0] + 10
    assert costs[1] < 200


async def test_what_must_be_kept_is_looked_at_in_bounded_portions(sizes: list[Any]) -> None:
    sql = sizes[1]
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("SELECT queen.subscribe('q', NULL, 'slow', 'all', NULL)")
    await _configure(sql, "retention_enabled = true, completed_retention_s = 60")
    cursor, seen = None, 0
    while not (step := await sql.fetchrow(RUN, cursor))["finished"]:
        cursor, seen = step["cursor"], seen + step["done"]
    assert seen + step["done"] >= MANY
    again = await sql.fetchrow(RUN, None)
    assert again["done"] == 1000
    # Those that are read meanwhile are found, wherever they are.
    await sql.execute("UPDATE queen.partition_consumers SET position = 1 WHERE consumer_group = 'slow'")
    cursor = None
    while not (step := await sql.fetchrow(RUN, cursor))["finished"]:
        cursor = step["cursor"]
    assert await sql.fetchval("SELECT count(*) FROM queen.messages") == 0
    await transaction.rollback()


@pytest.mark.parametrize("age", [DAY, "60"], ids=["nothing is old", "what is old is read"])
async def test_eviction_with_nothing_to_delete(sizes: list[Any], age: str) -> None:
    costs = []
    for sql in sizes:
        queue = await sql.fetchval("SELECT id FROM queen.queues")
        await _configure(sql, f"max_wait_time_s = {age}")
        since = after = None
        while (row := await sql.fetchrow(statement("evict"), queue, since, after, 1000))["next"] is not None:
            assert row["deleted"] == 0
            since, after = row["since"], row["next"]
        await sql.execute("VACUUM queen.partition_ages")
        costs.append(await _of_a_step(sql, statement("evict"), queue, None, None, 1000))
    assert costs[1] <= costs[0] + 10
    assert costs[1] < 100


async def test_what_is_pushed_to_a_partition_that_was_read_is_evicted(sizes: list[Any]) -> None:
    sql = sizes[0]
    queue = await sql.fetchval("SELECT id FROM queen.queues")
    await _configure(sql, "max_wait_time_s = 60")
    while (await sql.fetchrow(statement("evict"), queue, None, None, 1000))["next"] is not None:
        pass
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute(
        "INSERT INTO queen.messages (partition_id) SELECT id FROM queen.partitions WHERE name IN ('p7', 'p8')"
    )
    assert (await sql.fetchrow(statement("evict"), queue, None, None, 1000))["deleted"] == 0
    await sql.execute("UPDATE queen.messages SET created_at = created_at - interval '1 hour' WHERE \"offset\" = 2")
    assert (await sql.fetchrow(statement("evict"), queue, None, None, 1000))["deleted"] == 4
    await transaction.rollback()


async def test_the_begin_of_a_run(sizes: list[Any]) -> None:
    costs = []
    for sql in sizes:
        await _configure(sql, f"retention_enabled = true, retention_s = {DAY}")
        arguments = ('{"limit": 1000, "idleDays": 30}', "server", "00000000-0000-0000-0000-000000000001")
        costs.append(await _of_a_step(sql, statement("begin_retention"), *arguments))
    assert costs[1] <= costs[0] + 10


async def test_the_first_step_of_a_subscription(sizes: list[Any]) -> None:
    """The rows of the rest are made after the first messages were delivered."""
    for mode in ("all", "new"):
        step = f"SELECT queen.subscribe('q', NULL, 'new', '{mode}', NULL, 200)"
        costs = [await _of_a_step(sql, step) for sql in sizes]
        assert costs[1] <= costs[0] * 1.5, "an index may be a level deeper"


async def test_a_turn_of_statistics_of_a_queue_in_use(sizes: list[Any]) -> None:
    """It measures a bounded number of pages, whatever else there is, and sums: a few rows for each page."""
    page = "SELECT more FROM queen.measure_page($1, clock_timestamp(), 500, 100, false)"
    pages, sums = [], []
    for sql in sizes:
        queue = await sql.fetchval("SELECT id FROM queen.queues")
        began = await sql.fetchval("SELECT clock_timestamp()")
        while await sql.fetchval("SELECT more FROM queen.measure_page($1, $2, 500, 100, false)", queue, began):
            pass
        assert await sql.fetchval(statement("sum_statistics"), queue, 1.0, 100)
        await sql.execute("VACUUM")
        pages.append(await _of_a_step(sql, page, queue))
        sums.append(await _of_a_step(sql, statement("sum_statistics"), queue, 1.0, 100))
    assert pages[1] <= pages[0] * 1.2, "an index may be a level deeper"
    assert sums[1] <= sums[0] + (MANY - FEW) // 500 * 2
    assert await sizes[1].fetchval("SELECT partitions FROM queen.queue_statistics") == MANY
