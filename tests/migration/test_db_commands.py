"""`queen db plan` and `queen db upgrade` on a database of the version before: what an operator reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from server_settings import settings_with

from migration import previous
from migration.test_migrations import NEWEST
from queenmq.cli.main import main
from queenmq.storage.database import Database

Queen = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
async def queen(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Queen]:
    monkeypatch.setenv("DATABASE_URL", empty_url)
    monkeypatch.setenv("COLUMNS", "400")

    async def run(*arguments: str) -> tuple[int, str, str]:
        status = await asyncio.to_thread(main, ["db", *arguments])
        return status, *capsys.readouterr()

    yield run


@pytest.fixture
async def of_the_version_before(empty_url: str, sql: asyncpg.Connection) -> None:
    database = Database(settings_with().database, empty_url)
    await database.open()
    try:
        await previous.make_schema(database, sql)
    finally:
        await database.close()
    await sql.execute("SELECT queen.ensure_partitions(ARRAY['orders'], ARRAY['Default'])")
    await sql.execute("ANALYZE queen.partition_lookup")


async def test_a_database_without_a_schema(queen: Queen) -> None:
    status, out, _ = await queen("plan")
    assert status == 1
    assert out == f"There is no schema yet: it is made in one transaction, as version {NEWEST}.\n"
    status, out, _ = await queen("upgrade")
    assert (status, out) == (0, f"the schema has version {NEWEST}\n")
    status, out, _ = await queen("plan")
    assert (status, out) == (0, f"Nothing is to be done: the schema has version {NEWEST}.\n")


async def test_an_upgrade_from_the_plan_to_its_completion(
    queen: Queen, of_the_version_before: None, sql: asyncpg.Connection
) -> None:
    await sql.execute("INSERT INTO queen.servers (id, epoch) VALUES ('old:6632', 1)")
    status, out, _ = await queen("plan")
    assert status == 1
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["phase", "migration", "does", "table"]
    [index] = [line for line in lines if "INDEX CONCURRENTLY partition_lookup_newest" in line]
    assert "expand" in index
    assert "SHARE UPDATE EXCLUSIVE" in index
    [ages] = [line for line in lines if line.startswith("expand") and "note the ages" in line]
    assert "partition_ages" in ages
    assert [line.split()[0] for line in lines if line.startswith(("expand", "contract"))][-1] == "contract"
    assert "To expand: `queen db upgrade`, or start a server of this version." in lines

    status, planned, _ = await queen("plan", "--json")
    found: dict[str, Any] = json.loads(planned)
    assert (status, found["newest"], found["isNew"], found["tooOldFor"]) == (1, NEWEST, False, None)
    assert {step["phase"] for step in found["expand"]} == {"expand"}
    assert all(step["oldServersGoOn"] for step in found["expand"])
    assert not any(step["oldServersGoOn"] for step in found["contract"])
    [newest] = [step for step in found["expand"] if "partition_lookup_newest" in step["does"]]
    assert (newest["table"], newest["rows"]) == ("partition_lookup", 1)

    status, out, progress = await queen("upgrade")
    assert (status, out) == (0, f"the schema has version {NEWEST}\n")
    assert "expand: migration 24 (newest_version_first), step 2 of" in progress
    assert "`queen db upgrade --contract` completes the upgrade" in progress

    status, out, _ = await queen("plan")
    assert status == 1
    assert "The contract step waits for these servers:" in out
    assert "  old:6632 (of an older version, seen" in out
    assert "To expand" not in out
    status, _, said = await queen("upgrade", "--contract")
    assert status == 1
    assert "the upgrade cannot be completed while servers of an older version run: old:6632" in said

    await sql.execute("DELETE FROM queen.servers")
    _, out, _ = await queen("plan")
    assert (
        "To contract, when servers of the version before are not needed any more: `queen db upgrade --contract`" in out
    )
    status, out, progress = await queen("upgrade", "--contract")
    assert (status, out) == (0, f"the upgrade to schema version {NEWEST} is completed\n")
    assert f"servers that do not know schema version {NEWEST} are refused from now on" in progress
    status, out, _ = await queen("plan")
    assert (status, out) == (0, f"Nothing is to be done: the schema has version {NEWEST}.\n")


async def test_a_database_of_a_later_version(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen("upgrade")
    await sql.execute("INSERT INTO queen.schema_migrations (version, name) VALUES ($1, 'later')", NEWEST + 1)
    status, out, _ = await queen("plan")
    assert status == 1
    assert out == f"This Queen knows schema version {NEWEST}, and the database has {NEWEST + 1}: run a newer Queen.\n"
    status, _, said = await queen("upgrade")
    assert status == 1
    assert "run a newer Queen" in said
