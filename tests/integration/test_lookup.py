"""partition_lookup is right for every way a row gets into queen.messages, and can be checked and rebuilt."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import asyncpg
import httpx
import pytest

from integration.queen import Queen
from queenmq.server import Server

QUEEN = "import sys; from queenmq.cli.main import main; sys.exit(main())"


async def admin(url: str, action: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        QUEEN,
        "admin",
        action,
        env=os.environ | {"DATABASE_URL": url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def push(http: httpx.AsyncClient, partition: str, count: int = 1) -> str:
    items = [{"queue": "q", "partition": partition, "payload": n} for n in range(count)]
    answer = await http.post("/api/v1/push", json={"items": items})
    assert answer.status_code == 201
    partition_id: str = answer.json()[0]["partitionId"]
    return partition_id


async def pop_all(http: httpx.AsyncClient) -> int:
    answer = await http.get("/api/v1/pop/queue/q?batch=1000&partitions=1000&autoAck=true")
    return 0 if answer.status_code == 204 else len(answer.json()["messages"])


async def test_push_and_plain_insert_keep_the_head(http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    partition = await push(http, "a", 3)
    await sql.execute(
        "INSERT INTO queen.messages (partition_id, payload) SELECT $1, '1' FROM generate_series(1, 4)", partition
    )
    head = await sql.fetchrow("SELECT * FROM queen.partition_lookup WHERE partition_id = $1", partition)
    last = await sql.fetchrow(
        'SELECT id, created_at, "offset" FROM queen.messages WHERE partition_id = $1 ORDER BY "offset" DESC', partition
    )
    assert head is not None
    assert last is not None
    assert (head["last_offset"], head["last_message_id"]) == (7, last["id"])
    assert last["offset"] == 7
    assert await pop_all(http) == 7


async def test_a_statement_moves_a_head_once(http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    """Once a row would be quadratic: in a transaction each look at the head walks over all of its versions."""
    partitions = [await push(http, "a"), await push(http, "b")]
    async with sql.transaction():
        await sql.execute(
            "INSERT INTO queen.messages (partition_id) SELECT unnest($1::uuid[]) FROM generate_series(1, 50)",
            partitions,
        )
        updates = "SELECT n_tup_upd FROM pg_stat_xact_user_tables WHERE relid = 'queen.partition_lookup'::regclass"
        assert await sql.fetchval(updates) == 2
    assert [*await sql.fetch("SELECT last_offset FROM queen.partition_lookup")] == [(51,), (51,)]


async def test_a_rolled_back_insert_leaves_no_trace(http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    partition = await push(http, "a")
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("INSERT INTO queen.messages (partition_id, payload) VALUES ($1, '1')", partition)
    await transaction.rollback()
    await push(http, "a")
    offsets = await sql.fetch('SELECT "offset" FROM queen.messages ORDER BY 1')
    assert [row["offset"] for row in offsets] == [1, 2]


@pytest.mark.parametrize("offset", [5, 1])
@pytest.mark.parametrize("deleted", [False, True])
async def test_a_made_up_offset_is_refused(
    http: httpx.AsyncClient, sql: asyncpg.Connection, offset: int, deleted: bool
) -> None:
    partition = await push(http, "a")
    if deleted:
        await sql.execute("DELETE FROM queen.messages")
    with pytest.raises((asyncpg.ForeignKeyViolationError, asyncpg.UniqueViolationError)):
        await sql.execute('INSERT INTO queen.messages (partition_id, "offset") VALUES ($1, $2)', partition, offset)


async def test_an_unknown_partition_is_refused(http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    await push(http, "a")
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await sql.execute("INSERT INTO queen.messages (partition_id) VALUES (gen_random_uuid())")


async def test_other_isolation_levels_are_refused(http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    partition = await push(http, "a")
    async with sql.transaction(isolation="repeatable_read"):
        with pytest.raises(asyncpg.FeatureNotSupportedError):
            await sql.execute("INSERT INTO queen.messages (partition_id) VALUES ($1)", partition)


async def test_a_healthy_lookup_has_no_stale_rows(
    http: httpx.AsyncClient, database_url: str, sql: asyncpg.Connection
) -> None:
    await push(http, "a", 3)
    await pop_all(http)
    assert await admin(database_url, "check-lookup") == (0, "stale rows: 0\n")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE queen.partition_lookup SET last_offset = 1",
        "UPDATE queen.partition_lookup SET last_message_id = gen_random_uuid()",
        "UPDATE queen.partition_lookup SET first_offset = 3",
        "DELETE FROM queen.partition_lookup",
        "UPDATE queen.partition_consumers SET ready_at = NULL",
    ],
)
async def test_damage_is_reported_and_mended_while_servers_run(
    http: httpx.AsyncClient, server: Server, database_url: str, sql: asyncpg.Connection, damage: str
) -> None:
    await push(http, "a", 2)
    await pop_all(http)
    await push(http, "a", 2)
    await sql.execute(damage)
    status, report = await admin(database_url, "check-lookup")
    assert (status, report.splitlines()[-1]) == (1, "stale rows: 1")
    assert "q/a: " in report
    assert (await admin(database_url, "resync-lookup"))[0] == 0
    assert await admin(database_url, "check-lookup") == (0, "stale rows: 0\n")
    assert await admin(database_url, "resync-lookup") == (0, "rows changed: 0\n")
    await push(http, "a")
    assert await pop_all(http) == 3


async def test_a_lost_head_never_gives_an_offset_twice(
    http: httpx.AsyncClient, database_url: str, sql: asyncpg.Connection
) -> None:
    await push(http, "a", 5)
    await pop_all(http)
    await sql.execute("DELETE FROM queen.messages")
    await sql.execute("DELETE FROM queen.partition_lookup")
    assert (await admin(database_url, "resync-lookup"))[0] == 0
    await push(http, "a")
    assert await sql.fetchval('SELECT "offset" FROM queen.messages') == 6
    assert await pop_all(http) == 1


async def test_a_foreign_database_is_a_sentence(postgres_url: str) -> None:
    status, report = await admin(postgres_url, "check-lookup")
    assert status == 1
    assert report.startswith("queen: the database has schema version none")


PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


async def test_a_view_has_other_names_for_the_same(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders")
    await asyncio.gather(*(queen.push("orders", *range(5), partition=f"p{n % 2}") for n in range(10)))
    [block] = [text for text in re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.S) if "_by_name" in text]
    counted, stale = block.strip().rstrip(";").split(";")
    assert tuple(await sql.fetchrow(counted)) == (3, 2)
    assert await sql.fetchval(stale) == 0
    [row, _] = await sql.fetch(
        "SELECT queue_name, updated_at FROM queen.partition_lookup_by_name pl ORDER BY pl.queue_name"
    )
    assert row["queue_name"] == "orders"


# What an operator checks a lookup table of those names with, as it was written for the table.
TOTALS = """
    SELECT COUNT(*) as total_partitions, COUNT(pl.id) as partitions_with_messages
    FROM queen.partitions p
    LEFT JOIN queen.partition_lookup pl ON pl.partition_id = p.id;
