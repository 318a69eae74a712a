"""The schema: built from nothing, upgraded with its data, by several servers at once, and never downgraded."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import httpx
import pytest
from integration.queen import another_server
from server_settings import settings_with

from queenmq.errors import StartupError
from queenmq.server import Server
from queenmq.storage import migrations as module
from queenmq.storage.database import Database
from queenmq.storage.migrations import migrate
from queenmq.storage.statements import function_set
from queenmq.storage.steps import Migration, migrations

if TYPE_CHECKING:
    from conftest import Postgres

NEWEST = migrations()[-1].version
SETTINGS = settings_with()

CATALOG = """
    SELECT 'column' AS kind, table_name || '.' || column_name AS name,
           concat_ws(' ', data_type, is_nullable, column_default, collation_name) AS definition
    FROM information_schema.columns WHERE table_schema = 'queen'
    UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'queen'
    UNION ALL SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'queen'::regnamespace
    UNION ALL SELECT 'storage', relname, reloptions::text
    FROM pg_class WHERE relnamespace = 'queen'::regnamespace AND relkind = 'r'
    UNION ALL SELECT 'function', oid::regprocedure::text, pg_get_functiondef(oid)
    FROM pg_proc WHERE pronamespace = 'queen'::regnamespace
    UNION ALL SELECT 'trigger', tgrelid::regclass || '.' || tgname, pg_get_triggerdef(oid)
    FROM pg_trigger WHERE NOT tgisinternal
    ORDER BY 1, 2, 3
