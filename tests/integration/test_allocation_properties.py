"""Offsets that an INSERT leaves to the database: gapless and in the order of insertion, whatever a transaction does.

Any sequence of INSERTs, pushes, deletions and savepoints in one session, compared with a model after each step; and
several sessions at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from integration.session import Session

PARTITIONS = ("a", "b", "c")
INSERT = """
    INSERT INTO queen.messages (partition_id, transaction_id, payload)
    SELECT p.id, t.transaction, '1'
    FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS t (partition, transaction, i)
    JOIN queen.partitions p ON p.name = t.partition JOIN queen.queues q ON q.id = p.queue_id AND q.name = $1
    ORDER BY t.i
"""
EXPLICIT = """
    INSERT INTO queen.messages (partition_id, "offset")
    SELECT p.id, t."offset" FROM unnest($3::bigint[]) WITH ORDINALITY AS t ("offset", i)
    JOIN queen.partitions p ON p.name = $2 JOIN queen.queues q ON q.id = p.queue_id AND q.name = $1
    ORDER BY t.i
"""
DELETE = """
    DELETE FROM queen.messages m USING queen.partitions p, queen.queues q
    WHERE p.id = m.partition_id AND q.id = p.queue_id AND q.name = $1 AND p.name = $2 AND m."offset" <= $3
"""
STORED = """
    SELECT p.name, l.last_offset,
           ARRAY(SELECT (m."offset", m.transaction_id) FROM queen.messages m
                 WHERE m.partition_id = p.id ORDER BY m."offset")
    FROM queen.partitions p
    JOIN queen.queues q ON q.id = p.queue_id AND q.name = $1
    JOIN queen.partition_lookup l ON l.partition_id = p.id
"""

partition = st.sampled_from(PARTITIONS)
rows = st.lists(st.tuples(partition, st.integers(0, 30).map(str)), min_size=1, max_size=12)


@dataclass
class Log:
    """A partition as it should be."""

    last: int = 0
    stored: dict[str, int] = field(default_factory=dict)  # transaction id: offset

    def add(self, transaction: str) -> None:
        if transaction not in self.stored:
            self.last += 1
            self.stored[transaction] = self.last


Logs = dict[str, Log]


class Storage:
    """One session as psql would open it, driven from a synchronous test; one queue an example."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self.session = Session(self.run(asyncpg.connect(url, server_settings={"synchronous_commit": "off"})))
        self._number = 0

    def run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    def execute(self, text: str, *arguments: Any) -> list[asyncpg.Record]:
        return self.run(self.session.sql.fetch(text, *arguments))

    def new_queue(self) -> str:
        self._number += 1
        return f"queue{self._number}"

    def close(self) -> None:
        self.run(self.session.sql.close())
        self._loop.close()


