"""message.transaction(connection): what the handler writes and the acknowledgement are one commit."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest
from integration.queen import until

from queenmq.client import InvalidUse, Message, Queen

PROGRAM = """
import asyncio, os, sys
import asyncpg
from queenmq.client import Queen

async def main(url, database, dies):
    connection = await asyncpg.connect(database)
    queen = Queen(url)

    async def handle(message):
        number = message.data["n"]
        async with message.transaction(connection):
            await connection.execute("INSERT INTO public.effects VALUES ($1)", number)
            if number == dies and sys.argv[4] == "before the finish":
                os.kill(os.getpid(), 9)
        if number == dies and sys.argv[4] == "after the commit":
            os.kill(os.getpid(), 9)

    await queen.queue("steps").partition("p").auto_ack(False).limit(100).idle_millis(1000).consume(handle)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.fixture
async def table(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url)
    await connection.execute("CREATE TABLE public.effects (number integer)")
    yield connection
    await connection.execute("DROP TABLE public.effects")
    await connection.close()


async def popped(queen: Queen, *numbers: int) -> list[Message]:
    steps = queen.queue("steps").partition("p")
    await steps.push([{"n": number} for number in numbers])
    return await steps.batch(10).pop()


async def effects(table: asyncpg.Connection) -> list[int]:
    return [row["number"] for row in await table.fetch("SELECT number FROM public.effects ORDER BY number")]


async def left(queen: Queen) -> list[int]:
    return [message.data["n"] for message in await queen.queue("steps").partition("p").wait(False).batch(10).pop()]


async def test_with_asyncpg(queen: Queen, table: asyncpg.Connection) -> None:
    for message in await popped(queen, 1, 2):
        async with message.transaction(table) as connection:
            await connection.execute("INSERT INTO public.effects VALUES ($1)", message.data["n"])
    assert await effects(table) == [1, 2]
    await popped(queen, 3)
    assert (await effects(table), await left(queen)) == ([1, 2], [])


async def test_with_a_connection_of_a_pool(queen: Queen, table: asyncpg.Connection, database_url: str) -> None:
    [message] = await popped(queen, 1)
    pools = asyncpg.create_pool(database_url, min_size=1)
    async with pools as pool, pool.acquire() as connection, message.transaction(connection):
        await connection.execute("INSERT INTO public.effects VALUES (1)")
    assert (await effects(table), await left(queen)) == ([1], [])


async def test_with_psycopg(queen: Queen, table: asyncpg.Connection, database_url: str) -> None:
    [message] = await popped(queen, 1)
    connecting = psycopg.AsyncConnection.connect(database_url, autocommit=True)
    async with await connecting as connection, message.transaction(connection):
        await connection.execute("INSERT INTO public.effects VALUES (%s)", (message.data["n"],))
    assert (await effects(table), await left(queen)) == ([1], [])


async def test_with_psycopg_without_an_event_loop(queen: Queen, table: asyncpg.Connection, database_url: str) -> None:
    [message] = await popped(queen, 1)

    def work() -> None:
        with psycopg.connect(database_url, autocommit=True) as connection, message.transaction(connection):
            connection.execute("INSERT INTO public.effects VALUES (%s)", (message.data["n"],))

    await asyncio.to_thread(work)
    assert (await effects(table), await left(queen)) == ([1], [])


async def test_a_connection_that_is_in_a_transaction_is_refused(
    queen: Queen, table: asyncpg.Connection, database_url: str
) -> None:
    """Its own end would only end a savepoint: nothing would be committed."""
    [message] = await popped(queen, 1)
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute("SELECT 1")
        with pytest.raises(InvalidUse, match="in a transaction already"):
            async with message.transaction(connection):
                pass
    async with table.transaction():
        with pytest.raises(InvalidUse, match="in a transaction already"):
            async with message.transaction(table):
                pass
    assert (await queen.ack(message)).success


async def test_an_error_rolls_both_back(queen: Queen, table: asyncpg.Connection) -> None:
    [message] = await popped(queen, 1)
    with pytest.raises(RuntimeError):
        async with message.transaction(table):
            await table.execute("INSERT INTO public.effects VALUES (1)")
            raise RuntimeError("no such customer")
    assert await effects(table) == []
    assert (await queen.ack(message)).success


async def test_a_lease_that_is_over_rolls_everything_back(queen: Queen, table: asyncpg.Connection) -> None:
    [message] = await popped(queen, 1)
    await queen.ack(message)
    with pytest.raises(asyncpg.PostgresError) as refused:
        async with message.transaction(table):
            await table.execute("INSERT INTO public.effects VALUES (1)")
    assert refused.value.sqlstate == "QN009"
    assert await effects(table) == []


async def test_what_cannot_be_finished(queen: Queen, table: asyncpg.Connection) -> None:
    [message] = await popped(queen, 1)
    with pytest.raises(TypeError, match="is no connection of asyncpg, psycopg 3, SQLAlchemy or Django"):
        message.transaction(object())
    consumed = Message(id=message.id, transaction_id="t", partition_id="p")
    with pytest.raises(Exception, match="consumed at delivery"):
        consumed.transaction(table)


@pytest.mark.parametrize("moment", ["before the finish", "after the commit"])
async def test_exactly_once_though_the_process_is_killed(
    queen: Queen, table: asyncpg.Connection, database_url: str, url: str, moment: str
) -> None:
    numbers = list(range(1, 6))
    await queen.queue("steps").config(lease_time=1).create()
    await queen.queue("steps").partition("p").push([{"n": number} for number in numbers])

    def run(dies: int) -> int:
        command: list[Any] = [sys.executable, "-c", PROGRAM, url, database_url, str(dies), moment]
        return subprocess.run(command, timeout=120, env=os.environ.copy(), check=False).returncode

    assert await asyncio.to_thread(run, 3) == -signal.SIGKILL

    async def all_done() -> bool:
        await asyncio.to_thread(run, 0)
        return len(await effects(table)) >= len(numbers)

    await until(all_done, 120)
    assert await effects(table) == numbers
    assert await left(queen) == []
