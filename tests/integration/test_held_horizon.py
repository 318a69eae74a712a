"""Push, pop and ack while somebody holds the horizon, so that PostgreSQL can remove no old row version.

What a call reads must not grow with the number of calls before it. Counted in buffers, which do not depend on how fast
or busy the machine is.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

import asyncpg
import pytest

from integration.session import LOCK_TIMEOUT, Session
from queenmq.broker.ack import run_columns
from queenmq.core.acknowledgement import Acknowledgement, runs_of
from queenmq.core.message import Message
from queenmq.core.names import QUEUE_MODE
from queenmq.core.push_call import PushCall
from queenmq.ids import uuid7
from queenmq.storage.statements import statement

CYCLES = 800
SAMPLE = 40
# Plans are made, and a head has a few dozen versions of one generation, as it always may.
WARM_UP = 120
# A deeper index. Without an answer to a held horizon it is ten.
GROWTH = 1.5
# Old versions of a group's row, left by earlier calls. A pop that steps over them reads a buffer for about 30.
VERSIONS = 20_000


@pytest.fixture
async def horizon(database_url: str) -> AsyncIterator[None]:
    """Held by a session that has read something and then does nothing."""
    stranger = await asyncpg.connect(database_url)
    await stranger.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queen.queues")
    yield
    await stranger.close()


@asynccontextmanager
async def _session(url: str) -> AsyncIterator[Session]:
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "off"})
    try:
        yield Session(connection)
    finally:
        await connection.close()


async def _buffers(session: Session, sql: str, *arguments: Any) -> int:
    """Run a statement, and count the buffers that it and all statements in its functions have read."""
    [plan] = json.loads(await session.sql.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *arguments))
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


class Cycle:
    """A message on its way through a partition: pushed, popped and acknowledged, each with its buffers."""

    def __init__(self, session: Session, queue: str, partition: str | None = None, key: str | None = None) -> None:
        self._session = session
        self._key = key
        self._queue = queue
        self._partition = partition

    async def run(self, number: int, partition: str) -> dict[str, int]:
        transaction = f"{partition}:{number}"
        return {
            "push": await self.push(transaction, partition),
            "pop": await self.pop(),
            "ack": await self.ack(transaction, partition),
        }

    async def push(self, transaction: str, partition: str) -> int:
        call = PushCall.merge([Message(self._queue, partition, b"1", str(uuid7()), transaction)])
        arguments = (*call.arguments(), "auto", [0], None, None, LOCK_TIMEOUT)
        return await _buffers(self._session, statement("push_or_queue"), *arguments)

    async def pop(self) -> int:
        self.lease = str(uuid7())
        asked = ([self._queue], [self._partition], [QUEUE_MODE], [1], [1], [False], [self.lease])
        if self._key is None:
            return await _buffers(self._session, statement("pop"), *asked, 2**24, 2**25, LOCK_TIMEOUT)
        return await _buffers(self._session, statement("pop_fair"), *asked, 2**24, 2**25, LOCK_TIMEOUT, [self._key])

    async def ack(self, transaction: str, partition: str) -> int:
        sql = "SELECT id FROM queen.partitions WHERE name = $1"
        owner = str(await self._session.sql.fetchval(sql, partition))
        done = Acknowledgement(owner, transaction, QUEUE_MODE, self.lease, "completed", None)
        return await _buffers(self._session, statement("ack"), *run_columns(runs_of([done])), LOCK_TIMEOUT)


async def _finished(session: Session) -> int:
    return int(await session.sql.fetchval("SELECT sum(position) FROM queen.partition_consumers"))


def _grown(costs: list[dict[str, int]]) -> dict[str, tuple[float, float]]:
    """The verbs that read more in the last calls than in the first ones, with both."""
    early, late = costs[WARM_UP : WARM_UP + SAMPLE], costs[-SAMPLE:]
    means = {verb: (median(each[verb] for each in early), median(each[verb] for each in late)) for verb in costs[0]}
    return {verb: (before, after) for verb, (before, after) in means.items() if after > before * GROWTH}


async def test_what_a_call_reads_does_not_grow_while_the_horizon_is_held(database_url: str, horizon: None) -> None:
    async with _session(database_url) as session:
        await session.push(("q", "p", "first"), ("q", "idle", "first"))
        await session.subscribe("q", mode="new")
        cycle = Cycle(session, "q")
        costs = [await cycle.run(number, "p") for number in range(CYCLES)]
        assert await _finished(session) == CYCLES + 2
    # A pop moves its floor when a walk took long, so on a fast machine it steps over a few thousand versions before.
    for cost in costs:
        del cost["pop"]
    assert _grown(costs) == {}


async def _leave_versions(session: Session) -> None:
    """As many as of 7,000 messages, which would take the test too long."""
    await session.sql.execute(f"""
        DO $$
        DECLARE
            v_row tid := (SELECT ctid FROM queen.partition_consumers ORDER BY position DESC LIMIT 1);
        BEGIN
            FOR i IN 1 .. {VERSIONS} LOOP
                UPDATE queen.partition_consumers SET ready_at = clock_timestamp(), generation = generation + 1
                WHERE ctid = v_row RETURNING ctid INTO v_row;
            END LOOP;
            UPDATE queen.partition_consumers SET ready_at = NULL, generation = generation + 1 WHERE ctid = v_row;
        END $$""")


@pytest.mark.parametrize("key", [None, "p"])
async def test_pops_begin_behind_the_old_versions_of_ready_rows(
    key: str | None, database_url: str, horizon: None
) -> None:
    async with _session(database_url) as session:
        await session.push(("q", "p", "first"), ("q", "idle", "first"))
        if key is not None:
            nothing = (False, *[None] * 5, False, *[None] * 4, False, *[None] * 7)
            assert await session.sql.fetchval(statement("set_policy"), "q", "", None, *nothing, True, "{}", ":")
        await session.subscribe("q", mode="new")
        cycle = Cycle(session, "q", key=key)
        before = [(await cycle.run(number, "p"))["pop"] for number in range(WARM_UP)]
        await _leave_versions(session)
        walk = (await cycle.run(WARM_UP, "p"))["pop"]
        assert walk > median(before) + VERSIONS / 100
        # The fence is passed, and the floor moved, some tenths of a second later.
        after = [(await cycle.run(number, "p"))["pop"] for number in range(WARM_UP + 1, WARM_UP + SAMPLE * 5)]
        assert median(after[-SAMPLE:]) < median(before) + VERSIONS / 200


async def test_limits_do_not_grow_either(database_url: str, horizon: None) -> None:
    async with _session(database_url) as session:
        await session.push(("q", "p", "first"), ("q", "idle", "first"))
        nothing = (False, *[None] * 5, False, *[None] * 4)
        limits = ("{}", 5, 1_000_000.0, 1_000_000.0, 5, 1_000_000.0, 1_000_000.0)
        given = (*nothing, True, *limits, True, "{}", ":")
        assert await session.sql.fetchval(statement("set_policy"), "q", "", None, *given)
        await session.subscribe("q", partition="p", mode="new")
        await session.subscribe("q", partition="idle", mode="new")
        cycle = Cycle(session, "q", "p")  # by name, so that it does not walk
        costs = [await cycle.run(number, "p") for number in range(CYCLES - 200)]
        assert await _finished(session) == CYCLES - 198
    assert _grown(costs) == {}


async def test_pushes_to_a_partition_without_groups_do_not_grow(database_url: str, horizon: None) -> None:
    async with _session(database_url) as session:
        await session.push(("q", "idle", "first"))
        cycle = Cycle(session, "q")
        costs = [{"push": await cycle.push(str(number), "p")} for number in range(CYCLES)]
    assert _grown(costs) == {}


async def test_pops_of_a_partition_by_name_do_not_grow(database_url: str, horizon: None) -> None:
    async with _session(database_url) as session:
        await session.push(("q", "p", "first"), ("q", "idle", "first"))
        await session.subscribe("q", partition="p", mode="new")
        await session.subscribe("q", partition="idle", mode="new")
        cycle = Cycle(session, "q", "p")
        costs = [await cycle.run(number, "p") for number in range(CYCLES)]
        assert await _finished(session) == CYCLES + 2
    assert _grown(costs) == {}
