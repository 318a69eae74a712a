"""Real sessions interleaved: whatever overlaps, nothing is lost, doubled, stuck or out of order."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import pytest
from deliveries import messages_of
from server_settings import settings_with
from versioned_sql import VersionedSession

from integration.queen import until
from integration.session import LOCK_TIMEOUT, Pop, Session, ack
from queenmq.broker.administration import Labels
from queenmq.broker.broker import Broker
from queenmq.broker.pop import Claim, Delivered
from queenmq.broker.transaction import Transaction
from queenmq.core.acknowledgement import Acknowledgement, Finish, runs_of
from queenmq.core.message import Message
from queenmq.core.names import BEGINNING, QUEUE_MODE
from queenmq.core.options import EVERY_RIGHT, MAX_COUNT, QueueOptions
from queenmq.ids import uuid7
from queenmq.server import Server
from queenmq.storage.failures import TransactionRefused
from queenmq.storage.statements import statement

LONG = os.environ.get("QUEEN_LONG", "") not in ("", "0")
ROUNDS = 100 if LONG else 6
SECONDS = 60 if LONG else 5
STRESS_MESSAGES = 10_000 if LONG else 400  # in each partition

Sessions = Callable[[], Awaitable[Session]]


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[Sessions]:
    """Opens sessions like those of the server's pool."""
    opened: list[asyncpg.Connection] = []

    async def open_another() -> Session:
        connection = await asyncpg.connect(
            database_url,
            server_settings={"timezone": "UTC", "lock_timeout": "20s", "enable_seqscan": "off"},
            connection_class=VersionedSession,
        )
        opened.append(connection)
        return Session(connection)

    yield open_another
    for connection in opened:
        connection.terminate()


@pytest.fixture
async def servers(database_url: str) -> AsyncIterator[list[Server]]:
    """Two servers on one database."""
    settings = settings_with(database={"pool_size": 8}, overload={"enabled": False})
    running = [Server(settings, database_url) for _ in range(2)]
    for server in running:
        await server.start()
    yield running
    for server in running:
        await server.stop()


async def _blocked_or_done(observer: Session, session: Session, task: asyncio.Future[Any]) -> bool:
    """Wait until the session waits for another one (True) or has done what the task is about (False)."""

    async def waits() -> bool:
        return task.done() or await observer.sql.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", session.pid)

    await until(waits, 20)
    return not task.done()


async def _offsets(session: Session, queue: str) -> dict[str, list[int]]:
    rows = await session.sql.fetch(
        'SELECT p.name, array_agg(m."offset" ORDER BY m."offset") AS offsets FROM queen.messages m '
        "JOIN queen.partitions p ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id "
        "WHERE q.name = $1 GROUP BY p.name",
        queue,
    )
    return {row["name"]: row["offsets"] for row in rows}


async def _read(session: Session, queue: str, group: str = QUEUE_MODE) -> list[str]:
    """What a consumer of the group gets that pops until nothing comes, subscribing if it must."""
    read: list[str] = []
    while True:
        popped = await session.pop(queue, group=group, batch=1000, auto_ack=True)
        if not popped.subscribed and await session.sql.fetchval("SELECT true FROM queen.queues WHERE name = $1", queue):
            await session.subscribe(queue, group)
        elif not popped.rows:
            return read
        read += popped.transactions


# Two writers of one partition


async def _push(session: Session, queue: str, transaction: str) -> None:
    await session.push((queue, "a", transaction))


async def _insert(session: Session, queue: str, transaction: str) -> None:
    await session.insert(queue, "a", transaction)


WRITERS = {"push": _push, "insert": _insert}


@pytest.mark.parametrize("first", WRITERS)
@pytest.mark.parametrize("second", WRITERS)
class TestOverlappingPushes:
    async def test_the_transaction_that_began_first_may_commit_last(
        self, sessions: Sessions, first: str, second: str
    ) -> None:
        early, late, consumer = await sessions(), await sessions(), await sessions()
        await consumer.push(("q", "a", "0"))
        await early.begin()
        await early.sql.fetchval("SELECT now(), count(*) FROM queen.messages")
        await late.begin()
        await WRITERS[second](late, "q", "late")
        await late.commit()
        assert await _read(consumer, "q") == ["0", "late"]
        await WRITERS[first](early, "q", "early")
        assert await _read(consumer, "q") == []
        await early.commit()
        assert await _read(consumer, "q") == ["early"]
        assert await _offsets(consumer, "q") == {"a": [1, 2, 3]}

    @pytest.mark.parametrize("ends", ["commit", "rollback"])
    async def test_the_second_waits_for_the_first(self, sessions: Sessions, first: str, second: str, ends: str) -> None:
        one, two, consumer = await sessions(), await sessions(), await sessions()
        await consumer.push(("q", "a", "0"))
        assert await _read(consumer, "q") == ["0"]
        await one.begin()
        await two.begin()
        await WRITERS[first](one, "q", "1")
        waiting = asyncio.create_task(WRITERS[second](two, "q", "2"))
        assert await _blocked_or_done(consumer, two, waiting)
        await getattr(one, ends)()
        await waiting
        kept = ["1"] if ends == "commit" else []
        assert await _read(consumer, "q") == kept
        await two.commit()
        assert await _read(consumer, "q") == ["2"]
        assert await _offsets(consumer, "q") == {"a": list(range(1, len(kept) + 3))}


