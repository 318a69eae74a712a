"""queen.send: a message exists if and only if the application's transaction commits, in the order of the commits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from server_settings import settings_with

from integration.queen import Queen, data, until
from queenmq.config import Settings
from queenmq.core.message import Message
from queenmq.ids import uuid7_text
from queenmq.server import Server
from queenmq.storage.statements import statement

MINUTE_MS = 60_000
# As if a server were pushing what was sent before: none pushes more meanwhile.
KEEP, RELEASE = (f"SELECT pg_advisory_{verb}(hashtextextended('queen.outbox', 0))" for verb in ("lock", "unlock"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Only a notification can end the pause within the time of a test."""
    return settings_with(
        outbox={"interval_ms": MINUTE_MS},
        journal={"folder": tmp_path / "journal", "replay_interval_ms": 10},
        server={"encryption_key": bytes(32)},
    )


@pytest.fixture(autouse=True)
async def listening(server: Server) -> None:
    await until(lambda: server.database.is_listening)


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    session = await asyncpg.connect(database_url)
    yield session
    await session.close()


async def send(session: asyncpg.Connection, payload: Any, queue: str = "q", partition: str = "p", **more: Any) -> str:
    sent = await session.fetchval(
        "SELECT queen.send($1, $2, $3::jsonb, $4, $5)",
        *(queue, partition, json.dumps(payload), more.get("transaction"), more.get("trace")),
    )
    return str(sent)


async def waiting(sql: asyncpg.Connection) -> int:
    return int(
        await sql.fetchval(
            "SELECT (SELECT count(*) FROM queen.outbox) + (SELECT count(*) FROM queen.outbox_commits) "
            "+ (SELECT count(*) FROM queen.outbox_held)"
        )
    )


async def all_pushed(sql: asyncpg.Connection) -> None:
    async def none() -> bool:
        return await waiting(sql) == 0

    await until(none)


