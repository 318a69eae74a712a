"""The floor of timers: nothing that was pushed is walked over for long, and no timer is ever hidden by it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from server_settings import settings_with

from integration.queen import until
from queenmq.broker.timers import _MOST_AT_ONCE, _MOST_BYTES, Timers
from queenmq.config import Settings
from queenmq.ids import uuid7
from queenmq.server import Server
from queenmq.storage.statements import statement

DUE = (_MOST_AT_ONCE, _MOST_BYTES, [], [])
TIMERS = 5_000
STEPS = 400


@pytest.fixture
def settings() -> Settings:
    """Timers are pushed only when a test does it."""
    return settings_with(timers={"interval_ms": 0})


@asynccontextmanager
async def _session(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close(timeout=10)


def _changes(keys: list[str], moments: list[datetime], queue: str = "q") -> tuple[Any, ...]:
    """The arguments that schedule them."""
    n = len(keys)
    ids = [uuid7() for _ in keys]
    return (
        *(["schedule"] * n, [queue] * n, keys, ["p"] * n, [None] * n, moments, ids, [str(each) for each in ids]),
        *([None] * n, [None] * n, [False] * n, [b"1"] * n, [None] * n, [None] * n, [None] * n),
    )


async def _schedule(sql: asyncpg.Connection, keys: list[str], moments: list[datetime]) -> None:
    await sql.fetch(statement("change_timers"), *_changes(keys, moments))


async def _buffers(sql: asyncpg.Connection) -> int:
    """What one search reads, found or not."""
    async with sql.transaction():
        [plan] = json.loads(
            await sql.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement('due_timers')}", *DUE)
        )
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


async def _push(sql: asyncpg.Connection) -> list[str]:
    """As a server does it, without the messages."""
    async with sql.transaction():
        rows = await sql.fetch(statement("due_timers"), *DUE)
        keys = [row["key"] for row in rows]
        await sql.execute(statement("remove_timers"), ["q"] * len(keys), keys)
    return keys


async def _move(sql: asyncpg.Connection) -> datetime | None:
    floor: datetime | None = await sql.fetchval(statement("move_timer_floor"))
    return floor


async def _raised(sql: asyncpg.Connection, above: datetime | None = None) -> None:
    """Return when the floor is above the moment, or the present one."""
    above = above or await sql.fetchval("SELECT clock_timestamp()")

    async def is_above() -> bool:
        floor = await _move(sql)
        return floor is not None and floor > above

    await until(is_above)


async def test_pushed_timers_are_not_walked_over_again_while_the_horizon_is_held(
    server: Server, database_url: str, sql: asyncpg.Connection
) -> None:
    timers = server.broker.timers
    async with _session(database_url) as stranger:
        await stranger.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queen.queues")
        before = await _buffers(sql)
        for part in range(TIMERS // 1000):
            keys = [f"{part}-{n}" for n in range(1000)]
            await _schedule(sql, keys, [datetime(2020, 1, 1, tzinfo=UTC)] * 1000)
            assert await timers.push_due() == 1000

        async def is_flat() -> bool:
            assert await timers.push_due() == 0
            return await _buffers(sql) < before + 50

        await until(is_flat)
        # A server that has nothing to push leaves the floor alone.
        await until(lambda: _is_settled(timers))


async def _is_settled(timers: Timers) -> bool:
    await timers.push_due()
    return timers.floor._found == 0


async def test_a_timer_of_a_transaction_that_stays_open_keeps_the_floor_down(
    database_url: str, sql: asyncpg.Connection
) -> None:
    past = datetime.now(UTC) - timedelta(days=1)
    async with _session(database_url) as late:
        await _raised(sql)
        await late.execute("BEGIN")
        await _schedule(late, ["late"], [past])
        began = await sql.fetchval("SELECT clock_timestamp()")
        await _schedule(sql, [f"k{n}" for n in range(10)], [past] * 10)
        assert len(await _push(sql)) == 10
        for _ in range(20):
            floor = await _move(sql)
            assert floor is not None
            assert floor < began
            await asyncio.sleep(0.01)
        await late.execute("COMMIT")
        assert await _push(sql) == ["late"]
        await _raised(sql, began)


async def test_a_transaction_that_has_only_read_does_not(database_url: str, sql: asyncpg.Connection) -> None:
    async with _session(database_url) as reader:
        await reader.execute("BEGIN; SELECT count(*) FROM queen.timers; CREATE TEMPORARY TABLE other (a int)")
        await _raised(sql)


async def test_a_timer_that_somebody_moves_into_the_past_is_due_now(sql: asyncpg.Connection) -> None:
    await _schedule(sql, ["k"], [datetime.now(UTC) + timedelta(days=1)])
    await _raised(sql)
    await sql.execute("UPDATE queen.timers SET next_attempt_at = '2001-01-01'")
    assert await _push(sql) == ["k"]


async def test_what_is_below_the_floor_all_the_same_is_found(server: Server, sql: asyncpg.Connection) -> None:
    await _raised(sql)
    await sql.execute("ALTER TABLE queen.timers DISABLE TRIGGER timers_change")
    await sql.execute("""
        INSERT INTO queen.timers (queue_name, key, partition_name, deliver_at, next_attempt_at, message_id,
                                  transaction_id, is_encrypted, payload)
        SELECT 'q', 'k', 'p', '2001-01-01', '2001-01-01', gen_random_uuid(), 't', false, '1'""")
    assert await server.broker.timers.push_due() == 0
    await server.broker.timers.floor.check()
    assert await server.broker.timers.push_due() == 1


async def test_a_clock_that_was_set_back(sql: asyncpg.Connection) -> None:
    """Then the floor is in the future: it does not count, and begins anew."""
    await _raised(sql)
    await sql.execute("""
        INSERT INTO queen.timer_floors (floor, pending_at, holders)
        SELECT clock_timestamp() + interval '1 hour', clock_timestamp() + interval '1 hour', '{}'""")
    await _schedule(sql, ["k"], [datetime.now(UTC)])
    assert await _push(sql) == ["k"]
    assert await _move(sql) is None
    await _raised(sql)


async def test_moments_in_the_past_keep_their_order(sql: asyncpg.Connection) -> None:
    """Also beyond one batch, whatever the order of keys, by which they are locked."""
    count = 2 * _MOST_AT_ONCE + 100
    first = datetime(2020, 1, 1, tzinfo=UTC)
    places = list(range(count))
    random.shuffle(places)
    await _schedule(sql, [f"{place:05}" for place in places], [first + timedelta(hours=n) for n in range(count)])
    await until(lambda: _all_due(sql))
    pushed = [key for _ in range(3) for key in await _push(sql)]
    assert pushed == [f"{place:05}" for place in places]


async def _all_due(sql: asyncpg.Connection) -> bool:
    return bool(await sql.fetchval("SELECT NOT EXISTS (SELECT 1 FROM queen.timers WHERE next_attempt_at > now())"))


@dataclass
class Writer:
    """Somebody with transactions of his own, who schedules timers, and of whom one never knows when he commits."""

    sql: asyncpg.Connection
    name: str
    is_open: bool = False
    made: int = 0
    uncommitted: set[str] = field(default_factory=set)

    async def step(self, committed: set[str]) -> None:
        if not self.is_open:
            await self.sql.execute("BEGIN")
            self.is_open = True
            return
        match random.choice(["schedule", "schedule", "insert", "move", "take back", "commit", "commit", "abort"]):
            case "schedule":
                await self._schedule(random.randint(1, 3))
            case "insert":
                await self._insert()
            case "move":
                await self.sql.execute(
                    "UPDATE queen.timers SET next_attempt_at = $2 WHERE starts_with(key, $1)", self.name, _moment()
                )
            case "take back":
                before = set(self.uncommitted)
                await self.sql.execute("SAVEPOINT s")
                await self._schedule(1)
                await self.sql.execute("ROLLBACK TO s")
                self.uncommitted = before
            case "commit":
                await self.sql.execute("COMMIT")
                self._ended()
                committed |= self.uncommitted
                self.uncommitted = set()
            case "abort":
                await self.sql.execute("ROLLBACK")
                self._ended()
                self.uncommitted = set()

    def _ended(self) -> None:
        self.is_open = False

    def _key(self) -> str:
        self.made += 1
        key = f"{self.name}-{self.made}"
        self.uncommitted.add(key)
        return key

    async def _schedule(self, count: int) -> None:
        await _schedule(self.sql, [self._key() for _ in range(count)], [_moment() for _ in range(count)])

    async def _insert(self) -> None:
        """Without the function, as a server of the version before has its own."""
        await self.sql.execute(
            "INSERT INTO queen.timers (queue_name, key, partition_name, deliver_at, next_attempt_at, message_id, "
            "transaction_id, is_encrypted, payload) VALUES ('q', $1, 'p', $2, $2, gen_random_uuid(), 't', false, '1')",
            self._key(),
            _moment(),
        )


def _moment() -> datetime:
    back_ms = random.choice([-20, 0, 0, 5, 50, 300, 3_600_000])
    return datetime.now(UTC) - timedelta(milliseconds=back_ms)


async def test_no_timer_is_ever_hidden(database_url: str, sql: asyncpg.Connection) -> None:
    committed: set[str] = set()
    pushed: list[str] = []
    floors: set[datetime] = set()
    async with AsyncExitStack() as stack:
        pusher, other = [await stack.enter_async_context(_session(database_url)) for _ in range(2)]
        writers = [Writer(await stack.enter_async_context(_session(database_url)), name) for name in "abc"]
        for _ in range(STEPS):
            match random.choice(["write", "write", "write", "push", "move", "move"]):
                case "write":
                    await random.choice(writers).step(committed)
                case "push":
                    # A server that is stopped in the middle, and one that pushes.
                    async with other.transaction():
                        locked = await other.fetch(statement("due_timers"), *DUE)
                        assert await _push(pusher) == [] or not locked
                    pushed += await _push(pusher)
                case "move":
                    floor = await _move(random.choice([pusher, other]))
                    if floor is not None:
                        floors.add(floor)
            hidden = await sql.fetch(
                "SELECT key FROM queen.timers WHERE next_attempt_at < $1", max(floors, default=None)
            )
            assert hidden == []
        for writer in writers:
            if writer.is_open:
                await writer.sql.execute("COMMIT")
                committed |= writer.uncommitted
        await until(lambda: _all_due(sql))
        pushed += await _push(pusher)
    assert sorted(pushed) == sorted(committed)
    assert len(floors) > STEPS // 20