"""


@pytest.fixture
async def database(empty_url: str) -> AsyncIterator[Database]:
    opened = Database(SETTINGS.database, empty_url)
    await opened.open()
    yield opened
    await opened.close()


async def catalog(sql: asyncpg.Connection) -> list[tuple[str, str, str]]:
    return [tuple(row) for row in await sql.fetch(CATALOG)]


async def catalog_of(url: str) -> list[tuple[str, str, str]]:
    connection = await asyncpg.connect(url)
    try:
        return await catalog(connection)
    finally:
        await connection.close()


async def test_the_schema_is_built_from_nothing(database: Database, sql: asyncpg.Connection) -> None:
    assert await migrate(database) == NEWEST
    versions = await sql.fetch("SELECT version FROM queen.schema_migrations ORDER BY version")
    assert [row["version"] for row in versions] == [migration.version for migration in migrations()]
    tables = await sql.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'queen'::regnamespace AND relkind = 'r'"
    )
    promised = {"queues", "partitions", "messages", "partition_consumers", "partition_lookup", "dead_letter_queue"}
    assert promised <= {row["relname"] for row in tables}


async def test_every_function_and_trigger_of_the_folder_exists_and_no_other(
    database: Database, sql: asyncpg.Connection
) -> None:
    await migrate(database)
    folder = Path(module.__file__).parent / "sql" / "functions"
    text = "\n".join(file.read_text("utf-8") for file in folder.rglob("*.sql"))
    functions = await sql.fetch("SELECT proname FROM pg_proc WHERE pronamespace = 'queen'::regnamespace")
    named = {row["proname"].removesuffix(f"_{function_set().name}") for row in functions}
    assert named == set(re.findall(r"REPLACE FUNCTION queen\.(\w+)", text))
    assert function_set().public <= {row["proname"] for row in functions}
    triggers = await sql.fetch("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal")
    assert {row["tgname"] for row in triggers} == set(re.findall(r"^CREATE .*TRIGGER (\w+)", text, re.MULTILINE))


async def test_no_two_have_the_same_number() -> None:
    numbers = [migration.version for migration in migrations()]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1


async def test_a_second_run_changes_nothing(database: Database, sql: asyncpg.Connection) -> None:
    await migrate(database)
    rows = "SELECT xmin, * FROM queen.schema_migrations ORDER BY version"
    oids = "SELECT oid, xmin FROM pg_proc WHERE pronamespace = 'queen'::regnamespace ORDER BY oid"
    before = [await sql.fetch(rows), await sql.fetch(oids), await catalog(sql)]
    assert await migrate(database) == NEWEST
    assert [await sql.fetch(rows), await sql.fetch(oids), await catalog(sql)] == before


async def test_an_upgraded_schema_equals_a_new_one(
    database: Database, sql: asyncpg.Connection, database_url: str
) -> None:
    for version in (migration.version for migration in migrations()):
        assert await migrate(database, upto=version) == version
    await migrate(database)
    assert await catalog(sql) == await catalog_of(database_url)


async def test_messages_that_were_deleted_by_hand_become_known(database: Database, sql: asyncpg.Connection) -> None:
    """Before version 13 only their number was kept. If others are missing as well, nobody knows which are which."""
    await migrate(database, upto=8)
    queue = await sql.fetchval("INSERT INTO queen.queues (name) VALUES ('orders') RETURNING id")
    stored = {"deleted": [2, 4, 7], "lost": [2, 4, 8], "whole": [2, 3, 4, 5, 6, 7, 8]}
    for name, offsets in stored.items():
        partition = await sql.fetchval(
            "INSERT INTO queen.partitions (queue_id, name) VALUES ($1, $2) RETURNING id", queue, name
        )
        await sql.execute(
            "INSERT INTO queen.partition_lookup (partition_id, queue_id, first_offset, last_offset, holes) "
            "VALUES ($1, $2, 2, 8, $3)",
            partition,
            queue,
            {"deleted": 4, "lost": 3}.get(name, 0),
        )
        await sql.execute(
            'INSERT INTO queen.messages (partition_id, "offset", transaction_id, payload) '
            "SELECT $1, n, n::text, '1' FROM unnest($2::bigint[]) n",
            partition,
            offsets,
        )
    await migrate(database)
    known = "SELECT p.name, d.first_offset, d.last_offset FROM queen.deleted_offsets d JOIN queen.partitions p "
    found = await sql.fetch(known + "ON p.id = d.partition_id ORDER BY 1, 2")
    assert [tuple(row) for row in found] == [("deleted", 3, 3), ("deleted", 5, 6), ("deleted", 8, 8)]


class TestUpgradeOfTheFirstVersion:
    """In version 1 the head of a partition is the column `last_offset` of its own row."""

    QUEUE = UUID(int=1)
    FULL, TRIMMED, EMPTY, DRAINED = (UUID(int=n) for n in (10, 11, 12, 13))

    @pytest.fixture
    async def old(self, database: Database, sql: asyncpg.Connection) -> Database:
        await migrate(database, upto=1)
        await sql.execute("INSERT INTO queen.queues (id, name) VALUES ($1, 'orders')", self.QUEUE)
        heads = (
            (self.FULL, "full", 3),
            (self.TRIMMED, "trimmed", 7),
            (self.EMPTY, "empty", 0),
            (self.DRAINED, "drained", 5),
        )
        for partition, name, last_offset in heads:
            await sql.execute(
                "INSERT INTO queen.partitions (id, queue_id, name, last_offset) VALUES ($1, $2, $3, $4)",
                partition,
                self.QUEUE,
                name,
                last_offset,
            )
        for partition, offset in ((self.FULL, 1), (self.FULL, 2), (self.FULL, 3), (self.TRIMMED, 6), (self.TRIMMED, 7)):
            await sql.execute(
                'INSERT INTO queen.messages (partition_id, "offset", transaction_id, payload) VALUES ($1, $2, $3, $4)',
                partition,
                offset,
                f"t{offset}",
                str(offset).encode(),
            )
        await sql.execute(
            "INSERT INTO queen.consumer_groups (queue_name, name, registered) VALUES ('orders', 'g', true)"
        )
        for partition, position in ((self.FULL, 1), (self.TRIMMED, 2), (self.EMPTY, 0), (self.DRAINED, 5)):
            await sql.execute(
                "INSERT INTO queen.partition_consumers (partition_id, consumer_group, queue_id, position, ready_at) "
                "VALUES ($1, 'g', $2, $3, now())",
                partition,
                self.QUEUE,
                position,
            )
        return database

    async def test_the_heads_are_right(self, old: Database, sql: asyncpg.Connection) -> None:
        assert await migrate(old) == NEWEST
        rows = await sql.fetch(
            "SELECT l.partition_id, l.queue_id, l.first_offset, l.last_offset, l.last_message_id = m.id AS id, "
            "l.last_message_at = m.created_at AS at FROM queen.partition_lookup l "
            'LEFT JOIN queen.messages m ON m.partition_id = l.partition_id AND m."offset" = l.last_offset '
            "ORDER BY l.partition_id"
        )
        assert [tuple(row) for row in rows] == [
            (self.FULL, self.QUEUE, 1, 3, True, True),
            (self.TRIMMED, self.QUEUE, 6, 7, True, True),
            (self.EMPTY, self.QUEUE, 1, 0, None, None),
            (self.DRAINED, self.QUEUE, 6, 5, None, None),
        ]

    async def test_messages_can_be_popped_and_pushes_go_on(
        self, old: Database, sql: asyncpg.Connection, empty_url: str
    ) -> None:
        server = Server(SETTINGS, empty_url)
        await server.start()
        try:
            host, port = server.address
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as http:
                names = ("full", "trimmed", "empty", "drained")
                items = [{"queue": "orders", "partition": name, "payload": f"new in {name}"} for name in names]
                duplicate = {"queue": "orders", "partition": "full", "transactionId": "t3"}
                pushed = (await http.post("/api/v1/push", json={"items": [*items, duplicate]})).json()
                assert [result["status"] for result in pushed] == ["queued"] * 4 + ["duplicate"]
                parameters = {"batch": 100, "partitions": 10, "autoAck": True}
                all_of_it = (await http.get("/api/v1/pop/queue/orders", params=parameters)).json()["messages"]
                rest = (await http.get("/api/v1/pop/queue/orders", params=parameters | {"consumerGroup": "g"})).json()
        finally:
            await server.stop()
        offsets = await sql.fetch(
            'SELECT p.name, array_agg(m."offset" ORDER BY m."offset") AS offsets FROM queen.messages m '
            "JOIN queen.partitions p ON p.id = m.partition_id GROUP BY p.name"
        )
        expected = {"full": [1, 2, 3, 4], "trimmed": [6, 7, 8], "empty": [1], "drained": [6]}
        assert {row["name"]: row["offsets"] for row in offsets} == expected
        assert _by_partition(all_of_it) == {
            "full": [1, 2, 3, "new in full"],
            "trimmed": [6, 7, "new in trimmed"],
            "empty": ["new in empty"],
            "drained": ["new in drained"],
        }
        assert _by_partition(rest["messages"]) == {
            "full": [2, 3, "new in full"],
            "trimmed": [6, 7, "new in trimmed"],
            "empty": ["new in empty"],
            "drained": ["new in drained"],
        }

    async def test_several_servers_upgrade_at_once(
        self, old: Database, sql: asyncpg.Connection, empty_url: str
    ) -> None:
        assert await migrate_many(empty_url, 5) == [NEWEST] * 5
        assert await sql.fetchval("SELECT count(*) FROM queen.partition_lookup") == 4


def _by_partition(messages: list[dict[str, object]]) -> dict[object, list[object]]:
    found: dict[object, list[object]] = {}
    for message in messages:
        found.setdefault(message["partition"], []).append(message["data"])
    return found


async def migrate_many(url: str, count: int) -> list[int]:
    """What `count` servers report that migrate at the same time."""
    async with AsyncExitStack() as stack:
        databases = [Database(SETTINGS.database, url) for _ in range(count)]
        for database in databases:
            await database.open()
            stack.push_async_callback(database.close)
        return await asyncio.gather(*(migrate(database) for database in databases))


async def test_failures_so_far_are_those_of_the_head(database: Database, sql: asyncpg.Connection) -> None:
    """Which message of a partition had failed was not known before."""
    [version] = [migration.version for migration in migrations() if migration.name == "failures_and_stream_reads"]
    await migrate(database, upto=version - 1)
    await sql.execute("INSERT INTO queen.queues (id, name) VALUES ($1, 'orders')", UUID(int=1))
    places = (("waiting", 1, 2, 2), ("trimmed", 4, 0, 1), ("read", 1, 5, 3), ("calm", 1, 2, 0))
    for number, (name, first_offset, position, attempts) in enumerate(places, 10):
        place = UUID(int=number)
        await sql.execute("INSERT INTO queen.partitions VALUES ($1, $2, $3)", place, UUID(int=1), name)
        await sql.execute(
            "INSERT INTO queen.partition_lookup (partition_id, queue_id, first_offset, last_offset) "
            "VALUES ($1, $2, $3, 5)",
            *(place, UUID(int=1), first_offset),
        )
        await sql.execute(
            "INSERT INTO queen.partition_consumers (partition_id, consumer_group, queue_id, position, attempts) "
            "VALUES ($1, 'g', $2, $3, $4)",
            *(place, UUID(int=1), position, attempts),
        )
    await migrate(database)
    rows = await sql.fetch(
        "SELECT p.name, c.attempts, f.times, f.offsets::text FROM queen.partition_consumers c "
        "JOIN queen.partitions p ON p.id = c.partition_id LEFT JOIN unnest(c.failures) AS f ON true ORDER BY p.id"
    )
    assert [tuple(row) for row in rows] == [
        ("waiting", 2, 2, "{[3,4)}"),
        ("trimmed", 1, 1, "{[4,5)}"),
        ("read", 0, None, None),
        ("calm", 0, None, None),
    ]


async def test_several_servers_build_it_at_once(sql: asyncpg.Connection, empty_url: str, database_url: str) -> None:
    assert await migrate_many(empty_url, 8) == [NEWEST] * 8
    assert await sql.fetchval("SELECT count(*) FROM queen.schema_migrations") == len(migrations())
    assert await catalog(sql) == await catalog_of(database_url)


async def test_a_newer_schema_is_refused_with_a_sentence(
    database: Database, sql: asyncpg.Connection, empty_url: str
) -> None:
    await migrate(database)
    await sql.execute("INSERT INTO queen.schema_migrations (version, name) VALUES (999, 'tomorrow')")
    before = await catalog(sql)
    sentence = f"the database has schema version 999, this Queen knows only up to {NEWEST}: run a newer Queen"
    with pytest.raises(StartupError, match=re.escape(sentence)):
        await migrate(database)
    with pytest.raises(StartupError, match=re.escape(sentence)):
        await Server(SETTINGS, empty_url).start()
    assert await catalog(sql) == before


async def test_a_failing_migration_leaves_the_old_schema(
    database: Database, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that fails leaves nothing. Those before it are done, and the next attempt goes on behind them."""
    await migrate(database)
    before = await catalog(sql)
    broken = Migration(NEWEST + 1, "broken", "SELECT 1/0; CREATE TABLE queen.half (a int);")
    monkeypatch.setattr(module, "migrations", lambda: (*migrations(), broken))
    with pytest.raises(StartupError, match="cannot be created or upgraded: division by zero"):
        await migrate(database)
    assert await catalog(sql) == before
    half = Migration(NEWEST + 1, "half", "CREATE TABLE queen.half (a int); INSERT INTO queen.half SELECT 1/0;")
    monkeypatch.setattr(module, "migrations", lambda: (*migrations(), half))
    with pytest.raises(StartupError, match="division by zero"):
        await migrate(database)
    mended = Migration(NEWEST + 1, "half", "CREATE TABLE queen.half (a int); INSERT INTO queen.half SELECT 1;")
    monkeypatch.setattr(module, "migrations", lambda: (*migrations(), mended))
    assert await migrate(database) == NEWEST + 1
    assert await sql.fetchval("SELECT count(*) FROM queen.half") == 1
    assert await sql.fetchval("SELECT max(version) FROM queen.schema_migrations") == NEWEST


