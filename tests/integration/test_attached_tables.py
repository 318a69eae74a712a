"""queen.attach: each change of a row is a message, in the transaction that makes it."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest
from conftest import Postgres

from integration.queen import Queen, until
from queenmq.server import Server

Json = dict[str, Any]

ORDERS = "CREATE TABLE public.orders (id integer PRIMARY KEY, state text, secret text)"


@pytest.fixture(autouse=True)
def _server(server: Server) -> None:
    """The outbox is emptied by it."""


@pytest.fixture
async def orders(sql: asyncpg.Connection) -> None:
    await sql.execute(ORDERS)
    await sql.execute("SELECT queen.attach('public.orders', 'changes')")


async def changes(queen: Queen, sql: asyncpg.Connection, queue: str = "changes") -> list[Json]:
    """All that was sent, without what is the same everywhere, in the order of delivery."""

    async def is_pushed() -> bool:
        return not await sql.fetchval("SELECT EXISTS (SELECT FROM queen.outbox)")

    await until(is_pushed)
    return [message["data"] for message in await queen.drain(queue, partitions=100)]


def bare(change: Json) -> Json:
    return {name: value for name, value in change.items() if name not in ("schema", "table")}


class TestChanges:
    async def test_insert_update_and_delete(self, queen: Queen, sql: asyncpg.Connection, orders: None) -> None:
        await sql.execute("INSERT INTO orders VALUES (17, 'placed')")
        await sql.execute("UPDATE orders SET state = 'billed'")
        await sql.execute("DELETE FROM orders")
        found = await changes(queen, sql)
        assert {(change["schema"], change["table"]) for change in found} == {("public", "orders")}
        placed, billed = ({"id": 17, "state": state, "secret": None} for state in ("placed", "billed"))
        assert [bare(change) for change in found] == [
            {"op": "insert", "key": {"id": 17}, "row": placed},
            {"op": "update", "key": {"id": 17}, "row": billed, "old": {"state": "placed"}},
            {"op": "delete", "key": {"id": 17}, "row": billed},
        ]

    async def test_a_rollback_sends_nothing(self, queen: Queen, sql: asyncpg.Connection, orders: None) -> None:
        transaction = sql.transaction()
        await transaction.start()
        await sql.execute("INSERT INTO orders VALUES (1, 'placed')")
        await transaction.rollback()
        assert await changes(queen, sql) == []

    async def test_an_update_that_changes_nothing(self, queen: Queen, sql: asyncpg.Connection, orders: None) -> None:
        await sql.execute("INSERT INTO orders VALUES (1, 'placed')")
        await sql.execute("UPDATE orders SET state = 'placed'")
        assert [change["op"] for change in await changes(queen, sql)] == ["insert"]

    async def test_another_key_is_another_row(self, queen: Queen, sql: asyncpg.Connection, orders: None) -> None:
        await sql.execute("INSERT INTO orders VALUES (1, 'placed')")
        await sql.execute("UPDATE orders SET id = 2")
        found = [(change["op"], change["key"]["id"]) for change in await changes(queen, sql)]
        assert found == [("insert", 1), ("delete", 1), ("insert", 2)]

    async def test_upserts(self, queen: Queen, sql: asyncpg.Connection, orders: None) -> None:
        upsert = "INSERT INTO orders VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET state = excluded.state"
        await sql.execute(upsert, "placed")
        await sql.execute(upsert, "billed")
        assert [change["op"] for change in await changes(queen, sql)] == ["insert", "update"]

    async def test_merges(self, queen: Queen, sql: asyncpg.Connection, orders: None) -> None:
        if sql.get_server_version() < (15,):
            pytest.skip("MERGE came with PostgreSQL 15")
        await sql.execute("INSERT INTO orders VALUES (1, 'placed'), (2, 'placed')")
        await sql.execute(
            "MERGE INTO orders o USING (VALUES (1, 'billed'), (2, 'gone'), (3, 'placed')) s (id, state) ON s.id = o.id "
            "WHEN MATCHED AND s.state = 'gone' THEN DELETE WHEN MATCHED THEN UPDATE SET state = s.state "
            "WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.state)"
        )
        found = [(change["op"], change["key"]["id"]) for change in await changes(queen, sql)]
        assert found[:2] == [("insert", 1), ("insert", 2)]
        assert sorted(found[2:]) == [("delete", 2), ("insert", 3), ("update", 1)]

    async def test_copy_keeps_the_order(self, queen: Queen, sql: asyncpg.Connection, orders: None) -> None:
        await sql.copy_records_to_table("orders", records=[(n, "placed", None) for n in range(2000)])
        assert [change["key"]["id"] for change in await changes(queen, sql)] == list(range(2000))

    async def test_columns_that_are_left_out(self, queen: Queen, sql: asyncpg.Connection, orders: None) -> None:
        await sql.execute("SELECT queen.attach('orders', 'changes', exclude => ARRAY['secret', 'id'])")
        await sql.execute("INSERT INTO orders VALUES (1, 'placed', 'pssst')")
        await sql.execute("UPDATE orders SET secret = 'hush'")
        assert [bare(change) for change in await changes(queen, sql)] == [
            {"op": "insert", "key": {"id": 1}, "row": {"state": "placed"}}
        ]

    async def test_a_column_that_is_left_out_is_not_converted(
        self, queen: Queen, sql: asyncpg.Connection, orders: None
    ) -> None:
        await sql.execute(
            "CREATE TYPE pin AS (digits text); CREATE FUNCTION no_json(pin) RETURNS json LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE 'converted'; END $$; CREATE CAST (pin AS json) WITH FUNCTION no_json(pin); "
            'ALTER TABLE orders ADD "the pin" pin'
        )
        await sql.execute("SELECT queen.attach('orders', 'changes', exclude => ARRAY['the pin', 'id'])")
        await sql.execute("INSERT INTO orders VALUES (1, 'placed', NULL, ROW('1234'))")
        await sql.execute("UPDATE orders SET state = 'billed', \"the pin\" = ROW('4321')")
        await sql.execute("ALTER TABLE orders DROP secret")
        await sql.execute("DELETE FROM orders")
        assert [bare(change) for change in await changes(queen, sql)] == [
            {"op": "insert", "key": {"id": 1}, "row": {"state": "placed", "secret": None}},
            {
                "op": "update",
                "key": {"id": 1},
                "row": {"state": "billed", "secret": None},
                "old": {"state": "placed"},
            },
            {"op": "delete", "key": {"id": 1}, "row": {"state": "billed"}},
        ]

    async def test_a_number_is_the_same_key_however_many_zeros_it_ends_with(
        self, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await sql.execute(
            "CREATE TABLE prices (price numeric, currency text, note text, PRIMARY KEY (price, currency))"
        )
        await sql.execute("SELECT queen.attach('prices', 'prices', partitions => 1000)")
        for price in range(10):
            await sql.execute(f"INSERT INTO prices VALUES ({price}.5, 'EUR')")
            await sql.execute(f"UPDATE prices SET price = {price}.500, note = 'the same' WHERE price = {price}.5")
            await sql.execute(f"DELETE FROM prices WHERE price = {price}.50")
        await changes(queen, sql, "prices")
        stored = await sql.fetch("SELECT partition_id, convert_from(payload, 'UTF8') AS payload FROM queen.messages")
        places = {(json.loads(row["payload"])["key"]["price"], row["partition_id"]) for row in stored}
        assert (len(stored), len(places)) == (30, 10)

    async def test_the_json_does_not_depend_on_the_session(
        self, queen: Queen, sql: asyncpg.Connection, orders: None
    ) -> None:
        await sql.execute("ALTER TABLE orders ADD at timestamptz, ADD took interval, ADD raw bytea, ADD price float8")
        values = "'2026-01-02 03:04:05+00', '1 day 2 hours', '\\x00ff', 0.1::float8 + 0.2::float8"
        await sql.execute(f"INSERT INTO orders SELECT 1, 'placed', NULL, {values}")
        await sql.execute(
            "SET timezone = 'Asia/Tokyo'; SET intervalstyle = 'sql_standard'; SET bytea_output = 'escape'; "
            "SET extra_float_digits = -10"
        )
        await sql.execute(f"INSERT INTO orders SELECT 2, 'placed', NULL, {values}")
        first, second = await changes(queen, sql)
        assert first["row"] | {"id": 2} == second["row"]
        assert (first["row"]["at"], first["row"]["took"]) == ("2026-01-02T03:04:05+00:00", "P1DT2H")

    async def test_a_row_that_is_too_large_is_left_out(
        self, queen: Queen, sql: asyncpg.Connection, orders: None
    ) -> None:
        """The application's own write does not fail for it."""
        await sql.execute("INSERT INTO orders VALUES (1, repeat('x', 17000000)), (2, repeat(chr(1), 2900000))")
        await sql.execute("UPDATE orders SET state = 'small'")
        large, escaped, *updates = await changes(queen, sql)
        for change in (large, escaped):
            assert (change["row"], change["omitted"]) == (None, True)
        assert [(change["key"]["id"], change["omitted"]) for change in updates] == [(1, True), (2, True)]


