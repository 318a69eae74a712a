"""`kill -9` of the server and of PostgreSQL under load: whatever was answered with 201 is there, once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from ports import free_port

PRODUCERS = 6
ROUNDS = int(os.environ.get("QUEEN_CHAOS_ROUNDS", "2"))
PUSHES_BETWEEN_KILLS = 150
PATIENCE_S = 120
QUEEN = "import sys; from queenmq.cli.main import main; sys.exit(main())"


class Queen:
    """`queen serve` as a process that can be killed and started again on the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PG_", "DATABASE_"))}
        environment |= {"PORT": str(self.port), "QUEEN_DATA_DIR": str(self.folder)}
        with (self.folder.parent / "serve.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", QUEEN, "serve", env=environment, stdout=log, stderr=log
            )
        await self.healthy()

    async def healthy(self) -> None:
        async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient() as client:
            while True:
                assert self.process is not None
                assert self.process.returncode is None, (self.folder.parent / "serve.log").read_text()
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(self.url + "/health")).status_code == 200:
                        return
                await asyncio.sleep(0.05)

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    def kill_postgres(self) -> None:
        """All of PostgreSQL at once, as a power cut would: the postmaster and its children."""
        postmaster = int((self.folder / "postgres" / "postmaster.pid").read_text().splitlines()[0])
        for pid in (postmaster, *children(postmaster)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            assert await asyncio.wait_for(self.process.wait(), PATIENCE_S) == 0


def children(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                found.append(int(folder.name))
    return found


class Load:
    """Producers that push to their own partitions one after the other and note what was answered with 201."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acknowledged: dict[str, list[int]] = defaultdict(list)
        self.answers = 0
        self.progress = asyncio.Event()
        self.done = False

    async def produce(self, lane: str) -> None:
        number = 0
        async with httpx.AsyncClient(base_url=self.url, timeout=30) as client:
            while not self.done:
                number += 1
                if await self._push(client, lane, number):
                    self.acknowledged[lane].append(number)
                    self.answers += 1
                    self.progress.set()

    async def _push(self, client: httpx.AsyncClient, lane: str, number: int) -> bool:
        """Push until it is answered, as a careful producer does: the same transactionId makes repeats harmless."""
        item = {"queue": "chaos", "partition": lane, "transactionId": f"{lane}:{number}", "payload": number}
        while not self.done:
            with contextlib.suppress(httpx.HTTPError):
                answer = await client.post("/api/v1/push", json={"items": [item]})
                if answer.status_code == 201:
                    assert answer.json()[0]["status"] in ("queued", "duplicate")
                    return True
                assert answer.status_code == 503, answer.text
            await asyncio.sleep(0.02)
        return False

    async def more(self, answers: int) -> None:
        goal = self.answers + answers
        async with asyncio.timeout(PATIENCE_S):
            while self.answers < goal:
                self.progress.clear()
                await self.progress.wait()


@contextlib.asynccontextmanager
async def producing(url: str) -> AsyncIterator[Load]:
    load = Load(url)
    async with asyncio.TaskGroup() as tasks:
        for number in range(PRODUCERS):
            tasks.create_task(load.produce(f"lane-{number}"))
        try:
            yield load
        finally:
            load.done = True


async def drain(url: str) -> dict[str, list[int]]:
    """Everything stored, by lane, in the order of delivery."""
    delivered: dict[str, list[int]] = defaultdict(list)
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        while True:
            answer = await client.get("/api/v1/pop/queue/chaos", params={"batch": 1000, "autoAck": "true"})
            if answer.status_code == 204:
                return delivered
            for message in answer.json()["messages"]:
                delivered[message["partition"]].append(message["data"])


@pytest.fixture
async def queen(tmp_path: Path) -> AsyncIterator[Queen]:
    (tmp_path / "data").mkdir()
    running = Queen(tmp_path / "data")
    await running.start()
    yield running
    await running.stop()


def audit(load: Load, delivered: dict[str, list[int]]) -> None:
    assert load.answers > 0
    for lane, numbers in load.acknowledged.items():
        counts = Counter(delivered[lane])
        assert not [n for n in numbers if counts[n] != 1], f"{lane}: lost or doubled"
        assert delivered[lane] == sorted(delivered[lane]), f"{lane}: out of order"


async def test_the_server_is_killed_under_load(queen: Queen) -> None:
    async with producing(queen.url) as load:
        for _ in range(ROUNDS):
            await load.more(PUSHES_BETWEEN_KILLS)
            await queen.kill()
            await queen.start()
        await load.more(PUSHES_BETWEEN_KILLS)
    audit(load, await drain(queen.url))


async def test_postgres_is_killed_under_load(queen: Queen) -> None:
    """The server stays up, pushes wait or are answered with 503, and PostgreSQL is started again by itself."""
    async with producing(queen.url) as load:
        for _ in range(ROUNDS):
            await load.more(PUSHES_BETWEEN_KILLS)
            queen.kill_postgres()
        await load.more(PUSHES_BETWEEN_KILLS)
    audit(load, await drain(queen.url))


async def test_both_are_killed_under_load(queen: Queen) -> None:
    async with producing(queen.url) as load:
        for _ in range(ROUNDS):
            await load.more(PUSHES_BETWEEN_KILLS)
            queen.kill_postgres()
            await queen.kill()
            await queen.start()
        await load.more(PUSHES_BETWEEN_KILLS)
    audit(load, await drain(queen.url))
