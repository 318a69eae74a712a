"""The plans of the hot statements as they run inside the functions, on a queue with many partitions.

auto_explain reports every nested statement with its plan, so what is looked at is what runs: no sequential scan, and
no more rows touched than the request is about, however many partitions there are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import asyncpg
import pytest

from integration.session import LOCK_TIMEOUT, Pop, Session, ack
from queenmq.broker.ack import columns
from queenmq.config import DatabaseSettings
from queenmq.core.acknowledgement import Acknowledgement
from queenmq.core.message import Message
from queenmq.core.names import QUEUE_MODE
from queenmq.core.push_call import PushCall
from queenmq.ids import uuid7
from queenmq.services.planning import Planning
from queenmq.storage.database import Database
from queenmq.storage.statements import statement, versioned

PARTITIONS = 20_000
MESSAGES = 2  # in each of them
LENGTH = 20_000  # messages in the long partition
QUEUES = 1_000  # others
ANALYZED, NEVER, GROWN = STATES = ("analyzed", "never analyzed", "analyzed when empty")
HOT = ("messages", "partition_consumers", "partition_lookup", "partitions")
# Rows that a statement may touch without being about them: a queue, a group, what another test left.
SLACK = 60
SUBSCRIBE = versioned("SELECT queen.subscribe('q', NULL, $1, 'new', NULL, $2)")

Json = dict[str, Any]


@pytest.fixture(scope="module")
def large(postgres: Any) -> Iterator[dict[str, str]]:
    """A queue with many partitions, one with a long partition and many small ones, all unread by two groups.

    Three such databases: one that has grown within a minute has no statistics yet, or some that say
    that its tables are empty, as they were a minute ago. It must be as fast.
    """
    with asyncio.Runner() as runner:
        urls = {state: runner.run(postgres.create()) for state in STATES}
        for state, url in urls.items():
            runner.run(_fill(url, state))
        yield urls
        for url in urls.values():
            runner.run(postgres.drop(url))


async def _fill(url: str, state: str) -> None:
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "off"})
    for table in (*HOT, "queues"):
        await connection.execute(f"ALTER TABLE queen.{table} SET (autovacuum_enabled = off)")
    if state == GROWN:
        await connection.execute(
            "INSERT INTO queen.consumer_groups (queue_name, name, registered) VALUES ('gone', $1, true)", QUEUE_MODE
        )
        await Session(connection).push(*(("gone", f"p{n}", "1") for n in range(1000)))
        await connection.execute("DELETE FROM queen.queues")
        await connection.execute("DELETE FROM queen.consumer_groups")
        await connection.execute("ANALYZE")
    await connection.execute(
        "INSERT INTO queen.queues (name) SELECT name FROM unnest(ARRAY['q', 'long']) AS t (name) "
        f"UNION ALL SELECT 'other' || n FROM generate_series(1, {QUEUES}) AS n"
    )
    await connection.execute(
        "INSERT INTO queen.consumer_groups (queue_name, name, registered) "
        "SELECT q.name, g, true FROM queen.queues q, unnest($1::text[]) AS g",
        [QUEUE_MODE, "g"],
    )
    await connection.execute(
        "INSERT INTO queen.partitions (queue_id, name) SELECT q.id, 'p' || n FROM queen.queues q, "
        f"generate_series(1, CASE q.name WHEN 'q' THEN {PARTITIONS} ELSE 1 END) AS n"
    )
    await connection.execute(
        'INSERT INTO queen.messages (partition_id, "offset", transaction_id, payload) '
        "SELECT p.id, n, n::text, '1' FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id, "
        f"generate_series(1, CASE q.name WHEN 'long' THEN {LENGTH} ELSE {MESSAGES} END) AS n"
    )
    if state == ANALYZED:
        await connection.execute("VACUUM ANALYZE")
    await connection.close()


@dataclass
class Plan:
    """One statement that ran, with its plan and what it touched."""

    text: str
    root: Json

    def nodes(self) -> Iterator[Json]:
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.get("Plans", [])

    def reads(self) -> Iterator[tuple[Json, float]]:
        """The nodes that read a hot table, with the rows that they looked at."""
        for node in self.nodes():
            if node.get("Relation Name") in HOT and node["Node Type"] != "ModifyTable":
                dropped = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
                yield node, (node["Actual Rows"] + dropped) * node["Actual Loops"]

    def steps(self) -> Iterator[tuple[Json, float]]:
        """All nodes, with the rows that they handled: what they gave on and what they left out."""
        for node in self.nodes():
            dropped = sum(value for name, value in node.items() if name.startswith("Rows Removed by"))
            yield node, (node["Actual Rows"] + dropped) * node["Actual Loops"]


class Explained:
    """A session that keeps the plan of every statement, nested ones too."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.session = Session(connection)
        self.plans: list[Plan] = []

    async def start(self) -> None:
        await self.session.sql.execute(
            "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on; "
            "SET auto_explain.log_analyze = on; SET auto_explain.log_timing = off; "
            "SET auto_explain.log_format = 'json'; SET client_min_messages = log"
        )
        self.session.sql.add_log_listener(self._listen)

    def _listen(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        text = message.message or ""
        if "plan:" in text:
            entry = json.loads(text[text.index("{") :])
            self.plans.append(Plan(entry["Query Text"], entry["Plan"]))

    @asynccontextmanager
    async def undone(self) -> AsyncIterator[Session]:
        """The plans of what is done in here; then it is undone."""
        await self.session.begin()
        self.plans.clear()
        yield self.session
        await self.session.rollback()

    async def stop(self) -> None:
        self.session.sql.remove_log_listener(self._listen)
        await self.session.sql.execute("RESET ALL")


SITUATIONS = {
    "psql": ANALYZED,
    "psql, generic plans": ANALYZED,
    "server": ANALYZED,
    "server without statistics": NEVER,
    "server with old statistics": GROWN,
}


@pytest.fixture(params=SITUATIONS)
async def explained(postgres: Any, large: dict[str, str], request: pytest.FixtureRequest) -> AsyncIterator[Explained]:
    """A session with the defaults of PostgreSQL, or one of the server's pool, which must do without statistics, too.

    PL/pgSQL plans the first calls of a statement with the values at hand and later ones without.
    """
    # Only an administrator may load auto_explain.
    url = postgres.administrator_of(large[SITUATIONS[request.param]])
    if "server" in request.param:
        database = Database(DatabaseSettings(), url)
        await database.open()
        if SITUATIONS[request.param] == GROWN:
            await Planning(database).work()
        async with database.connection() as pooled:
            session = Explained(pooled)
            await session.start()
            yield session
            await session.stop()
        await database.close()
    else:
        session = Explained(await asyncpg.connect(url))
        mode = "force_generic_plan" if "generic" in request.param else "force_custom_plan"
        await session.session.sql.execute(f"SET plan_cache_mode = {mode}")
        await session.start()
        yield session
        await session.session.sql.close()


async def _pop(session: Session, count: int, **options: Any) -> list[tuple[Pop, asyncpg.Record]]:
    pops = [Pop("q", batch=1, **options) for _ in range(count)]
    return [(p, row) for p, got in zip(pops, await session.pop_merged(pops), strict=True) for row in got.rows]


async def _push(session: Session, count: int) -> None:
    await session.push(*(("q", f"p{n}", str(uuid7())) for n in range(1, count + 1)))


async def _push_to_new_partitions(session: Session, count: int) -> None:
    await session.push(*(("q", str(uuid7()), "1") for n in range(count)))


async def _push_duplicates(session: Session, count: int) -> None:
    outcomes = await session.push(*(("q", f"p{n}", "1") for n in range(1, count + 1)))
    assert {outcome.status for outcome in outcomes} == {"duplicate"}


async def _push_to_long(session: Session, count: int) -> None:
    outcomes = await session.push(("long", "p1", "new"), *(("long", "p1", str(n)) for n in range(1, count)))
    assert [outcome.status for outcome in outcomes] == ["queued"] + ["duplicate"] * (count - 1)


async def _insert(session: Session, count: int) -> None:
    await session.insert("q", "p7", *(str(uuid7()) for _ in range(count)))


async def _pop_any(session: Session, count: int) -> None:
    assert len(await _pop(session, count)) == count


async def _pop_wide(session: Session, count: int) -> None:
    popped = await session.pop("q", batch=count * MESSAGES, partitions=count)
    assert len(popped.rows) == count * MESSAGES


async def _pop_one_partition(session: Session, count: int) -> None:
    popped = [await session.pop("q", f"p{1000 + n}", group="g", batch=5) for n in range(count)]
    assert {len(p.rows) for p in popped} == {MESSAGES}


async def _pop_and_consume(session: Session, count: int) -> None:
    assert len(await _pop(session, count, auto_ack=True)) == count


async def _pop_long(session: Session, count: int) -> None:
    """A part of it, then some acks in the middle, then what comes next."""
    lease = str(uuid7())
    rows = (await session.pop("long", batch=count, lease_id=lease)).rows
    assert len(rows) == count
    assert {one.problem for one in await session.ack(ack(row, lease) for row in rows[count // 2 :])} == {None}
    assert {one.problem for one in await session.ack(ack(row, lease) for row in rows[: count // 2])} <= {None}
    assert len((await session.pop("long", batch=count)).rows) == count


async def _ack_unfenced(session: Session, count: int) -> None:
    [row] = (await session.pop("long", group="g")).rows
    items = [replace(ack(row, None, group="g"), transaction_id=str(9000 + n)) for n in range(count)]
    assert {one.problem for one in await session.ack(items)} == {None}


async def _ack(session: Session, count: int, *statuses: str) -> None:
    popped = await _pop(session, count)
    items = [ack(row, p.lease_id, statuses[n % len(statuses)]) for n, (p, row) in enumerate(popped)]
    assert {one.problem for one in await session.ack(items)} == {None}


async def _ack_completed(session: Session, count: int) -> None:
    await _ack(session, count, "completed")


async def _ack_mixed(session: Session, count: int) -> None:
    await _ack(session, count, "dlq", "failed", "retry", "completed")


async def _ack_lease(session: Session, count: int) -> None:
    lease = str(uuid7())
    rows = (await session.pop("long", batch=count, lease_id=lease)).rows
    assert {one.problem for one in await session.ack(ack(row, lease) for row in rows)} == {None}


async def _renew(session: Session, count: int) -> None:
    popped = await _pop(session, count)
    assert len(await session.renew(*(p.lease_id for p, _ in popped))) == count


async def _release(session: Session, count: int) -> None:
    await session.release(*(p.lease_id for p, _ in await _pop(session, count)))


async def _transact(session: Session, count: int) -> None:
    popped = await _pop(session, count)
    call = PushCall.merge([Message("q", f"p{n + 1}", b"1", str(uuid7()), str(uuid7())) for n in range(count)])
    acks = [
        Acknowledgement(str(row["partition_id"]), row["transaction_id"], None, None, "completed", None)
        for _, row in popped
    ]
    leases = [p.lease_id for p, _ in popped]
    arguments = (*call.arguments(), *columns(acks), leases, None)
    assert await session.sql.fetchrow(statement("transact"), *arguments, LOCK_TIMEOUT)


async def _look_over(session: Session, count: int) -> None:
    names = [f"p{n + 1}" for n in range(count)]
    assert len(await session.sql.fetch(statement("partitions_ready"), "q", "g", names)) == count


async def _subscribe(session: Session, count: int) -> None:
    """The first step of it."""
    assert not await session.sql.fetchval(SUBSCRIBE, "late", count)


OPERATIONS: dict[str, Callable[[Session, int], Awaitable[None]]] = {
    "push": _push,
    "push to new partitions": _push_to_new_partitions,
    "push duplicates": _push_duplicates,
    "push to a long partition": _push_to_long,
    "insert": _insert,
    "pop any": _pop_any,
    "look over partitions": _look_over,
    "pop many partitions": _pop_wide,
    "pop one partition": _pop_one_partition,
    "pop with auto ack": _pop_and_consume,
    "pop and ack a long partition": _pop_long,
    "ack in the middle of a long partition": _ack_unfenced,
    "ack": _ack_completed,
    "ack mixed": _ack_mixed,
    "ack a whole lease": _ack_lease,
    "renew": _renew,
    "release": _release,
    "transact": _transact,
    "subscribe": _subscribe,
}


@pytest.mark.parametrize("count", [1, 100])
async def test_no_statement_scans_or_touches_more_than_it_is_about(explained: Explained, count: int) -> None:
    wrong = set()
    for name, operation in OPERATIONS.items():
        async with explained.undone() as session:
            await operation(session, count)
        reads = [(plan, node, rows) for plan in explained.plans for node, rows in plan.reads()]
        assert reads, f"{name}: nothing was explained"
        for plan, node, rows in reads:
            if node["Node Type"] == "Seq Scan" or rows > SLACK + count * MESSAGES * 3:
                found = f"{node['Node Type']} on {node['Relation Name']}, {rows:.0f} rows"
                wrong.add(f"{name}: {found} in\n{plan.text}")
    assert not wrong, "\n".join(sorted(wrong))


async def test_a_large_call_costs_its_size_also_when_it_was_planned_for_small_ones(explained: Explained) -> None:
    """A session plans a statement for the calls that it sees first, and keeps the plan: joins must not be quadratic."""
    wrong = set()
    for name, operation in OPERATIONS.items():
        for _ in range(6):
            async with explained.undone() as session:
                await operation(session, 1)
        count = 400
        async with explained.undone() as session:
            await operation(session, count)
        for plan in explained.plans:
            for node, rows in plan.steps():
                if rows > SLACK + count * MESSAGES * 6:
                    wrong.add(f"{name}: {node['Node Type']} handled {rows:.0f} rows in\n{plan.text}")
    assert not wrong, "\n".join(sorted(wrong))


async def test_no_message_is_looked_up_for_an_ack_of_a_whole_lease(explained: Explained) -> None:
    async with explained.undone() as session:
        await _ack_lease(session, 100)
    reads = [node for plan in explained.plans for node, _ in plan.reads() if node["Relation Name"] == "messages"]
    assert {node["Index Name"] for node in reads} == {"messages_pkey"}
    assert {node["Actual Loops"] for node in reads} - {0} == {1}


@pytest.mark.parametrize("count", [1, 100])
async def test_a_claim_walks_the_index_of_ready_partitions_and_stops(explained: Explained, count: int) -> None:
    async with explained.undone() as session:
        await _pop_any(session, count)
    claims = [plan for plan in explained.plans if "ready_at <=" in plan.text and "SKIP LOCKED" in plan.text]
    assert claims
    for claim in claims:
        kinds = {node["Node Type"] for node in claim.nodes()}
        assert "Limit" in kinds
        assert not kinds & {"Sort", "Incremental Sort", "Bitmap Heap Scan", "Seq Scan"}
        [(scan, rows)] = claim.reads()
        assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "partition_consumers_ready")
        assert rows <= count


async def test_a_claim_costs_the_same_when_nothing_is_ready(explained: Explained) -> None:
    """Everything is under a lease: the index says so at once."""
    async with explained.undone() as session:
        await session.sql.execute(
            "UPDATE queen.partition_consumers SET ready_at = ready_at + interval '1 hour', lease_offsets = '{[1,3)}', "
            "lease_expires_at = ready_at + interval '1 hour', lease_id = gen_random_uuid() WHERE consumer_group = 'g'"
        )
        explained.plans.clear()
        assert await _pop(session, 1, group="g") == []
    for plan in explained.plans:
        for node, rows in plan.reads():
            assert rows <= SLACK, f"{node['Node Type']} on {node['Relation Name']}: {rows} rows in\n{plan.text}"


async def test_a_group_subscribes_in_linear_time_also_before_the_statistics_are_renewed(postgres: Any) -> None:
    url = await postgres.create()
    await _fill(url, GROWN)
    connection = await asyncpg.connect(postgres.administrator_of(url))
    session = Explained(connection)
    await session.start()
    steps = 0
    while not await connection.fetchval(SUBSCRIBE, "late", 1000):
        steps += 1
    for plan in session.plans:
        for node, rows in plan.steps():
            assert rows <= PARTITIONS * 1.1, f"{node['Node Type']} handled {rows:.0f} rows in\n{plan.text}"
    assert steps == PARTITIONS // 1000
    await connection.close()
    await postgres.drop(url)
