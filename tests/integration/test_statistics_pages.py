"""Queues are measured in pages of partitions: the sums are right, a turn is bounded, and nothing is left behind."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg
import pytest
from versioned_sql import VersionedSession

from queenmq.broker.activity import Activity
from queenmq.broker.statistics import Statistics
from queenmq.clock import SYSTEM, Clock, ManualClock
from queenmq.config import DatabaseSettings, StatisticsSettings
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

FIGURES = "SELECT partitions, total, pending FROM queen.queue_statistics"
COUNTED = """
    SELECT count(DISTINCT p.id), count(m), count(m) FROM queen.partitions p
    LEFT JOIN queen.messages m ON m.partition_id = p.id
"""


@pytest.fixture
async def statistics(database_url: str) -> AsyncIterator[Statistics]:
    async with _reckoned_by(SYSTEM, database_url) as reckoned:
        yield reckoned


@asynccontextmanager
async def _reckoned_by(clock: Clock, database_url: str) -> AsyncIterator[Statistics]:
    database = Database(DatabaseSettings(), database_url)
    await database.open()
    yield Statistics(database, Activity(), StatisticsSettings(), "s", clock, most_known=100, at_once=100)
    await database.close()


@pytest.fixture
async def queue(sql: asyncpg.Connection) -> UUID:
    found: UUID = await sql.fetchval("INSERT INTO queen.queues (name) VALUES ('orders') RETURNING id")
    return found


async def _add(sql: asyncpg.Connection, queue: UUID, *names: str) -> None:
    """Partitions with a message each, with ids in any order."""
    for name in names:
        await sql.execute(
            "INSERT INTO queen.partitions (queue_id, name) VALUES ($1, $2)",
            queue,
            name,
        )
    await _push_to_all(sql)


async def _push_to_all(sql: asyncpg.Connection) -> None:
    await sql.execute("INSERT INTO queen.messages (partition_id) SELECT id FROM queen.partitions")


async def _measure_all(sql: asyncpg.Connection, queue: UUID, size: int, kept: int = 3) -> None:
    began = await sql.fetchval("SELECT clock_timestamp()")
    while (page := await sql.fetchrow(statement("measure_page"), queue, began, size, kept, False))["more"]:
        assert page["measured"]
    assert await sql.fetchval(statement("sum_statistics"), queue, 1.0, kept)


async def test_a_turn_is_bounded_and_the_next_ones_go_on(
    sql: asyncpg.Connection, queue: UUID, statistics: Statistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing happens any more."""
    monkeypatch.setattr("queenmq.broker.statistics._PAGE", 2)
    monkeypatch.setattr("queenmq.broker.statistics._PAGES", 1)
    await _add(sql, queue, *"abcdef")
    assert await statistics.refresh() == 1, "of a queue that was never measured every page is"
    assert tuple(await sql.fetchrow(FIGURES)) == (6, 6, 6)
    await _push_to_all(sql)
    statistics._activity.pushed("orders", 1, 6)
    seen = []
    while not seen or statistics._behind:
        await sql.execute("UPDATE queen.queue_statistics SET cost_ms = 0")
        assert await statistics.refresh() == 1
        seen.append(await sql.fetchval("SELECT total FROM queen.queue_statistics"))
    # The last page begins after the last partition and is empty.
    assert seen == [8, 10, 12, 12]
    await sql.execute("UPDATE queen.queue_statistics SET cost_ms = 0")
    assert await statistics.refresh() == 0


class _Slow(ManualClock):
    """Each time that it is read, so many seconds have passed."""

    step_s = 0.0

    def monotonic(self) -> float:
        self.advance(self.step_s)
        return super().monotonic()


async def _freshened(sql: asyncpg.Connection, statistics: Statistics, clock: _Slow, step_s: float) -> int:
    """The messages that are known of after a push and an answer, to which a measurement takes twice as long."""
    await _push_to_all(sql)
    statistics._activity.pushed("orders", 1, 1)
    clock.advance(1.0)
    clock.step_s = step_s
    await statistics.freshen()
    clock.step_s = 0.0
    known: int = await sql.fetchval("SELECT total FROM queen.queue_statistics")
    return known


