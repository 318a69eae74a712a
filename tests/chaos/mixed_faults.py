"""What may go wrong, each for a while and then mended: processes, PostgreSQL, the network, strangers, operators."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import httpx
import psutil
from cluster.processes import ServeProcess
from integration.proxy import Proxy

from chaos.harness import children
from chaos.mixed_load import GROUPS, MOVED, MOVER, PUSHED_TO, WORK, Ledger, Name, partition_name
from queenmq.storage.embedded import EmbeddedPostgres

KEY = "QUEEN_ENCRYPTION_KEY"
SQLSTATES = ("53200", "XX000", "42501", "58030", "P0001", "40001", "57014")
HEAL_S = 180.0  # however busy the machine is
# Of a stranger's session: another fault has ended it.
BROKEN = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

# A trigger that reads a switch: to make and drop one under load would be a fault of its own.
FAILING = """
    CREATE TABLE public.failing (sqlstate text);
    CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        code text;
    BEGIN
        SELECT sqlstate INTO code FROM public.failing LIMIT 1;
        IF code IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = code, MESSAGE = 'made to fail';
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER fail AFTER INSERT ON queen.messages FOR EACH STATEMENT EXECUTE FUNCTION public.fail();
"""
INSERT = """
    INSERT INTO queen.messages (partition_id, transaction_id, payload)
    SELECT p.id, $3, 'null' FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id
    WHERE q.name = $1 AND p.name = $2
    RETURNING transaction_id
"""
HOLD_POSITION = """
    SELECT 1 FROM queen.partition_consumers c JOIN queen.partitions p ON p.id = c.partition_id
    JOIN queen.queues q ON q.id = c.queue_id
    WHERE q.name = $1 AND p.name = $2 AND c.consumer_group = $3 FOR UPDATE OF c
