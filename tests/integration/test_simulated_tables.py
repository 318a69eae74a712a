"""The model of `tests/simulation/servers` says what PostgreSQL says: the same generated programs run on both.

A program is a sequence of the statements that servers send. Compared are the rows that each returns, but for times and
ids that the database makes, and at the end the tables. A lease expires because its end is set back. QUEEN_LONG=1 runs
many more; QUEEN_SIMULATION_SEED=17 only that program.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from datetime import datetime
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from simulation.servers.statements import Row, Statements
from simulation.servers.tables import Partition, Queue, Tables

from queenmq.broker.ack import columns, run_columns
from queenmq.core.acknowledgement import Acknowledgement, runs_of
from queenmq.core.message import Message
from queenmq.core.push_call import PushCall
from queenmq.ids import uuid7_text
from queenmq.storage.statements import function_set, statement

CHOSEN = os.environ.get("QUEEN_SIMULATION_SEED")
PROGRAMS = 1000 if os.environ.get("QUEEN_LONG") else 20
STEPS = 60
PARTITIONS = ("a", "b", "c")
GROUPS = ("g", "h")
STATUSES = ("completed", "completed", "failed", "retry", "dlq")
LOCK_TIMEOUT = "1000"
NOTHING = "00000000-0000-7000-8000-000000000000"
ANY_ORDER = ("renew", "partitions_ready")
TICK_S = 0.001  # a statement, in the time of the model

pytestmark = pytest.mark.timeout(3600)


class Followed(Tables):
    """Of partitions that became ready in one statement PostgreSQL may serve any first: here the same one is."""

    def __init__(self) -> None:
        self.statement = 0
        self.first: list[tuple[str, str]] = []
        super().__init__(lambda: self.statement * TICK_S, uuid7_text)

    def in_order(self, parts: Sequence[Partition], group: str) -> list[Partition]:
        def place(part: Partition) -> tuple[float, int]:
            since = part.groups[group].ready_at or 0.0
            chosen = self.first.index((part.id, group)) if (part.id, group) in self.first else len(self.first)
            return round(since / TICK_S), chosen

        return sorted(parts, key=place)


class Program:
    def __init__(self, seed: int, sql: asyncpg.Connection) -> None:
        self.chance = Random(seed)
        self.sql = sql
        self.queue = f"q{seed}"
        self.tables = Followed()
        self.statements = Statements(self.tables)
        self.names = [f"t{number}" for number in range(40)]
        self.leases: list[str] = []
        self.said: list[str] = []  # what was done, for a person

    async def run(self) -> None:
        await self.sql.execute(
            "INSERT INTO queen.queues (name, lease_time_s, retry_limit, retry_delay_ms) VALUES ($1, 60, 1, 0)",
            self.queue,
        )
        self.tables.queues[self.queue] = Queue(self.queue, lease_s=60, retry_limit=1, retry_delay_s=0.0)
        steps: list[Callable[[], Any]] = [self.push] * 4 + [self.pop] * 5 + [self.ack] * 4
        steps += [self.renew, self.release, self.transact, self.expire, self.work, self.look]
        for _ in range(STEPS):
            await self.chance.choice(steps)()
        await self.compare()

    async def both(self, name: str, *arguments: Any) -> tuple[list[Row] | str, list[Row] | str]:
        """What PostgreSQL and the model answer, or the SQLSTATE with which they refuse."""
        self.tables.statement += 1
        self.said.append(f"{name} {arguments}")
        try:
            real: list[Row] | str = [_plain(row) for row in await self.sql.fetch(statement(name), *arguments)]
        except asyncpg.PostgresError as error:
            real = f"{error.sqlstate} {error}"
        if name == "pop_leased":
            chosen = [row for row in real if isinstance(row, dict) and row["glued"]]
            self.tables.first = [(row["partition_id"], arguments[2][row["request"] - 1]) for row in chosen]
        try:
            model: list[Row] | str = self.statements.run(name, arguments)
        except asyncpg.PostgresError as error:
            model = f"{error.sqlstate} {error}"
        return real, model

    async def same(self, name: str, *arguments: Any, but: Sequence[str] = ()) -> None:
        real, model = (_without(answer, but) for answer in await self.both(name, *arguments))
        if name in ANY_ORDER:
            real, model = _sorted(real), _sorted(model)
        assert model == real, "\n".join(self.said[-8:])

    def partition(self) -> str:
        return self.chance.choice(PARTITIONS)

    async def push(self) -> None:
        names = self.chance.sample(self.names, self.chance.randint(1, 5))
        messages = [Message(self.queue, self.partition(), b"1", uuid7_text(), name) for name in names]
        mode = self.chance.choices(("auto", "queue", "accepted"), weights=(12, 1, 2))[0]
        call = PushCall.merge(messages)
        limit = self.chance.choice((None, 3, 100))
        requests = [self.chance.randrange(2) for _ in call.messages]
        await self.make([(m.queue, m.partition) for m in messages])
        arguments = (*call.arguments(), mode, requests, limit, None, LOCK_TIMEOUT)
        real, model = await self.both("push_or_queue", *arguments)
        assert list(map(_pushed, model)) == list(map(_pushed, real)), "\n".join(self.said[-8:])

    async def make(self, targets: Sequence[tuple[str, str]]) -> None:
        """The partitions, in both with the same ids."""
        queues, names = [queue for queue, _ in targets], [name for _, name in targets]
        await self.sql.execute("SELECT queen.ensure_partitions($1, $2)", queues, names)
        found = await self.sql.fetch(statement("partition_ids"), queues, names)
        for (queue, name), row in zip(targets, found, strict=True):
            self.tables.new_id = lambda row=row: str(row["id"])  # type: ignore[misc]
            self.tables.partition(queue, name)
        self.tables.new_id = uuid7_text

    async def pop(self) -> None:
        asked = []
        for _ in range(self.chance.randint(1, 3)):
            partition = self.chance.choice((None, self.partition()))
            asked.append((partition, self.chance.choice(GROUPS), self.chance.randint(1, 3), uuid7_text()))
        partitions, groups, batches, leases = map(list, zip(*asked, strict=True))
        many = [1] * len(asked)
        arguments = [self.queue] * len(asked), partitions, groups, batches, many, [False] * len(asked), leases
        real, model = await self.both("pop_leased", *arguments, 2**24, 2**25, LOCK_TIMEOUT)
        assert sorted(map(_popped, real)) == sorted(map(_popped, model)), "\n".join(self.said[-8:])
        self.leases += leases
        for row, (partition, group, _, _) in zip(real, asked, strict=False):
            if isinstance(row, dict) and row["glued"] is None and row["ready_in_ms"] is None:
                await self.same("subscribe", self.queue, partition, group, "all", None, LOCK_TIMEOUT, 1000, False)

    def held(self) -> list[tuple[Partition, str, str, list[str]]]:
        """Partition, group, lease and messages of the leases that there are."""
        return [
            (part, group, row.lease, [part.messages[offset - 1].transaction for offset in sorted(row.leased)])
            for part in self.tables.partitions.values()
            for group, row in part.groups.items()
            if row.lease is not None
        ]

    def acknowledgements(self, statuses: Sequence[str]) -> list[Acknowledgement]:
        """Of one lease: all, some, with others, or under another lease."""
        held = self.held()
        if not held:
            return []
        part, group, lease, names = self.chance.choice(held)
        status = self.chance.choice(statuses)
        chosen = names if self.chance.random() < 0.5 else self.chance.sample(names, self.chance.randint(1, len(names)))
        if self.chance.random() < 0.2:
            chosen = [*chosen, self.chance.choice(self.names)]
        if self.chance.random() < 0.2:
            lease = self.chance.choice([*self.leases[-10:], NOTHING])
        said = []
        for name in dict.fromkeys(chosen):
            one = self.chance.choice(statuses) if self.chance.random() < 0.1 else status
            said.append(Acknowledgement(part.id, name, group, lease, one, None))
        return said

    async def ack(self) -> None:
        said = self.acknowledgements(STATUSES)
        if said:
            await self.same("ack", *run_columns(runs_of(said)), LOCK_TIMEOUT)
            asked = columns(said)
            await self.same("acks_finished", *asked[:4])

    async def renew(self) -> None:
        leases = self.chance.sample(self.leases, min(len(self.leases), 2))
        await self.same("renew", leases, [120] * len(leases), LOCK_TIMEOUT, but=["expires_at"])

    async def release(self) -> None:
        if self.leases:
            await self.same("release", [self.chance.choice(self.leases[-6:])], LOCK_TIMEOUT, but=["release"])

    async def transact(self) -> None:
        names = self.chance.sample(self.names, self.chance.randint(1, 2))
        messages = [Message(self.queue, self.partition(), b"1", uuid7_text(), name) for name in names]
        said = self.acknowledgements(("completed", "completed", "failed"))
        leases = [one.lease_id for one in said][:1] if self.chance.random() < 0.5 else []
        if leases:
            said = [Acknowledgement(one.partition_id, one.transaction_id, None, None, one.status, None) for one in said]
        call = PushCall.merge(messages)
        await self.make(call.targets)
        arguments = (
            *call.arguments(sealed=[(b"1", False)] * len(messages)),
            *columns(said),
            leases,
            None,
            LOCK_TIMEOUT,
        )
        await self.same("transact", *arguments)

    async def expire(self) -> None:
        """A lease ends without a word."""
        held = self.held()
        if held:
            part, group, lease, _ = self.chance.choice(held)
            self.tables.statement += 1
            row = part.groups[group]
            row.expires = row.ready_at = self.tables.now()
            await self.sql.execute(
                "UPDATE queen.partition_consumers SET lease_expires_at = now(), ready_at = now() WHERE lease_id = $1",
                lease,
            )
            self.said.append(f"expire {lease}")

    async def work(self) -> None:
        """The operation worker, as `operations/pushes.py` does it."""
        claim = uuid7_text()
        real, model = await self.both("claim_operations", "worker", claim, 2, self.chance.randint(1, 3), 2**23, 1)
        assert isinstance(real, list) and isinstance(model, list)
        assert [_operation(row) for row in real] == [_operation(row) for row in model], "\n".join(self.said[-8:])
        if not real:
            return
        fate = self.chance.random()
        if fate < 0.2:
            await self.same("release_operations", "worker")
            return
        ids = [[row["id"] for row in rows] for rows in (real, model)]
        held = await self.sql.fetchval(statement("hold_operations"), claim, ids[0], 500)
        [answer] = self.statements.run("hold_operations", (claim, ids[1], 500))
        assert len(answer["hold_operations"]) == len(held) == len(ids[0])
        messages = [
            Message(self.queue, row["partition_name"], b"1", message, name)
            for row in real
            for message, name in zip(row["message_ids"], row["transaction_ids"], strict=True)
        ]
        await self.same("push_now", *PushCall.merge(messages).arguments())
        await self.sql.fetch(statement("complete_operations"), ids[0], ["[]"] * len(ids[0]))
        self.statements.run("complete_operations", (ids[1], ["[]"] * len(ids[1])))

    async def look(self) -> None:
        await self.same("partitions_ready", self.queue, self.chance.choice(GROUPS), list(PARTITIONS))
        queues, partitions = [self.queue] * 2, [self.partition(), self.partition()]
        await self.same("stored_messages", queues, partitions, self.chance.sample(self.names, 2))
        await self.same("partition_ids", queues, partitions)
        await self.same("find_locked", queues, partitions, [], [], self.leases[-3:], [self.queue], True)

    async def compare(self) -> None:
        """The tables at the end."""
        stored = await self.sql.fetch(
            """SELECT p.id, m."offset", m.id AS message, m.transaction_id FROM queen.messages m
               JOIN queen.partitions p ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id
               WHERE q.name = $1 ORDER BY p.id, m."offset" """,
            self.queue,
        )
        assert [tuple(map(str, row.values())) for row in stored] == [
            (part.id, str(one.offset), one.id, one.transaction)
            for part in sorted(self.tables.partitions.values(), key=lambda part: part.id)
            for one in part.messages
        ]
        rows = await self.sql.fetch(
            """SELECT c.partition_id, c.consumer_group, c.position, c.lease_id, c.ready_at IS NULL AS asleep,
                      ARRAY(SELECT generate_series(lower(d), upper(d) - 1) FROM unnest(c.done) AS d) AS done,
                      ARRAY(SELECT generate_series(lower(d), upper(d) - 1) FROM unnest(c.lease_offsets) AS d) AS leased
               FROM queen.partition_consumers c JOIN queen.queues q ON q.id = c.queue_id WHERE q.name = $1""",
            self.queue,
        )
        found = {(str(row["partition_id"]), row["consumer_group"]): row for row in rows}
        known = {
            (part.id, group): row for part in self.tables.partitions.values() for group, row in part.groups.items()
        }
        assert found.keys() == known.keys()
        for key, row in known.items():
            real = found[key]
            assert (row.position, row.lease, row.ready_at is None) == (
                real["position"],
                real["lease_id"] and str(real["lease_id"]),
                real["asleep"],
            )
            assert (sorted(row.done), sorted(row.leased)) == (sorted(real["done"]), sorted(real["leased"]))
        dead = await self.sql.fetch(
            """SELECT d.partition_id, d.consumer_group, d.message_id FROM queen.dead_letter_queue d
               JOIN queen.queues q ON q.id = d.queue_id WHERE q.name = $1""",
            self.queue,
        )
        assert {tuple(map(str, row.values())) for row in dead} == {
            (part, group, message) for (part, group), messages in self.tables.dead.items() for message in messages
        }


def _plain(row: asyncpg.Record) -> Row:
    """UUIDs as text, and columns that are named after a function by its name in the files."""
    return {name.removesuffix(f"_{function_set().name}"): _text(value) for name, value in row.items()}


def _text(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    return [_text(one) for one in value] if isinstance(value, list) else value


def _without(answer: list[Row] | str, but: Sequence[str]) -> Any:
    if isinstance(answer, str):
        return answer
    return [{name: value for name, value in row.items() if name not in but} for row in answer]


def _sorted(rows: Any) -> Any:
    return sorted(rows, key=str) if isinstance(rows, list) else rows


def _popped(row: Any) -> tuple[Any, ...]:
    """Without times: whether something will be there later, and which messages are there now."""
    glued = row["glued"] or b""
    shown = [part.split(b',"createdAt"')[0] for part in glued.split(b"\x1e")]
    failed = [part.split(b'"retryCount":')[-1].split(b",")[0] for part in glued.split(b"\x1e")]
    later = row["ready_in_ms"] is not None
    return row["request"], row["partition_name"] or "", row["message_count"] or 0, later, shown, failed


def _pushed(row: Any) -> Row:
    """Without the ids of operations, and with these and the duplicates in one order: PostgreSQL promises none."""
    queued = sorted(zip(row["queued_target"] or (), row["queued_request"] or (), strict=True))
    stored = zip(*(row[f"duplicate_{name}"] or () for name in ("index", "id", "offset")), strict=True)
    said = {name: value for name, value in row.items() if not name.startswith(("queued_", "duplicate_"))}
    return said | {"queued": queued, "duplicates": sorted(stored)}


def _operation(row: Row) -> tuple[Any, ...]:
    return row["partition_id"], row["message_ids"], row["transaction_ids"]


async def test_the_model_says_what_postgresql_says(sql: asyncpg.Connection) -> None:
    for seed in [int(CHOSEN)] if CHOSEN else [*range(PROGRAMS // 2), *random.sample(range(2**31), PROGRAMS // 2)]:
        try:
            await Program(seed, sql).run()
        except AssertionError as failure:
            failure.add_note(f"to run it again: QUEEN_SIMULATION_SEED={seed} pytest {__file__}")
            raise
        await sql.execute("DELETE FROM queen.operation_queue")  # they are claimed whatever their queue is


def test_the_times_are_real_ones() -> None:
    """What is not compared above: rows of the model have times where PostgreSQL has them."""
    tables = Followed()
    tables.queues["q"] = Queue("q")
    statements = Statements(tables)
    message = Message("q", "a", b"1", uuid7_text(), "t")
    statements.run("push_or_queue", (*PushCall.merge([message]).arguments(), "auto", [0], None, None, "50"))
    statements.run("subscribe", ("q", None, "g", "all", None, "50", 1000, False))
    lease = uuid7_text()
    [row] = statements.run("pop_leased", (["q"], [None], ["g"], [1], [1], [False], [lease], 1, 1, "50"))
    assert isinstance(row["first_created_at"], datetime)
    [row] = statements.run("renew", ([lease], [1], "50"))
    assert isinstance(row["expires_at"], datetime)