async def test_one_slow_measurement_does_not_make_a_queue_large(
    sql: asyncpg.Connection, queue: UUID, database_url: str
) -> None:
    """The first one is, because PostgreSQL has not planned it yet, and on a busy machine others are."""
    async with _reckoned_by(clock := _Slow(), database_url) as statistics:
        await _add(sql, queue, "a")
        assert await _freshened(sql, statistics, clock, 0.004) == 2
        assert await _freshened(sql, statistics, clock, 0.004) == 3
        assert [await _freshened(sql, statistics, clock, 0.001) for _ in range(3)] == [4, 5, 6]


async def test_answers_do_not_wait_for_queues_that_always_take_long(
    sql: asyncpg.Connection, queue: UUID, database_url: str
) -> None:
    async with _reckoned_by(clock := _Slow(), database_url) as statistics:
        await _add(sql, queue, "a")
        assert [await _freshened(sql, statistics, clock, 0.004) for _ in range(5)] == [2, 3, 4, 4, 4]
        await sql.execute("UPDATE queen.queue_statistics SET cost_ms = 0")
        assert await statistics.refresh() == 1, "they have their turns"
        assert await _freshened(sql, statistics, clock, 0.001) == 7, "and this one was short"


async def test_answers_do_not_measure_queues_of_several_pages(
    sql: asyncpg.Connection, queue: UUID, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one page that would be measured is not always the one in which something was done."""
    monkeypatch.setattr("queenmq.broker.statistics._PAGE", 2)
    async with _reckoned_by(clock := _Slow(), database_url) as statistics:
        await _add(sql, queue, *"abcdef")
        assert await statistics.refresh() == 1
        known = [await _freshened(sql, statistics, clock, 0.001) for _ in range(6)]
        assert known[2:] == [known[2]] * 4, "three were tried"


async def test_what_is_done_meanwhile_is_measured_too(
    sql: asyncpg.Connection, queue: UUID, statistics: Statistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queenmq.broker.statistics._PAGE", 2)
    monkeypatch.setattr("queenmq.broker.statistics._PAGES", 1)
    await _add(sql, queue, *"abcdef")
    await statistics.refresh()
    while True:
        # Each turn measures another page, and each time all of them have changed.
        if (done := await sql.fetchval("SELECT count(*) FROM queen.messages")) < 60:
            await _push_to_all(sql)
            statistics._activity.pushed("orders", 1, 6)
        await sql.execute("UPDATE queen.queue_statistics SET cost_ms = 0")
        if await statistics.refresh() == 0:
            break
    assert tuple(await sql.fetchrow(FIGURES)) == (6, done, done)


async def test_pages_follow_the_partitions(sql: asyncpg.Connection, queue: UUID) -> None:
    """However partitions come and go, the sums are right, and there are not many more pages than needed."""
    count = 0
    for _ in range(30):
        if random.random() < 0.5:
            names = [f"p{n}" for n in range(count, count + random.randrange(1, 20))]
            count += len(names)
            await _add(sql, queue, *names)
        else:
            await sql.execute("DELETE FROM queen.partitions WHERE random() < $1", random.random())
        await _measure_all(sql, queue, 4)
        figures = tuple(await sql.fetchrow(FIGURES))
        assert figures == tuple(await sql.fetchrow(COUNTED))
        pages = await sql.fetchval("SELECT count(*) FROM queen.page_statistics")
        assert pages <= figures[0] + 2
        kept = [row[0] for row in await sql.fetch("SELECT partition_id FROM queen.recent_partitions")]
        newest = await sql.fetch(
            "SELECT partition_id FROM queen.partition_lookup WHERE last_message_at = "
            "(SELECT max(last_message_at) FROM queen.partition_lookup)"
        )
        assert len(kept) <= 3
        assert not newest or any(row[0] in kept for row in newest)


async def test_groups_that_are_gone_are_forgotten(sql: asyncpg.Connection, queue: UUID) -> None:
    await _add(sql, queue, *"abcde")
    for group in ("one", "two"):
        await sql.execute("SELECT queen.subscribe('orders', NULL, $1, 'all', NULL)", group)
    await _measure_all(sql, queue, 2)
    groups = "SELECT consumer_group, partitions, lag, unread FROM queen.group_statistics ORDER BY 1"
    assert [tuple(row) for row in await sql.fetch(groups)] == [("one", 5, 5, 5), ("two", 5, 5, 5)]
    lagging = "SELECT consumer_group, count(*) FROM queen.lagging_partitions GROUP BY 1 ORDER BY 1"
    assert [tuple(row) for row in await sql.fetch(lagging)] == [("one", 3), ("two", 3)]
    await sql.execute("DELETE FROM queen.consumer_groups WHERE name = 'one'")
    await sql.execute("DELETE FROM queen.partition_consumers WHERE consumer_group = 'one'")
    await _measure_all(sql, queue, 2)
    assert [tuple(row) for row in await sql.fetch(groups)] == [("two", 5, 5, 5)]
    assert [tuple(row) for row in await sql.fetch(lagging)] == [("two", 3)]


async def test_two_servers_do_not_measure_a_queue_at_once(
    sql: asyncpg.Connection, queue: UUID, database_url: str
) -> None:
    other = await asyncpg.connect(database_url, connection_class=VersionedSession)
    now = await sql.fetchval("SELECT clock_timestamp()")
    async with sql.transaction():
        assert (await sql.fetchrow(statement("measure_page"), queue, now, 10, 10, False))["measured"]
        page = await other.fetchrow(statement("measure_page"), queue, now, 10, 10, False)
        assert tuple(page) == (False, True, False), "there may be more to do"
        assert await other.fetchval(statement("sum_statistics"), queue, 1.0, 10) is False
    await other.close()


async def test_a_clock_that_was_set_back_hides_no_page(sql: asyncpg.Connection, queue: UUID) -> None:
    await _add(sql, queue, "a")
    await _measure_all(sql, queue, 4)
    await sql.execute("UPDATE queen.page_statistics SET measured_at = measured_at + interval '1 hour'")
    await _push_to_all(sql)
    await _measure_all(sql, queue, 4)
    assert tuple(await sql.fetchrow(FIGURES)) == (1, 2, 2)


async def test_figures_are_old_only_if_something_has_happened_since(sql: asyncpg.Connection, queue: UUID) -> None:
    """A large queue is measured rarely while it is quiet, and an alert must not take that for a failure."""
    await _add(sql, queue, "a")
    await _measure_all(sql, queue, 2)

    async def age_s() -> float:
        row = await sql.fetchrow(statement("overview"), None, None, None)
        assert row is not None
        return float(row["age_s"])

    assert await age_s() < 60
    hour_ago = "date_trunc('minute', clock_timestamp() - interval '1 hour')"
    await sql.execute(f"UPDATE queen.queue_statistics SET since = {hour_ago}, reckoned_at = {hour_ago}")
    await sql.execute("INSERT INTO queen.activity (queue_name, bucket, server) VALUES ('', now(), 's')")
    await sql.execute(
        "INSERT INTO queen.activity (queue_name, bucket, server, pop_empty) VALUES ('orders', now(), 's', 9)"
    )
    assert await age_s() == 0
    await sql.execute("UPDATE queen.activity SET push_messages = 1 WHERE queue_name = 'orders'")
    assert await age_s() > 3500, "somebody has pushed"
    await sql.execute(f"UPDATE queen.activity SET push_messages = 0, bucket = {hour_ago} - interval '1 hour'")
    assert await age_s() > 3500, "no server has said for an hour what is done"
