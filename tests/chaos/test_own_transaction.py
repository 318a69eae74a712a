"""`kill -9` at every step of `queen.send` and `queen.finish`, of the application and of the server: after each, the
application's table and the queues have the same ids."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from integration.queen import until

from queenmq.client import Queen
from queenmq.server import Server

NUMBERS = 4
PATIENCE_S = 120

# Each line of its input is a step: a child does the work and dies there; `none` lets it live. The answer is how it
# ended. So Python starts once for all of them.
CHILDREN = """
import asyncio, os, sys

def run(work):
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(work(line.strip()))
            os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)

def die():
    os.kill(os.getpid(), 9)
"""

APPLICATION = """
import asyncpg
from queenmq.client import Queen

dying = [""]

class Connection(asyncpg.Connection):
    async def execute(self, statement, *arguments):
        if statement == "COMMIT;" and dying[0] == "finished":
            die()
        if statement == "COMMIT;" and dying[0] == "committing":
            asyncio.ensure_future(super().execute(statement))
            await asyncio.sleep(0)
            die()
        return await super().execute(statement, *arguments)

async def work(step):
    connection = await asyncpg.connect(sys.argv[2], connection_class=Connection)

    async def handle(message):
        number = message.data
        dying[0] = step if number % 4 == 2 else ""
        async with message.transaction(connection):
            if dying[0] == "begun":
                die()
            await connection.execute("INSERT INTO public.effects (number) VALUES ($1)", number)
            if dying[0] == "written":
                die()
            sent = await connection.fetchval("SELECT queen.send('out', 'p', to_jsonb($1::int))", number)
            await connection.execute("UPDATE public.effects SET message_id = $2 WHERE number = $1", number, sent)
            if dying[0] == "sent":
                die()
        if dying[0] == "committed":
            die()

    async with Queen(sys.argv[1]) as queen:
        await queen.queue("in").partition("p").auto_ack(False).idle_millis(1500).consume(handle)
    await connection.close()

run(work)
"""
OF_THE_APPLICATION = ("begun", "written", "sent", "finished", "committing", "committed")

SERVER = """
from server_settings import settings_with
from queenmq.broker import outbox
from queenmq.broker.accepted import AcceptedPush
from queenmq.server import Server

async def work(step):
    store, remove, announce, seen = AcceptedPush.store, outbox._remove, AcceptedPush.announce, asyncio.Event()

    async def storing(*given):
        if step == "read":
            die()
        stored = await store(*given)
        if step == "stored":
            die()
        return stored

    async def removing(*given):
        removed = await remove(*given)
        if step == "removed":
            die()
        return removed

    def announcing(*given):
        if step == "committed":
            die()
        announce(*given)
        seen.set()

    AcceptedPush.store, outbox._remove, AcceptedPush.announce = storing, removing, announcing
    server = Server(settings_with(), sys.argv[1])
    await server.start()
    await seen.wait()
    await server.stop()

run(work)
"""
OF_THE_SERVER = ("read", "stored", "removed", "committed")

IDS = """
    SELECT m.id FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id
    JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'out' ORDER BY m."offset"
"""


class Children:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, step: str) -> None:
        """One child, which dies at that step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{step}\n".encode())
        ended = int(await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S))
        assert ended == (0 if step == "none" else signal.SIGKILL), step


@asynccontextmanager
async def children(program: str, *arguments: str) -> AsyncIterator[Children]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILDREN + program, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    try:
        yield Children(process)
    finally:
        process.kill()
        await process.wait()


@pytest.fixture
async def table(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url)
    await connection.execute("CREATE TABLE public.effects (number integer, message_id uuid)")
    yield connection
    await connection.close()


async def audit(table: asyncpg.Connection) -> list[int]:
    """Wait until everything is pushed; the numbers of the table, after a check that the queue has the same ids."""

    async def is_empty() -> bool:
        return not await table.fetchval("SELECT EXISTS (SELECT FROM queen.outbox)")

    await until(is_empty, PATIENCE_S)
    effects = await table.fetch("SELECT number, message_id FROM public.effects ORDER BY number")
    sent = [row["id"] for row in await table.fetch(IDS)]
    assert sent == [row["message_id"] for row in effects]
    return [row["number"] for row in effects]


async def test_the_application_is_killed(server: Server, table: asyncpg.Connection, database_url: str) -> None:
    host, port = server.address
    url = f"http://{host}:{port}"
    async with Queen(url) as queen, children(APPLICATION, url, database_url) as applications:
        await queen.queue("in").config(lease_time=1).create()
        for place, step in enumerate(OF_THE_APPLICATION):
            numbers = range(place * NUMBERS, (place + 1) * NUMBERS)
            await queen.queue("in").partition("p").push(list(numbers))
            await applications.run(step)
            done = await audit(table)
            last = numbers[2] if step == "committed" else numbers[1]
            assert done in ([list(range(last + 1))] + ([list(range(last + 2))] if step == "committing" else [])), step
            await applications.run("none")
            assert await audit(table) == list(range(numbers[-1] + 1)), step
        assert await queen.queue("in").partition("p").wait(False).pop() == []


async def test_the_server_is_killed(table: asyncpg.Connection, database_url: str) -> None:
    async with children(SERVER, database_url) as servers:
        for place, step in enumerate(OF_THE_SERVER):
            numbers = range(place * NUMBERS, (place + 1) * NUMBERS)
            for number in numbers:
                await table.execute(
                    "INSERT INTO public.effects VALUES ($1, queen.send('out', 'p', to_jsonb($1::integer)))", number
                )
            await servers.run(step)
            is_there = step == "committed"
            assert len(await table.fetch(IDS)) == numbers.start + (NUMBERS if is_there else 0), step
            if not is_there:
                await servers.run("none")
            assert await audit(table) == list(range(numbers.stop)), step
