"""Servers of an older version and of this one are exchanged on one database while it is used. No request fails."""

from __future__ import annotations

import os
from pathlib import Path

import asyncpg
import pytest

import queenmq
from migration import previous
from migration.conftest import database_at
from migration.later_load import LaterLoad
from migration.load import Load
from migration.rolling import LATER, NEWEST, Process, Rotation
from queenmq.errors import StartupError
from queenmq.storage import functions
from queenmq.storage.migrations import contract, migrate

THIS = Path(queenmq.__file__).parents[1]
# How many messages are pushed between two changes.
EACH = 3000 if os.environ.get("QUEEN_LONG") == "1" else 100


@pytest.mark.parametrize(
    ("revision", "can", "load_of"),
    [(previous.FIRST, frozenset(), Load), (previous.LATER, frozenset({LATER}), LaterLoad)],
    ids=[previous.FIRST, previous.LATER],
)
async def test_old_servers_are_replaced_under_load_and_come_back(
    empty_url: str, tmp_path: Path, sql: asyncpg.Connection, revision: str, can: frozenset[str], load_of: type[Load]
) -> None:
    old_source = previous.source(revision, tmp_path)
    rotation = Rotation()
    started: list[Process] = []

    async def start_old(name: str) -> Process:
        server = Process(old_source, empty_url, tmp_path, name, can)
        started.append(server)
        rotation.servers.append(await server.start())
        return server

    async def start_new(name: str) -> Process:
        server = Process(THIS, empty_url, tmp_path, name, frozenset({LATER, NEWEST}))
        started.append(server)
        rotation.servers.append(await server.start())
        return server

    try:
        old = [await start_old(f"old-{n}") for n in range(2)]
        load = load_of(rotation, empty_url)
        load.start()
        await load.grow(EACH)
        new = await start_new("new")
        await load.grow(2 * EACH)
        await rotation.take_out(old[0])
        # Back one version, while the contract step has not run.
        again = await start_old("old-again")
        await load.grow(EACH)
        await rotation.take_out(new)
        await load.grow(EACH)
        for n in range(2):
            await start_new(f"new-again-{n}")
        await load.grow(EACH)
        for server in (old[1], again):
            await rotation.take_out(server)
        await sql.execute(
            "UPDATE queen.servers s SET seen_at = '-infinity' WHERE NOT EXISTS ("
            "SELECT 1 FROM queen.server_versions v WHERE v.server_id = s.id AND v.epoch = s.epoch)"
        )
        async with database_at(empty_url) as database:
            await contract(database)
        await load.grow(EACH)
        await load.end()
        await load.audit()
        late = Process(old_source, empty_url, tmp_path, "too-late", can)
        started.append(late)
        assert "run a newer Queen" in await late.refused()
    finally:
        for server in started:
            await server.stop()
        await rotation.client.aclose()


async def test_old_servers_go_on_when_the_new_one_is_killed_before_it_leads(
    empty_url: str, tmp_path: Path, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have its public functions, then its triggers too, while the database says that their own lead."""
    old_source = previous.source(previous.LATER, tmp_path)
    rotation = Rotation()
    started: list[Process] = []

    async def start_old(name: str) -> Process:
        server = Process(old_source, empty_url, tmp_path, name, frozenset({LATER}))
        started.append(server)
        rotation.servers.append(await server.start())
        return server

    async def die(*_: object) -> None:
        raise StartupError("killed")

    leader = "SELECT name FROM queen.function_sets WHERE leads"
    try:
        old = await start_old("old")
        theirs = await sql.fetchval(leader)
        load = Load(rotation, empty_url)
        load.start()
        await load.grow(EACH)
        async with database_at(empty_url) as database:
            for dies_in in ("_tables_with_triggers", "complete_ages"):
                with monkeypatch.context() as patch, pytest.raises(StartupError, match="killed"):
                    patch.setattr(functions, dies_in, die)
                    await migrate(database)
                await load.grow(EACH)
            await start_old("old-again")
            await rotation.take_out(old)
            await load.grow(EACH)
            assert await sql.fetchval(leader) == theirs
            await load.end()
            await load.audit()
            await migrate(database)
            assert await sql.fetchval(leader) != theirs
    finally:
        for server in started:
            await server.stop()
        await rotation.client.aclose()


def test_what_needs_the_history_says_so_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEEN_REQUIRE_HISTORY", "1")
    with pytest.raises(AssertionError, match=r"revision 0000000, .* QUEEN_REQUIRE_HISTORY demands it: fetch the whole"):
        previous.source("0000000", tmp_path)
    monkeypatch.delenv("QUEEN_REQUIRE_HISTORY")
    with pytest.raises(pytest.skip.Exception, match="fetch the whole history"):
        previous.source("0000000", tmp_path)
