"""Where a pop begins to search (queen.ready_floors) hides nothing that is ready, whatever overlaps.

And a group has one row in a partition, although the primary key does not say so.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import asyncpg
import pytest

from integration.queen import blocked
from integration.session import Pop, Session, ack
from queenmq.core.names import QUEUE_MODE
from queenmq.ids import uuid7
from queenmq.storage.statements import statement, versioned

LONG = os.environ.get("QUEEN_LONG", "") not in ("", "0")
HISTORIES = 60 if LONG else 3
STEPS = 60
# A fence is passed at the earliest after so long.
PAUSE_S = 0.06
MOVE = versioned("SELECT queen.move_ready_floor(id, $1)::text FROM queen.queues WHERE name = 'q'")
MOVED = versioned("SELECT queen.move_ready_floor(id, $1) > $2 FROM queen.queues WHERE name = 'q'")
DOUBLED = """
    SELECT count(*) FROM (
        SELECT 1 FROM queen.partition_consumers GROUP BY partition_id, consumer_group HAVING count(*) > 1
    ) doubled
"""
# Not what somebody holds.
AHEAD = """
    UPDATE queen.partition_consumers SET ready_at = ready_at + interval '1 hour' WHERE ctid IN (
        SELECT ctid FROM queen.partition_consumers WHERE ready_at IS NOT NULL AND lease_id IS NULL
        FOR UPDATE SKIP LOCKED)
