"""Versions before this one, to run beside it.

Of the first release, df38507, the schema always: its migrations are the first eight of this one, and its functions are
in a file, as one text in the order in which it made them. Servers of it and of later revisions where the repository
has its history.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import subprocess
from pathlib import Path

import asyncpg
import pytest

from queenmq.storage.database import Database
from queenmq.storage.migrations import migrate

FIRST = "df38507"
LATER = "75a0ad4"
SCHEMA_VERSION = 8
_ROOT = Path(__file__).parents[2]
_FUNCTIONS = Path(__file__).with_name(f"functions_of_{FIRST}.sql.xz")


def functions() -> str:
    return lzma.decompress(_FUNCTIONS.read_bytes()).decode()


async def make_schema(database: Database, sql: asyncpg.Connection) -> None:
    """The schema as the first server of that version makes it."""
    await migrate(database, upto=SCHEMA_VERSION)
    await sql.execute("DROP TABLE queen.schema_expansions")
    async with sql.transaction():
        await sql.execute("SET LOCAL check_function_bodies = off")
        await sql.execute(functions())
        digest = hashlib.sha256(functions().encode()).hexdigest()
        await sql.execute("INSERT INTO queen.schema_functions (digest) VALUES ($1)", digest)


def source(revision: str, folder: Path) -> Path:
    """The code of that revision, below `folder`. Where the repository does not have it, the test is left out."""
    archive = subprocess.run(
        ["git", "-C", str(_ROOT), "archive", revision, "src/queenmq"],
        capture_output=True,
        check=False,
    )
    if archive.returncode != 0:
        lacks = f"the repository does not have revision {revision}, whose servers run in this test"
        assert os.environ.get("QUEEN_REQUIRE_HISTORY") != "1", (
            f"{lacks}, and QUEEN_REQUIRE_HISTORY demands it: fetch the whole history (git fetch --unshallow)"
        )
        pytest.skip(f"{lacks}: fetch the whole history (git fetch --unshallow)")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"
