"""Who keeps dead rows alive, each kind with a real one: a session, a prepared transaction, a standby, a slot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from ports import free_port
from server_settings import settings_with

from integration.queen import Queen, another_server, until
from queenmq.storage import launcher
from queenmq.storage.embedded import ENVIRONMENT, EmbeddedPostgres, running_url
from queenmq.storage.statements import statement

if TYPE_CHECKING:
    from conftest import Postgres

PATIENCE_S = 60
Json = dict[str, Any]


@dataclass
class Pair:
    """A primary that prepares transactions, and a standby that tells it what its queries see."""

    url: str
    administrator: str
    standby: Standby


class Standby:
    def __init__(self, folder: Path, primary: str) -> None:
        self._folder = folder / "standby"
        self._folder.mkdir(mode=0o700)
        self._primary = primary
        self._port = free_port()
        parts = urlsplit(primary)
        self.url = parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{self._port}").geturl()
        user = launcher.database_user(folder / "primary" / "postgres")
        launcher.give(self._folder, user)
        self._way, _ = launcher.find(self._folder, user)
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        output = os.open(self._folder.parent / "standby.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            return self._way.start([self._way.binary(program), *arguments], self._folder, output, ENVIRONMENT)
        finally:
            os.close(output)

    def copy(self) -> None:
        base = self._primary.rpartition("/")[0]
        here = self._way.name_of(self._folder)
        copying = self._start("pg_basebackup", "-D", here, "-d", base, "-R", "-X", "stream", "-c", "fast", "--no-sync")
        assert copying.wait(PATIENCE_S) == 0, (self._folder.parent / "standby.log").read_text()

    async def start(self, *settings: str) -> None:
        told = ("hot_standby_feedback=on", "wal_receiver_status_interval=1", "unix_socket_directories=", *settings)
        self._process = self._start(
            "postgres", "-D", self._way.name_of(self._folder), "-p", str(self._port), *(f"-c{one}" for one in told)
        )
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(OSError, asyncpg.PostgresError):
                    await (await asyncpg.connect(self.url)).close()
                    return
                await asyncio.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(PATIENCE_S)
            self._process = None


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("horizon")
    with asyncio.Runner() as runner:
        primary = EmbeddedPostgres(folder / "primary")
        runner.run(primary.start())
        runner.run(execute(running_url(folder / "primary", administrator=True), PREPARES, NO_SYNC))
        runner.run(primary.stop())
        url = runner.run(primary.start())
        administrator = running_url(folder / "primary", administrator=True)
        standby = Standby(folder, administrator)
        standby.copy()
        try:
            yield Pair(url, administrator, standby)
        finally:
            standby.stop()
            runner.run(primary.stop())


PREPARES = "ALTER SYSTEM SET max_prepared_transactions = 5"
NO_SYNC = "ALTER SYSTEM SET fsync = off"


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for one in statements:
            await connection.execute(one)
    finally:
        await connection.close()


@pytest.fixture
async def queen(pair: Pair) -> AsyncIterator[Queen]:
    async with another_server(settings_with(), pair.url) as queen:
        await queen.push("orders", "a")
        yield queen


@contextlib.asynccontextmanager
async def snapshot(url: str, application: str) -> AsyncIterator[asyncpg.Connection]:
    """A session that has begun to read and is left open."""
    connection = await asyncpg.connect(url, server_settings={"application_name": application})
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.execute("SELECT 1 FROM pg_class")
            yield connection
    finally:
        await connection.close()


async def held(queen: Queen) -> Json:
    answer = await queen.http.get("/api/v1/analytics/horizon")
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


async def of_kind(queen: Queen, kind: str) -> list[Json]:
    return [one for one in (await held(queen))["holders"] if one["kind"] == kind]


async def metric(queen: Queen, name: str, kind: str) -> float:
    text = (await queen.http.get("/metrics/prometheus")).text
    [line] = [line for line in text.splitlines() if line.startswith(f'{name}{{kind="{kind}"}}')]
    return float(line.rpartition(" ")[2])


async def test_a_session_that_was_left_open(queen: Queen, pair: Pair) -> None:
    async with snapshot(pair.administrator, "nightly dump") as forgotten:
        for number in range(20):
            await queen.push("orders", f"m{number}")
        first = (await held(queen))["holders"][0]
        assert first["kind"] == "session"
        assert first["pid"] == forgotten.get_server_pid()
        assert (first["user"], first["application"], first["state"]) == ("queen", "nightly dump", "idle in transaction")
        assert first["transactions"] >= 20
        assert str(first["pid"]) in first["description"]
        assert f"pg_terminate_backend({first['pid']})" in first["advice"]
        before = first["heldForSeconds"]
        assert (await held(queen))["holders"][0]["heldForSeconds"] > before >= 0
        assert await metric(queen, "queen_horizon_held_transactions", "session") >= 20
        assert await metric(queen, "queen_horizon_held_seconds", "session") > before
    assert forgotten.is_closed()
    assert not [one for one in await of_kind(queen, "session") if one["application"] == "nightly dump"]


async def test_a_transaction_that_has_written_and_reads_nothing(queen: Queen, pair: Pair) -> None:
    """It has no snapshot between two statements, but its number."""
    connection = await asyncpg.connect(pair.url, server_settings={"application_name": "writer"})
    try:
        async with connection.transaction():
            await connection.execute("INSERT INTO queen.queues (name) VALUES ('never committed')")
            [found] = [one for one in await of_kind(queen, "session") if one["application"] == "writer"]
            assert found["pid"] == connection.get_server_pid()
            raise asyncio.CancelledError
    except asyncio.CancelledError:
        pass
    finally:
        await connection.close()


async def test_a_transaction_that_has_finished_messages_is_named_as_such(queen: Queen, pair: Pair) -> None:
    [message] = await queen.pop("orders", consumerGroup="billing")
    connection = await asyncpg.connect(pair.url, server_settings={"application_name": "shop"})
    try:
        await connection.execute("BEGIN; CREATE TEMPORARY TABLE other ()")
        [before] = [one for one in await of_kind(queen, "session") if one["application"] == "shop"]
        assert "queen.finish" not in before["description"]
        await connection.execute("SELECT queen.finish($1)", message["leaseId"])
        [after] = [one for one in await of_kind(queen, "session") if one["application"] == "shop"]
        assert "which has finished messages (queen.finish)" in after["description"]
        await connection.execute("ROLLBACK")
    finally:
        await connection.close()


async def test_a_prepared_one_as_well(queen: Queen, pair: Pair) -> None:
    finishing = "UPDATE queen.partition_consumers SET generation = generation"
    await execute(pair.url, "BEGIN", finishing, "PREPARE TRANSACTION 'finished'")
    try:
        [prepared] = await of_kind(queen, "prepared")
        assert "which has finished messages (queen.finish)" in prepared["description"]
    finally:
        await execute(pair.url, "ROLLBACK PREPARED 'finished'")


async def test_sessions_of_other_databases_hold_nothing(queen: Queen, pair: Pair) -> None:
    elsewhere = urlsplit(pair.administrator)._replace(path="/postgres").geturl()
    async with snapshot(elsewhere, "elsewhere"):
        assert not [one for one in await of_kind(queen, "session") if one["application"] == "elsewhere"]


async def test_a_prepared_transaction(queen: Queen, pair: Pair) -> None:
    await execute(
        pair.url, "BEGIN", "INSERT INTO queen.queues (name) VALUES ('x')", "PREPARE TRANSACTION 'left behind'"
    )
    try:
        await queen.push("orders", "b", "c")
        [found] = await of_kind(queen, "prepared")
        assert (found["name"], found["user"], found["pid"]) == ("left behind", "queen_server", None)
        assert "ROLLBACK PREPARED" in found["advice"]
        assert await metric(queen, "queen_horizon_held_seconds", "prepared") > 0
    finally:
        await execute(pair.url, "ROLLBACK PREPARED 'left behind'")
    assert await of_kind(queen, "prepared") == []
    assert await metric(queen, "queen_horizon_held_seconds", "prepared") == 0


async def test_a_standby_and_then_its_slot(queen: Queen, pair: Pair) -> None:
    standby = pair.standby
    await standby.start()
    async with snapshot(standby.url, "report on the standby"):

        async def told(least: int) -> bool:
            await queen.push("orders", "more")
            return any(one["transactions"] >= least for one in await of_kind(queen, "standby"))

        await until(lambda: told(10))
        [found] = await of_kind(queen, "standby")
        assert found["pid"] is not None
        assert "hot_standby_feedback" in found["advice"]
        # A role that is not shown the rest of others' sessions learns as much.
        connection = await asyncpg.connect(pair.administrator)
        await connection.execute("CREATE ROLE sees_little; SET ROLE sees_little")
        rows = await connection.fetch(statement("horizon_holders"), 20)
        assert [row["pid"] for row in rows if row["kind"] == "standby"] == [found["pid"]]
        assert not await connection.fetchval(statement("sees_all_sessions"))
        await connection.execute("RESET ROLE; DROP ROLE sees_little")
        await connection.close()
    standby.stop()
    await execute(pair.administrator, "SELECT pg_create_physical_replication_slot('forgotten')")
    try:
        await standby.start("primary_slot_name=forgotten")
        await until(lambda: has_slot(queen, "active"))
        standby.stop()
        await until(lambda: has_slot(queen, "inactive"))
        [first] = await of_kind(queen, "slot")
        assert first["name"] == "forgotten"
        await queen.push("orders", "one", "two", "three")
        [found] = await of_kind(queen, "slot")
        # PostgreSQL does not say since when: the server has seen it twice.
        assert found["heldForSeconds"] > first["heldForSeconds"]
        assert found["transactions"] > first["transactions"]
        assert "pg_drop_replication_slot" in found["advice"]
    finally:
        standby.stop()
        await execute(pair.administrator, "SELECT pg_drop_replication_slot('forgotten')")
    assert await of_kind(queen, "slot") == []


async def has_slot(queen: Queen, state: str) -> bool:
    return [one["state"] for one in await of_kind(queen, "slot")] == [state]


async def test_a_role_that_is_not_shown_other_sessions(postgres: Postgres, database_url: str) -> None:
    administrator = postgres.administrator_of(database_url)
    async with another_server(settings_with(), database_url) as queen, snapshot(administrator, "somebody") as other:
        found = await held(queen)
        assert found["seesAllSessions"] is False
        [one] = [one for one in found["holders"] if one["pid"] == other.get_server_pid()]
        assert (one["application"], one["state"], one["heldForSeconds"]) == ("somebody", None, 0)
        [again] = [one for one in (await held(queen))["holders"] if one["pid"] == other.get_server_pid()]
        assert again["heldForSeconds"] > 0