"""
STALE = """
    SELECT COUNT(*) as partitions_with_stale_lookup
    FROM queen.partition_lookup pl
    WHERE EXISTS (
        SELECT 1 FROM queen.messages m
        WHERE m.partition_id = pl.partition_id
          AND (m.created_at > pl.last_message_created_at
               OR (m.created_at = pl.last_message_created_at AND m.id > pl.last_message_id))
    );
"""
NEWER_ONLY = """
    SELECT
        pl.queue_name,
        pl.partition_id,
        pl.last_message_id,
        (SELECT COUNT(*) FROM queen.messages m
         WHERE m.partition_id = pl.partition_id
           AND m.created_at > pl.last_message_created_at) as newer
    FROM queen.partition_lookup pl
    WHERE EXISTS (
        SELECT 1 FROM queen.messages m
        WHERE m.partition_id = pl.partition_id
          AND m.created_at > pl.last_message_created_at
    )
    LIMIT 10;
"""
NEWER = (
    """
    SELECT
        pl.queue_name,
        pl.partition_id,
        pl.last_message_id,
        pl.last_message_created_at,
        pl.updated_at,
        (SELECT COUNT(*) FROM queen.messages m
         WHERE m.partition_id = pl.partition_id
           AND (m.created_at > pl.last_message_created_at
                OR (m.created_at = pl.last_message_created_at AND m.id > pl.last_message_id))
        ) as newer
    FROM queen.partition_lookup pl
    ORDER BY pl.queue_name, pl.last_message_created_at DESC
    LIMIT 20;
    """,
    """
    SELECT
        pl.queue_name,
        pl.partition_id,
        pl.last_message_id,
        pl.last_message_created_at,
        pl.updated_at,
        (SELECT COUNT(*) FROM queen.messages m
         WHERE m.partition_id = pl.partition_id
           AND m.created_at > pl.last_message_created_at) as newer
    FROM queen.partition_lookup pl
    ORDER BY pl.updated_at DESC
    LIMIT 10;
    """,
)


def on_the_view(query: str) -> str:
    """As docs/operations.md says: with another name in the place of the table's, and nothing else."""
    return query.replace("queen.partition_lookup ", "queen.partition_lookup_by_name ")


async def test_what_checks_a_table_of_those_names_runs_on_the_view(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("empty")
    await asyncio.gather(*(queen.push("orders", *range(5), partition=f"p{n % 2}") for n in range(10)))
    await queen.pop("orders")
    partitions = await sql.fetchval("SELECT count(*) FROM queen.partitions")
    assert tuple(await sql.fetchrow(on_the_view(TOTALS))) == (partitions, 2)

    assert await sql.fetchval(on_the_view(STALE)) == 0
    assert await sql.fetch(on_the_view(NEWER_ONLY)) == []
    for query in map(on_the_view, NEWER):
        assert [(row["queue_name"], row["newer"]) for row in await sql.fetch(query)] == [("orders", 0)] * 2

    # By hand, both heads are set to a moment before their messages.
    await sql.execute("UPDATE queen.partition_lookup SET last_message_at = '2026-01-01' WHERE last_offset > 0")
    assert await sql.fetchval(on_the_view(STALE)) == 2
    for query in map(on_the_view, (*NEWER, NEWER_ONLY)):
        assert [(row["queue_name"], row["newer"]) for row in await sql.fetch(query)] == [("orders", 25)] * 2
