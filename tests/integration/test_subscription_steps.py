"""A group gets its rows in a queue with many partitions in steps, and misses nothing meanwhile."""

from __future__ import annotations

import asyncio
import random

import asyncpg
import pytest

from integration.queen import Queen, age_messages, data, stored, until
from queenmq.broker import subscriptions
from queenmq.config import Settings
from queenmq.server import Server
from queenmq.services.retention import Retention

PARTITIONS = 20
STEP = "SELECT queen.subscribe('orders', NULL, $1, $2, NULL, 3)"
PLACES = "SELECT count(*) FROM queen.partition_consumers WHERE consumer_group = $1"
IS_PLACED = "SELECT registered AND placed_upto IS NULL FROM queen.consumer_groups WHERE name = $1"


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "_STEP", 3)


async def _fill(queen: Queen, start: int = 0) -> list[int]:
    numbers = list(range(start, start + PARTITIONS))
    await queen.push_items(*({"queue": "orders", "partition": f"p{n - start}", "payload": n} for n in numbers))
    return numbers


async def test_the_first_pop_does_not_wait_for_all_rows(queen: Queen, sql: asyncpg.Connection) -> None:
    await _fill(queen)
    assert await sql.fetchval(STEP, "g", "all") is False
    assert 3 <= await sql.fetchval(PLACES, "g") < PARTITIONS
    [message] = await queen.pop("orders", consumerGroup="g")
    assert message["data"] == 0, "the partition that has waited longest comes first"


async def test_everything_is_read_once_whatever_happens_meanwhile(
    queen: Queen, server: Server, sql: asyncpg.Connection
) -> None:
    expected = await _fill(queen)
    read: list[int] = []
    done = asyncio.Event()

    async def consume() -> None:
        while not done.is_set() or len(read) < len(expected):
            for message in await queen.pop("orders", consumerGroup="g", batch=2):
                assert (await queen.ack(message, consumerGroup="g"))["success"]
                read.append(message["data"])
            await asyncio.sleep(0)

    async def produce() -> None:
        for n in range(100, 160):
            expected.append(n)
            await queen.push_items({"queue": "orders", "partition": f"p{random.randrange(40)}", "payload": n})
        done.set()

    await asyncio.wait_for(asyncio.gather(consume(), consume(), consume(), produce()), 60)
    assert sorted(read) == sorted(expected)

    async def placed() -> bool:
        return bool(await sql.fetchval(IS_PLACED, "g"))

    await until(placed)
    assert await sql.fetchval(PLACES, "g") == await sql.fetchval("SELECT count(*) FROM queen.partitions")


@pytest.mark.parametrize("mode", ["all", "new"])
async def test_another_server_goes_on_after_a_crash(
    queen: Queen, server: Server, sql: asyncpg.Connection, mode: str
) -> None:
    history = await _fill(queen)
    assert await sql.fetchval(STEP, "g", mode) is False
    await queen.push_items({"queue": "orders", "partition": f"p{PARTITIONS - 1}", "payload": "later"})
    await server.broker.refresh()

    async def placed() -> bool:
        return bool(await sql.fetchval(IS_PLACED, "g"))

    await until(placed)
    read = data(await queen.drain("orders", consumerGroup="g"))
    assert sorted(read, key=str) == sorted([*(history if mode == "all" else []), "later"], key=str)


async def test_completed_retention_keeps_what_a_group_without_its_place_has_not_read(
    queen: Queen, server: Server, sql: asyncpg.Connection, settings: Settings
) -> None:
    await queen.configure("orders", retentionEnabled=True, completedRetentionSeconds=10)
    await _fill(queen)
    await queen.drain("orders", consumerGroup="fast")
    assert await sql.fetchval(STEP, "slow", "all") is False
    await age_messages(sql, "orders", 11)
    retention = Retention(server.broker.operation_runner, settings.retention)
    await retention.work()
    assert await stored(sql, "orders") == PARTITIONS
    await server.broker.refresh()

    async def placed() -> bool:
        return bool(await sql.fetchval(IS_PLACED, "slow"))

    await until(placed)
    assert len(await queen.drain("orders", consumerGroup="slow")) == PARTITIONS
    await retention.work()
    assert await stored(sql, "orders") == 0


async def test_a_seek_moves_it_in_every_partition(queen: Queen, sql: asyncpg.Connection) -> None:
    await _fill(queen)
    assert await sql.fetchval(STEP, "g", "all") is False
    await queen.seek("g", "orders", toEnd=True)
    assert await queen.drain("orders", consumerGroup="g") == []
    assert await sql.fetchval(PLACES, "g") == await sql.fetchval("SELECT count(*) FROM queen.partitions")


async def test_a_group_that_is_deleted_meanwhile_stays_deleted(
    queen: Queen, server: Server, sql: asyncpg.Connection
) -> None:
    await _fill(queen)
    assert await sql.fetchval(STEP, "g", "all") is False
    await sql.execute("SELECT queen.delete_group('g', 'orders', true)")
    await server.broker.refresh()
    assert await sql.fetchval(PLACES, "g") == 0


@pytest.mark.parametrize("what", ["group", "positions", "queue"])
async def test_a_step_that_comes_after_a_deletion_does_not_undo_it(
    queen: Queen, server: Server, sql: asyncpg.Connection, what: str
) -> None:
    await _fill(queen)
    assert await sql.fetchval(STEP, "g", "new") is False
    if what == "queue":
        await queen.delete_queue("orders")
    else:
        await sql.execute("SELECT queen.delete_group('g', 'orders', $1)", what == "group")
    steps = server.broker._popper.subscriptions
    steps.finish("orders", "g")
    await until(lambda: not steps._finishing)
    assert await sql.fetchval(PLACES, "g") == 0
    groups = await sql.fetch("SELECT registered FROM queen.consumer_groups WHERE name = 'g'")
    assert [row["registered"] for row in groups] == ([False] if what == "positions" else [])


async def test_an_earlier_version_that_makes_the_rest_of_the_rows_does_not_stop_retention(
    queen: Queen, server: Server, sql: asyncpg.Connection, settings: Settings
) -> None:
    await queen.configure("orders", retentionEnabled=True, completedRetentionSeconds=10)
    await _fill(queen)
    assert await sql.fetchval(STEP, "g", "all") is False
    placed_upto = await sql.fetchval("SELECT placed_upto FROM queen.consumer_groups")
    await sql.execute("SELECT queen.subscribe('orders', NULL, 'g', 'all', NULL)")
    await sql.execute("UPDATE queen.consumer_groups SET placed_upto = $1", placed_upto)
    assert len(await queen.drain("orders", consumerGroup="g")) == PARTITIONS
    await age_messages(sql, "orders", 11)
    await Retention(server.broker.operation_runner, settings.retention).work()
    assert await stored(sql, "orders") == 0
    await server.broker.refresh()

    async def placed() -> bool:
        return bool(await sql.fetchval(IS_PLACED, "g"))

    await until(placed)
