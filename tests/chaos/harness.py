"""Real processes under load: a server that can be killed and started again, producers, and the audit afterwards."""

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
from ports import free_port

from queenmq.storage.datafolder import running_url

PRODUCERS = 6
PATIENCE_S = 120
QUEEN = "import sys; from queenmq.cli.main import main; sys.exit(main())"


class Queen:
    """`queen serve` as a process that can be killed and started again on the same folder."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.variables = variables
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PG_", "DATABASE_"))}
        environment |= {"PORT": str(self.port), "QUEEN_DATA_DIR": str(self.folder)} | self.variables
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
        self.signal_postgres(signal.SIGKILL)

    def signal_postgres(self, number: signal.Signals) -> None:
        postmaster = self.postmaster()
        for pid in (postmaster, *children(postmaster)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def restart_postgres(self) -> None:
        """An orderly stop that cuts every session; the server starts it again."""
        os.kill(self.postmaster(), signal.SIGINT)

    def postmaster(self) -> int:
        return int((self.folder / "postgres" / "postmaster.pid").read_text().splitlines()[0])

    def database_url(self) -> str:
        return running_url(self.folder)

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
    """Producers that push to their own partitions one after the other and note what was accepted."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acknowledged: dict[str, list[int]] = defaultdict(list)
        self.answers = 0
        self.deferred = 0
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
                if answer.status_code in (201, 202):
                    self.deferred += answer.status_code == 202
                    assert answer.json()[0]["status"] in ("queued", "duplicate", "buffered")
                    return True
                assert answer.status_code in (429, 503), answer.text
            await asyncio.sleep(0.02)
        return False

    async def more(self, answers: int) -> None:
        goal = self.answers + answers
        async with asyncio.timeout(PATIENCE_S):
            while self.answers < goal:
                self.progress.clear()
                await self.progress.wait()


@contextlib.asynccontextmanager
async def producing(url: str, kind: type[Load] = Load) -> AsyncIterator[Load]:
    load = kind(url)
    async with asyncio.TaskGroup() as tasks:
        for number in range(PRODUCERS):
            tasks.create_task(load.produce(f"lane-{number}"))
        try:
            yield load
        finally:
            load.done = True


async def replayed(client: httpx.AsyncClient) -> None:
    """Return when the journal and the operation queue are empty."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(httpx.HTTPError, KeyError):
                stats = (await client.get("/api/v1/operations/stats")).json()
                open_operations = [one for one in stats["stats"] if one["status"] in ("pending", "processing")]
                if stats["journal"]["operations"] == 0 and not open_operations:
                    return
            await asyncio.sleep(0.05)


async def drain(url: str) -> dict[str, list[int]]:
    """Everything stored, by lane, in the order of delivery."""
    delivered: dict[str, list[int]] = defaultdict(list)
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        await replayed(client)
        while True:
            answer = await client.get("/api/v1/pop/queue/chaos", params={"batch": 1000, "autoAck": "true"})
            if answer.status_code == 204:
                return delivered
            for message in answer.json()["messages"]:
                delivered[message["partition"]].append(message["data"])


def audit(load: Load, delivered: dict[str, list[int]]) -> None:
    assert load.answers > 0
    for lane, numbers in load.acknowledged.items():
        counts = Counter(delivered[lane])
        assert not [n for n in numbers if counts[n] != 1], f"{lane}: lost or doubled"
        assert delivered[lane] == sorted(delivered[lane]), f"{lane}: out of order"