class AnyTransaction(RuleBasedStateMachine):
    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self.storage = storage
        self.queue = storage.new_queue()
        self.logs: Logs = {name: Log() for name in PARTITIONS}
        self.savepoints: list[Logs] = []
        storage.run(storage.session.push(*((self.queue, name, "first") for name in PARTITIONS)))
        for log in self.logs.values():
            log.add("first")
        self.committed = deepcopy(self.logs)
        storage.run(storage.session.begin())

    @rule(rows=rows, clean=st.booleans())
    def insert(self, rows: list[tuple[str, str]], clean: bool) -> None:
        """Without ON CONFLICT a statement with a repeated transaction id fails as a whole."""
        new = list(dict.fromkeys(row for row in rows if row[1] not in self.logs[row[0]].stored))
        if clean:
            rows = new
        if rows == new:
            self._insert(INSERT, rows)
            self._add(rows)
        else:
            with self._refused(asyncpg.UniqueViolationError):
                self._insert(INSERT, rows)

    @rule(rows=rows)
    def insert_what_is_new(self, rows: list[tuple[str, str]]) -> None:
        self._insert(f"{INSERT} ON CONFLICT DO NOTHING", rows)
        self._add(rows)

    def _insert(self, text: str, rows: list[tuple[str, str]]) -> None:
        partitions, transactions = [row[0] for row in rows], [row[1] for row in rows]
        self.storage.execute(text, self.queue, partitions, transactions)

    @contextmanager
    def _refused(self, *errors: type[Exception]) -> Iterator[None]:
        """Go on as if the statement had not been tried."""
        self.storage.execute("SAVEPOINT attempt")
        with pytest.raises(errors):
            yield
        self.storage.execute("ROLLBACK TO SAVEPOINT attempt")
        self.storage.execute("RELEASE SAVEPOINT attempt")

    def _add(self, rows: list[tuple[str, str]]) -> None:
        for name, transaction in rows:
            self.logs[name].add(transaction)

    @rule(rows=rows)
    def push(self, rows: list[tuple[str, str]]) -> None:
        self.storage.run(self.storage.session.push(*((self.queue, *row) for row in rows)))
        self._add(rows)

    @rule(name=partition, back=st.integers(0, 3))
    def delete_old(self, name: str, back: int) -> None:
        log = self.logs[name]
        upto = log.last - back
        self.storage.execute(DELETE, self.queue, name, upto)
        log.stored = {transaction: offset for transaction, offset in log.stored.items() if offset > upto}

    @rule(name=partition, steps=st.lists(st.integers(-3, 3), min_size=1, max_size=3, unique=True))
    def choose_offsets(self, name: str, steps: list[int]) -> None:
        """Offsets of one's own must follow the last one, also where the last ones were deleted."""
        offsets = [self.logs[name].last + step for step in steps]
        if sorted(steps) == list(range(1, len(steps) + 1)):
            return  # what queen.push does, under the lock
        with self._refused(asyncpg.ForeignKeyViolationError, asyncpg.UniqueViolationError):
            self.storage.execute(EXPLICIT, self.queue, name, offsets)

    @precondition(lambda self: len(self.savepoints) < 4)
    @rule()
    def set_savepoint(self) -> None:
        self.storage.execute(f"SAVEPOINT s{len(self.savepoints)}")
        self.savepoints.append(deepcopy(self.logs))

    @precondition(lambda self: self.savepoints)
    @rule()
    def roll_back_to_savepoint(self) -> None:
        self.storage.execute(f"ROLLBACK TO SAVEPOINT s{len(self.savepoints) - 1}")
        self.logs = deepcopy(self.savepoints[-1])

    @precondition(lambda self: self.savepoints)
    @rule()
    def release_savepoint(self) -> None:
        self.savepoints.pop()
        self.storage.execute(f"RELEASE SAVEPOINT s{len(self.savepoints)}")

    @rule(kept=st.booleans())
    def end(self, kept: bool) -> None:
        self.storage.execute("COMMIT" if kept else "ROLLBACK")
        self.logs = self.logs if kept else self.committed
        self.committed = deepcopy(self.logs)
        self.savepoints.clear()
        self.storage.run(self.storage.session.begin())

    @invariant()
    def compare(self) -> None:
        there = {}
        for name, last, stored in self.storage.execute(STORED, self.queue):
            there[name] = Log(last, {transaction: offset for offset, transaction in stored})
        assert there == self.logs

    def teardown(self) -> None:
        self.storage.execute("ROLLBACK")
        assert not self.storage.execute("SELECT * FROM queen.stale_lookup()")
        self.storage.execute("DELETE FROM queen.queues WHERE name = $1", self.queue)


@pytest.fixture
def storage(own_database: str) -> Iterator[Storage]:
    with closing(Storage(own_database)) as opened:
        yield opened


@pytest.mark.timeout(600)
def test_any_transaction_does_what_the_model_does(storage: Storage) -> None:
    run_state_machine_as_test(
        lambda: AnyTransaction(storage),
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            deadline=None,
            phases=[phase for phase in Phase if phase is not Phase.explain],  # it traces every line
            suppress_health_check=list(HealthCheck),
        ),
    )


async def test_sessions_at_once(database_url: str) -> None:
    """Each session's rows keep their order, every second transaction is given up, and no offset is missing or twice."""
    sessions = [Session(await asyncpg.connect(database_url)) for _ in range(4)]
    await sessions[0].push(*(("q", name, "first") for name in PARTITIONS))

    async def write(number: int) -> None:
        session = sessions[number]
        for turn in range(10):
            # By partition, as transactions that must not wait for each other in a circle have to.
            rows = [(name, f"{number} {turn} {i}") for name in PARTITIONS for i in range(5)]
            await session.begin()
            await session.sql.execute(INSERT, "q", [row[0] for row in rows], [row[1] for row in rows])
            await session.sql.execute("SAVEPOINT s")
            await session.sql.execute(INSERT, "q", ["c"] * 3, [f"given up {number} {turn} {i}" for i in range(3)])
            await session.sql.execute("ROLLBACK TO SAVEPOINT s")
            await session.push(("q", "c", f"{number} {turn} 5"))
            await (session.rollback() if turn % 2 else session.commit())

    async with asyncio.TaskGroup() as group:
        for number in range(len(sessions)):
            group.create_task(write(number))

    for _, last, stored in await sessions[0].sql.fetch(STORED, "q"):
        assert [offset for offset, _ in stored] == list(range(1, last + 1))
        written = [tuple(map(int, transaction.split())) for _, transaction in stored[1:]]
        for number in range(len(sessions)):
            own = [row for row in written if row[0] == number]
            assert own == sorted(own)
            assert {turn for _, turn, _ in own} == {0, 2, 4, 6, 8}
    assert not await sessions[0].sql.fetch("SELECT * FROM queen.stale_lookup()")
    for session in sessions:
        await session.sql.close()
