"""Servers of two versions as processes on one database, which are exchanged while they get requests.

Nothing is tried again: every answer but the usual ones is a failure. A server is taken out of the rotation before it
stops, as a load balancer does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from ports import free_port

PATIENCE_S = 120
QUEEN = "import sys; from queenmq.cli.main import main; sys.exit(main())"
# What came after df38507, and after 75a0ad4.
LATER = "finish, connections, timers, pauses"
NEWEST = "conflation, limits of keys"


class Process:
    """`queen serve` of the code below `source`."""

    def __init__(self, source: Path, database_url: str, folder: Path, name: str, can: frozenset[str]) -> None:
        """`can` is what not every version can, of `LATER` and `NEWEST`."""
        self._source = source
        self.can = can
        self._database_url = database_url
        self._folder = folder / name
        self._folder.mkdir()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.in_flight = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    async def start(self) -> Process:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PG_", "DATABASE_"))}
        environment |= {
            "PORT": str(self.port),
            "DATABASE_URL": self._database_url,
            "FILE_BUFFER_DIR": str(self._folder / "journal"),
            "PYTHONPATH": str(self._source),
            "QUEEN_OUTAGE_AFTER_MS": "30000",
        }
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", QUEEN, "serve", env=environment, stdout=log, stderr=log, cwd=self._folder
            )
        async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient() as client:
            while True:
                assert self._process.returncode is None, self.log
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(self.url + "/health")).status_code == 200:
                        return self
                await asyncio.sleep(0.05)

    async def refused(self) -> str:
        """What a server says that does not start."""
        with contextlib.suppress(AssertionError):
            await self.start()
        assert self._process is not None
        assert await asyncio.wait_for(self._process.wait(), PATIENCE_S) != 0
        return self.log

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            assert await asyncio.wait_for(self._process.wait(), PATIENCE_S) == 0, self.log


class Rotation:
    """The servers that get requests."""

    def __init__(self) -> None:
        self.servers: list[Process] = []
        self.client = httpx.AsyncClient(timeout=60)
        self.chance = random.Random(17)
        self.answers: Counter[str] = Counter()

    async def call(self, method: str, path: str, *usual: int, **options: Any) -> Any:
        return await self._call(self.chance.choice(self.servers), method, path, *usual, **options)

    def able(self, what: str) -> list[Process]:
        return [server for server in self.servers if what in server.can]

    async def call_able(self, what: str, method: str, path: str, *usual: int, **options: Any) -> Any:
        """What not every version can do. Waits while no server that can is there."""
        async with asyncio.timeout(PATIENCE_S):
            while not (able := self.able(what)):
                await asyncio.sleep(0.02)
        return await self._call(self.chance.choice(able), method, path, *usual, **options)

    async def _call(self, server: Process, method: str, path: str, *usual: int, **options: Any) -> Any:
        server.in_flight += 1
        try:
            answer = await self.client.request(method, server.url + path, **options)
        finally:
            server.in_flight -= 1
        self.answers[f"{method} {path.split('/')[3]} {answer.status_code}"] += 1
        assert answer.status_code in usual, (server.url, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    async def take_out(self, server: Process) -> None:
        self.servers.remove(server)
        async with asyncio.timeout(PATIENCE_S):
            while server.in_flight:
                await asyncio.sleep(0.01)
        await server.stop()
