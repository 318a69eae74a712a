"""The version before this one, to run beside it: its schema always, its server where the repository has its history.

Its migrations are the first eight of this one. Its functions are in a file, as one text in the order in which it
made them.
"""

from __future__ import annotations

import hashlib
import lzma
import subprocess
from pathlib import Path

import asyncpg

from queenmq.storage.database import Database
from queenmq.storage.migrations import migrate

REVISION = "df38507"
SCHEMA_VERSION = 8
_ROOT = Path(__file__).parents[2]
_FUNCTIONS = Path(__file__).with_name(f"functions_of_{REVISION}.sql.xz")


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


def source(folder: Path) -> Path | None:
    """The code of that version, below `folder`. None if the repository does not have it."""
    archive = subprocess.run(
        ["git", "-C", str(_ROOT), "archive", REVISION, "src/queenmq"],
        capture_output=True,
        check=False,
    )
    if archive.returncode != 0:
        return None
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"