class TestItsTransaction:
    async def test_it_comes_with_the_commit_and_wakes_who_waits(self, queen: Queen, sql: asyncpg.Connection) -> None:
        poll = asyncio.create_task(queen.wait("q", "p"))
        async with sql.transaction():
            sent = await send(sql, {"total": 12.50}, transaction="order-1")
            assert await queen.pop("q", "p") == []
        [message] = await poll
        assert (message["id"], message["transactionId"], message["data"]) == (sent, "order-1", {"total": 12.5})
        await all_pushed(sql)

    async def test_a_rollback_leaves_nothing(self, queen: Queen, sql: asyncpg.Connection, server: Server) -> None:
        transaction = sql.transaction()
        await transaction.start()
        await send(sql, 1)
        await transaction.rollback()
        assert await server.broker.outbox.push_next() == 0
        assert await queen.pop("q", "p") == []
        assert await waiting(sql) == 0

    @pytest.mark.parametrize("kept", ["before", "after", "both", "none"])
    async def test_a_savepoint_takes_back_what_came_since(
        self, queen: Queen, sql: asyncpg.Connection, kept: str
    ) -> None:
        """Also the first message of the transaction, which announces the commit."""
        async with sql.transaction():
            if kept in ("before", "both"):
                await send(sql, "before")
            savepoint = sql.transaction()
            await savepoint.start()
            await send(sql, "taken back")
            await savepoint.rollback()
            if kept in ("after", "both"):
                await send(sql, "after")
        await all_pushed(sql)
        expected = {"before": ["before"], "after": ["after"], "both": ["before", "after"], "none": []}[kept]
        assert data(await queen.pop("q", "p", batch=10)) == expected

    async def test_messages_of_a_transaction_keep_their_order(self, queen: Queen, sql: asyncpg.Connection) -> None:
        async with sql.transaction():
            await sql.execute("SELECT queen.send('q', 'p', to_jsonb(n)) FROM generate_series(1, 2500) AS n ORDER BY n")
        await all_pushed(sql)
        assert data(await queen.pop("q", "p", batch=3000)) == list(range(1, 2501))

    async def test_a_transaction_id_makes_it_a_duplicate(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await send(sql, 1, transaction="t")
        await send(sql, 2, transaction="t")
        await send(sql, 3)
        await all_pushed(sql)
        assert data(await queen.pop("q", "p", batch=10)) == [1, 3]

    async def test_a_session_that_announces_nothing(
        self, queen: Queen, sql: asyncpg.Connection, server: Server, other: asyncpg.Connection
    ) -> None:
        """As two-phase commits need it: PostgreSQL prepares no transaction with a NOTIFY."""
        noticed: list[str] = []
        await sql.add_listener("queen_sent", lambda *given: noticed.append(given[-1]))
        await other.execute("SET queen.announce = off")
        await send(other, 1)
        await until_pushed(server)
        assert data(await queen.pop("q", "p")) == [1]
        assert not noticed
        await send(sql, 2)
        await until(lambda: bool(noticed))


async def until_pushed(server: Server) -> None:
    """Move everything that is there, whoever does it."""
    while await server.broker.outbox.push_next():
        pass


class TestOrder:
    async def test_it_is_that_of_the_commits(
        self, queen: Queen, sql: asyncpg.Connection, other: asyncpg.Connection
    ) -> None:
        first, second = sql.transaction(), other.transaction()
        await first.start()
        await send(sql, "sent first")
        await second.start()
        await send(other, "sent second")
        await second.commit()
        await first.commit()
        await all_pushed(sql)
        assert data(await queen.pop("q", "p", batch=10)) == ["sent second", "sent first"]

    async def test_an_open_transaction_holds_up_no_other_producer(
        self, queen: Queen, sql: asyncpg.Connection, other: asyncpg.Connection
    ) -> None:
        transaction = sql.transaction()
        await transaction.start()
        await send(sql, "late")
        await queen.push("q", "over HTTP", partition="p")
        await send(other, "sent")
        assert data(await queen.wait("q", "p")) == ["over HTTP"]
        await transaction.commit()
        await all_pushed(other)
        rest = await queen.pop("q", "p", batch=10, consumerGroup="all", subscriptionMode="all")
        assert data(rest) == ["over HTTP", "sent", "late"]

    async def test_a_partition_that_is_locked_waits_and_keeps_its_order(
        self, queen: Queen, sql: asyncpg.Connection, other: asyncpg.Connection, server: Server
    ) -> None:
        await queen.push("q", 0, partition="p")
        lock = other.transaction()
        await lock.start()
        await other.execute("SELECT 1 FROM queen.partition_lookup FOR UPDATE")
        await send(sql, 1)
        await send(sql, "free", partition="another")
        assert data(await queen.wait("q", "another")) == ["free"]

        async def is_held() -> bool:
            return bool(await sql.fetchval("SELECT count(*) FROM queen.outbox_held"))

        await until(is_held)
        await send(sql, 2)
        await server.broker.outbox.push_next()
        await lock.rollback()
        await sql.execute("UPDATE queen.outbox_held SET next_attempt_at = now()")
        await send(sql, 3)
        await all_pushed(sql)
        assert data(await queen.pop("q", "p", batch=10)) == [0, 1, 2, 3]

    async def test_a_partition_with_a_journal_holds_up_no_other_and_keeps_its_order(
        self, queen: Queen, sql: asyncpg.Connection, other: asyncpg.Connection, server: Server
    ) -> None:
        """More messages than one batch has wait behind what the journal cannot store."""
        await queen.push("q", 0, partition="stuck")
        async with other.transaction():
            await other.execute("SELECT 1 FROM queen.partition_lookup FOR UPDATE")
            journal = server.broker.journal
            assert journal is not None
            await journal.put([Message("q", "stuck", b'"journalled"', uuid7_text(), "j")])
            await sql.execute("SELECT queen.send('q', 'stuck', to_jsonb(n)) FROM generate_series(1, 1500) AS n")
            await send(sql, "free", partition="another")
            assert data(await queen.wait("q", "another")) == ["free"]
            assert await waiting(sql) == 1501
        await until(lambda: not journal.messages)
        await send(sql, 1501, partition="stuck")
        await all_pushed(sql)
        assert data(await queen.drain("q", "stuck")) == [0, "journalled", *range(1, 1502)]

    async def test_once_with_several_servers_and_sessions_that_disappear(
        self, queen: Queen, sql: asyncpg.Connection, server: Server, settings: Settings, database_url: str
    ) -> None:
        """Sessions send numbers and note in a table of their own which of them were committed; some are killed."""
        await sql.execute("CREATE TABLE public.committed (session integer, number integer)")
        stop = asyncio.Event()

        async def produce(session_number: int) -> None:
            number = 0
            while number < 60:
                session = await asyncpg.connect(database_url)
                try:
                    while number < 60:
                        number += 1
                        transaction = session.transaction()
                        await transaction.start()
                        await session.execute("INSERT INTO public.committed VALUES ($1, $2)", session_number, number)
                        await send(session, [session_number, number], partition=f"p{session_number % 2}")
                        if number % 7 == 0:
                            await transaction.rollback()
                        elif number % 11 == 0:
                            session.terminate()
                            break
                        else:
                            await transaction.commit()
                finally:
                    session.terminate()

        async def relay(one: Server) -> None:
            while not stop.is_set():
                await one.broker.outbox.push_next()
                await asyncio.sleep(0)

        try:
            second = Server(settings, database_url)
            await second.start()
            try:
                relays = [asyncio.create_task(relay(one)) for one in (server, second)]
                await asyncio.gather(*(produce(number) for number in range(4)))
                await all_pushed(sql)
                stop.set()
                await asyncio.gather(*relays)
            finally:
                await second.stop()
            committed = await sql.fetch("SELECT session, number FROM public.committed ORDER BY session, number")
        finally:
            await sql.execute("DROP TABLE public.committed")
        found = [data(await queen.pop("q", f"p{parity}", batch=1000)) for parity in (0, 1)]
        for session_number in range(4):
            got = [number for one, number in found[session_number % 2] if one == session_number]
            assert got == [row["number"] for row in committed if row["session"] == session_number]


class TestWhoMay:
    async def test_nobody_may_call_what_runs_with_the_rights_of_the_owner(
        self, sql: asyncpg.Connection, server: Server
    ) -> None:
        """Unless it is granted; also as a trigger of a table of one's own, whose types bring functions with them."""
        rows = await sql.fetch(
            "SELECT proname, has_function_privilege('pg_monitor', oid, 'EXECUTE') AS may FROM pg_proc "
            "WHERE pronamespace = 'queen'::regnamespace AND prosecdef"
        )
        assert {row["proname"] for row in rows} == {"send", "send_with_headers", "finish", "on_outbox_insert"}
        assert not any(row["may"] for row in rows)
        await sql.execute(
            "CREATE TEMP TABLE mine (sending bigint); CREATE TRIGGER mine AFTER INSERT ON mine "
            "FOR EACH ROW EXECUTE FUNCTION queen.on_outbox_insert()"
        )
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match=r"for queen\.outbox only"):
            await sql.execute("INSERT INTO mine VALUES (1)")


