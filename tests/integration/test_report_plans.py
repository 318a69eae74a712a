"""The plans of what administration asks, on a database with many queues and partitions and a long partition.

As for the hot statements (test_plans): what is looked at is what runs in a session of the server, with nested
statements. Nothing may scan the messages or touch more of them than the answer is about, however many there are; nor
walk all partitions for one page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from integration.test_plans import Explained
from queenmq.broker.activity import Activity
from queenmq.broker.statistics import Statistics
from queenmq.config import DatabaseSettings, StatisticsSettings
from queenmq.core.names import QUEUE_MODE
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

PARTITIONS = 8_000  # of the large queue
QUEUES = 300  # others, of two partitions each
LENGTH = 20_000  # messages in the long partition
PAGE = 100
# Each partition or message of a page is looked at for a few reasons; and a walk over the queues is allowed.
MOST_MESSAGES = 60 * PAGE
MOST_PARTITIONS = 20 * PAGE
TABLES = (
    "messages",
    "partition_consumers",
    "partition_lookup",
    "partitions",
    "dead_letter_queue",
    "activity",
    "operation_queue",
)


@pytest.fixture(scope="module")
def url(postgres: Any) -> Iterator[str]:
    with asyncio.Runner() as runner:
        url = runner.run(postgres.create())
        runner.run(_fill(url))
        yield url
        runner.run(postgres.drop(url))


async def _fill(url: str) -> None:
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "off"})
    await connection.execute(
        "INSERT INTO queen.queues (name, namespace, task) "
        "SELECT name, 'ns', 't' FROM unnest(ARRAY['large', 'long']) AS t (name) "
        f"UNION ALL SELECT 'other' || n, 'ns' || n % 7, '' FROM generate_series(1, {QUEUES}) AS n"
    )
    await connection.execute(
        "INSERT INTO queen.consumer_groups (queue_name, name, registered) "
        "SELECT q.name, g, true FROM queen.queues q, unnest($1::text[]) AS g",
        [QUEUE_MODE, "g"],
    )
    await connection.execute(
        "INSERT INTO queen.partitions (queue_id, name) SELECT q.id, 'p' || n FROM queen.queues q, "
        f"generate_series(1, CASE q.name WHEN 'large' THEN {PARTITIONS} ELSE 2 END) AS n"
    )
    await connection.execute(
        'INSERT INTO queen.messages (partition_id, "offset", transaction_id, payload) '
        "SELECT p.id, n, n::text, '1' FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id, "
        f"generate_series(1, CASE WHEN q.name = 'long' AND p.name = 'p1' THEN {LENGTH} ELSE 2 END) AS n"
    )
    await connection.execute(
        "INSERT INTO queen.dead_letter_queue (queue_id, partition_id, partition_name, consumer_group, message_id, "
        'transaction_id, "offset", is_encrypted, payload, error_message, retry_count, created_at) '
        "SELECT p.queue_id, p.id, p.name, 'g', m.id, m.transaction_id, m.\"offset\", false, m.payload, 'broken', 3, "
        'm.created_at FROM queen.partitions p JOIN queen.messages m ON m.partition_id = p.id AND m."offset" = 1'
    )
    await connection.execute(
        "INSERT INTO queen.activity (queue_name, bucket, server, push_messages) SELECT q.name, "
        "date_trunc('minute', now()) - make_interval(mins => n), 's', 1 "
        "FROM (SELECT name FROM queen.queues UNION ALL SELECT '') q, generate_series(0, 60) AS n"
    )
    database = Database(DatabaseSettings(), url)
    await database.open()
    await Statistics(database, Activity(), StatisticsSettings(), "s", most_known=100, at_once=100).refresh(
        everything=True
    )
    await database.close()
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


@pytest.fixture
async def explained(postgres: Any, url: str) -> AsyncIterator[Explained]:
    # Only an administrator may load auto_explain.
    database = Database(DatabaseSettings(), postgres.administrator_of(url))
    await database.open()
    async with database.connection() as pooled:
        session = Explained(pooled)
        await session.start()
        yield session
        await session.stop()
    await database.close()


NO = None
HOUR = "now() - interval '1 hour'"
QUESTIONS: dict[str, tuple[Any, ...]] = {
    "queue_partitions": ("large", PAGE, 0),
    "partitions_listed": ("large name", PAGE, 0),
    "partition_heads": ("large", NO, NO, PAGE, 0, NO),
    "find_queues": ("arg", PAGE, NO),
    "find_groups": ("g", PAGE, NO),
    "find_messages": ("77", PAGE, NO, 50),
    "find_by_headers_recent": ('{"country": "IT"}', PAGE, NO, 50),
    "find_by_headers": ('{"country": "IT"}', PAGE, NO, 50),
    "queue_described": ("large name",),
    "queues_listed": (NO, NO, NO, PAGE, 0, NO, NO, NO),
    "namespaces_listed": (PAGE, 0, NO),
    "tasks_listed": (PAGE, 0, NO),
    "overview": (NO, NO, NO),
    "recent_rates": (),
    "groups_listed": (PAGE, 0, NO, NO, NO, NO, NO, 300),
    "groups_lagging": (0, PAGE, False),
    "groups_behind": (0, 10, False),
    "group_described": ("g", PAGE, False, NO),
    "top_errors": ("large name",),
    "affected_partitions": ("large name",),
    "dead_letters": (NO, NO, NO, NO, NO, PAGE, 0, 2**24, NO, NO),
    "message_described": ("long partition", "7"),
    "message_groups": ("long partition", 7, PAGE, "7"),
    "explain_positions": ("large", "g", NO, False, 20),
    "activity_totals": (),
    "processed_by_server": ("from", "to"),
    "activity_last_minute": (PAGE,),
    "dead_letters_by_queue": (PAGE,),
}
STRANGER = ("large", "stranger", NO, False, 20)  # a group that has no place in any of these partitions
LISTINGS = (
    ("large name", NO, NO, NO, NO, NO, PAGE, True, 2**24, NO),
    ("long name", NO, NO, NO, NO, NO, PAGE, True, 2**24, NO),
    ("long name", "p1", NO, NO, NO, NO, PAGE, True, 2**24, NO),
    ("long name", "p1", NO, NO, "from", "to", PAGE, True, 2**24, NO),
    (NO, NO, NO, NO, NO, NO, PAGE, True, 2**24, NO),
    (NO, NO, "ns3", NO, "from", NO, PAGE, True, 2**24, NO),
)


async def _known(connection: Any) -> dict[str, Any]:
    """What the arguments above stand for."""
    long = (
        "SELECT p.id FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id "
        "WHERE q.name = 'long' AND p.name = 'p1'"
    )
    return {
        "large": await connection.fetchval("SELECT id FROM queen.queues WHERE name = 'large'"),
        "large name": "large",
        "long name": "long",
        "long partition": await connection.fetchval(long),
        "from": await connection.fetchval(f"SELECT {HOUR}"),
        "to": await connection.fetchval("SELECT now() + interval '1 hour'"),
    }


def _touched(explained: Explained) -> dict[str, float]:
    """The rows that the statements looked at, by table; a scan of everything counts as more than there is."""
    touched = dict.fromkeys(TABLES, 0.0)
    for plan in explained.plans:
        for node in plan.nodes():
            table = node.get("Relation Name")
            if table not in touched or node["Node Type"] == "ModifyTable":
                continue
            dropped = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            touched[table] += (node["Actual Rows"] + dropped) * node["Actual Loops"]
            if node["Node Type"] == "Seq Scan" and node["Actual Loops"]:
                touched[table] += 10**9
    return touched


async def ask(explained: Explained, question: str, arguments: tuple[Any, ...]) -> dict[str, float]:
    known = await _known(explained.session.sql)
    given = [known.get(value, value) if isinstance(value, str) else value for value in arguments]
    explained.plans.clear()
    rows = await explained.session.sql.fetch(statement(question), *given)
    assert rows, f"{question} has no answer"
    await asyncio.sleep(0)
    assert explained.plans
    return _touched(explained)


@pytest.mark.parametrize("question", QUESTIONS)
async def test_no_question_touches_more_than_its_page(explained: Explained, question: str) -> None:
    touched = await ask(explained, question, QUESTIONS[question])
    assert touched["messages"] <= MOST_MESSAGES, touched
    assert touched["dead_letter_queue"] <= 1000 + MOST_MESSAGES, touched
    assert touched["activity"] <= 2 * QUEUES, touched
    for table in ("partition_consumers", "partition_lookup", "partitions"):
        assert touched[table] <= MOST_PARTITIONS, touched


async def test_a_group_that_never_started_is_told_by_some_partitions(explained: Explained) -> None:
    touched = await ask(explained, "explain_positions", STRANGER)
    assert touched["messages"] <= MOST_MESSAGES, touched
    for table in ("partition_consumers", "partition_lookup", "partitions"):
        assert touched[table] <= MOST_PARTITIONS, touched


@pytest.mark.parametrize("which", range(len(LISTINGS)))
async def test_no_listing_of_messages_scans_them(explained: Explained, which: int) -> None:
    touched = await ask(explained, "messages_listed", LISTINGS[which])
    assert touched["messages"] <= MOST_MESSAGES + PAGE * PAGE, touched


async def test_the_statistics_read_one_message_for_each_group_of_a_partition(explained: Explained) -> None:
    known = await _known(explained.session.sql)
    long = await explained.session.sql.fetchval("SELECT id FROM queen.queues WHERE name = 'long'")
    explained.plans.clear()
    now = await explained.session.sql.fetchval("SELECT clock_timestamp()")
    await explained.session.sql.fetch(statement("measure_page"), long, now, 5000, 100, False)
    assert _touched(explained)["messages"] <= 2 * 2
    explained.plans.clear()
    await explained.session.sql.fetch(statement("measure_page"), known["large"], now, 1000, 100, False)
    touched = _touched(explained)
    assert touched["messages"] <= 2000, touched
    assert touched["partition_lookup"] <= 1000, touched
    assert touched["partition_consumers"] <= 2000 + 5, touched  # and a step for each group
    assert touched["partitions"] == 0, touched


async def test_open_windows_are_found_without_reading_all_partitions(explained: Explained) -> None:
    async with explained.undone() as session:
        await session.sql.execute("UPDATE queen.queues SET window_buffer_s = 3600")
        await session.sql.execute("UPDATE queen.group_statistics SET lag = 0")
        explained.plans.clear()
        rows = await session.sql.fetch(statement("windows_open"), -3600, 10)
        assert len(rows) == 10
        touched = _touched(explained)
    assert touched["messages"] <= MOST_MESSAGES, touched
    for table in ("partition_consumers", "partition_lookup", "partitions"):
        assert touched[table] <= 2 * MOST_PARTITIONS, touched


async def test_completed_operations_are_not_looked_at(explained: Explained) -> None:
    async with explained.undone() as session:
        await session.sql.execute(
            "INSERT INTO queen.operation_queue (id, kind, queue_name, partition_name, status, finished_at) "
            "SELECT queen.uuid7(), 'push', 'large', 'p1', "
            "CASE WHEN n <= 10 THEN 'pending' WHEN n <= 20 THEN 'failed' ELSE 'completed' END, now() "
            "FROM generate_series(1, 5000) AS n"
        )
        for name, arguments, told in (
            ("operation_metrics", (), ("pending", 10)),
            ("operation_metrics", (), ("failed", 10)),
            ("explain_held", ("large", None, PAGE), ("operations", 10)),
        ):
            explained.plans.clear()
            [row] = await session.sql.fetch(statement(name), *arguments)
            assert row[told[0]] == told[1]
            assert _touched(explained)["operation_queue"] <= 100