async def test_a_writer_with_an_old_snapshot_is_refused(sessions: Sessions) -> None:
    """It would not see which groups have fallen asleep since."""
    writer = await sessions()
    await writer.push(("q", "a", "0"))
    for path in WRITERS.values():
        await writer.sql.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(asyncpg.FeatureNotSupportedError):
            await path(writer, "q", "1")
        await writer.rollback()


async def test_offsets_stay_gapless_when_an_insert_meets_a_conflict(sessions: Sessions) -> None:
    writer = await sessions()
    await writer.push(("q", "a", "0"))
    await writer.sql.execute(
        "INSERT INTO queen.messages (partition_id, transaction_id) SELECT id, '0' FROM queen.partitions "
        "ON CONFLICT DO NOTHING"
    )
    await writer.push(("q", "a", "1"))
    assert await _offsets(writer, "q") == {"a": [1, 2]}


# Merged batches over the same partitions in opposite orders


class TestOppositeOrders:
    """A third session holds something in the middle, so that both have begun to lock when they meet."""

    async def _meet(
        self, blocker: Session, observer: Session, *steps: tuple[Session, Callable[[], Awaitable[Any]]]
    ) -> list[Any]:
        tasks = [(session, asyncio.ensure_future(step())) for session, step in steps]
        for session, task in tasks:
            assert await _blocked_or_done(observer, session, task)
        await blocker.commit()
        return await asyncio.gather(*(task for _, task in tasks))

    @pytest.mark.parametrize("existing", [True, False, None], ids=["existing", "new", "half of them new"])
    async def test_pushes(self, sessions: Sessions, existing: bool | None) -> None:
        one, two, blocker, observer = [await sessions() for _ in range(4)]
        for number in range(ROUNDS):
            # Two queues, so that both the order of queues and that of partitions are opposite.
            targets = [(f"q{number}-{side}", f"p{n}") for side in "ab" for n in range(500)]
            there = targets if existing else targets[::2] if existing is None else []
            await observer.push(*((q, p, n) for q, p in there or {(q, "other") for q, _ in targets} for n in "01"))
            await blocker.begin()
            await blocker.push((f"q{number}-b", "p250", "blocker"), (f"q{number}-a", "p250", "blocker"))
            await self._meet(
                blocker,
                observer,
                (one, lambda t=targets: one.push(*((q, p, "one") for q, p in t))),
                (two, lambda t=targets: two.push(*((q, p, "two") for q, p in reversed(t)))),
            )
            assert await observer.sql.fetchval(
                "SELECT bool_and(l.last_offset = m.number AND m.number >= 2) FROM queen.partition_lookup l "
                "LEFT JOIN (SELECT partition_id, count(*) AS number FROM queen.messages GROUP BY partition_id) m "
                "USING (partition_id)"
            )

    async def test_acks_among_pushes_pops_and_seeks(self, sessions: Sessions) -> None:
        one, two, blocker, observer, pusher, popper, seeker = [await sessions() for _ in range(7)]
        partitions = [f"p{n}" for n in range(200)]
        await one.push(*(("q", p, f"0-{n}") for p in partitions for n in range(3)))
        for group in (QUEUE_MODE, "g"):
            await one.subscribe("q", group)
        for number in range(1, ROUNDS + 1):
            pops = [Pop("q", group=g, batch=400, partitions=100) for g in (QUEUE_MODE, QUEUE_MODE, "g", "g")]
            popped = await one.pop_merged(pops)
            delivered = [(p, row) for p, got in zip(pops, popped, strict=True) for row in got.rows]
            delivered.sort(key=lambda pair: (pair[1]["partition_id"], pair[0].group))
            items = [ack(row, p.lease_id, "completed", p.group) for p, row in delivered]
            await blocker.begin()
            await blocker.ack([items[len(items) // 2]])
            await self._meet(
                blocker,
                observer,
                (one, lambda items=items: one.ack(items)),
                (two, lambda items=items: two.ack([_as(replace(i, lease_id=None), "dlq") for i in reversed(items)])),
            )
            await asyncio.gather(
                one.ack(items),
                two.ack(reversed(items)),
                pusher.push(*(("q", p, f"{number}-{n}") for p in reversed(partitions) for n in range(3))),
                popper.pop_merged([Pop("q", group="g", batch=10, partitions=10, auto_ack=True)] * 3),
                seeker.seek("g", "q"),
            )
        await one.seek("g", "q")
        assert await _read(one, "q", "g") == []


# Whoever reads everything up, against whoever writes: the group must not sleep on a message


@dataclass
class Race:
    """One queue on which group g has read everything, one session that reads and one that writes."""

    queue: str
    reader: Session
    writer: Session
    observer: Session
    partition_id: str = ""
    lease_id: str = field(default_factory=lambda: str(uuid7()))
    leased: list[Acknowledgement] = field(default_factory=list)

    async def prepare(self) -> None:
        [outcome, _] = await self.observer.push((self.queue, "a", "0"), (self.queue, "b", "0"))
        self.partition_id = outcome.partition_id
        assert await _read(self.observer, self.queue, "g") == ["0", "0"]

    async def lease_one(self) -> None:
        """Deliver one message under a lease, as the only unread one."""
        await self.push_one()
        [row] = (await self.observer.pop(self.queue, group="g", lease_id=self.lease_id)).rows
        self.leased = [ack(row, self.lease_id, group="g")]

    async def push_one(self) -> None:
        await self.observer.push((self.queue, "a", "unread"))

    async def wake_for_nothing(self) -> None:
        """Leave the group awake although nothing is unread, as an ack does that meets a push which is then undone."""
        await self.lease_one()
        await self.writer.begin()
        await self.writer.push((self.queue, "a", "undone"))
        await self.observer.ack(self.leased)
        await self.writer.rollback()

    def say(self, status: str) -> list[Acknowledgement]:
        return [_as(item, status) for item in self.leased]

    def finishing(self, status: str) -> Finish:
        return Finish(self.lease_id, status, None)

    def unfenced(self) -> list[Acknowledgement]:
        return [Acknowledgement(self.partition_id, "unread", "g", None, "completed", None)]

    async def stored(self) -> list[str]:
        rows = await self.observer.sql.fetch(
            "SELECT m.transaction_id FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id "
            "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1",
            self.queue,
        )
        return [row[0] for row in rows]


@dataclass(frozen=True)
class Reader:
    """What a session of a group does, and what the group is still to get afterwards."""

    run: Callable[[Race], Awaitable[Any]]
    prepare: Callable[[Race], Awaitable[None]] | None = None
    leaves: frozenset[str] = frozenset()  # of what was there before
    undone_leaves: frozenset[str] = frozenset()  # ... if it is rolled back
    skips: bool = False  # it passes what is committed when it looks
    group: str = "g"


_UNREAD, _HISTORY = frozenset({"unread"}), frozenset({"0"})
READERS = {
    "ack": Reader(lambda r: r.reader.ack(r.leased), Race.lease_one, undone_leaves=_UNREAD),
    "dead letter": Reader(lambda r: r.reader.ack(r.say("dlq")), Race.lease_one, undone_leaves=_UNREAD),
    "retry": Reader(lambda r: r.reader.ack(r.say("retry")), Race.lease_one, _UNREAD, _UNREAD),
    "finish": Reader(lambda r: r.reader.finish(r.finishing("completed")), Race.lease_one, undone_leaves=_UNREAD),
    "finish as dead letter": Reader(
        lambda r: r.reader.finish(r.finishing("dlq")), Race.lease_one, undone_leaves=_UNREAD
    ),
    "finish to retry": Reader(lambda r: r.reader.finish(r.finishing("retry")), Race.lease_one, _UNREAD, _UNREAD),
    "unfenced ack": Reader(lambda r: r.reader.ack(r.unfenced()), Race.push_one, undone_leaves=_UNREAD),
    "release": Reader(lambda r: r.reader.release(r.lease_id), Race.lease_one, _UNREAD, _UNREAD),
    "pop of nothing": Reader(lambda r: r.reader.pop(r.queue, group="g"), Race.wake_for_nothing),
    "pop of nothing in a partition": Reader(lambda r: r.reader.pop(r.queue, "a", group="g"), Race.wake_for_nothing),
    "pop with auto ack": Reader(
        lambda r: r.reader.pop(r.queue, group="g", batch=9, auto_ack=True),
        Race.push_one,
        undone_leaves=_UNREAD,
        skips=True,
    ),
    "seek to the end": Reader(lambda r: r.reader.seek("g", r.queue), Race.push_one, undone_leaves=_UNREAD, skips=True),
    "resync": Reader(
        lambda r: r.reader.sql.fetchrow(statement("resync_lookup"), None, 1000), Race.push_one, _UNREAD, _UNREAD
    ),
    "subscribe to all": Reader(
        lambda r: r.reader.subscribe(r.queue, "h"), leaves=_HISTORY, undone_leaves=_HISTORY, group="h"
    ),
    "subscribe to new": Reader(
        lambda r: r.reader.subscribe(r.queue, "h", mode="new"), undone_leaves=_HISTORY, skips=True, group="h"
    ),
    "subscribe to a partition": Reader(
        lambda r: r.reader.subscribe(r.queue, "h", "a"), leaves=_HISTORY, undone_leaves=_HISTORY, group="h"
    ),
}


def _as(item: Acknowledgement, status: str) -> Acknowledgement:
    return replace(item, status=status)


RACERS: dict[str, Callable[[Race], Awaitable[Any]]] = {
    "push": lambda r: r.writer.push((r.queue, "a", "late")),
    "insert": lambda r: r.writer.insert(r.queue, "a", "late"),
    "push to a new partition": lambda r: r.writer.push((r.queue, "new", "late")),
    "push to several partitions": lambda r: r.writer.push(*((r.queue, p, f"late-{p}") for p in ("new", "b", "a"))),
}


@pytest.mark.parametrize("reads", READERS)
class TestNobodySleepsOnAMessage:
    """Whoever was first and however it ended: afterwards the group gets all that it has not read, exactly once."""

    async def _races(self, sessions: Sessions, reader: Reader) -> AsyncIterator[tuple[Race, str, str]]:
        hands = [await sessions() for _ in range(3)]
        for writes in RACERS:
            for ends in ("commit", "rollback"):
                race = Race(f"{writes}, {ends}", *hands)
                await race.prepare()
                if reader.prepare is not None:
                    await reader.prepare(race)
                yield race, writes, ends

    async def test_it_reads_while_the_push_is_open(self, sessions: Sessions, reads: str) -> None:
        reader = READERS[reads]
        async for race, writes, ends in self._races(sessions, reader):
            await race.writer.begin()
            await RACERS[writes](race)
            await race.reader.begin()
            reading = asyncio.ensure_future(reader.run(race))
            waited = await _blocked_or_done(race.observer, race.reader, reading)
            if not waited:
                await race.reader.commit()
            await getattr(race.writer, ends)()
            if waited:
                await reading
                await race.reader.commit()
            await self._audit(race, reader, reader.leaves, may_skip=waited and reader.skips)

    async def test_it_has_read_and_not_committed_when_the_push_comes(self, sessions: Sessions, reads: str) -> None:
        reader = READERS[reads]
        async for race, writes, ends in self._races(sessions, reader):
            await race.reader.begin()
            await reader.run(race)
            await race.writer.begin()
            writing = asyncio.ensure_future(RACERS[writes](race))
            if await _blocked_or_done(race.observer, race.writer, writing):
                await getattr(race.reader, ends)()
                await writing
                await race.writer.commit()
            else:
                await race.writer.commit()
                await getattr(race.reader, ends)()
            await race.observer.release(race.lease_id)
            await self._audit(race, reader, reader.leaves if ends == "commit" else reader.undone_leaves)

    @staticmethod
    async def _audit(race: Race, reader: Reader, unread: frozenset[str], may_skip: bool = False) -> None:
        stored = await race.stored()
        expected = sorted(name for name in stored if name in unread or name.startswith("late"))
        got = sorted(await _read(race.observer, race.queue, reader.group))
        if may_skip:
            assert set(got) <= set(expected), race.queue
        else:
            assert got == expected, race.queue
        assert await _read(race.observer, race.queue, reader.group) == [], race.queue
        assert await race.observer.sql.fetch(statement("stale_lookup"), 10) == []


# Queues and groups that are deleted under a push


class TestDeletedMeanwhile:
    @pytest.mark.parametrize("partition", ["a", "new"])
    @pytest.mark.parametrize("how", ["function", "plain DELETE"])
    async def test_a_push_that_waited_for_the_deletion_makes_the_queue_anew(
        self, sessions: Sessions, partition: str, how: str
    ) -> None:
        deleter, pusher, observer = await sessions(), await sessions(), await sessions()
        await observer.push(("q", "a", "old"))
        await observer.subscribe("q", "g")
        await deleter.begin()
        await self._delete(deleter, how)
        pushing = asyncio.create_task(pusher.push(("q", partition, "new")))
        await _blocked_or_done(observer, pusher, pushing)
        await deleter.commit()
        [outcome] = await pushing
        assert outcome.status == "queued"
        assert await _read(observer, "q", "g") == ["new"]
        assert await _offsets(observer, "q") == {partition: [1]}
        await self._no_orphans(observer)

    @pytest.mark.parametrize("partition", ["a", "new"])
    @pytest.mark.parametrize("how", ["function", "plain DELETE"])
    async def test_a_deletion_that_waited_for_a_push_deletes_its_message(
        self, sessions: Sessions, partition: str, how: str
    ) -> None:
        deleter, pusher, observer = await sessions(), await sessions(), await sessions()
        await observer.push(("q", "a", "old"))
        await observer.subscribe("q", "g")
        await pusher.begin()
        await pusher.push(("q", partition, "new"))
        deleting = asyncio.create_task(self._delete(deleter, how))
        assert await _blocked_or_done(observer, deleter, deleting)
        await pusher.commit()
        await deleting
        assert await _read(observer, "q", "g") == []
        await self._no_orphans(observer)

    async def test_a_push_that_comes_while_the_deletion_waits_for_a_consumer(self, sessions: Sessions) -> None:
        deleter, pusher, consumer, observer = [await sessions() for _ in range(4)]
        await observer.push(("q", "a", "old"))
        assert await _read(observer, "q", "g") == ["old"]
        await consumer.begin()
        await consumer.seek("g", "q")
        deleting = asyncio.create_task(deleter.delete_queue("q"))
        assert await _blocked_or_done(observer, deleter, deleting)
        pushing = asyncio.create_task(pusher.push(("q", "a", "new")))
        assert await _blocked_or_done(observer, pusher, pushing)
        await consumer.commit()
        await asyncio.gather(deleting, pushing)
        assert await _read(observer, "q", "g") == ["new"]
        await self._no_orphans(observer)

    @pytest.mark.parametrize("other", ["ack", "dead letter", "finish", "take", "subscribe", "pop", "seek", "group"])
    async def test_a_deletion_among_consumers(self, sessions: Sessions, other: str) -> None:
        """Each waits for the other at most, and the queue is gone afterwards."""
        deleter, consumer, blocker, observer = [await sessions() for _ in range(4)]
        await observer.push(*(("q", p, t) for p in "ab" for t in ("1", "2")))
        await observer.subscribe("q", "g")
        lease = str(uuid7())
        popped = await observer.pop("q", group="g", batch=4, partitions=2, lease_id=lease)
        rows = sorted(popped.rows, key=lambda row: row["partition_id"])
        steps = {
            "ack": lambda: consumer.ack([ack(r, lease, "completed", "g") for r in rows]),
            "dead letter": lambda: consumer.ack([ack(r, lease, "dlq", "g") for r in rows]),
            "finish": lambda: consumer.finish(Finish(lease, "completed", None)),
            "take": lambda: consumer.take(Finish(lease, "dlq", None), "q"),
            "subscribe": lambda: consumer.subscribe("q", "h"),
            "pop": lambda: consumer.pop("q", group="g", batch=4, partitions=2),
            "seek": lambda: consumer.seek("g", "q"),
            "group": lambda: consumer.delete_group("g", "q"),
        }
        # The consumer holds the first lane and waits for the second one when the deletion comes.
        await blocker.begin()
        await blocker.ack([ack(rows[-1], lease, "completed", "g")])
        acting = asyncio.create_task(steps[other]())  # type: ignore[no-untyped-call]
        await _blocked_or_done(observer, consumer, acting)
        deleting = asyncio.create_task(deleter.delete_queue("q"))
        await _blocked_or_done(observer, deleter, deleting)
        await blocker.commit()
        await asyncio.gather(acting, deleting)
        assert await _offsets(observer, "q") == {}
        await self._no_orphans(observer)

    async def test_a_group_deleted_while_a_partition_is_made(self, sessions: Sessions) -> None:
        deleter, pusher, observer = await sessions(), await sessions(), await sessions()
        await observer.push(("q", "a", "1"))
        assert await _read(observer, "q", "g") == ["1"]
        await pusher.begin()
        await pusher.push(("q", "new", "2"))
        deleting = asyncio.create_task(deleter.delete_group("g", "q"))
        assert await _blocked_or_done(observer, deleter, deleting)
        await pusher.commit()
        assert await deleting == 2
        assert await observer.sql.fetchval("SELECT count(*) FROM queen.partition_consumers") == 0
        assert sorted(await _read(observer, "q", "g")) == ["1", "2"]

    async def test_a_group_that_subscribes_while_an_idle_partition_is_dropped(self, sessions: Sessions) -> None:
        sweeper, consumer, observer = await sessions(), await sessions(), await sessions()
        await observer.configure("q")
        await sweeper.begin()
        dropped = await sweeper.sql.fetchval(
            "SELECT count(*) FROM queen.drop_idle_partitions(clock_timestamp() + interval '1 day', 10)"
        )
        assert dropped == 1
        subscribing = asyncio.create_task(consumer.subscribe("q", "g"))
        await _blocked_or_done(observer, consumer, subscribing)
        await sweeper.commit()
        await subscribing
        await observer.push(("q", "Default", "1"))
        assert await _read(observer, "q", "g") == ["1"]

    async def test_a_push_to_an_idle_partition_that_is_dropped(self, sessions: Sessions) -> None:
        sweeper, pusher, observer = await sessions(), await sessions(), await sessions()
        await observer.configure("q")
        await observer.subscribe("q", "g")
        await sweeper.begin()
        await sweeper.sql.fetchval(
            "SELECT count(*) FROM queen.drop_idle_partitions(clock_timestamp() + interval '1 day', 10)"
        )
        pushing = asyncio.create_task(pusher.push(("q", "Default", "1")))
        assert await _blocked_or_done(observer, pusher, pushing)
        await sweeper.commit()
        await pushing
        assert await _read(observer, "q", "g") == ["1"]

    @staticmethod
    async def _delete(session: Session, how: str) -> None:
        if how == "function":
            assert await session.delete_queue("q")
        else:
            await session.sql.execute("DELETE FROM queen.queues WHERE name = 'q'")

    @staticmethod
    async def _no_orphans(session: Session) -> None:
        for table in ("messages", "partition_lookup", "partition_consumers"):
            orphans = await session.sql.fetchval(
                f"SELECT count(*) FROM queen.{table} t "
                "WHERE NOT EXISTS (SELECT 1 FROM queen.partitions p WHERE p.id = t.partition_id)"
            )
            assert orphans == 0, table


# Leases


class TestLeases:
    async def test_an_open_pop_hides_only_what_it_claims(self, sessions: Sessions) -> None:
        one, two = await sessions(), await sessions()
        await one.push(("q", "a", "1"), ("q", "b", "1"))
        await one.subscribe("q")
        await one.begin()
        first = await one.pop("q", batch=10)
        second, third = await two.pop("q", batch=10), await two.pop("q", batch=10)
        await one.commit()
        assert {row["partition_name"] for got in (first, second) for row in got.rows} == {"a", "b"}
        assert third.rows == (await two.pop("q", batch=10)).rows == []

    async def test_groups_that_are_awake_for_nothing_fall_asleep_together(self, sessions: Sessions) -> None:
        """One by one they would make a pop take as long as all of them: several groups at work leave many."""
        session = await sessions()
        await session.push(*(("q", f"p{number}", "1") for number in range(250)), ("q", "last", "1"))
        await session.subscribe("q")
        await session.sql.execute(
            "UPDATE queen.partition_consumers c SET position = 1, ready_at = clock_timestamp() - interval '1 second' "
            "FROM queen.partitions p WHERE p.id = c.partition_id AND p.name <> 'last'"
        )
        asked = (["q"], [None], [QUEUE_MODE], [1], [1], [False], [str(uuid7())], 2**24, 2**25, LOCK_TIMEOUT)
        plan = await session.sql.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement('pop')}", *asked)
        touched = json.loads(plan)[0]["Plan"]["Shared Hit Blocks"]
        awake = await session.sql.fetchval(
            "SELECT count(*) FROM queen.partition_consumers WHERE ready_at <= clock_timestamp()"
        )
        assert awake == 0
        assert touched < 250 * 60

    @pytest.mark.parametrize("partition", [None, "a"])
    async def test_merged_pops_that_consume_at_once_get_what_separate_ones_would(
        self, sessions: Sessions, partition: str | None
    ) -> None:
        consumer = await sessions()
        await consumer.push(*(("q", "a", str(n)) for n in range(3)))
        await consumer.subscribe("q")
        popped = await consumer.pop_merged([Pop("q", partition, auto_ack=True) for _ in range(4)])
        assert [p.transactions for p in popped] == [["0"], ["1"], ["2"], []]

    @pytest.mark.parametrize("way", ["ack", "finish", "take"])
    @pytest.mark.parametrize("status", ["completed", "failed", "dlq", "retry"])
    async def test_an_ack_that_waited_for_the_next_owner_is_refused(
        self, sessions: Sessions, status: str, way: str
    ) -> None:
        old, new, observer = await sessions(), await sessions(), await sessions()
        await old.push(("q", "a", "1"))
        await old.subscribe("q")
        lease, other = str(uuid7()), str(uuid7())
        [row] = (await old.pop("q", lease_id=lease)).rows
        await old.sql.execute(
            "UPDATE queen.partition_consumers SET lease_expires_at = clock_timestamp(), ready_at = clock_timestamp()"
        )
        await new.begin()
        assert (await new.pop("q", lease_id=other)).transactions == ["1"]
        finish = Finish(lease, status, None)
        steps: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "ack": lambda: old.ack([ack(row, lease, status)]),
            "finish": lambda: old.finish(finish),
            "take": lambda: old.take(finish, "q"),
        }
        acking = asyncio.create_task(steps[way]())
        assert await _blocked_or_done(observer, old, acking)
        await new.commit()
        if way == "ack":
            assert [result.problem for result in await acking] == ["Invalid or expired lease"]
        else:
            assert not [row for row in await acking if row["finishing"] is not None], "nothing is finished"
        assert await old.renew(lease) == set()
        [result] = await new.ack([ack(row, other)])
        assert result.problem is None

    @pytest.mark.parametrize("way", ["ack", "finish"])
    async def test_of_two_acks_only_the_first_counts(self, sessions: Sessions, way: str) -> None:
        one, two, observer = await sessions(), await sessions(), await sessions()
        await one.configure("q", retry_limit=5, retry_delay=0)
        await one.push(("q", "a", "1"), ("q", "a", "2"))
        await one.subscribe("q")
        lease = str(uuid7())
        rows = (await one.pop("q", batch=2, lease_id=lease)).rows
        await one.begin()
        await one.ack([ack(rows[0], lease, "failed")])
        second = [ack(r, lease, "failed") for r in rows]
        work: Coroutine[Any, Any, Any] = two.ack(second) if way == "ack" else two.finish(Finish(lease, "failed", None))
        acking = asyncio.create_task(work)
        assert await _blocked_or_done(observer, two, acking)
        await one.commit()
        assert {one.problem for one in await acking} == ({"Invalid or expired lease"} if way == "ack" else set())
        [again] = (await one.pop("q")).rows
        assert (again["transaction_id"], again["retry_count"]) == ("1", 1)

    async def test_a_lease_renewed_just_now_cannot_be_taken(self, sessions: Sessions) -> None:
        owner, other, observer = await sessions(), await sessions(), await sessions()
        await owner.push(("q", "a", "1"))
        await owner.subscribe("q")
        lease = str(uuid7())
        await owner.pop("q", lease_id=lease)
        await owner.sql.execute(
            "UPDATE queen.partition_consumers SET (lease_expires_at, ready_at) = "
            "(SELECT t, t FROM (SELECT clock_timestamp() + interval '300 ms') AS x (t))"
        )
        await owner.begin()
        assert await owner.renew(lease) == {lease}
        await until(
            lambda: observer.sql.fetchval(
                "SELECT bool_and(ready_at < clock_timestamp()) FROM queen.partition_consumers"
            )
        )
        assert (await other.pop("q")).rows == []
        await owner.commit()
        assert (await other.pop("q")).rows == []


# Duplicates


@pytest.mark.parametrize("exists", [True, False])
async def test_of_eight_equal_pushes_one_is_queued(database_url: str, sessions: Sessions, exists: bool) -> None:
    pushers = [await sessions() for _ in range(8)]
    for number in range(ROUNDS * 3):
        queue = f"q{number}"
        if exists:
            await pushers[0].push((queue, "a", "before"))
        outcomes = [o for [o] in await asyncio.gather(*(p.push((queue, "a", "same")) for p in pushers))]
        assert Counter(o.status for o in outcomes) == {"queued": 1, "duplicate": 7}
        assert len({(o.message_id, o.partition_id) for o in outcomes}) == 1
        assert await _offsets(pushers[0], queue) == {"a": [1, 2] if exists else [1]}


async def test_of_eight_equal_pushes_over_two_servers_one_is_queued(servers: list[Server]) -> None:
    for number in range(ROUNDS * 3):
        same = [Message(f"q{number}", "a", b"1", str(uuid7()), "same") for _ in range(8)]
        pushes = (servers[i % 2].broker.push([message]) for i, message in enumerate(same))
        outcomes = [o for [o] in await asyncio.gather(*pushes)]
        assert Counter(o.status for o in outcomes) == {"queued": 1, "duplicate": 7}
        assert len({o.message_id for o in outcomes}) == 1


# Two servers under load


def _claim(queue: str, group: str, **options: Any) -> Claim:
    asked: dict[str, Any] = {"partition": None, "batch": 1, "partitions": 1, "auto_ack": False} | options
    return Claim(queue=queue, group=group, start=BEGINNING, **asked)


def _message(queue: str, partition: str, transaction: str) -> Message:
    return Message(queue, partition, b"1", str(uuid7()), transaction)


def _answer(delivered: Delivered, status: str = "completed") -> list[Acknowledgement]:
    claim = delivered.claim
    return [
        Acknowledgement(m.partition_id, m.transaction_id, claim.group, claim.lease_id, status, None)
        for m in messages_of(delivered)
    ]


class TestAPushThatWasAnsweredIsSeen:
    """By the next pop, on whichever server, while other groups and other partitions are busy."""

    async def test_push_then_pop(self, servers: list[Server]) -> None:
        deadline = asyncio.get_running_loop().time() + SECONDS
        rounds = [0] * 8

        async def turn(worker: int) -> None:
            # Even workers share a queue and pop their own partition; odd ones have a queue and pop any partition.
            shared = worker % 2 == 0
            queue = "shared" if shared else f"own{worker}"
            while asyncio.get_running_loop().time() < deadline:
                number = rounds[worker]
                here, there = (s.broker for s in (servers if number // 2 % 2 else reversed(servers)))
                partition = f"p{worker}" if shared else f"p{number % 3}"
                transaction = f"{worker}-{number}"
                [outcome] = await here.push([_message(queue, partition, transaction)])
                assert outcome.status == "queued"
                scope = partition if shared else None
                claim = _claim(queue, "g", partition=scope, batch=5, auto_ack=number % 3 == 0)
                popped = await there.pop(claim)
                assert [m.transaction_id for m in messages_of(popped)] == [transaction], f"missed {transaction}"
                if not claim.auto_ack:
                    assert [a.problem for a in await here.ack(runs_of(_answer(popped)))] == [None]
                rounds[worker] += 1

        async def disturb(group: str) -> None:
            while asyncio.get_running_loop().time() < deadline:
                broker = random.choice(servers).broker
                queue = random.choice(["shared", "own1", "own3"])
                claim = _claim(queue, group, batch=random.choice([1, 50]), partitions=random.choice([1, 5]))
                popped = await broker.pop(claim)
                await broker.ack(runs_of(_answer(popped, random.choice(["completed", "completed", "retry"]))))

        await asyncio.gather(*(turn(w) for w in range(8)), *(disturb(f"other{n}") for n in range(3)))
        assert min(rounds) > 0


class Stress:
    """Few partitions, many hands, every way to answer. One producer a partition, so its messages count from 0."""

    PARTITIONS = ("a", "b", "c")
    EXPIRE = (
        "UPDATE queen.partition_consumers SET lease_expires_at = clock_timestamp(), ready_at = clock_timestamp() "
        "WHERE lease_id = $1"
    )

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers
        self.producing = True
        self.sent: Counter[str] = Counter()
        self.finished: Counter[tuple[str, str]] = Counter()  # (group, transaction id) that an answer has confirmed
        self.finishing: defaultdict[tuple[str, str], set[int]] = defaultdict(set)  # ... or may yet confirm
        self.actions: Counter[str] = Counter()

    def broker(self) -> Broker:
        return random.choice(self.servers).broker

    async def produce(self, partition: str) -> None:
        while self.sent[partition] < STRESS_MESSAGES:
            first, count = self.sent[partition], random.randint(1, 8)
            messages = [_message("q", partition, f"{partition}:{first + n}") for n in range(count)]
            outcomes = await self.broker().push(messages + random.sample(messages, k=1))
            assert [o.status for o in outcomes] == ["queued"] * count + ["duplicate"]
            self.sent[partition] += count

    def done(self, group: str) -> bool:
        total = sum(self.sent.values())
        return not self.producing and sum(n for (g, _), n in self.finished.items() if g == group) >= total

    async def consume(self, group: str, actions: tuple[str, ...]) -> None:
        while not self.done(group):
            claim = _claim(
                "q",
                group,
                partition=random.choice([None, None, *self.PARTITIONS]),
                batch=random.choice([1, 3, 20]),
                partitions=random.choice([1, 1, 3]),
                auto_ack=group == "auto",
            )
            popped = await self.broker().pop(claim)
            self.check_order(popped)
            if messages_of(popped):
                action = random.choice(actions) if self.producing else actions[0]
                self.actions[action] += 1
                await getattr(self, action)(popped)

    def check_order(self, popped: Delivered) -> None:
        """Nothing is delivered while an older message of its partition is neither delivered along nor finished."""
        by_partition: defaultdict[str, list[int]] = defaultdict(list)
        for message in messages_of(popped):
            by_partition[message.partition].append(int(message.transaction_id.split(":")[1]))
        for partition, numbers in by_partition.items():
            assert numbers == sorted(set(numbers))
            if not popped.claim.auto_ack:
                finished = self.finishing[popped.claim.group, partition]
                assert set(range(numbers[-1])) <= finished | set(numbers), "out of order"

    async def answer(self, popped: Delivered, items: list[Acknowledgement], refused: bool = False) -> None:
        names = {m.transaction_id: m.partition for m in messages_of(popped)}
        finishing = [i for i in items if i.status == "completed"]
        for item in finishing:
            number = int(item.transaction_id.split(":")[1])
            self.finishing[popped.claim.group, names[item.transaction_id]].add(number)
        results = await self.broker().ack(runs_of(items))
        assert {r.problem for r in results} == ({"Invalid or expired lease"} if refused else {None})
        if not refused:
            self.finished.update((popped.claim.group, item.transaction_id) for item in finishing)

    # What a consumer may do with what it got

    async def complete(self, popped: Delivered) -> None:
        await self.answer(popped, _answer(popped))

    async def complete_in_any_order(self, popped: Delivered) -> None:
        items = _answer(popped)
        random.shuffle(items)
        for item in items[:-1]:
            await self.answer(popped, [item])
        await asyncio.gather(*(self.answer(popped, [item]) for item in items[-1:]))

    async def complete_at_once(self, popped: Delivered) -> None:
        await asyncio.gather(*(self.answer(popped, [item]) for item in _answer(popped)))

    async def fail_some(self, popped: Delivered) -> None:
        items = [_as(i, random.choice(["completed", "failed"])) for i in _answer(popped)]
        await self.answer(popped, items)
        await self.broker().renew(popped.claim.lease_id, 60)

    async def hand_back(self, popped: Delivered) -> None:
        await self.answer(popped, _answer(popped, "retry"))

    async def crash(self, popped: Delivered) -> None:
        """The lease runs out. Whatever is said afterwards is refused."""
        await self.servers[0].database.fetch(self.EXPIRE, popped.claim.lease_id)
        if random.random() < 0.5:
            await self.answer(popped, _answer(popped, random.choice(["completed", "failed", "dlq"])), refused=True)

    async def go_away(self, popped: Delivered) -> None:
        self.broker().give_back((popped.claim.lease_id, "q"))

    async def consumed(self, popped: Delivered) -> None:
        """With auto ack it is finished already."""
        self.finished.update(("auto", m.transaction_id) for m in messages_of(popped))

    async def transform(self, popped: Delivered) -> None:
        """Exactly once: the derived message and the ack are one transaction."""
        late = self.producing and random.random() < 0.2
        if late:
            await self.servers[0].database.fetch(self.EXPIRE, popped.claim.lease_id)
        derived = [_message("derived", m.partition, f"{m.transaction_id}/{uuid7()}") for m in messages_of(popped)]
        acks = [
            Acknowledgement(m.partition_id, m.transaction_id, None, None, "completed", None)
            for m in messages_of(popped)
        ]
        for message in messages_of(popped):
            self.finishing["pipe", message.partition].add(int(message.transaction_id.split(":")[1]))
        try:
            await self.broker().transact(Transaction(derived, acks, [popped.claim.lease_id]))
        except TransactionRefused as refusal:
            assert late, refusal
        else:
            assert not late, "committed without its lease"
            self.finished.update(("pipe", m.transaction_id) for m in messages_of(popped))

    async def run(self) -> None:
        await self.servers[0].broker.configure(
            "q", Labels("", ""), QueueOptions(retry_limit=MAX_COUNT, retry_delay=0, lease_time=300), EVERY_RIGHT
        )
        any_answer = (
            "complete",
            "complete_in_any_order",
            "complete_at_once",
            "fail_some",
            "hand_back",
            "crash",
            "go_away",
        )
        hands = {QUEUE_MODE: any_answer, "g": any_answer, "pipe": ("transform",), "auto": ("consumed",)}
        async with asyncio.TaskGroup() as workers:
            for group, actions in hands.items():
                for _ in range(4):
                    workers.create_task(self.consume(group, actions))
            producers = [workers.create_task(self.produce(p)) for p in self.PARTITIONS]
            await asyncio.wait(producers)
            self.producing = False

    async def audit(self, sql: asyncpg.Connection) -> None:
        everything = {f"{p}:{n}" for p in self.PARTITIONS for n in range(self.sent[p])}
        for group in (QUEUE_MODE, "g", "pipe", "auto"):
            assert {t: n for (g, t), n in self.finished.items() if g == group} == dict.fromkeys(everything, 1), group
        lanes = await sql.fetch(
            "SELECT p.name, c.*, l.last_offset FROM queen.partition_consumers c JOIN queen.partitions p "
            "ON p.id = c.partition_id JOIN queen.partition_lookup l ON l.partition_id = p.id WHERE p.name <> 'Default'"
        )
        assert len(lanes) == 4 * len(self.PARTITIONS)
        for lane in lanes:
            assert lane["last_offset"] == lane["position"] == lane["total_consumed"] == self.sent[lane["name"]]
            assert (lane["lease_id"], list(lane["done"])) == (None, [])
        assert await sql.fetchval("SELECT count(*) FROM queen.dead_letter_queue") == 0
        assert await sql.fetch(statement("stale_lookup"), 10) == []
        derived = await sql.fetch(
            "SELECT split_part(m.transaction_id, '/', 1) AS source FROM queen.messages m "
            "JOIN queen.partitions p ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id "
            "WHERE q.name = 'derived' ORDER BY p.name, m.\"offset\""
        )
        assert [row["source"] for row in derived] == [f"{p}:{n}" for p in self.PARTITIONS for n in range(self.sent[p])]


async def test_under_stress_every_message_is_finished_once_a_group_and_in_order(
    servers: list[Server], sql: asyncpg.Connection
) -> None:
    stress = Stress(servers)
    await stress.run()
    await stress.audit(sql)
    assert len(stress.actions) == 9, f"{stress.actions}"
