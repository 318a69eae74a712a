"""maxSize against the sum that it stands for, whatever happens to a queue.

What is kept of a queue's size must never be less than what is there, and what does not fit is refused to the message.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import count
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from integration.session import LOCK_TIMEOUT, Session, ack
from integration.test_allocation_properties import Storage
from queenmq.broker.ack import columns
from queenmq.core.message import Message
from queenmq.core.push_call import PushCall
from queenmq.operations.pushes import push_claimed
from queenmq.storage.statements import statement, versioned

PARTITIONS = ("a", "b", "c")
GROUPS = ("g", "h", "late")
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

# Written as the documentation says it, and not as the server counts: partition by partition.
SIZE = """
    SELECT (
        SELECT coalesce(sum(greatest(0, l.last_offset - greatest(l.first_offset - 1, slowest.position))), 0)
        FROM queen.partition_lookup l CROSS JOIN LATERAL (
            SELECT min(c.position) AS position FROM queen.partition_consumers c WHERE c.partition_id = l.partition_id
        ) slowest
        WHERE l.queue_id = q.id
    ) + (
        SELECT coalesce(sum(cardinality(o.message_ids)), 0) FROM queen.operation_queue o
        WHERE o.queue_name = q.name AND o.status IN ('pending', 'processing')
    ) AS real, q.max_size, s.size AS known, c.added, coalesce(c.doubted, false) AS doubted
    FROM queen.queues q LEFT JOIN queen.queue_sizes s ON s.queue_id = q.id
    LEFT JOIN LATERAL (
        SELECT sum(added) AS added, bool_or(added IS NULL) AS doubted
        FROM queen.queue_size_changes WHERE queue_id = q.id
    ) c ON true
    WHERE q.name = $1
