"""`queen outbox`: tables whose changes are sent."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from cli.conftest import Run, Running
from queenmq.client import BlockingQueen


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture
def table(running: Running, environment: pytest.MonkeyPatch) -> str:
    environment.setenv("DATABASE_URL", running.database_url)
    drop = 'DROP TABLE IF EXISTS public."Some people"'
    asyncio.run(_execute(running.database_url, drop, 'CREATE TABLE "Some people" (id integer PRIMARY KEY, "a b" text)'))
    return 'public."Some people"'


def test_a_table_is_attached_listed_and_detached(
    queen: Run, running: Running, client: BlockingQueen, table: str, name: str
) -> None:
    assert queen("outbox").out == ""
    done = queen("outbox", "attach", table, "--queue", name, "--partitions", "3", "--exclude", "a b")
    assert (done.status, done.out) == (0, f"attached: changes of {table} are sent to {name}\n")
    assert queen("outbox", "list", "--json").json == [
        {"table": table, "queue": name, "partitions": 3, "exclude": ["a b"], "isDisabled": False}
    ]
    assert name in queen("outbox", "list").out
    asyncio.run(_execute(running.database_url, f"INSERT INTO {table} VALUES (1, 'x')"))
    [message] = client.queue(name).pop()
    assert message.data["row"] == {"id": 1}
    assert queen("outbox", "detach", table, "--queue", "another").status == 3
    done = queen("outbox", "detach", table)
    assert (done.status, done.out) == (0, f"detached: {table}, from 1 queue\n")
    assert queen("outbox", "list", "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (("public.nobody", "--queue", "q"), 1, 'relation "public.nobody" does not exist'),
        (("queen.messages", "--queue", "q"), 1, "it is no table of an application"),
        (("TABLE", "--queue", "q", "--exclude", "nose"), 1, 'public."Some people" has no column nose'),
        (("TABLE", "--queue", "q", "--partitions", "0"), 2, "1<=x<=1000"),
        (("TABLE",), 2, "--queue"),
    ],
)
def test_what_cannot_be_attached(
    queen: Run, table: str, arguments: tuple[str, ...], status: int, sentence: str
) -> None:
    done = queen("outbox", "attach", *(table if one == "TABLE" else one for one in arguments))
    assert done.status == status
    assert sentence in done.err


def test_a_table_that_is_locked(queen: Run, running: Running, table: str) -> None:
    """The command gives up, so that writers do not wait behind it."""

    async def attach_meanwhile() -> None:
        holder = await asyncpg.connect(running.database_url)
        async with holder.transaction():
            await holder.execute(f"LOCK TABLE {table}")
            done = await asyncio.to_thread(queen, "outbox", "attach", table, "--queue", "q")
        await holder.close()
        assert (done.status, "locked for 5 s" in done.err) == (6, True)

    asyncio.run(attach_meanwhile())