"""
UNHIDE = versioned("SELECT queen.unhide(clock_timestamp() + interval '2 hours', 1000)")
BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
# Another version of the rows, still asleep.
TOUCH = "UPDATE queen.partition_consumers SET total_consumed = total_consumed"

Sessions = Callable[[], Awaitable[Session]]


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[Sessions]:
    opened: list[asyncpg.Connection] = []

    async def open_another() -> Session:
        connection = await asyncpg.connect(database_url, server_settings={"lock_timeout": "20s"})
        opened.append(connection)
        return Session(connection)

    yield open_another
    for connection in opened:
        connection.terminate()


async def _moved_beyond(session: Session, moment: datetime) -> bool:
    """Move the floor of the queue `q` as often as it takes, or for some seconds in vain."""
    for _ in range(40):
        if await session.sql.fetchval(MOVED, QUEUE_MODE, moment):
            return True
        await asyncio.sleep(PAUSE_S)
    return False


async def _now(session: Session) -> datetime:
    now: datetime = await session.sql.fetchval("SELECT clock_timestamp()")
    return now


async def test_the_floor_moves_up_to_the_present_when_nothing_is_ready(sessions: Sessions) -> None:
    session = await sessions()
    await session.push(("q", "p", "first"))
    await session.subscribe("q", mode="new")
    assert await _moved_beyond(session, await _now(session))


async def test_the_floor_stays_below_what_is_ready(sessions: Sessions) -> None:
    session = await sessions()
    await session.push(("q", "p", "first"))
    await session.subscribe("q")
    ready = await session.sql.fetchval("SELECT ready_at FROM queen.partition_consumers")
    assert not await _moved_beyond(session, ready)
    assert (await session.pop("q")).transactions == ["first"]


async def test_what_is_committed_late_is_not_below_the_floor(sessions: Sessions) -> None:
    """A transaction makes a group ready, and others pop and move the floor for a while before it commits."""
    session, late = await sessions(), await sessions()
    await session.push(("q", "p", "first"), ("q", "other", "first"))
    await session.subscribe("q", mode="new")
    assert await _moved_beyond(session, await _now(session))
    await late.begin()
    await late.insert("q", "p", "late")
    written = await _now(session)
    assert not await _moved_beyond(session, written)
    await session.push(("q", "other", "meanwhile"))
    assert (await session.pop("q")).transactions == ["meanwhile"]
    await late.commit()
    assert (await session.pop("q")).transactions == ["late"]
    assert await _moved_beyond(session, written)


async def test_what_was_prepared_is_not_below_the_floor(sessions: Sessions) -> None:
    session, late = await sessions(), await sessions()
    if not int(await session.sql.fetchval("SHOW max_prepared_transactions")):
        pytest.skip("this PostgreSQL prepares no transactions")
    await session.push(("q", "p", "first"))
    await session.subscribe("q", mode="new")
    await late.sql.execute("SET queen.announce = off")
    await late.begin()
    await late.insert("q", "p", "late")
    written = await _now(session)
    await session.sql.fetchval(MOVE, QUEUE_MODE)  # a fence that waits for it, under the name that it has until then
    await late.sql.execute("PREPARE TRANSACTION 'late'")
    assert not await _moved_beyond(session, written)
    await late.sql.execute("COMMIT PREPARED 'late'")
    assert (await session.pop("q")).transactions == ["late"]
    assert await _moved_beyond(session, written)


async def test_what_a_group_is_given_later_is_not_below_its_floor(sessions: Sessions) -> None:
    session = await sessions()
    await session.push(("q", "p", "first"), ("q", "old", "second"))
    await session.subscribe("q", partition="p", mode="new")
    assert await _moved_beyond(session, await _now(session))
    await session.subscribe("q")  # in the partition `old`, it is ready since the message was pushed
    assert (await session.pop("q")).transactions == ["second"]


@pytest.mark.parametrize("has_floor", [False, True])
async def test_a_subscription_that_is_committed_late_is_not_below_the_floor(
    sessions: Sessions, has_floor: bool
) -> None:
    session, late = await sessions(), await sessions()
    await session.push(("q", "p", "first"), ("q", "old", "second"))
    await session.subscribe("q", partition="p", mode="new")
    assert await _moved_beyond(session, await _now(session))
    if not has_floor:
        await session.sql.execute("DELETE FROM queen.ready_floors")
    await late.begin()
    await late.subscribe("q")
    began = await _now(session)
    assert not await asyncio.wait_for(_moved_beyond(session, began), 30)
    await late.commit()
    assert (await session.pop("q")).transactions == ["second"]


async def test_an_old_snapshot_moves_no_floor(sessions: Sessions) -> None:
    session, old = await sessions(), await sessions()
    await session.push(("q", "p", "first"))
    await session.subscribe("q", mode="new")
    await old.sql.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert (await old.pop("q")).transactions == []
    await session.push(("q", "p", "second"))
    assert not await _moved_beyond(old, await _now(session))
    await old.rollback()
    assert (await session.pop("q")).transactions == ["second"]


async def test_a_floor_in_the_future_hides_nothing(sessions: Sessions) -> None:
    """The clock of the database was set back."""
    session = await sessions()
    await session.push(("q", "p", "first"))
    await session.subscribe("q")
    assert not await _moved_beyond(session, await _now(session))
    await session.sql.execute("UPDATE queen.ready_floors SET floor = clock_timestamp() + interval '1 hour'")
    assert (await session.pop("q")).transactions == ["first"]


async def test_a_floor_that_was_moved_in_the_future_hides_nothing(sessions: Sessions) -> None:
    """The clock was set back, and then a group became ready before a floor that the clock has passed again."""
    session = await sessions()
    await session.push(("q", "p", "first"))
    await session.subscribe("q")
    assert not await _moved_beyond(session, await _now(session))
    future = "floor = clock_timestamp(), moved_at = clock_timestamp() + interval '1 hour'"
    await session.sql.execute(f"UPDATE queen.ready_floors SET {future}")
    assert (await session.pop("q")).transactions == ["first"]


async def test_what_was_made_ready_in_the_past_by_hand_is_found_after_a_minute(sessions: Sessions) -> None:
    session = await sessions()
    await session.sql.execute("INSERT INTO queen.queues (name, namespace) VALUES ('q', 'n')")
    await session.push(("q", "p", "first"))
    await session.subscribe("q", mode="new")
    assert await _moved_beyond(session, await _now(session))
    await session.push(("q", "p", "second"))
    await session.sql.execute("UPDATE queen.partition_consumers SET ready_at = now() - interval '1 hour'")
    asked = (statement("queues_matching"), "n", None, QUEUE_MODE, None)
    assert (await session.pop("q")).transactions == []
    assert await session.sql.fetch(*asked) == []
    minute = "SET checked_at = checked_at - interval '1 minute', moved_at = moved_at - interval '1 minute'"
    await session.sql.execute(f"UPDATE queen.ready_floors {minute}")
    assert [row["name"] for row in await session.sql.fetch(*asked)] == ["q"]
    assert (await session.pop("q")).transactions == ["second"]


async def test_the_floor_goes_with_its_group_and_its_queue(sessions: Sessions) -> None:
    session = await sessions()
    for group in ("g", "h"):
        await session.push(("q", "p", group))
        await session.subscribe("q", group)
        await session.sql.fetchval(MOVE, group)
    await session.delete_group("g", "q")
    assert await session.sql.fetchval("SELECT array_agg(consumer_group) FROM queen.ready_floors") == ["h"]
    await session.sql.execute("DELETE FROM queen.queues")
    assert await session.sql.fetchval("SELECT count(*) FROM queen.ready_floors") == 0


class Walk:
    """A random history of one group: pushes that are committed late, pops, acks, floors that are moved meanwhile.

    Whoever makes rows ready in the past is there, too: subscriptions, and the way back after a clock was set back.
    """

    def __init__(self, choose: random.Random, main: Session, late: list[Session]) -> None:
        self.choose = choose
        self.main = main
        self.free = late
        self.open: list[tuple[Session, str, str]] = []  # with the partition that it writes to, and how it is committed
        self.pushed: list[str] = []
        self.popped: list[str] = []
        self.went_back = False
        self.prepares = False

    def idle_partition(self) -> str | None:
        taken = {partition for _, partition, _ in self.open}
        free = [name for name in "abcd" if name not in taken]
        return self.choose.choice(free) if free else None

    async def push(self) -> None:
        if partition := self.idle_partition():
            self.pushed.append(f"{partition}{len(self.pushed)}")
            await self.main.push(("q", partition, self.pushed[-1]))

    async def begin(self) -> None:
        if self.free and (partition := self.idle_partition()):
            session = self.free.pop()
            self.pushed.append(f"{partition}{len(self.pushed)}")
            await session.begin()
            await session.insert("q", partition, self.pushed[-1])
            self.open.append((session, partition, "COMMIT"))

    async def prepare(self) -> None:
        """One of the open ones; before or after a fence that waits for it."""
        if self.prepares and self.open:
            session, partition, end = self.open.pop(self.choose.randrange(len(self.open)))
            if end == "COMMIT":
                name = f"{partition}-{uuid7()}"
                await session.sql.execute(f"PREPARE TRANSACTION '{name}'")
                end = f"COMMIT PREPARED '{name}'"
            self.open.append((session, partition, end))

    async def commit(self) -> None:
        if self.open:
            session, _, end = self.open.pop(self.choose.randrange(len(self.open)))
            await session.sql.execute(end)
            self.free.append(session)

    async def move(self) -> None:
        await self.main.sql.fetchval(MOVE, QUEUE_MODE)
        await asyncio.sleep(PAUSE_S)

    async def pop(self) -> bool:
        asked = Pop("q", auto_ack=self.choose.random() < 0.5)
        [popped] = await self.main.pop_merged([asked])
        if popped.rows and not asked.auto_ack:
            if self.choose.random() < 0.2:
                await self.main.release(asked.lease_id)
                return True
            await self.main.ack([ack(row, asked.lease_id) for row in popped.rows])
        self.popped += popped.transactions
        return bool(popped.rows)

    async def subscribe(self) -> None:
        if not self.open:  # it waits for who makes a partition
            await self.main.subscribe("q", partition=self.choose.choice("abcd"))
            await self.main.subscribe("q")

    async def seek(self) -> None:
        if not self.open:  # it waits for who wakes the group
            self.went_back = True
            await self.main.seek(QUEUE_MODE, "q", self.choose.choice([None, *"abcd"]), BEGINNING)

    async def set_clock_back(self) -> None:
        """As if the rows had been made ready while the clock was an hour ahead."""
        await self.main.sql.execute(AHEAD)
        await self.main.sql.fetchval(UNHIDE)

    async def run(self) -> None:
        self.prepares = bool(int(await self.main.sql.fetchval("SHOW max_prepared_transactions")))
        for session in self.free:
            await session.sql.execute("SET queen.announce = off")
        await self.main.push(*(("q", name, f"{name}-") for name in "abcd"))
        self.pushed += [f"{name}-" for name in "abcd"]
        await self.main.subscribe("q")
        often = [self.push, self.begin, self.commit, self.move, self.pop]
        steps = [*often, *often, self.prepare, self.prepare, self.subscribe, self.set_clock_back, self.seek]
        for _ in range(STEPS):
            await self.choose.choice(steps)()
        while self.open:
            await self.commit()
        while await self.pop():
            pass


@pytest.mark.parametrize("number", range(HISTORIES))
async def test_everything_is_popped_whenever_it_was_committed(sessions: Sessions, number: int) -> None:
    choose = random.Random(random.getrandbits(64))
    walk = Walk(choose, await sessions(), [await sessions() for _ in range(3)])
    await walk.run()
    assert set(walk.popped) == set(walk.pushed)
    assert walk.went_back or len(walk.popped) == len(walk.pushed), "and once"
    assert await walk.main.sql.fetchval(DOUBLED) == 0


async def test_a_group_has_one_row_in_a_partition(sessions: Sessions) -> None:
    session = await sessions()
    await session.push(("q", "p", "first"))
    await session.subscribe("q")
    await session.subscribe("q")
    await session.subscribe("q", partition="p")
    assert await session.sql.fetchval("SELECT count(*) FROM queen.partition_consumers") == 1
    for generation in (0, 7):
        with pytest.raises(asyncpg.UniqueViolationError):
            await session.sql.execute(
                "INSERT INTO queen.partition_consumers (partition_id, consumer_group, queue_id, generation) "
                "SELECT partition_id, consumer_group, queue_id, $1 FROM queen.partition_consumers",
                generation,
            )


async def test_two_who_subscribe_at_once_get_one_row(sessions: Sessions) -> None:
    observer, one, two = await sessions(), await sessions(), await sessions()
    await observer.push(("q", "p", "first"))
    await one.begin()
    await one.subscribe("q")
    second = asyncio.create_task(two.subscribe("q", partition="p"))
    await blocked(observer.sql)
    await one.commit()
    await second
    assert await observer.sql.fetchval("SELECT count(*) FROM queen.partition_consumers") == 1


async def test_a_group_is_woken_whose_row_was_changed_while_the_push_waited(sessions: Sessions) -> None:
    """The push has to find the newest version of the row, not the one that it saw at first."""
    session, stranger, pusher = await sessions(), await sessions(), await sessions()
    await session.push(("q", "p", "first"))
    await session.subscribe("q", mode="new")
    await stranger.begin()
    await stranger.sql.execute(TOUCH)
    pushing = asyncio.create_task(pusher.push(("q", "p", "second")))
    await blocked(session.sql)
    await stranger.commit()
    await pushing
    assert (await session.pop("q")).transactions == ["second"]


async def test_an_ack_counts_whose_row_was_changed_while_it_waited(sessions: Sessions) -> None:
    session, stranger, acker = await sessions(), await sessions(), await sessions()
    await session.push(("q", "p", "first"))
    await session.subscribe("q")
    popped = await session.pop("q")
    lease = str(await session.sql.fetchval("SELECT lease_id FROM queen.partition_consumers"))
    await stranger.begin()
    await stranger.sql.execute(f"{TOUCH}, generation = generation + 1")
    acking = asyncio.create_task(acker.ack([ack(row, lease) for row in popped.rows]))
    await blocked(session.sql)
    await stranger.commit()
    [result] = await acking
    assert (result.problem, result.lease_released) == (None, True)
    assert await session.sql.fetchval("SELECT position FROM queen.partition_consumers WHERE ready_at IS NULL") == 1