class TestTables:
    async def test_quoted_names_and_composite_keys(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await sql.execute(
            'CREATE SCHEMA "My Shop"; CREATE TABLE "My Shop"."Order\'s ""Lines""" '
            '("Order" integer, "Line" text, "a b" jsonb, PRIMARY KEY ("Line", "Order"))'
        )
        table = '"My Shop"."Order\'s ""Lines"""'
        await sql.execute("SELECT queen.attach($1::text::regclass, $2)", table, "it's a \\ queue")
        await sql.execute(f"INSERT INTO {table} VALUES (1, 'x', '[1]')")
        [change] = await changes(queen, sql, "it's a %5C queue")
        assert (change["schema"], change["table"]) == ("My Shop", 'Order\'s "Lines"')
        assert change["key"] == {"Order": 1, "Line": "x"}
        assert change["row"] == {"Order": 1, "Line": "x", "a b": [1]}
        assert await sql.fetchval("SELECT queen.detach($1::text::regclass)", table) == 1

    async def test_partitioned_tables(self, queen: Queen, sql: asyncpg.Connection) -> None:
        """Also what is written to a partition itself, to a partition that is made later, and rows that move."""
        await sql.execute(
            "CREATE TABLE events (id integer, day integer, note text, PRIMARY KEY (day, id)) PARTITION BY RANGE (day); "
            "CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10); "
            "SELECT queen.attach('events', 'changes'); "
            "CREATE TABLE events_2 (note text, day integer NOT NULL, id integer NOT NULL); "
            "ALTER TABLE events ATTACH PARTITION events_2 FOR VALUES FROM (10) TO (20)"
        )
        await sql.execute("INSERT INTO events VALUES (1, 1), (2, 11)")
        await sql.execute("INSERT INTO events_2 (id, day) VALUES (3, 12)")
        await sql.execute("UPDATE events SET day = 13 WHERE id = 1")
        await sql.execute("UPDATE events SET note = 'x' WHERE id = 3")
        await sql.execute("TRUNCATE events")
        found = await changes(queen, sql)
        assert {change["table"] for change in found} == {"events"}
        assert [(change["op"], *sorted(change.get("key", {}).items())) for change in found] == [
            ("insert", ("day", 1), ("id", 1)),
            ("insert", ("day", 11), ("id", 2)),
            ("insert", ("day", 12), ("id", 3)),
            ("delete", ("day", 1), ("id", 1)),
            ("insert", ("day", 13), ("id", 1)),
            ("update", ("day", 12), ("id", 3)),
            ("truncate",),
        ]
        with pytest.raises(asyncpg.WrongObjectTypeError, match=r"is a partition: attach public\.events instead"):
            await sql.execute("SELECT queen.attach('events_1', 'changes')")
        assert await sql.fetchval("SELECT queen.detach('events', 'changes')") == 1

    async def test_a_truncate_comes_behind_the_changes_of_every_partition(
        self, queen: Queen, sql: asyncpg.Connection, orders: None
    ) -> None:
        await sql.execute("SELECT queen.attach('orders', 'changes', 4)")
        await sql.execute("INSERT INTO orders SELECT n, 'placed' FROM generate_series(1, 200) AS n; TRUNCATE orders")
        await sql.execute("UPDATE orders SET state = 'billed'; INSERT INTO orders VALUES (7, 'again')")
        await changes(queen, sql, "another")
        sent = [await queen.drain("changes", str(number)) for number in range(4)]
        assert sum(map(len, sent)) == 200 + 4 + 1
        for messages in sent:
            assert len(messages) > 20
            assert [message["data"]["op"] for message in messages].count("truncate") == 1
        keys = [{message["data"]["key"]["id"] for message in one if "key" in message["data"]} for one in sent]
        assert sum(map(len, keys)) == 200, "a key has changes in two partitions"

    async def test_renamed_columns_and_a_key_that_is_gone(
        self, queen: Queen, sql: asyncpg.Connection, orders: None
    ) -> None:
        await sql.execute("ALTER TABLE orders RENAME id TO number; INSERT INTO orders VALUES (1, 'placed')")
        assert [change["key"] for change in await changes(queen, sql)] == [{"number": 1}]
        await sql.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
        with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="has no primary key any more"):
            await sql.execute("INSERT INTO orders VALUES (2, 'placed')")

    async def test_several_queues_and_detaching(self, queen: Queen, sql: asyncpg.Connection, orders: None) -> None:
        await sql.execute("SELECT queen.attach('orders', 'more')")
        await sql.execute("INSERT INTO orders VALUES (1, 'placed')")
        assert await sql.fetchval("SELECT queen.detach('orders', 'changes')") == 1
        await sql.execute("INSERT INTO orders VALUES (2, 'placed')")
        assert await sql.fetchval("SELECT queen.detach('orders')") == 1
        await sql.execute("INSERT INTO orders VALUES (3, 'placed')")
        assert await sql.fetchval("SELECT queen.detach('orders')") == 0
        assert [change["key"]["id"] for change in await changes(queen, sql)] == [1]
        assert [change["key"]["id"] for change in await changes(queen, sql, "more")] == [1, 2]

    async def test_what_was_there_before_can_be_sent_with_it(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await sql.execute(f"{ORDERS}; INSERT INTO orders VALUES (1, 'placed')")
        async with sql.transaction():
            await sql.execute("SELECT queen.attach('orders', 'changes')")
            await sql.execute("SELECT queen.send('changes', '0', to_jsonb(o)) FROM orders o")
        await sql.execute("UPDATE orders SET state = 'billed'")
        assert [change["state"] for change in await changes(queen, sql) if "op" not in change] == ["placed"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ("'queen.outbox', 'q'", "is no table of an application"),
            ("'pg_class', 'q'", "is no table of an application"),
            ("'a_view', 'q'", "is no table of an application"),
            ("'keyless', 'q'", "has no primary key"),
            ("'orders', ''", "1 to 255 characters"),
            ("'orders', 'q', 0", "1 to 1000 partitions"),
            ("'orders', 'q', 1001", "1 to 1000 partitions"),
            ("'orders', 'q', NULL", "must not be null"),
            ("'orders', 'q', exclude => ARRAY['state', 'nose']", "public.orders has no column nose"),
            ("'orders', 'sealed'", "demands encrypted payloads"),
            ("'no_such_table', 'q'", "does not exist"),
        ],
    )
    async def test_at_once(self, sql: asyncpg.Connection, orders: None, arguments: str, sentence: str) -> None:
        await sql.execute("CREATE TABLE keyless (id integer); CREATE VIEW a_view AS SELECT 1")
        await sql.execute("INSERT INTO queen.queues (name, encryption_enabled) VALUES ('sealed', true)")
        with pytest.raises(asyncpg.PostgresError, match=sentence):
            await sql.execute(f"SELECT queen.attach({arguments})")

    async def test_tables_of_queen_by_hand(self, sql: asyncpg.Connection) -> None:
        """Each message would send another, without an end."""
        async with sql.transaction():
            await sql.execute(
                "CREATE TRIGGER mine AFTER INSERT ON queen.quotas "
                "FOR EACH ROW EXECUTE FUNCTION queen.on_row_change('q', '1')"
            )
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="each message would send another"):
                async with sql.transaction():
                    await sql.execute("INSERT INTO queen.quotas (namespace) VALUES ('x')")
            await sql.execute("DROP TRIGGER mine ON queen.quotas")