"""
PLACES = (
    "SELECT p.id FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 AND p.name = $2"
)

partition = st.sampled_from(PARTITIONS)
group = st.sampled_from(GROUPS)


async def push(session: Session, mode: str, queue: str, names: list[str], held: int = 0) -> asyncpg.Record:
    """Push one new message to each of the named partitions, in their order."""
    messages = [Message(queue, name, b"1", str(uuid4()), str(uuid4())) for name in names]
    call = PushCall.merge(messages)
    arguments = (mode, [1] * len(messages), 1000, [held] * len(call.queues) if held else None, LOCK_TIMEOUT)
    row = await session.sql.fetchrow(statement("push_or_queue"), *call.arguments(), *arguments)
    assert row is not None
    return row


async def run_operations(session: Session) -> None:
    claim = str(uuid4())
    async with session.sql.transaction():
        rows = await session.sql.fetch(statement("claim_operations"), "w", claim, 100, 100, 10**9, 1)
        if rows:
            await session.sql.fetchval(statement("hold_operations"), claim, [row["id"] for row in rows], 1000)
            await push_claimed(session.sql, rows)
            await session.sql.execute(statement("complete_operations"), [row["id"] for row in rows], ["[]"] * len(rows))


class AnyLife(RuleBasedStateMachine):
    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self.storage = storage
        self.session = storage.session
        self.queue = storage.new_queue()
        self.numbers = count()
        self.run = storage.run
        self.run(self.session.configure(self.queue, max_size=8))
        self.run(self.session.push(*((self.queue, name, "first") for name in PARTITIONS)))

    def size(self) -> asyncpg.Record:
        [row] = self.storage.execute(SIZE, self.queue)
        return row

    def place(self, name: str) -> str:
        [row] = self.storage.execute(PLACES, self.queue, name)
        return row["id"]

    # Pushes are refused to the message

    @rule(
        names=st.lists(partition, min_size=1, max_size=4),
        mode=st.sampled_from(["auto", "queue"]),
        held=st.integers(0, 2),
    )
    def push(self, names: list[str], mode: str, held: int) -> None:
        before = self.size()
        row = self.run(push(self.session, mode, self.queue, names, held))
        room = max(0, before["max_size"] - int(before["real"]) - held)
        assert len(names) - len(row["refused"] or ()) == min(len(names), room)
        assert self.size()["real"] == before["real"] + min(len(names), room)

    @rule(names=st.lists(partition, min_size=1, max_size=3))
    def replay(self, names: list[str]) -> None:
        """What was accepted before is stored, or queued, whatever the limit."""
        before = self.size()
        row = self.run(push(self.session, "accepted", self.queue, names))
        assert row["refused"] is None
        assert self.size()["real"] == before["real"] + len(names)

    @rule()
    def run_operations(self) -> None:
        before = self.size()
        self.run(run_operations(self.session))
        assert self.size()["real"] == before["real"]

    @rule()
    def cancel(self) -> None:
        for row in self.storage.execute(
            "SELECT id FROM queen.operation_queue WHERE queue_name = $1 LIMIT 1", self.queue
        ):
            self.storage.execute(statement("cancel_operation"), row["id"])

    @rule()
    def set_aside_and_retry(self) -> None:
        self.storage.execute(
            "UPDATE queen.operation_queue SET status = 'failed', finished_at = clock_timestamp() "
            "WHERE queue_name = $1 AND status = 'pending'",
            self.queue,
        )
        self.count_again()
        failed = "SELECT id FROM queen.operation_queue WHERE queue_name = $1 AND status = 'failed'"
        for row in self.storage.execute(failed, self.queue):
            self.storage.execute(statement("retry_operation"), row["id"])

    @rule(name=partition, many=st.integers(1, 3))
    def insert(self, name: str, many: int) -> None:
        self.run(self.session.insert(self.queue, name, *(f"plain {next(self.numbers)}" for _ in range(many))))

    # Groups come, read, go back and go

    @rule(
        group=group, name=st.none() | partition, batch=st.integers(1, 5), status=st.sampled_from(["completed", "dlq"])
    )
    def consume(self, group: str, name: str | None, batch: int, status: str) -> None:
        self.count_again()
        popped = self.run(self.session.pop(self.queue, name, group=group, batch=batch, partitions=3))
        if not popped.subscribed:
            self.run(self.session.subscribe(self.queue, group, name))
            popped = self.run(self.session.pop(self.queue, name, group=group, batch=batch, partitions=3))
        self.run(self.session.ack(ack(row, None, status, group) for row in popped.rows))

    def count_again(self) -> None:
        """What a push does that finds the queue full."""
        self.storage.execute(
            versioned("SELECT queen.free_room(id, max_size + 1) FROM queen.queues WHERE name = $1"), self.queue
        )

    @rule(group=group, name=st.none() | partition, back=st.booleans())
    def seek(self, group: str, name: str | None, back: bool) -> None:
        self.run(self.session.seek(group, self.queue, name, LONG_AGO if back else None))

    @rule(group=group, metadata=st.booleans())
    def delete_group(self, group: str, metadata: bool) -> None:
        self.run(self.session.delete_group(group, self.queue, metadata))

    @rule(group=group)
    def redrive(self, group: str) -> None:
        found = "SELECT id FROM queen.queues WHERE name = $1"
        [queue] = self.storage.execute(found, self.queue)
        with_room = versioned("SELECT queen.redrive($1, NULL, $2, NULL, NULL, 1000)")
        try:
            self.storage.execute(with_room, queue["id"], group)
        except (asyncpg.LockNotAvailableError, asyncpg.PostgresError) as error:
            assert error.sqlstate in ("55P03", "QN004")

    @rule()
    def retry_message(self) -> None:
        letters = (
            "SELECT d.partition_id, d.transaction_id FROM queen.dead_letter_queue d "
            "JOIN queen.queues q ON q.id = d.queue_id WHERE q.name = $1 LIMIT 1"
        )
        for row in self.storage.execute(letters, self.queue):
            try:
                self.storage.execute(statement("retry_message"), row["partition_id"], row["transaction_id"], uuid4())
            except asyncpg.PostgresError as error:
                assert error.sqlstate in ("55P03", "QN004", "QN006")

    # Messages go

    @rule(name=partition, upto=st.integers(1, 12))
    def trim(self, name: str, upto: int) -> None:
        head = "SELECT last_offset FROM queen.partition_lookup WHERE partition_id = $1"
        [row] = self.storage.execute(head, self.place(name))
        self.storage.execute(versioned("SELECT queen.trim($1, $2)"), self.place(name), min(upto, row["last_offset"]))

    @rule(name=partition)
    def delete_message(self, name: str) -> None:
        oldest = 'SELECT transaction_id FROM queen.messages WHERE partition_id = $1 ORDER BY "offset" LIMIT 1'
        for row in self.storage.execute(oldest, self.place(name)):
            self.storage.execute(statement("delete_message"), self.place(name), row["transaction_id"])

    @rule(size=st.sampled_from([0, 3, 8, 20]))
    def configure(self, size: int) -> None:
        self.run(self.session.configure(self.queue, max_size=size))
        if size == 0:
            self.run(
                self.session.push((self.queue, "a", str(next(self.numbers)))) if not self.waits("a") else _nothing()
            )
            self.run(self.session.configure(self.queue, max_size=8))

    def waits(self, name: str) -> bool:
        waiting = "SELECT 1 FROM queen.operation_queue WHERE partition_id = $1 AND status IN ('pending', 'processing')"
        return bool(self.storage.execute(waiting, self.place(name)))

    @invariant()
    def what_is_known_is_never_too_small(self) -> None:
        size = self.size()
        if size["known"] is not None and not size["doubted"]:
            assert size["known"] + (size["added"] or 0) >= size["real"], dict(size)

    def teardown(self) -> None:
        self.run(self.session.delete_queue(self.queue))
        assert not self.storage.execute("SELECT * FROM queen.queue_sizes")
        assert not self.storage.execute("SELECT * FROM queen.queue_size_changes")


async def _nothing() -> None:
    pass


@pytest.fixture
def storage(own_database: str) -> Iterator[Storage]:
    with closing(Storage(own_database)) as opened:
        yield opened


@pytest.mark.timeout(600)
def test_any_life_of_a_queue_keeps_to_its_size(storage: Storage) -> None:
    run_state_machine_as_test(
        lambda: AnyLife(storage),
        settings=settings(
            max_examples=300 if os.environ.get("QUEEN_LONG") else 15,
            stateful_step_count=25,
            deadline=None,
            print_blob=True,
            phases=[phase for phase in Phase if phase is not Phase.explain],  # it traces every line
            suppress_health_check=list(HealthCheck),
        ),
    )


async def test_sessions_at_once_never_exceed_the_limit(database_url: str) -> None:
    """Pushes, queued pushes and their worker, readers and a group that is deleted again and again."""
    sessions = [Session(await asyncpg.connect(database_url)) for _ in range(7)]
    await sessions[0].configure("q", max_size=12)
    await sessions[0].push(*(("q", name, "first") for name in PARTITIONS))
    await sessions[0].subscribe("q", "g")
    watcher = sessions[6]
    over: list[int] = []
    accepted = 0
    done = asyncio.Event()

    async def produce(session: Session, number: int) -> None:
        nonlocal accepted
        for turn in range(40):
            names = [PARTITIONS[(number + turn + n) % 3] for n in range(3)]
            row = await push(session, "queue" if turn % 4 == number else "auto", "q", names)
            accepted += len(names) - len(row["refused"] or ())

    async def consume(session: Session) -> None:
        while not done.is_set():
            popped = await session.pop("q", group="g", batch=5, partitions=3)
            await session.ack(ack(row, None, group="g") for row in popped.rows)

    async def work(session: Session) -> None:
        while not done.is_set():
            await run_operations(session)
            await asyncio.sleep(0)

    async def watch() -> None:
        while not done.is_set():
            row = await watcher.sql.fetchrow(SIZE, "q")
            over.append(row["real"])

    async with asyncio.TaskGroup() as tasks:
        helpers = [tasks.create_task(w) for w in (consume(sessions[4]), work(sessions[5]), watch())]
        producers = [tasks.create_task(produce(sessions[number], number)) for number in range(4)]
        await asyncio.wait(producers)
        done.set()
        await asyncio.wait(helpers)
    await run_operations(sessions[5])
    assert max(over) <= 12
    stored = await watcher.sql.fetchval("SELECT sum(last_offset) FROM queen.partition_lookup")
    assert stored == accepted + len(PARTITIONS)
    size = await watcher.sql.fetchrow(SIZE, "q")
    assert size["known"] >= size["real"]
    for session in sessions:
        await session.sql.close()


class TestManyPartitions:
    """A full queue with many partitions is not counted at every push."""

    MANY = 3000

    async def test_it_is_counted_when_it_is_full_and_then_not_for_a_while(self, sql: asyncpg.Connection) -> None:
        session = Session(sql)
        await session.configure("q", max_size=5)
        await sql.execute(
            "INSERT INTO queen.partitions (queue_id, name) "
            "SELECT id, n::text FROM queen.queues, generate_series(1, $1) n",
            self.MANY,
        )
        counted = "SELECT counted_at FROM queen.queue_sizes"

        async def refused(*names: str) -> list[int] | None:
            return (await push(session, "auto", "q", list(names)))["refused"]

        assert await refused("1", "2") is None
        first = await sql.fetchval(counted)
        assert await refused("3", "4", "5") is None
        assert await sql.fetchval(counted) == first  # what fits by what is known is not counted
        assert await refused("1") == [1]
        assert await sql.fetchval("SELECT partitions FROM queen.queue_sizes") == self.MANY + 1
        await sql.execute("SELECT queen.trim(id, 1) FROM queen.partitions WHERE name IN ('1', '2')")
        await sql.execute(
            "UPDATE queen.queue_sizes SET counted_at = clock_timestamp() + interval '1 minute' - interval '1 minute'"
        )
        held = await sql.fetchval("UPDATE queen.queue_sizes SET counted_at = clock_timestamp() RETURNING counted_at")
        if await refused("1") is not None:  # unless this machine has stood still for 150 ms
            assert await sql.fetchval(counted) == held
        await sql.execute("UPDATE queen.queue_sizes SET counted_at = counted_at - interval '1 minute'")
        assert await refused("1", "1") is None


async def promote(sql: asyncpg.Connection, epoch: int, rows: list[tuple[int, str, str]]) -> asyncpg.Record:
    """Write (place, message id, transaction id)s to partition `a` of `q`, as an epoch of the Spark sink does."""
    async with sql.transaction():
        await sql.executemany(
            "INSERT INTO queen.pipeline_staged (attempt, place, queue, partition, message_id, transaction_id, "
            "is_encrypted, payload) VALUES ($1, $2, 'q', 'a', $3, $4, false, '1')",
            [(epoch, *row) for row in rows],
        )
        row = await sql.fetchrow(
            statement("pipeline_promote"), "sink", epoch, [epoch], len(rows), None, None, False, None
        )
        assert row is not None
        return row


async def test_the_sink_of_the_pipeline_keeps_to_the_same_rule(sql: asyncpg.Connection) -> None:
    """All of an epoch or nothing; what is stored already needs no room, and what waits takes some."""
    session = Session(sql)
    await session.configure("q", max_size=5)
    await session.push(("q", "a", "there"))
    await push(session, "queue", "q", ["b"])
    rows = [(n, str(uuid4()), name) for n, name in enumerate(["there", "there", "one", "two", "three"])]
    with pytest.raises(asyncpg.PostgresError) as refused:
        await promote(sql, 1, [*rows, (9, str(uuid4()), "four")])
    assert refused.value.sqlstate == "QN004"
    promoted = await promote(sql, 2, rows)
    assert (promoted["written"], promoted["duplicates"]) == (3, 2)
    assert (await push(session, "auto", "q", ["c"]))["refused"] == [1]
    size = await sql.fetchrow(SIZE, "q")
    assert size["known"] == size["real"] == 5


class TestOneRule:
    """Each way in says how many of the messages were written: some, or all or nothing."""

    @staticmethod
    async def by_push(session: Session, transactions: list[str]) -> int:
        outcomes = await session.push(*(("q", "a", one) for one in transactions))
        return [outcome.status for outcome in outcomes].count("queued")

    @staticmethod
    async def by_transaction(session: Session, transactions: list[str]) -> int:
        call = PushCall.merge([Message("q", "a", b"1", str(uuid4()), one) for one in transactions])
        arguments = (*call.arguments(), *columns([]), [], None, LOCK_TIMEOUT)
        try:
            await session.sql.fetchrow(statement("transact"), *arguments)
        except asyncpg.PostgresError as error:
            assert (error.sqlstate, "max capacity" in str(error)) == ("QN001", True)
            return 0
        return len(transactions)

    @staticmethod
    async def by_sink(session: Session, transactions: list[str]) -> int:
        rows = [(place, str(uuid4()), one) for place, one in enumerate(transactions)]
        try:
            return (await promote(session.sql, next(_epochs), rows))["written"]
        except asyncpg.PostgresError as error:
            assert error.sqlstate == "QN004"
            return 0

    @staticmethod
    async def by_insert(session: Session, transactions: list[str]) -> int:
        await session.insert("q", "a", *transactions)
        return len(transactions)

    @pytest.mark.parametrize("way, over_the_limit", [("push", 1), ("transaction", 0), ("sink", 0), ("insert", 2)])
    async def test_the_last_place_is_used(self, sql: asyncpg.Connection, way: str, over_the_limit: int) -> None:
        """An INSERT is not limited, but what it has added takes room from everybody else."""
        write = getattr(self, f"by_{way}")
        session = Session(sql)
        await session.configure("q", max_size=4)
        await sql.execute("SELECT queen.ensure_partitions('{q}', '{a}')")
        assert await write(session, ["1", "2"]) == 2
        await session.subscribe("q", "g")
        popped = await session.pop("q", group="g")
        await session.ack([ack(popped.rows[0], None, group="g")])
        assert (await sql.fetchrow(SIZE, "q"))["real"] == 1
        assert await write(session, ["3", "4"]) == 2
        assert await write(session, ["5", "6"]) == over_the_limit
        full = over_the_limit > 0
        assert await self.by_push(session, ["7"]) == (0 if full else 1)
        for other in (self.by_push, self.by_transaction, self.by_sink):
            assert await other(session, [f"more by {other.__name__}"]) == 0


_epochs = count(1)