@pytest.fixture
async def plain_role(postgres: Postgres) -> AsyncIterator[str]:
    """A role that owns nothing; its name is its password."""
    role = f"queen_test_nobody{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    administrator = await asyncpg.connect(postgres.url)
    try:
        await administrator.execute(f"DROP ROLE IF EXISTS {role}")
        await administrator.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
        yield role
        await administrator.execute(f"DROP ROLE {role}")
    finally:
        await administrator.close()


async def test_a_user_who_may_not_create_it_gets_a_sentence(plain_role: str, empty_url: str) -> None:
    url = re.sub(r"//[^@]*@", f"//{plain_role}:{plain_role}@", empty_url)
    with pytest.raises(StartupError, match="permission denied"):
        await Server(SETTINGS, url).start()


async def test_a_role_that_owns_only_the_schema_is_enough(plain_role: str, postgres: Postgres, empty_url: str) -> None:
    administrator = await asyncpg.connect(postgres.administrator_of(empty_url))
    await administrator.execute(
        f"CREATE SCHEMA queen AUTHORIZATION {plain_role}; REVOKE ALL ON SCHEMA public FROM PUBLIC;"
        f"REVOKE TEMPORARY ON DATABASE {empty_url.rsplit('/', 1)[1]} FROM PUBLIC"
    )
    try:
        url = re.sub(r"//[^@]*@", f"//{plain_role}:{plain_role}@", empty_url)
        for _ in range(2):
            async with another_server(SETTINGS, url) as queen:
                await queen.push("orders", "a")
                await queen.ack_batch(await queen.pop("orders"))
                assert (await queen.http.get("/api/v1/analytics/postgres-stats")).status_code == 200
                await queen.delete_queue("orders")
    finally:
        await administrator.execute(f"DROP OWNED BY {plain_role} CASCADE")
        await administrator.close()
