"""Backup and restore as docs/operations.md shows them: the restored queue goes on where the dump was taken."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest
from integration.queen import another_server, data, expire_leases
from server_settings import settings_with

import queenmq
from queenmq.storage import launcher

if TYPE_CHECKING:
    from conftest import Postgres

GUIDE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
QUEEN = "import sys; from queenmq.cli.main import main; sys.exit(main())"
SETTINGS = settings_with()


@pytest.fixture
async def restore_url(postgres: Postgres) -> AsyncIterator[str]:
    """A database in which Queen has never been."""
    url = await postgres.create("template1")
    yield url
    await postgres.drop(url)


def shown() -> str:
    return next(block for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL) if "pg_dump" in block)


async def run(script: str, folder: Path, **variables: str) -> str:
    """In `folder`, with the bundled tools of PostgreSQL and with `queen` in the path."""
    queen = folder / "queen"
    queen.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{QUEEN}' \"$@\"\n")
    queen.chmod(0o755)
    tools = launcher.bundled()
    path = {"PATH": f"{folder}:{tools}:{os.environ['PATH']}", "PYTHONPATH": str(Path(queenmq.__file__).parents[1])}
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-euc",
        script,
        cwd=folder,
        env=os.environ | variables | path,
        stdout=-1,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(120):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_what_is_restored_goes_on_where_the_dump_was_taken(
    database_url: str, restore_url: str, tmp_path: Path
) -> None:
    async with another_server(SETTINGS, database_url) as queen:
        await queen.configure("orders", retryLimit=0)
        await queen.push("orders", "a", "b", "c", "d", "poison", partition="p")
        read = await queen.pop("orders", batch=2)
        await queen.ack_batch(read)
        await queen.pop("orders", consumerGroup="other", batch=1)
        assert "stale rows: 0" in await run(shown(), tmp_path, DATABASE_URL=database_url, RESTORE_URL=restore_url)
        await queen.push("orders", "after the dump", partition="p")
    async with another_server(SETTINGS, restore_url) as queen:
        connection = await asyncpg.connect(restore_url)
        await expire_leases(connection)
        await connection.close()
        [again] = await queen.push("orders", "c", partition="p")
        assert again["status"] == "duplicate"
        rest = await queen.pop("orders", batch=10)
        assert data(rest) == ["c", "d", "poison"]
        await queen.ack_batch(rest, "completed", "completed", "failed")
        assert data(await queen.dead_letters("orders")) == ["poison"]
        assert data(await queen.pop("orders", consumerGroup="other", batch=10)) == ["a", "b", "c", "d", "poison"]
        await queen.push("orders", "e", partition="p")
        assert data(await queen.pop("orders", batch=10)) == ["e"]