class TestWhatIsLeft:
    async def test_a_deleted_queue_takes_along_what_waits(
        self, queen: Queen, sql: asyncpg.Connection, server: Server
    ) -> None:
        async with sql.transaction():
            await sql.execute("LOCK TABLE queen.outbox_held IN ACCESS EXCLUSIVE MODE")  # which every server reads first
            await send(sql, 1, queue="deleted")
            await send(sql, 2, queue="kept")
            await sql.execute("SELECT queen.forget_sends(ARRAY['deleted'])")
        await all_pushed(sql)
        assert data(await queen.pop("kept", "p")) == [2]
        assert not await sql.fetchval("SELECT count(*) FROM queen.queues WHERE name = 'deleted'")

    @pytest.mark.parametrize("chosen", ["12345", "-1", "nonsense", "9223372036854775808"])
    async def test_a_session_that_has_chosen_a_number_is_not_heeded(
        self, queen: Queen, sql: asyncpg.Connection, chosen: str
    ) -> None:
        await sql.execute(KEEP)
        await sql.execute(f"SET queen.sending = '{chosen}'")
        for number in range(3):
            await send(sql, number)
        async with sql.transaction():
            await send(sql, 3)
            await sql.execute(f"SET LOCAL queen.sending = '{chosen}'")
            await send(sql, 4)
        assert await sql.fetchval(
            "SELECT bool_and(sending IN (SELECT sending FROM queen.outbox_commits)) FROM queen.outbox"
        )
        await sql.execute(RELEASE)
        await all_pushed(sql)
        assert data(await queen.pop("q", "p", batch=10)) == [0, 1, 2, 3, 4]

    async def test_nobody_sends_under_the_number_of_another(
        self, queen: Queen, sql: asyncpg.Connection, other: asyncpg.Connection
    ) -> None:
        """Or the commit of the other would fail when the messages of the first are found."""
        await sql.execute(KEEP)
        async with other.transaction():
            await send(other, "theirs")
            number = await other.fetchval("SELECT current_setting('queen.sending')::bigint")
            for chosen in range(number, number + 5):
                await sql.execute(f"SET queen.sending = '{chosen}'")
                await send(sql, chosen - number)
            await sql.execute(statement("tend_outbox"))
        for _ in range(5):
            await send(other, "later")
        await sql.execute(RELEASE)
        await all_pushed(sql)
        assert data(await queen.pop("q", "p", batch=20)) == [0, 1, 2, 3, 4, "theirs", *["later"] * 5]

    async def test_a_session_that_takes_its_last_number_again_loses_nothing(
        self, queen: Queen, sql: asyncpg.Connection, server: Server
    ) -> None:
        async with sql.transaction():
            await send(sql, 1)
            number = await sql.fetchval("SELECT current_setting('queen.sending')")
        await all_pushed(sql)
        await sql.execute(f"SET queen.sending = '{number}'")
        await send(sql, 2)
        server.broker.outbox._tend_at = 0.0
        await until_pushed(server)
        assert data(await queen.pop("q", "p", batch=10)) == [1, 2]

    async def test_commits_without_messages_go(self, sql: asyncpg.Connection, server: Server) -> None:
        await sql.execute("INSERT INTO queen.outbox_commits (sending) VALUES (77)")
        server.broker.outbox._tend_at = 0.0
        await until_pushed(server)
        assert await waiting(sql) == 0


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ("NULL, 'p', '1'", "queue, partition and payload must not be null"),
            ("'q', NULL, '1'", "queue, partition and payload must not be null"),
            ("'q', 'p', NULL", "queue, partition and payload must not be null"),
            ("'', 'p', '1'", "must have 1 to 255 characters"),
            ("'q', repeat('x', 256), '1'", "must have 1 to 255 characters"),
            ("'q', 'p', '1', ''", "must have 1 to 255 characters"),
            ("'q', 'p', '{'", "invalid input syntax for type json"),
            ("'q', 'p', to_jsonb(repeat('x', 16777216))", "at most 16777216 are allowed"),
        ],
    )
    async def test_it_is_refused_at_once(
        self, sql: asyncpg.Connection, server: Server, arguments: str, sentence: str
    ) -> None:
        with pytest.raises(asyncpg.PostgresError, match=sentence):
            await sql.execute(f"SELECT queen.send({arguments})")
        assert await waiting(sql) == 0

    async def test_a_queue_that_demands_encryption(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("secret", encryptionEnabled=True)
        with pytest.raises(asyncpg.PostgresError, match="demands encrypted payloads"):
            await send(sql, 1, queue="secret")

    async def test_encryption_that_is_switched_on_before_it_is_pushed(
        self, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        async with sql.transaction():
            await send(sql, "hidden", queue="later")
            await queen.configure("later", encryptionEnabled=True)
        await all_pushed(sql)
        assert data(await queen.pop("later", "p")) == ["hidden"]
        assert await sql.fetchval("SELECT bool_and(is_encrypted) FROM queen.messages")


async def test_ten_thousand_in_one_transaction_cost_ten_times_a_thousand(
    sql: asyncpg.Connection, server: Server
) -> None:
    async def buffers(count: int) -> int:
        async with sql.transaction():
            [row] = await sql.fetch(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
                f"SELECT queen.send('q', 'p' || n % 10, to_jsonb(n)) FROM generate_series(1, {count}) AS n"
            )
        plan = json.loads(row[0])[0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    await buffers(100)
    thousand, ten_thousand = await buffers(1000), await buffers(10_000)
    assert ten_thousand < 15 * thousand
    await until_pushed(server)
    await all_pushed(sql)


async def test_the_figures(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    await send(sql, 1)
    await all_pushed(sql)
    page = (await http.get("/metrics/prometheus")).text
    assert "queen_outbox_pushed_total 1" in page