"""


@contextlib.asynccontextmanager
async def healing(what: str) -> AsyncIterator[None]:
    """What stays broken is no fault that ends, and everything after it would only show that."""
    try:
        async with asyncio.timeout(HEAL_S):
            yield
    except TimeoutError:
        raise AssertionError(f"{what} after {HEAL_S:.0f} s") from None


class Faults:
    def __init__(self, postgres: EmbeddedPostgres, url: str, servers: list[ServeProcess], relays: list[Proxy]) -> None:
        self.postgres = postgres
        self.url = url
        self.servers = servers
        self.relays = relays
        self.ledger = Ledger()
        self.injected: Counter[str] = Counter()
        self.key = servers[0].variables[KEY]
        self._in_use: dict[str, asyncio.Lock] = {}
        self._strangers = 0
        self._seen: set[psutil.Process] = set()

    @property
    def all(self) -> list[Callable[[random.Random, float], Awaitable[None]]]:
        return [
            self.worker_killed,
            self.server_killed,
            self.parent_killed,
            self.process_frozen,
            self.postgres_frozen,
            self.postgres_killed,
            self.connections_silent,
            self.connections_cut,
            self.database_unreachable,
            self.row_held,
            self.message_inserted,
            self.message_inserted,
            self.table_locked,
            self.inserts_fail,
            self.inserts_fail,
            self.pushes_maintained,
            self.pops_maintained,
            self.key_missing,
        ]

    async def run(
        self, fault: Callable[[random.Random, float], Awaitable[None]], chance: random.Random, s: float
    ) -> None:
        name = fault.__name__
        print(f"{asyncio.get_running_loop().time():.2f} {name} for {s:.2f} s", flush=True)  # noqa: T201
        with contextlib.suppress(*BROKEN):
            await fault(chance, s)
        self.injected[name] += 1

    @contextlib.asynccontextmanager
    async def _only_one(self, what: str) -> AsyncIterator[None]:
        """Two faults at the same thing would be one that nobody mends."""
        async with self._in_use.setdefault(what, asyncio.Lock()):
            yield

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[asyncpg.Connection]:
        """A stranger's session, not through the relay."""
        connection = await asyncpg.connect(self.url, timeout=10)
        try:
            await connection.execute("SET lock_timeout = '2s'")
            yield connection
        finally:
            connection.terminate()

    # Processes

    def family(self, server: ServeProcess) -> list[psutil.Process]:
        """The processes of a server: its parent first, then its workers."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(server.pid)
            workers = [p for p in parent.children() if "queenmq.cli.workers" in p.cmdline()]
            self._seen.update(workers)
            return [parent, *workers]
        return []

    def left_over(self) -> list[psutil.Process]:
        """Workers that live although their parents are gone."""
        current = {worker for server in self.servers for worker in self.family(server)}
        return [p for p in self._seen - current if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    async def worker_killed(self, chance: random.Random, _: float) -> None:
        async with self._only_one("server 0"):
            workers = self.family(self.servers[0])[1:]
            if workers:
                chance.choice(workers).kill()

    async def server_killed(self, chance: random.Random, s: float) -> None:
        number = chance.randrange(len(self.servers))
        async with self._only_one(f"server {number}"):
            server = self.servers[number]
            for process in self.family(server):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            server.kill()
            await asyncio.sleep(s / 2)
            await server.start()

    async def parent_killed(self, chance: random.Random, _: float) -> None:
        """Its workers notice and end by themselves, while the next ones start."""
        async with self._only_one("server 0"):
            workers = self.family(self.servers[0])[1:]
            self.servers[0].kill()
            async with healing("the workers of a parent that was killed still listen"):
                while any(listens(worker) for worker in workers):
                    await asyncio.sleep(0.01)
            await self.servers[0].start()

    async def process_frozen(self, chance: random.Random, s: float) -> None:
        number = chance.randrange(len(self.servers))
        async with self._only_one(f"server {number}"):
            family = self.family(self.servers[number])
            if not family:
                return
            victim = chance.choice(family)
            victim.suspend()
            await asyncio.sleep(s)
            victim.resume()

    async def key_missing(self, chance: random.Random, s: float) -> None:
        number = chance.randrange(len(self.servers))
        async with self._only_one(f"server {number}"):
            server = self.servers[number]
            await asyncio.to_thread(server.stop)
            del server.variables[KEY]
            await server.start()
            await asyncio.sleep(s)
            await asyncio.to_thread(server.stop)
            server.variables[KEY] = self.key
            await server.start()

    # PostgreSQL and the way to it

    def _signal_postgres(self, number: signal.Signals) -> None:
        parent = self.postgres.pid
        if parent is None:
            return
        for pid in (parent, *children(parent)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def postgres_frozen(self, _: random.Random, s: float) -> None:
        async with self._only_one("postgres"):
            self._signal_postgres(signal.SIGSTOP)
            await asyncio.sleep(s)
            self._signal_postgres(signal.SIGCONT)

    async def postgres_killed(self, _: random.Random, s: float) -> None:
        async with self._only_one("postgres"):
            self._signal_postgres(signal.SIGKILL)
            await self._postgres_answers()

    async def _postgres_answers(self) -> None:
        async with healing("PostgreSQL does not answer"):
            while True:
                with contextlib.suppress(*BROKEN):
                    connection = await asyncpg.connect(self.url, timeout=10)
                    await connection.close()
                    return
                await asyncio.sleep(0.1)

    async def connections_silent(self, chance: random.Random, s: float) -> None:
        chance.choice(self.relays).silence(swallow_requests=chance.random() < 0.5)
        await asyncio.sleep(s)

    async def connections_cut(self, chance: random.Random, s: float) -> None:
        chance.choice(self.relays).cut()
        await asyncio.sleep(s / 4)

    async def database_unreachable(self, chance: random.Random, s: float) -> None:
        number = chance.randrange(len(self.relays))
        async with self._only_one(f"relay {number}"):
            await self.relays[number].close()
            await asyncio.sleep(s)
            await self.relays[number].open()

    # Strangers in the database

    async def row_held(self, chance: random.Random, s: float) -> None:
        queue = chance.choice((*PUSHED_TO, MOVED))
        partition = partition_name(chance.randrange(PUSHED_TO.get(queue, PUSHED_TO[WORK])))
        group = chance.choice((*GROUPS, MOVER))
        end = chance.choice(("COMMIT", "ROLLBACK"))
        async with self._session() as stranger:
            await stranger.execute("BEGIN")
            await stranger.fetch(HOLD_POSITION, queue, partition, group)
            await asyncio.sleep(s)
            await stranger.execute(end)

    async def message_inserted(self, chance: random.Random, s: float) -> None:
        self._strangers += 1
        partition = partition_name(chance.randrange(PUSHED_TO[WORK]))
        name = Name(WORK, partition, f"stranger:{self._strangers}")
        commits = chance.random() < 0.5
        self.ledger.strangers[name] = False
        async with self._session() as stranger:
            await stranger.execute("BEGIN")
            if not await stranger.fetch(INSERT, *name):
                return
            await asyncio.sleep(s)
            if commits:
                self.ledger.strangers[name] = None
                await stranger.execute("COMMIT")
                self.ledger.strangers[name] = True
            else:
                await stranger.execute("ROLLBACK")

    async def table_locked(self, _: random.Random, s: float) -> None:
        async with self._session() as stranger:
            await stranger.execute("BEGIN")
            await stranger.execute("LOCK TABLE queen.messages")
            await asyncio.sleep(s)
            await stranger.execute("COMMIT")

    async def inserts_fail(self, chance: random.Random, s: float) -> None:
        async with self._only_one("inserts"):
            self.ledger.inserts_failed = True
            try:
                async with self._session() as stranger:
                    await stranger.execute("INSERT INTO public.failing VALUES ($1)", chance.choice(SQLSTATES))
                    await asyncio.sleep(s)
            finally:
                await self.mend_inserts()

    async def mend_inserts(self) -> None:
        async with healing("inserts still fail"):
            while True:
                with contextlib.suppress(*BROKEN):
                    async with self._session() as stranger:
                        await stranger.execute("DELETE FROM public.failing")
                        return
                await asyncio.sleep(0.1)

    # Operators

    async def pushes_maintained(self, chance: random.Random, s: float) -> None:
        await self._maintained("/api/v1/system/maintenance", chance, s)

    async def pops_maintained(self, chance: random.Random, s: float) -> None:
        await self._maintained("/api/v1/system/maintenance/pop", chance, s)

    async def _maintained(self, path: str, chance: random.Random, s: float) -> None:
        async with self._only_one(path):
            await self.switch(path, True, chance.choice(self.servers).url)
            await asyncio.sleep(s)
            await self.switch(path, False, chance.choice(self.servers).url)

    async def switch(self, path: str, enabled: bool, url: str) -> None:
        """As often as it takes: the server may be away, and so may its database."""
        async with (
            healing(f"{path} is not {enabled}"),
            httpx.AsyncClient(base_url=url, timeout=10, verify=False) as client,
        ):
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.post(path, json={"enabled": enabled})).status_code == 200:
                        return
                await asyncio.sleep(0.1)


def listens(process: psutil.Process) -> bool:
    try:
        tcp, udp = process.net_connections("tcp"), process.net_connections("udp")
        return bool(udp) or any(one.status == psutil.CONN_LISTEN for one in tcp)
    except psutil.NoSuchProcess:
        return False