async def test_who_writes_must_be_allowed_to_send(
    queen: Queen, sql: asyncpg.Connection, database_url: str, postgres: Postgres
) -> None:
    """Else the application would fail at its next write."""
    administrator = await asyncpg.connect(postgres.administrator_of(database_url))
    try:
        await administrator.execute("DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN PASSWORD 'clerk'")
        await sql.execute(f"{ORDERS}; GRANT INSERT ON orders TO clerk; GRANT UPDATE (state) ON orders TO PUBLIC")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match=r"may not send: (PUBLIC, clerk|clerk, PUBLIC)"):
            await sql.execute("SELECT queen.attach('orders', 'changes')")
        await sql.execute("REVOKE ALL ON orders FROM PUBLIC")
        await sql.execute("SELECT queen.attach('orders', 'changes', grant_writers => true)")
        session = await asyncpg.connect(database_url, user="clerk", password="clerk")
        try:
            await session.execute("INSERT INTO orders VALUES (1, 'placed')")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await session.execute("SELECT queen.attach('orders', 'other')")
        finally:
            await session.close()
        assert [change["key"] for change in await changes(queen, sql)] == [{"id": 1}]
    finally:
        await administrator.execute("DROP OWNED BY clerk; DROP ROLE clerk")
        await administrator.close()
